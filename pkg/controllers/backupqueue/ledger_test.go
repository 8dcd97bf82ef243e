// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// started are the runs in the ledger with the processes that they name.
func (h *harness) started() []string {
	h.Helper()
	synctest.Wait()
	var all []string
	for _, start := range h.ledger() {
		all = append(all, start.Name+" by "+start.By)
	}
	return all
}

func (h *harness) expectStarted(want ...string) {
	h.Helper()
	if got := h.started(); !slices.Equal(got, want) {
		h.Fatalf("the ledger has %q, want %q", got, want)
	}
}

// Pitfall 3: what has ended holds no slot, although it is still in the ledger.
func TestEndedRunsLeaveTheLedgerWithTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "a"), newRun("c", 3, "a"))
		h.start(2)
		h.expectStarted("a by process-1")
		h.end("a")
		h.expectStarted("b by process-1")
		h.end("b")
		h.remove("b") // at once, as with --run-retention=0
		h.expectStarted("c by process-1")
		h.end("c")
		h.remove("c")
		time.Sleep(time.Hour)
		h.expectStarted("c by process-1") // a write for nothing
		h.Create(newRun("d", 4, "a"))
		h.expectStarted("d by process-1")
		if writes := len(h.Writes("configmaps")); writes != 1+4 {
			t.Errorf("%d writes", writes)
		}
	})
}

// Pitfalls 4 and 22: the record of a run was deleted by hand. Its process may still
// read what it selected, whatever that was.
func TestARunThatIsGoneHoldsUntilItsProcessHasStopped(t *testing.T) {
	for name, stop := range map[string]func(*harness){
		"it says so":          func(h *harness) { h.writeLedger() },
		"it is gone for good": func(h *harness) { h.kill("another"); time.Sleep(recheck) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue), newRun("waits", 2, "b"))
				h.alive("another")
				h.writeLedger(records.Start{UID: "gone", Name: "gone", By: "another"})
				h.start(2)
				time.Sleep(time.Hour)
				h.expect(queued, "waits")
				h.expectStarted("gone by another")
				stop(h)
				h.expect(ready, "waits")
				h.expectStarted("waits by process-1")
			})
		})
	}
}

// Pitfall 12: another leader has let a run start that this one's informer has not
// seen.
func TestARunThatTheInformerHasNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("waits", 2, "a"), newRun("passes", 3, "b"))
		h.alive("another")
		controller := h.prepare(2)
		h.Hold()
		h.Create(inPhase(newRun("unseen", 1, "a"), queued, 1))
		h.writeLedger(records.Start{UID: h.run("unseen").UID, Name: "unseen", By: "another"})
		go controller.Run(t.Context())
		h.expect(ready, "passes", "unseen")
		h.expect(queued, "waits")
	})
}

// Pitfall 1: what a process had let start when it ended is left to another one to
// execute.
func TestStartsOfADeadProcessAreTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("mine", 1, "a"), queued, 1), inPhase(newRun("theirs", 2, "b"), queued, 2),
			inPhase(newRun("running", 3, "c"), running, 3), inPhase(newRun("waits", 4, "a"), queued, 4))
		h.alive("another")
		h.writeLedger(
			records.Start{UID: h.run("mine").UID, Name: "mine", By: "a dead one"},
			records.Start{UID: h.run("theirs").UID, Name: "theirs", By: "another"},
			records.Start{UID: h.run("running").UID, Name: "running", By: "a dead one"})
		h.start(4)
		h.expectStarted("mine by process-1", "theirs by another", "running by a dead one")
		time.Sleep(time.Hour)
		h.expectStarted("mine by process-1", "theirs by another", "running by a dead one")
		h.kill("another")
		time.Sleep(recheck)
		h.expectStarted("mine by process-1", "theirs by process-1", "running by a dead one")
		h.expect(queued, "waits")
		if writes := len(h.Writes("backupruns")); writes != 0 {
			t.Errorf("%d writes of runs", writes)
		}
	})
}

// Removing the ledger is what people are told to do: however many wait, and whatever
// may be wrong with their records, the queue goes on at once.
func TestALostLedgerStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 10_000
		h := newHarness(t, location("default", metav1.ConditionTrue))
		for i := range waiting {
			h.Create(inPhase(newRun(fmt.Sprintf("run-%05d", i), i, "a"), queued, int64(i+1)))
		}
		h.Fault(func(action kubetesting.Action) enginetest.Fault {
			if run := written(action); run != nil && run.Name == "run-00500" {
				return enginetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("backupruns"), run.Name, errors.New("denied the request"))}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expectStarted("run-00000 by process-1")
		began := time.Now()
		h.setSettings(nil)
		h.expectStarted("run-00000 by process-1")
		h.atOnce(began)
		if writes := len(h.Writes("backupruns")); writes != 0 {
			t.Errorf("%d records were written", writes)
		}
	})
}

