// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Pitfall 25: the default location is recorded when the backup is created. So a
// backup that waits can be cancelled, and then deleted, without having named one.
func TestABackupInTheDefaultLocationCanBeCancelledAndDeleted(t *testing.T) {
	h := newHarness(t, nil, locationOf("main", true, metav1.ConditionTrue))
	if _, err := h.create(newBackup("shop", "a")); err != nil {
		t.Fatal(err)
	}
	runs := h.records.EngineV1alpha1().BackupRuns(system)
	setPhase := func(phase v1alpha1.BackupPhase) {
		t.Helper()
		run := h.run("shop.a")
		run.Status.Phase = phase
		run, err := runs.UpdateStatus(t.Context(), run, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		h.Observe(run)
	}
	setPhase(v1alpha1.BackupPhaseQueued)
	if got := h.run("shop.a").Spec.Backup.StorageLocation; got != "main" {
		t.Errorf("it waits for the storage location %q", got)
	}
	if _, err := h.cancel("a", metav1.CreateOptions{}); err != nil {
		t.Errorf("cancel: %v", err)
	}
	setPhase(v1alpha1.BackupPhaseCancelled)
	if _, err := h.delete("a"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if run := h.run("shop.a"); run.Spec.Deletion == nil || run.Spec.Backup.StorageLocation != "main" {
		t.Errorf("recorded %+v", run.Spec)
	}
}
