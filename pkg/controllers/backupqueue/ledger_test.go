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
	"k8s.io/apimachinery/pkg/util/sets"
	kubetesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// started are the runs in the ledger.
func (h *harness) started() []string {
	h.Helper()
	synctest.Wait()
	var all []string
	for _, start := range h.ledger() {
		all = append(all, start.Name)
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
		h.expectStarted("a")
		h.end("a")
		h.expectStarted("b")
		h.end("b")
		h.remove("b") // at once, as with --run-retention=0
		h.expectStarted("c")
		h.end("c")
		h.remove("c")
		time.Sleep(time.Hour)
		h.expectStarted("c") // a write for nothing
		h.Create(newRun("d", 4, "a"))
		h.expectStarted("d")
		if writes := len(h.Writes("configmaps")); writes != 1+4 {
			t.Errorf("%d writes", writes)
		}
	})
}

// Pitfalls 4 and 22: the record of a run was deleted by hand. It is held, with what it
// selects, for as long as it may be read, and another one of its name waits.
func TestARunThatIsGoneHoldsUntilItHasStopped(t *testing.T) {
	for name, known := range map[string]bool{"known": true, "about to be read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("gone", 1, "a"), running, 1), newRun("waits", 2, "a"))
				h.executing["gone"] = nil
				if known {
					h.executing["gone"] = h.run("gone")
				}
				c := h.prepare(3)
				go c.Run(t.Context(), h)
				h.expect(queued, "waits")
				h.remove("gone")
				synctest.Wait()
				h.Create(newRun("gone", 3, "b"))
				h.Create(newRun("passes", 4, "c"))
				time.Sleep(time.Hour)
				h.expect(queued, map[bool][]string{true: {"waits"}, false: {"gone", "passes", "waits"}}[known]...)
				h.mu.Lock()
				delete(h.executing, "gone")
				h.mu.Unlock()
				begin := time.Now()
				c.Stopped("gone")
				h.expect(ready, "gone", "passes", "waits")
				h.atOnce(begin)
			})
		})
	}
}

// Pitfall 12: another leader has let a run start that this one's informer has not
// seen.
func TestARunThatTheInformerHasNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("waits", 2, "a"), newRun("passes", 3, "b"))
		controller := h.prepare(2)
		h.Hold()
		h.Create(inPhase(newRun("unseen", 1, "a"), queued, 1))
		h.writeLedger(records.Start{UID: h.run("unseen").UID, Name: "unseen"})
		go controller.Run(t.Context(), h)
		h.expect(ready, "passes", "unseen")
		h.expect(queued, "waits")
	})
}

// Pitfall 1: what a process had let start when it ended is left to another one to
// execute.
func TestStartsOfADeadProcessAreTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("ready", 1, "a"), ready, 1), inPhase(newRun("running", 3, "c"), running, 3), inPhase(newRun("waits", 4, "a"), queued, 4))
		h.start(4)
		h.expectStarted("ready", "running")
		h.expect(queued, "waits")
		if got := sets.List(h.toStart); !slices.Equal(got, []string{"ready"}) {
			t.Errorf("it was asked to start %q", got)
		}
		if leader := records.Leader(h.LedgerObject(t, system)); leader != "process-1" || len(h.Writes("backupruns")) != 0 {
			t.Errorf("%d writes of runs, and %q leads", len(h.Writes("backupruns")), leader)
		}
	})
}

// Pitfall 6: who was paused while another one was elected writes nothing any more.
func TestALeaderOfThePastWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		h.start(1)
		h.start(1)
		h.Create(newRun("a", 1, "a"))
		time.Sleep(time.Hour)
		h.expectStarted("a")
		for _, action := range h.Writes("configmaps")[1:] {
			if leader := records.Leader(action.(kubetesting.UpdateActionImpl).GetObject().(*corev1.ConfigMap)); leader != "process-2" {
				t.Errorf("%q has tried to write", leader)
			}
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
		h.expectStarted("run-00000")
		began := time.Now()
		h.setLedger(nil)
		h.expectStarted("run-00000")
		h.atOnce(began)
		if writes := len(h.Writes("backupruns")); writes != 0 {
			t.Errorf("%d records were written", writes)
		}
	})
}

// Nobody loses their place.
func TestALedgerThatIsGoneIsMadeAnew(t *testing.T) {
	for name, remove := range map[string]func(*harness){
		"the ConfigMap": func(h *harness) { h.setLedger(nil) },
		"the key":       func(h *harness) { h.setLedger(map[string]string{"mine": "kept"}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue),
					inPhase(newRun("running", 1, "a"), running, 1),
					inPhase(newRun("ready", 2, "b"), ready, 2),
					inPhase(newRun("waits", 3, "b"), queued, 3),
					inPhase(newRun("last", 4, "c"), queued, 4))
				h.start(2)
				remove(h)
				h.expectStarted("running", "ready")
				h.expect(queued, "last", "waits")
				for i, name := range []string{"running", "ready", "waits", "last"} {
					if got := h.run(name).Status.Ticket; got != int64(i+1) {
						t.Errorf("%s has the ticket %d", name, got)
					}
				}
				if got := h.LedgerObject(t, system).Data["concurrentBackups"]; got != "2" {
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
				h.setLedger(map[string]string{"started": text})
				h.start(1)
				time.Sleep(time.Hour)
				h.expect(queued, "a")
				if got := h.LedgerObject(t, system).Data["started"]; got != text {
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
				h.setLedger(map[string]string{})
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
				return enginetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("configmaps"), records.LedgerName, errors.New("a policy denies it"))}
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

// Pitfall 6: the write of a leader that was paused arrives after another one has
// decided.
func TestADecisionIsTakenAgainstTheLedgerThatItReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		decided := 0
		h.Fault(func(action kubetesting.Action) enginetest.Fault {
			if !isStart(action, "a") {
				return enginetest.Fault{}
			}
			if decided++; decided > 1 {
				return enginetest.Fault{}
			}
			obj, err := h.Tracker().Get(enginev1alpha1.SchemeGroupVersion.WithResource("backupruns"), system, "b")
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			ledger, err := h.Kube.Tracker().Get(action.GetResource(), system, records.LedgerName)
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			theirs, err := records.WithLedger(ledger.(*corev1.ConfigMap), []records.Start{{UID: obj.(*enginev1alpha1.BackupRun).UID, Name: "b"}})
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
		h.start(1)
		time.Sleep(time.Minute)
		h.expectStarted("b")
		h.expect(queued, "a")
		if decided != 1 {
			t.Errorf("it decided %d times", decided)
		}
	})
}

// A run whose store does not answer waits again, unless another process leads.
func TestAStartIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		c := h.prepare(2)
		go c.Run(t.Context(), h)
		h.expect(ready, "a", "b")
		h.setAvailable("default", metav1.ConditionFalse)
		synctest.Wait()
		if err := c.TakeBack(t.Context(), h.run("a").UID); err != nil {
			t.Fatal(err)
		}
		h.expect(ready, "b")
		h.expect(queued, "a")
		ledger := h.LedgerObject(t, system)
		ledger.Data[records.LeaderKey] = "another process"
		h.elect("another process")
		h.setLedger(ledger.Data)
		if err := c.TakeBack(t.Context(), h.run("b").UID); err != nil {
			t.Fatal(err)
		}
		h.expectStarted("b")
	})
}
