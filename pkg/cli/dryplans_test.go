// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestRestorePlanIsPrinted: so is the plan of a restore.
func TestRestorePlanIsPrinted(t *testing.T) {
	var text strings.Builder
	plan := &v1alpha1.RestorePlan{
		TotalItems: 3, Message: "too slow",
		Objects: []v1alpha1.PlannedActions{{Resource: "configmaps", Namespace: "shop", Action: "create", Count: 2}},
		Volumes: []v1alpha1.PlannedRestoreVolume{
			{Namespace: "shop", Claim: "data", Bytes: 1 << 30, Data: v1alpha1.RestoredDataKept, Reason: "it exists"},
			{Namespace: "shop", Pod: "web", Volume: "tmp", Data: v1alpha1.RestoredDataWritten},
		},
		Problems: []v1alpha1.PlannedProblem{{Severity: v1alpha1.ProblemError, Message: "all of it"}, {Severity: v1alpha1.ProblemWarning, Resource: "secrets", Namespace: "shop", Name: "key", Message: "differs"}},
		Omitted:  &v1alpha1.RestorePlanOmissions{Problems: 9},
	}
	if err := printRestorePlan(&text, plan); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not complete, 3 objects at least", "too slow", "shop        configmaps   create   2", "1.0 GiB", "pod:web:tmp", "secrets/key", "and 9 more"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "REFUSED") {
		t.Errorf("an empty list has a table:\n%s", text.String())
	}
}

// TestBackupPlanIsPrinted: a plan is a table for each of its lists that has entries.
func TestBackupPlanIsPrinted(t *testing.T) {
	var text strings.Builder
	plan := &v1alpha1.BackupPlan{
		Complete: true, TotalItems: 3, Message: "0 errors",
		Objects: []v1alpha1.PlannedObjects{{Resource: "configmaps", Namespace: "shop", Count: 2}, {Resource: "namespaces", Count: 1}},
		Volumes: []v1alpha1.PlannedVolume{{Namespace: "shop", Claim: "data", Pod: "db-0", Bytes: 1 << 30, Method: v1alpha1.VolumeMethodFiles, Reason: "mounted"}},
		Along:   []v1alpha1.PlannedRelated{{Resource: "clusterroles"}},
		Hooks:   []v1alpha1.PlannedHooks{{Namespace: "shop", Pods: 1, Pre: 1, Message: "no right"}},
		Queue:   &v1alpha1.PlannedPlace{Position: 2, Reason: v1alpha1.QueueReasonConcurrencyLimit, Message: "one runs"},
		Omitted: &v1alpha1.PlanOmissions{Objects: 7},
	}
	if err := printBackupPlan(&text, plan); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 objects", "position 2, ConcurrencyLimit one runs", "shop        configmaps   2", "and 7 more", "1Gi", "clusterroles/(hidden)", "no right"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "LEFT OUT") {
		t.Errorf("an empty list has a table:\n%s", text.String())
	}
}
