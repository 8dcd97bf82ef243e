// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const cancelled = v1alpha1.BackupPhaseCancelled

// cancel asks for runs to be cancelled, as the API server does.
func (h *harness) cancel(names ...string) {
	h.Helper()
	for _, name := range names {
		run := h.run(name)
		run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.Now()}
		if _, err := h.EngineV1alpha1().BackupRuns(system).Update(h.Context(), run, metav1.UpdateOptions{}); err != nil {
			h.Fatal(err)
		}
	}
}

func (h *harness) told() []string {
	synctest.Wait()
	var all []string
	for {
		select {
		case event := <-h.events.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func (h *harness) expectTold(want ...string) {
	h.Helper()
	if got := h.told(); !slices.Equal(got, want) {
		h.Errorf("events %q\nwant   %q", got, want)
	}
}

func TestCancelledRunsLeaveTheQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
			newRun("a", 1, "a"), newRun("b", 2, "a"), newRun("c", 3, "a"), newRun("d", 4, "b"))
		h.start(1)
		h.expect(ready, "a")
		begin := time.Now()
		h.cancel("b")
		h.expect(cancelled, "b")
		h.expect(queued, "c", "d")
		h.cancel("a") // let start, and not claimed
		h.expect(cancelled, "a", "b")
		h.expect(ready, "c")
		h.expectStarted("c by process-1")
		h.atOnce(begin)
		h.expectTold("Normal Cancelled The backup was cancelled by jane", "Normal Cancelled The backup was cancelled by jane")
		for _, name := range []string{"a", "b"} {
			status := h.run(name).Status
			if status.FailureReason != "cancelled by jane" || status.CompletionTimestamp == nil || status.Stored || status.Leftovers {
				t.Errorf("%s: %+v", name, status)
			}
			if writes := h.writesTo(cancelled)[name]; writes != 1 {
				t.Errorf("%d writes cancelled %s", writes, name)
			}
		}
	})
}

func TestARunThatIsCancelledBeforeItIsQueuedGetsNoTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", 1, "a[") // nor is it validated
		run.Spec.Cancellation = &enginev1alpha1.Ask{}
		h := newHarness(t, location("default", metav1.ConditionTrue), run)
		h.start(1)
		h.expect(cancelled, "a")
		if status := h.run("a").Status; status.Ticket != 0 || status.FailureReason != "cancelled" {
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
		h.cancel("runs")
		time.Sleep(time.Hour)
		h.expect(running, "runs")
		h.expect(queued, "waits")
		if writes := h.writesTo(cancelled)["runs"]; writes != 0 {
			t.Errorf("%d writes", writes)
		}
	})
}

func TestEventsSayWhyABackupWaitsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := newRun("held", 4, "b")
		held.Spec.Backup.StorageLocation = "down"
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
			inPhase(newRun("runs", 1, "a"), running, 1))
		h.start(2)
		h.Create(newRun("waits", 3, "a"))
		h.Create(held)
		time.Sleep(worthTelling - time.Second)
		h.expectTold() // most have started by then
		time.Sleep(backstop + time.Second)
		h.expectTold(
			`Normal Queued The backup waits at position 1: overlaps runs (running) in a`,
			`Normal Held The backup waits at position 2: storage location "down" is unavailable`)
		time.Sleep(time.Hour)
		h.expectTold()
		h.Create(newRun("passes", 5, "c"))
		h.expect(ready, "passes")
		time.Sleep(backstop)
		h.expectTold(`Normal PassedOver Others have passed the backup, which waits at position 1: overlaps runs (running) in a`,
			`Normal PassedOver Others have passed the backup, which waits at position 2: storage location "down" is unavailable`)
		h.Create(newRun("next", 6, "c"))
		h.end("passes")
		h.expect(ready, "next")
		time.Sleep(time.Hour)
		h.expectTold()
	})
}

// When thousands wait, the API server is not flooded with events that say so.
func TestEventsOfALongQueueAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 0, "a"), running, 1))
		const n = 2*eventsAtOnce + eventsAtOnce/2
		for i := range n {
			h.Create(newRun(fmt.Sprintf("run-%03d", i), i+1, "a"))
		}
		h.start(1)
		most, all := 0, 0
		for range 12 {
			time.Sleep(backstop)
			synctest.Wait()
			told := len(h.told())
			most, all = max(most, told), all+told
		}
		if most != eventsAtOnce || all != n {
			t.Errorf("%d events for %d backups, %d of them at once", all, n, most)
		}
	})
}

// What a tenant is told names no backup but those of its own namespace.
func TestEventsNameNoBackupOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("secret", 1, "shop"), running, 1))
		h.start(2)
		run := newRun("shop.daily", 2, "shop")
		run.Spec.BackupRef = v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}
		h.Create(run)
		time.Sleep(2 * worthTelling)
		h.expectTold(`Normal Queued The backup waits at position 1: overlaps another backup in shop`)
	})
}

func TestARestartTellsNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := inPhase(newRun("waits", 2, "a"), queued, 2)
		queuedAt := metav1.NewTime(time.Now().Add(-time.Hour))
		waits.Status.QueuedTimestamp = &queuedAt
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "a"), running, 1), waits)
		h.start(2)
		time.Sleep(time.Hour)
		h.expectTold()
	})
}

// A run that was let start shows it, whatever its record says.
func TestPhasesAreComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"))
		h.start(1)
		h.expect(ready, "a")
		if got := h.run("a").Status.Phase; got != queued {
			t.Errorf("%s is written", got)
		}
		if at := h.ledger()[0].At; !at.Time.Equal(time.Now().Truncate(time.Second)) {
			t.Errorf("it was let start at %s", at)
		}
		if got := records.Phase(h.run("a"), nil); got != queued {
			t.Errorf("without a ledger it is %s", got)
		}
	})
}
