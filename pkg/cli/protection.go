// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

func (t *tool) protectionCommand() *cobra.Command {
	var all bool
	var format string
	command := &cobra.Command{
		Use: "protection", Aliases: []string{"protections"}, Short: "List which workloads and claims have a good backup, unprotected ones first",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch format {
			case "", "wide", "json", "yaml":
			default:
				return usage("output %q is unknown: use wide, json or yaml", format)
			}
			client, namespace, err := t.client()
			if err != nil {
				return err
			}
			if all {
				namespace = metav1.NamespaceAll
			}
			list, err := protections(command.Context(), client, namespace)
			if err != nil {
				return err
			}
			if format == "json" || format == "yaml" {
				return t.printObject(list, "protections", "", format, "")
			}
			return t.printProtections(list, all, format == "wide")
		},
	}
	command.Flags().BoolVarP(&all, "all-namespaces", "A", false, "All namespaces.")
	command.Flags().StringVarP(&format, "output", "o", "", "Output format: wide, json or yaml. Default: a table.")
	return command
}

// protections reads all of a namespace, the unprotected ones first.
func protections(ctx context.Context, client holdfastclientset.Interface, namespace string) (*v1alpha1.ProtectionList, error) {
	list := &v1alpha1.ProtectionList{TypeMeta: typed("ProtectionList"), Items: []v1alpha1.Protection{}}
	for options := (metav1.ListOptions{Limit: 5000}); ; {
		page, err := client.HoldfastV1alpha1().Protections(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	rank := []v1alpha1.ProtectionState{v1alpha1.ProtectionNone, v1alpha1.ProtectionUnknown, v1alpha1.ProtectionLate}
	of := func(p *v1alpha1.Protection) int { // a state that this version does not know comes first
		if p.Status.Protected == v1alpha1.ProtectionYes {
			return len(rank)
		}
		return slices.Index(rank, p.Status.Protected)
	}
	slices.SortStableFunc(list.Items, func(a, b v1alpha1.Protection) int {
		return cmp.Or(cmp.Compare(of(&a), of(&b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

func (t *tool) printProtections(list *v1alpha1.ProtectionList, all, wide bool) error {
	if len(list.Items) == 0 {
		fmt.Fprintln(t.ErrOut, "There are no workloads and no claims.")
		return nil
	}
	writer := printers.GetNewTabWriter(t.Out)
	header := "NAME\tPROTECTED\tOBJECTS\tDATA\tSCHEDULE"
	if all {
		header = "NAMESPACE\t" + header
	}
	if wide {
		header += "\tEXPECTED\tMESSAGE"
	}
	fmt.Fprintln(writer, header)
	for i := range list.Items {
		p := &list.Items[i]
		data := "-"
		if p.Spec.Kind == "PersistentVolumeClaim" {
			data = protectedBy(p, p.Status.Data)
		}
		row := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", p.Name, p.Status.Protected, protectedBy(p, p.Status.Objects), data, protectingSchedule(p))
		if all {
			row = p.Namespace + "\t" + row
		}
		if wide {
			row += fmt.Sprintf("\t%s %s\t%s", p.Status.Expectation, p.Status.ExpectedBy, cmp.Or(p.Status.Message, "-"))
		}
		fmt.Fprintln(writer, row)
	}
	return writer.Flush()
}

func protectedBy(p *v1alpha1.Protection, by *v1alpha1.ProtectedBy) string {
	if by == nil {
		return "none"
	}
	name := "another backup"
	if by.Backup.Name != "" {
		name = nameFrom(p.Namespace, by.Backup.Namespace, by.Backup.Name)
	}
	return name + " (" + duration.HumanDuration(time.Since(by.Timestamp.Time)) + ")"
}

func protectingSchedule(p *v1alpha1.Protection) string {
	switch of := p.Status.Schedule; {
	case of == nil:
		return "-"
	case of.Name == "":
		return "another schedule"
	default:
		return nameFrom(p.Namespace, of.Namespace, of.Name)
	}
}

// nameFrom names an object, and its namespace if another.
func nameFrom(namespace, of, name string) string {
	if of == namespace {
		return name
	}
	return of + "/" + name
}

func protectionText(ctx context.Context, client holdfastclientset.Interface, namespace string) string {
	list, err := protections(ctx, client, namespace)
	if err != nil {
		return fmt.Sprintf("not known: %v", err)
	}
	counts := map[v1alpha1.ProtectionState]int{}
	for i := range list.Items {
		counts[list.Items[i].Status.Protected]++
	}
	text := fmt.Sprintf("%d of %d workloads and claims are unprotected", counts[v1alpha1.ProtectionNone], len(list.Items))
	if late := counts[v1alpha1.ProtectionLate]; late > 0 {
		text += fmt.Sprintf(", %d late", late)
	}
	if unknown := counts[v1alpha1.ProtectionUnknown]; unknown > 0 {
		text += fmt.Sprintf(", %d not known", unknown)
	}
	if len(list.Items) > counts[v1alpha1.ProtectionYes] {
		text += ": kubectl holdfast protection"
	}
	return text
}
