// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const cancelled = v1alpha1.BackupPhaseCancelled

func TestCancelledRunsLeaveTheQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
			newRun("a", 1, "a"), newRun("b", 2, "a"), newRun("c", 3, "a"), newRun("d", 4, "b"))
		h.start(1)
		h.expect(ready, "a")
		begin := time.Now()
		h.Cancel("b")
		h.expect(cancelled, "b")
		h.expect(queued, "c", "d")
		h.Cancel("a") // let start, and not claimed
		h.expect(cancelled, "a", "b")
		h.expect(ready, "c")
		h.expectStarted("c")
		h.AtOnce(begin)
		h.expectTold(
			"Normal Queued The backup waits at position 1: overlaps a (ready) in a",
			"Normal Queued The backup waits at position 2: overlaps a (ready) in a",
			"Normal Queued The backup waits at position 3: waits for a slot: 1 in use, the limit is 1",
			"Normal Cancelled The backup was cancelled by jane", "Normal Cancelled The backup was cancelled by jane")
		for _, name := range []string{"a", "b"} {
			status := h.Run(name).Status
			if status.FailureReason != "cancelled by jane" || status.CompletionTimestamp == nil || status.Stored {
				t.Errorf("%s: %+v", name, status)
			}
			if writes := h.writesTo(cancelled)[name]; writes != 1 {
				t.Errorf("%d writes cancelled %s", writes, name)
			}
		}
	})
}

// A deletion counts when a backup has ended. Written by hand into one that waits or
// runs, it frees neither its place nor its slot.
func TestADeletionWrittenByHandFreesNothing(t *testing.T) {
	enginetest.Each(t, map[string]*enginev1alpha1.Deletion{
		"as the API server does": {}, "as of a stored backup": {Stored: &enginev1alpha1.StoredBackup{UID: "another"}},
	}, func(t *testing.T, deletion *enginev1alpha1.Deletion) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("running", 1, "a"), running, 1), inPhase(newRun("waits", 2, "b"), queued, 2), newRun("last", 3, "b"))
		h.start(1)
		for _, name := range []string{"running", "waits"} {
			run := h.Run(name)
			if run.Spec.Deletion = deletion; name == "waits" {
				run.Spec.Deletion = &enginev1alpha1.Deletion{} // else it is no work
			}
			h.Update(run)
		}
		time.Sleep(time.Minute)
		h.expect(running, "running")
		h.expect(queued, "last", "waits")
		if uid := h.Run("running").AsBackup().UID; uid != h.Run("running").UID {
			t.Errorf("it took on the uid %q", uid)
		}
		h.end("running")
		h.expect(ready, "waits")
		h.end("waits")
		h.expect(ready, "last")
	})
}

func TestARunThatIsCancelledBeforeItIsQueuedGetsNoTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", 1, "a[") // nor is it validated
		run.Spec.Cancellation = &enginev1alpha1.Ask{}
		h := newHarness(t, location("default", metav1.ConditionTrue), run)
		h.start(1)
		h.expect(cancelled, "a")
		if status := h.Run("a").Status; status.Ticket != 0 || status.FailureReason != "cancelled" {
			t.Errorf("%+v", status)
		}
		if writes := len(h.Writes("backupruns")); writes != 1 {
			t.Errorf("%d writes", writes)
		}
	})
}

// What runs is stopped by who executes it, and holds until then.
func TestARunningRunThatIsCancelledHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "a"), running, 1), newRun("waits", 2, "a"))
		h.start(2)
		h.Cancel("runs")
		time.Sleep(time.Hour)
		h.expect(running, "runs")
		h.expect(queued, "waits")
		if writes := h.writesTo(cancelled)["runs"]; writes != 0 {
			t.Errorf("%d writes", writes)
		}
	})
}

// A run that was let start shows it, whatever its record says.
func TestPhasesAreComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"))
		h.start(1)
		h.expect(ready, "a")
		if got := h.Run("a").Status.Phase; got != queued {
			t.Errorf("%s is written", got)
		}
		if at := h.Ledger()[0].At; !at.Time.Equal(time.Now().Truncate(time.Second)) {
			t.Errorf("it was let start at %s", at)
		}
		if got := records.Phase(h.Run("a"), nil); got != queued {
			t.Errorf("without a ledger it is %s", got)
		}
	})
}