// Nobody loses their place.
func TestALedgerThatIsGoneIsMadeAnew(t *testing.T) {
	for name, remove := range map[string]func(*harness){
		"the ConfigMap": func(h *harness) { h.setSettings(nil) },
		"the key":       func(h *harness) { h.setSettings(map[string]string{"mine": "kept"}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue),
					inPhase(newRun("running", 1, "a"), running, 1),
					inPhase(newRun("ready", 2, "b"), ready, 2),
					inPhase(newRun("waits", 3, "b"), queued, 3),
					inPhase(newRun("last", 4, "c"), queued, 4))
				running := h.run("running")
				running.Status.Executor = "a process before"
				if _, err := h.EngineV1alpha1().BackupRuns(system).UpdateStatus(t.Context(), running, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				h.start(2)
				remove(h)
				h.expectStarted("running by a process before", "ready by process-1")
				h.expect(queued, "last", "waits")
				for i, name := range []string{"running", "ready", "waits", "last"} {
					if got := h.run(name).Status.Ticket; got != int64(i+1) {
						t.Errorf("%s has the ticket %d", name, got)
					}
				}
				if got := h.settings().Data["concurrentBackups"]; got != "2" {
					t.Errorf("the limit is %q", got)
				}
			})
		})
	}
}

func TestALedgerThatCannotBeReadStartsNothing(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "[", "no list": `{"a":1}`, "no uid": `[{"name":"a"}]`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("a", 1, "a"), queued, 1))
				h.setSettings(map[string]string{"started": text})
				h.start(1)
				time.Sleep(time.Hour)
				h.expect(queued, "a")
				if got := h.settings().Data["started"]; got != text {
					t.Errorf("it was overwritten with %q", got)
				}
				if told := len(h.events.Events); told != 1 {
					t.Fatalf("%d events", told)
				}
				if event := <-h.events.Events; !strings.Contains(event, `remove the key "started" of the ConfigMap holdfast-queue`) {
					t.Errorf("the event does not say what to do: %s", event)
				}
				// Whatever needs no ledger goes on.
				h.Create(newRun("b", 2, "b"))
				h.Create(newRun("c", 3, "c"))
				h.cancel("c")
				time.Sleep(time.Minute)
				h.expect(queued, "a", "b")
				h.expect(cancelled, "c")
				h.setSettings(map[string]string{})
				time.Sleep(time.Minute)
				h.expect(ready, "a")
			})
		})
	}
}

func TestALedgerThatMayNotBeWrittenIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"))
		h.Fault(func(action kubetesting.Action) enginetest.Fault {
			if isStart(action, "a") {
				return enginetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("configmaps"), records.SettingsName, errors.New("a policy denies it"))}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expect(queued, "a")
		if event := <-h.events.Events; !strings.Contains(event, "Warning LedgerRefused No backup starts: ") || !strings.Contains(event, "a policy denies it") {
			t.Errorf("the event says %q", event)
		}
		h.Fault(nil)
		time.Sleep(time.Minute)
		h.expect(ready, "a")
	})
}

// Pitfall 6: the write of a leader that was paused arrives after others have
// decided.
func TestADecisionIsTakenAgainstTheLedgerThatItReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		h.alive("another")
		decided := 0
		h.Fault(func(action kubetesting.Action) enginetest.Fault {
			if !isStart(action, "a") {
				return enginetest.Fault{}
			}
			if decided++; decided > 1 {
				return enginetest.Fault{}
			}
			settings, err := h.Kube.Tracker().Get(action.GetResource(), system, records.SettingsName)
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			theirs, err := records.WithLedger(settings.(*corev1.ConfigMap), []records.Start{{UID: "elsewhere", Name: "elsewhere", By: "another"}})
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			theirs.ResourceVersion = "1000"
			if err := h.Kube.Tracker().Update(action.GetResource(), theirs, system); err != nil {
				t.Error(err)
			}
			return enginetest.Fault{}
		})
		h.start(2)
		time.Sleep(time.Minute)
		// That run overlaps everything, since nobody knows it.
		h.expectStarted("elsewhere by another")
		if decided != 1 {
			t.Errorf("it decided %d times", decided)
		}
		h.Fault(nil)
		h.kill("another")
		time.Sleep(recheck)
		h.expectStarted("a by process-1", "b by process-1")
	})
}
