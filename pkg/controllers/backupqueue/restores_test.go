// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// newRestore makes the record of a restore of the system namespace.
func newRestore(name string, namespaces ...string) *enginev1alpha1.RestoreRun {
	return &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:       v1alpha1.BackupReference{Namespace: system, Name: name},
			Backup:           enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{StorageLocation: "default"}},
			TargetNamespaces: namespaces,
		},
	}
}

func (h *harness) restore(name string) *enginev1alpha1.RestoreRun {
	h.Helper()
	restore, err := h.EngineV1alpha1().RestoreRuns(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return restore
}

func (h *harness) updateRestore(name string, change func(*enginev1alpha1.RestoreRun)) {
	h.Helper()
	restore := h.restore(name)
	change(restore)
	if _, err := h.EngineV1alpha1().RestoreRuns(system).Update(h.Context(), restore, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
	synctest.Wait()
}

// enter lets a restore be in a phase, as who executes it writes that.
func (h *harness) enter(phase v1alpha1.RestorePhase, name string) {
	h.Helper()
	h.updateRestore(name, func(r *enginev1alpha1.RestoreRun) { r.Status.Phase = phase })
}

// expectRestores compares the restores that are in the ledger.
func (h *harness) expectRestores(names ...string) {
	h.Helper()
	synctest.Wait()
	var started []string
	for _, start := range h.Ledger() {
		if start.Restore {
			started = append(started, start.Name)
		}
	}
	if !slices.Equal(started, names) {
		h.Fatalf("the ledger has the restores %q, want %q", started, names)
	}
}

// Pitfall 21: what a restore writes to is looked at, and so is what is restored already.
//
// A restore may have the name of a backup. It passes the backups that wait, and costs two
// writes besides its own: its ticket, and its start.
func TestRestoresPassWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "a"), running, 1))
		h.start(1)
		h.Create(newRun("same", 2, "a", "b"))
		synctest.Wait()
		began := time.Now()
		h.Create(newRestore("same", "b"))
		h.Create(newRestore("waits", "a"))
		h.expectRestores("same")
		h.expect(queued, "same")
		h.AtOnce(began)
		if !h.restores.toStart.Has("same") || h.toStart.Has("same") || h.restores.toStart.Has("waits") {
			t.Errorf("restores %q and backups %q are to be executed", h.restores.toStart.UnsortedList(), h.toStart.UnsortedList())
		}
		if ticket := h.restore("waits").Status.Ticket; ticket != 4 || h.Run("same").Status.Ticket != 2 {
			t.Errorf("the last has ticket %d", ticket)
		}
		h.end("runs")
		h.expectRestores("same", "waits")
		h.expect(queued, "same")
		h.enter(v1alpha1.RestorePhaseInProgress, "same")
		h.enter(v1alpha1.RestorePhaseInProgress, "waits")
		h.enter(v1alpha1.RestorePhaseCompleted, "same")
		h.expect(queued, "same")
		h.enter(v1alpha1.RestorePhasePartiallyFailed, "waits")
		h.expect(ready, "same")
		h.expectRestores() // they left with that start
		h.AtOnce(began)
		if writes := h.Writes("restoreruns"); len(writes) != 2+4 {
			t.Errorf("%d writes of two restores, want 2 tickets and 4 of this test", len(writes))
		}
		told := h.Told()
		if want := []string{
			"Normal Queued The backup waits at position 1: overlaps runs (running) in a",
			"Normal Queued The restore waits at position 1: overlaps runs (running) in a",
		}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// One that is cancelled, or that nobody can mean, ends without having begun.
func TestRestoresThatDoNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionFalse), newRestore("waits", "a"))
		misnamed := newRestore("misnamed", "a")
		misnamed.Spec.RestoreRef.Name = "another"
		h.Create(misnamed)
		h.start(1)
		h.updateRestore("waits", func(r *enginev1alpha1.RestoreRun) {
			r.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
		})
		for name, want := range map[string]v1alpha1.RestorePhase{"waits": v1alpha1.RestorePhaseCancelled, "misnamed": v1alpha1.RestorePhaseFailedValidation} {
			if got := h.restore(name).Status; got.Phase != want || got.CompletionTimestamp == nil {
				t.Errorf("%s is %+v, want %s", name, got, want)
			}
		}
	})
}

// Another process finds what was let start, and what is in progress holds its namespaces
// whoever executes it: also when the ledger is lost, and made anew.
func TestRestoresOfADeadProcess(t *testing.T) {
	enginetest.Each(t, map[string]bool{"with its ledger": false, "and its ledger is lost": true}, func(t *testing.T, lost bool) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		for _, name := range []string{"ready", "running"} {
			restore := newRestore(name, name)
			restore.Status = enginev1alpha1.RestoreRunStatus{Phase: v1alpha1.RestorePhaseQueued, Ticket: 1}
			h.Cluster.Create(restore)
		}
		h.enter(v1alpha1.RestorePhaseInProgress, "running")
		h.WriteLedger(records.StartOf(h.restore("running"), metav1.Now()), records.StartOf(h.restore("ready"), metav1.Now()))
		if lost {
			h.setLedger(nil)
		}
		h.Create(newRun("of-ready", 1, "ready"))
		h.Create(newRun("of-running", 2, "running"))
		h.start(2)
		h.expectRestores("running", "ready")
		h.expect(queued, "of-ready", "of-running")
		if !h.restores.toStart.Has("ready") {
			t.Error("nobody executes the one that is ready")
		}
		// Its record is removed by hand, and it is executed still.
		h.restores.mu.Lock()
		h.restores.executing = map[string]*enginev1alpha1.RestoreRun{"running": h.restore("running")}
		h.restores.mu.Unlock()
		if err := h.EngineV1alpha1().RestoreRuns(system).Delete(t.Context(), "running", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.enter(v1alpha1.RestorePhaseCompleted, "ready")
		h.expect(ready, "of-ready")
		h.expect(queued, "of-running")
	})
}
