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
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// started are the runs in the ledger.
func (h *harness) started() []string {
	h.Helper()
	synctest.Wait()
	var all []string
	for _, start := range h.Ledger() {
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
		h.Remove("b") // at once, as with --run-retention=0
		h.expectStarted("c")
		h.end("c")
		h.Remove("c")
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
	enginetest.Each(t, map[string]bool{"known": true, "about to be read": false}, func(t *testing.T, known bool) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("gone", 1, "a"), running, 1), newRun("waits", 2, "a"))
		h.executing["gone"] = nil
		if known {
			h.executing["gone"] = h.Run("gone")
		}
		c := h.prepare(3)
		go c.Run(t.Context(), h, h.restores)
		h.expect(queued, "waits")
		h.Remove("gone")
		synctest.Wait()
		h.Create(newRun("gone", 3, "b"))
		h.Create(newRun("passes", 4, "c"))
		time.Sleep(time.Hour)
		h.expect(queued, map[bool][]string{true: {"waits"}, false: {"gone", "passes", "waits"}}[known]...)
		h.mu.Lock()
		delete(h.executing, "gone")
		h.mu.Unlock()
		begin := time.Now()
		c.Changed("gone")
		h.expect(ready, "gone", "passes", "waits")
		h.AtOnce(begin)
	})
}

// Pitfall 12: another leader has let a run start that this one's informer has not
// seen.
func TestARunThatTheInformerHasNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("waits", 2, "a"), newRun("passes", 3, "b"))
		controller := h.prepare(2)
		h.Hold()
		h.Create(inPhase(newRun("unseen", 1, "a"), queued, 1))
		h.WriteLedger(records.Start{UID: h.Run("unseen").UID, Name: "unseen"})
		go controller.Run(t.Context(), h, h.restores)
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
		if leader := records.Leader(h.LedgerObject()); leader != "process-1" || len(h.Writes("backupruns")) != 0 {
			t.Errorf("%d writes of runs, and %q leads", len(h.Writes("backupruns")), leader)
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
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if run := enginetest.Written(action); run != nil && run.Name == "run-00500" {
				return enginetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("backupruns"), run.Name, errors.New("denied the request"))}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expectStarted("run-00000")
		began := time.Now()
		h.setLedger(nil)
		h.expectStarted("run-00000")
		h.AtOnce(began)
		if writes := len(h.Writes("backupruns")); writes != 0 {
			t.Errorf("%d records were written", writes)
		}
	})
}

// Nobody loses their place.
func TestALedgerThatIsGoneIsMadeAnew(t *testing.T) {
	enginetest.Each(t, map[string]map[string]string{"the ConfigMap": nil, "the key": {"mine": "kept"}}, func(t *testing.T, left map[string]string) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("running", 1, "a"), running, 1),
			inPhase(newRun("ready", 2, "b"), ready, 2),
			inPhase(newRun("waits", 3, "b"), queued, 3),
			inPhase(newRun("last", 4, "c"), queued, 4))
		h.start(2)
		h.setLedger(left)
		h.expectStarted("running", "ready")
		h.expect(queued, "last", "waits")
		for i, name := range []string{"running", "ready", "waits", "last"} {
			if got := h.Run(name).Status.Ticket; got != int64(i+1) {
				t.Errorf("%s has the ticket %d", name, got)
			}
		}
		if got := h.LedgerObject().Data; got["concurrentBackups"] != "2" || got["mine"] != left["mine"] {
			t.Errorf("the settings are %q", got)
		}
	})
}

func TestALedgerThatCannotBeReadStartsNothing(t *testing.T) {
	enginetest.Each(t, map[string]string{"no JSON": "[", "no list": `{"a":1}`, "no uid": `[{"name":"a"}]`, "empty": ""}, func(t *testing.T, text string) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("a", 1, "a"), queued, 1))
		h.setLedger(map[string]string{"started": text})
		h.start(1)
		time.Sleep(time.Hour)
		h.expect(queued, "a")
		if got := h.LedgerObject().Data["started"]; got != text {
			t.Errorf("it was overwritten with %q", got)
		}
		if told := h.Told(); len(told) != 1 || !strings.Contains(told[0], `remove the key "started" of the ConfigMap holdfast-queue`) {
			t.Errorf("people are not told, once, what to do: %q", told)
		}
		// Whatever needs no ledger goes on.
		h.Create(newRun("b", 2, "b"))
		h.Create(newRun("c", 3, "c"))
		h.Cancel("c")
		time.Sleep(time.Minute)
		h.expect(queued, "a", "b")
		h.expect(cancelled, "c")
		h.setLedger(map[string]string{})
		time.Sleep(time.Minute)
		h.expect(ready, "a")
	})
}

func TestALedgerThatMayNotBeWrittenIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"))
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if isStart(action, "a") {
				return enginetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("configmaps"), records.LedgerName, errors.New("a policy denies it"))}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expect(queued, "a")
		if event := <-h.Events.Events; !strings.Contains(event, "Warning LedgerRefused Nothing starts: ") || !strings.Contains(event, "a policy denies it") {
			t.Errorf("the event says %q", event)
		}
		h.Fault(nil)
		time.Sleep(time.Minute)
		h.expect(ready, "a")
	})
}

// A run whose store does not answer waits again, unless another process leads.
func TestAStartIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		c := h.prepare(2)
		go c.Run(t.Context(), h, h.restores)
		h.expect(ready, "a", "b")
		h.setAvailable("default", metav1.ConditionFalse)
		synctest.Wait()
		if err := c.TakeBack(t.Context(), h.Run("a").UID, nil); err != nil {
			t.Fatal(err)
		}
		h.expect(ready, "b")
		h.expect(queued, "a")
		ledger := h.LedgerObject()
		ledger.Data[records.LeaderKey] = "another process"
		h.elect("another process")
		h.setLedger(ledger.Data)
		if err := c.TakeBack(t.Context(), h.Run("b").UID, nil); err != nil {
			t.Fatal(err)
		}
		h.expectStarted("b")
	})
}

// A run that is taken back is held at once, also before the informer has seen that its
// location is unavailable, and what does not wait for that location goes by it.
func TestARunThatIsTakenBackDoesNotStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := newRun("b", 2, "a")
		elsewhere.Spec.Backup.StorageLocation = "other"
		h := newHarness(t, location("default", metav1.ConditionTrue), location("other", metav1.ConditionTrue), newRun("a", 1, "a"), elsewhere)
		c := h.prepare(1)
		go c.Run(t.Context(), h, h.restores)
		h.expect(ready, "a")
		unseen, err := h.EngineV1alpha1().StorageLocations(system).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		unseen.Status, unseen.ResourceVersion = location("default", metav1.ConditionFalse).Status, "1000000" // no informer knows it
		h.ClearActions()
		h.Kube.ClearActions()
		if err := c.TakeBack(t.Context(), h.Run("a").UID, unseen); err != nil {
			t.Fatal(err)
		}
		c.Changed("a") // as some event may have it
		time.Sleep(time.Hour)
		h.expectStarted("b")
		if writes := len(h.Writes("configmaps")); writes != 2 {
			t.Errorf("%d writes of the ledger, want the one that takes it back and the one that starts the other", writes)
		}
	})
}
