// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

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
