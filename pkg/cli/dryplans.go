// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

type section struct {
	header  string
	rows    int
	omitted int64
	row     func(i int) string
}

func printSections(to io.Writer, sections []section) error {
	for _, section := range sections {
		if section.rows == 0 {
			continue
		}
		writer := printers.GetNewTabWriter(to)
		fmt.Fprintln(writer)
		fmt.Fprintln(writer, section.header)
		for i := range section.rows {
			fmt.Fprintln(writer, section.row(i))
		}
		if err := writer.Flush(); err != nil {
			return err
		}
		if section.omitted > 0 {
			fmt.Fprintf(to, "and %d more\n", section.omitted)
		}
	}
	_, err := fmt.Fprintln(to)
	return err
}

func printBackupPlan(to io.Writer, plan *v1alpha1.BackupPlan) error {
	summary := fmt.Sprintf("%d objects", plan.TotalItems)
	if !plan.Complete {
		summary = fmt.Sprintf("not complete, %d objects at least", plan.TotalItems)
	}
	fields := []field{{"Plan", summary}, {"Note", plan.Message}}
	if place := plan.Queue; place != nil {
		fields = append(fields, field{"Queue", fmt.Sprintf("position %d, %s %s", place.Position, place.Reason, place.Message)})
	}
	if err := printFields(to, fields...); err != nil {
		return err
	}
	omitted := plan.Omitted
	if omitted == nil {
		omitted = &v1alpha1.PlanOmissions{}
	}
	return printSections(to, []section{
		{"NAMESPACE\tRESOURCE\tOBJECTS", len(plan.Objects), omitted.Objects, func(i int) string {
			of := plan.Objects[i]
			return fmt.Sprintf("%s\t%s\t%d", cmp.Or(of.Namespace, "-"), of.Resource, of.Count)
		}},
		{"NAMESPACE\tCLAIM\tDATA\tSIZE\tPOD\tWHY", len(plan.Volumes), omitted.Volumes, func(i int) string {
			of := plan.Volumes[i]
			size := "-"
			if of.Bytes > 0 {
				size = resource.NewQuantity(of.Bytes, resource.BinarySI).String()
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", of.Namespace, cmp.Or(of.Claim, "-"), of.Method, size, cmp.Or(of.Pod, "-"), of.Reason)
		}},
		{"NAMESPACE\tCOMES ALONG\tBECAUSE", len(plan.Along), omitted.Along, func(i int) string {
			of := plan.Along[i]
			return fmt.Sprintf("%s\t%s/%s\t%s", cmp.Or(of.Namespace, "-"), of.Resource, cmp.Or(of.Name, "(hidden)"), of.Reason)
		}},
		{"NAMESPACE\tLEFT OUT\tOBJECTS\tWHY", len(plan.LeftOut), omitted.LeftOut, func(i int) string {
			of := plan.LeftOut[i]
			return fmt.Sprintf("%s\t%s\t%d\t%s", cmp.Or(of.Namespace, "-"), of.Resource, of.Count, of.Reason)
		}},
		{"NAMESPACE\tPODS WITH HOOKS\tPRE\tPOST\tALLOWED\tWHY", len(plan.Hooks), 0, func(i int) string {
			of := plan.Hooks[i]
			return fmt.Sprintf("%s\t%d\t%d\t%d\t%t\t%s", of.Namespace, of.Pods, of.Pre, of.Post, of.Allowed, of.Message)
		}},
	})
}

func printRestorePlan(to io.Writer, plan *v1alpha1.RestorePlan) error {
	summary := fmt.Sprintf("%d objects", plan.TotalItems)
	if !plan.Complete {
		summary = fmt.Sprintf("not complete, %d objects at least", plan.TotalItems)
	}
	if err := printFields(to, field{"Plan", summary}, field{"Note", plan.Message}); err != nil {
		return err
	}
	omitted := plan.Omitted
	if omitted == nil {
		omitted = &v1alpha1.RestorePlanOmissions{}
	}
	return printSections(to, []section{
		{"REFUSED BECAUSE", len(plan.Refused), 0, func(i int) string { return plan.Refused[i] }},
		{"NAMESPACE\tRESOURCE\tACTION\tOBJECTS", len(plan.Objects), omitted.Objects, func(i int) string {
			of := plan.Objects[i]
			return fmt.Sprintf("%s\t%s\t%s\t%d", cmp.Or(of.Namespace, "-"), of.Resource, of.Action, of.Count)
		}},
		{"NAMESPACE\tVOLUME\tDATA\tSIZE\tWHY", len(plan.Volumes), omitted.Volumes, func(i int) string {
			of := plan.Volumes[i]
			name, size := of.Claim, "-"
			if name == "" {
				name = "pod:" + of.Pod + ":" + of.Volume
			}
			if of.Bytes > 0 {
				size = strings.TrimSpace(human(of.Bytes))
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", of.Namespace, name, of.Data, size, of.Reason)
		}},
		{"SEVERITY\tNAMESPACE\tOBJECT\tMESSAGE", len(plan.Problems), omitted.Problems, func(i int) string {
			of := plan.Problems[i]
			object := "-"
			if of.Resource != "" {
				object = of.Resource + "/" + of.Name
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s", of.Severity, cmp.Or(of.Namespace, "-"), object, of.Message)
		}},
	})
}

// printPlanned prints the plan in the answer to a dry run, if any.
func printPlanned(to io.Writer, answer runtime.Object) error {
	switch object := answer.(type) {
	case *v1alpha1.Backup:
		if object.Status.Plan != nil {
			return printBackupPlan(to, object.Status.Plan)
		}
	case *v1alpha1.Restore:
		if object.Status.Plan != nil {
			return printRestorePlan(to, object.Status.Plan)
		}
	}
	return nil
}
