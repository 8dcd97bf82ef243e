// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestDryRunsHavePlans: a dry run is planned for its requester, after all checks of a creation, and
// records nothing. Who may not read the plan of such a restore gets none. Without a plan a warning names
// planOnly.
func TestDryRunsHavePlans(t *testing.T) {
	h := newHarness(t, "get backups shop", "get restores/plan shop", "get restores/results shop")
	h.stored("shop", "daily", "shop")
	dry := func(name string) *v1alpha1.RestorePlan {
		t.Helper()
		h.warnings = nil
		restore, err := h.create("shop", name, v1alpha1.RestoreSpec{BackupName: "daily"}, metav1.DryRunAll)
		if err != nil {
			t.Fatal(err)
		}
		return restore.Status.Plan
	}
	if plan := dry("planned"); plan == nil || plan.TotalItems != 7 || len(h.warnings) > 0 {
		t.Errorf("the plan is %+v, with the warnings %q", plan, h.warnings)
	}
	run := h.planned[0]
	if run.UID == "" || run.UID == "uid-of-shop.planned" || run.Spec.Requester.Username != "jane" || run.Spec.Backup.StoreName != "shop.daily" || run.Spec.Restore.PlanOnly {
		t.Errorf("planned was %+v", run)
	}
	if list, err := h.records.EngineV1alpha1().RestoreRuns(system).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("recorded were %v, %v", list, err)
	}
	for range 5 { // more than may wait: a dry run takes no place
		dry("again")
	}

	h.planned = nil
	if restore, err := h.create("shop", "real", v1alpha1.RestoreSpec{BackupName: "daily"}); err != nil || restore.Status.Plan != nil {
		t.Errorf("a restore that is created: %+v, %v", restore, err)
	}
	if _, err := h.create("shop", "theirs", v1alpha1.RestoreSpec{BackupName: "daily", NamespaceMapping: map[string]string{"shop": "blog"}}, metav1.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("a restore into a foreign namespace: %v", err)
	}
	if len(h.planned) > 0 {
		t.Errorf("planned were %v", h.planned)
	}

	without := func(why string) {
		t.Helper()
		if plan := dry("without"); plan != nil || len(h.warnings) != 1 || !strings.Contains(h.warnings[0], why) || !strings.Contains(h.warnings[0], "spec.planOnly") {
			t.Errorf("the plan is %+v, with the warnings %q", plan, h.warnings)
		}
	}
	h.unplannable = errors.New("away")
	without("away")
	h.unplannable, h.planned = nil, nil
	h.backups[0].Status.Progress = &v1alpha1.BackupProgress{ItemsBackedUp: maxPlanned + 1}
	without("200001 objects")
	h.backups[0].Status.Progress = nil
	for _, right := range []string{"get restores/plan shop", "get restores/results shop"} {
		delete(h.may, right)
		without(`user "jane" may not get ` + strings.Fields(right)[1])
		h.may[right] = true
	}
	if len(h.planned) > 0 {
		t.Errorf("planned were %v, for nobody", h.planned)
	}
}
