// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

const (
	isNew    = v1alpha1.BackupPhase("")
	queued   = v1alpha1.BackupPhaseQueued
	ready    = v1alpha1.BackupPhaseReadyToStart
	running  = v1alpha1.BackupPhaseInProgress
	ended    = v1alpha1.BackupPhaseCompleted
	rejected = v1alpha1.BackupPhaseFailedValidation
)

// Pitfall 8: those that were created while no controller ran are queued in the order of
// their creation, within a second too, where names say something else.
func TestTicketsAfterAColdStartFollowCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			newRun("second", 20, "b"), newRun("third", 30, "c"), newRun("first", 10, "a"),
			inPhase(newRun("before", 40, "d"), queued, 7))
		names := []string{"before", "first", "second", "third"}
		for i := range 20 { // versions with one digit, and with two
			names = append(names, fmt.Sprintf("b%02d", 99-i))
			h.Create(newRun(names[len(names)-1], 30, "a"))
		}
		h.start(1)
		h.expect(ready, "before")
		for i, name := range names {
			if got := h.Run(name).Status; got.Ticket != int64(7+i) || i > 0 && got.QueuedTimestamp == nil {
				t.Errorf("%s has ticket %d, want %d, since %v", name, got.Ticket, 7+i, got.QueuedTimestamp)
			}
		}
	})
}

func TestEachBackupCostsTwoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, limit = 300, 4
		objects := []runtime.Object{location("default", metav1.ConditionTrue)}
		for i := range n {
			objects = append(objects, newRun(fmt.Sprintf("b%03d", i), i, fmt.Sprintf("ns-%03d", i)))
		}
		h := newHarness(t, objects...)
		begin := time.Now()
		h.start(limit)
		var order []string
		for started := h.inPhases()[ready]; len(started) > 0; started = h.inPhases()[ready] {
			if len(started) > limit {
				t.Fatalf("%d run at once, the limit is %d", len(started), limit)
			}
			order = append(order, started[0])
			h.end(started[0])
			synctest.Wait()
		}
		h.AtOnce(begin)
		if len(order) != n || !slices.IsSorted(order) {
			t.Errorf("%d of %d runs started, in the order %q", len(order), n, order)
		}
		h.expectOneWriteEach(order...)
		// The starts of one decision share a write, and one tells the limit.
		if all := len(h.Writes("configmaps")) - 1; all != n-limit+1 {
			t.Errorf("there were %d writes of starts for %d backups", all, n)
		}
		if all := len(h.Writes("backupruns")); all != 2*n { // this test ends each with one
			t.Errorf("there were %d writes for %d backups, and should be %d", all, n, 2*n)
		}
	})
}

// expectOneWriteEach compares how often the runs were queued, and let start.
func (h *harness) expectOneWriteEach(names ...string) {
	h.Helper()
	for _, phase := range []v1alpha1.BackupPhase{queued, ready} {
		writes := h.writesTo(phase)
		for _, name := range names {
			if writes[name] != 1 {
				h.Errorf("%d writes made %s %s", writes[name], name, phase)
			}
		}
	}
}

// Pitfalls 5 and 11: a write whose answer is lost counts, and is not made again, so
// that neither a slot nor a ticket is given twice.
func TestLostAnswersAreReadBack(t *testing.T) {
	enginetest.Each(t, map[string]v1alpha1.BackupPhase{"of tickets": queued, "of starts": ready}, func(t *testing.T, phase v1alpha1.BackupPhase) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			newRun("a", 1, "a"), newRun("b", 2, "b"), newRun("c", 3, "c"))
		lost := map[string]bool{}
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			name := ""
			if run := enginetest.Written(action); run != nil && run.Status.Phase == phase {
				name = run.Name
			} else if phase == ready && isStart(action, "a") {
				name = "a"
			}
			if name == "" || lost[name] {
				return enginetest.Fault{}
			}
			lost[name] = true
			return enginetest.Fault{Err: errors.New("the connection broke"), Lost: true}
		})
		// What the answers did not say must not come by the informer either.
		release := h.Hold()
		h.start(1)
		time.Sleep(backstop)
		h.expect(ready, "a")
		h.expect(queued, "b", "c")
		release()
		h.expect(ready, "a")
		for i, name := range []string{"a", "b", "c"} {
			h.expect(ready, name)
			if ticket := h.Run(name).Status.Ticket; ticket != int64(i+1) {
				t.Errorf("%s has the ticket %d", name, ticket)
			}
			h.end(name)
		}
		h.expectOneWriteEach("a", "b", "c")
		if len(lost) == 0 {
			t.Error("no answer was lost")
		}
	})
}

// Pitfalls 2 and 12: before it led, another process may have done what its informer
// has not seen.
func TestANewLeaderReadsTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("a", 1, "a"), queued, 1), inPhase(newRun("b", 2, "b"), queued, 2), newRun("new", 6, "a"))
		controller := h.prepare(2)
		h.Hold()
		h.Create(inPhase(newRun("c", 3, "c"), ready, 3))
		h.Create(inPhase(newRun("d", 4, "d"), running, 4))
		h.Create(inPhase(newRun("e", 5, "a"), queued, 9))
		go controller.Run(t.Context(), h, h.restores)
		h.expect(queued, "a", "b", "e", "new")
		if ticket := h.Run("new").Status.Ticket; ticket != 10 {
			t.Errorf("the ticket after 9 is %d", ticket)
		}
		h.end("d")
		time.Sleep(backstop)
		h.expect(ready, "a", "c")
	})
}

func TestARunThatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, after := newRun("run", 2, "a"), newRun("run", 2, "b")
		before.UID, after.UID = "the-same", "the-same"
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("blocker", 1, "a"), running, 1), before)
		h.start(2)
		h.expect(queued, "run")
		h.Remove("run")
		synctest.Wait()
		h.Create(after)
		h.expect(ready, "run")
	})
}

// Pitfalls 13 and 24: what waits starts when that changes, without any time between.
func TestEventsWakeTheQueue(t *testing.T) {
	type story struct {
		objects []runtime.Object
		change  func(*harness)
	}
	available, down := location("default", metav1.ConditionTrue), location("default", metav1.ConditionFalse)
	blocker := inPhase(newRun("blocker", 1, "a"), running, 1)
	runs, ahead := inPhase(newRun("runs", 0, "b"), running, 1), inPhase(newRun("blocker", 1, "a", "b"), queued, 2)
	enginetest.Each(t, map[string]story{
		"the blocker ends":         {[]runtime.Object{available, blocker}, func(h *harness) { h.end("blocker") }},
		"the blocker is deleted":   {[]runtime.Object{available, blocker}, func(h *harness) { h.Remove("blocker") }},
		"the one ahead is deleted": {[]runtime.Object{available, runs, ahead}, func(h *harness) { h.Remove("blocker") }},
		"the store is back":        {[]runtime.Object{down}, func(h *harness) { h.setAvailable("default", metav1.ConditionTrue) }},
		"a location appears":       {nil, func(h *harness) { h.Create(available) }},
	}, func(t *testing.T, c story) {
		h := newHarness(t, append(c.objects, newRun("waits", 2, "a"))...)
		h.start(2)
		time.Sleep(3 * backstop)
		if waiting := h.inPhases()[queued]; !slices.Contains(waiting, "waits") { // held, and not failed
			t.Fatalf("%q wait", waiting)
		}
		begin := time.Now()
		c.change(h)
		h.expect(ready, "waits")
		h.AtOnce(begin)
	})
}

// Pitfall 17: a pattern that can't be read fails validation with the field's name.
func TestInvalidRecordsAreRefusedAlone(t *testing.T) {
	badPattern := newRun("bad-pattern", 1, "a[")
	badSelector := newRun("bad-selector", 2, "a")
	badSelector.Spec.Backup.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Sometimes"}}}
	namesake := newRun("namesake", 3, "a")
	namesake.Spec.BackupRef = v1alpha1.BackupReference{Namespace: system, Name: "good"}
	dotted := newRun("team.good", 4, "a") // what a backup of the namespace team would be stored as
	cases := map[string]string{
		"bad-pattern":  "spec.includedNamespaces[0]",
		"bad-selector": "spec.labelSelector.matchExpressions[0].operator",
		"namesake":     "metadata.name",
		"team.good":    "metadata.name",
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), badPattern, badSelector, namesake, dotted, newRun("good", 5, "a"))
		h.start(1)
		h.expect(ready, "good")
		h.expect(rejected, slices.Sorted(maps.Keys(cases))...)
		for name, path := range cases {
			status := h.Run(name).Status
			if len(status.ValidationErrors) != 1 || !strings.HasPrefix(status.ValidationErrors[0], path+":") {
				t.Errorf("%s: errors are %q, want one of %s", name, status.ValidationErrors, path)
			}
			if status.Ticket != 0 || status.CompletionTimestamp == nil {
				t.Errorf("%s: ticket %d, completion %v", name, status.Ticket, status.CompletionTimestamp)
			}
		}
		if writes := len(h.Writes("backupruns")); writes != len(cases)+1 {
			t.Errorf("there were %d writes", writes)
		}
	})
}

// A run that is gone, while the informer still shows it, must not keep the others
// from their turn.
func TestARemovedRunHoldsNobodyUp(t *testing.T) {
	enginetest.Each(t, map[string][]runtime.Object{
		"new":     {newRun("gone", 1, "a"), newRun("waits", 2, "b")},
		"queued":  {inPhase(newRun("gone", 1, "a"), queued, 1), inPhase(newRun("waits", 2, "b"), queued, 2)},
		"invalid": {newRun("gone", 1, "a["), newRun("waits", 2, "b")},
	}, func(t *testing.T, runs []runtime.Object) {
		h := newHarness(t, append(runs, location("default", metav1.ConditionTrue))...)
		removed := false
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			run := enginetest.Written(action)
			get, isGet := action.(clienttesting.GetActionImpl)
			if (run != nil && run.Name == "gone" || isGet && get.GetName() == "gone") && !removed {
				removed = true
				if err := h.Tracker().Delete(action.GetResource(), system, "gone"); err != nil {
					t.Error(err)
				}
			}
			return enginetest.Fault{}
		})
		h.Hold()
		h.start(1)
		h.expect(ready, "waits")
		if !removed {
			t.Error("the run was not tried")
		}
	})
}

// Pitfall 12: what has become of a run that waited counts before the informer has seen it.
func TestWhatDoesNotWaitAnyMoreIsNotLetStart(t *testing.T) {
	cases := map[string]func(*harness){}
	for name, become := range map[string]func(*harness){
		"removed":   func(h *harness) { h.Remove("gone") },
		"cancelled": func(h *harness) { h.Cancel("gone") },
		"ended":     func(h *harness) { h.end("gone") },
		"replaced": func(h *harness) {
			h.Remove("gone")
			h.Create(newRun("gone", 3, "a"))
		},
	} {
		cases[name] = func(h *harness) { h.Hold(); become(h) }
		cases[name+", its ticket unseen"] = become
	}
	enginetest.Each(t, cases, func(t *testing.T, become func(*harness)) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("first", 0, "c"), running, 1),
			newRun("gone", 1, "a"), newRun("waits", 2, "b"))
		c := h.prepare(1)
		h.executing["first"] = h.Run("first")
		h.Remove("first")
		synctest.Wait()
		if strings.Contains(t.Name(), "unseen") {
			h.Hold()
		}
		go c.Run(t.Context(), h, h.restores)
		h.expect(queued, "gone", "waits")
		become(h)
		h.mu.Lock()
		delete(h.executing, "first")
		h.mu.Unlock()
		begin := time.Now()
		c.Changed("first")
		h.expect(ready, "waits")
		h.AtOnce(begin)
		if h.starts()["gone"] != 0 {
			t.Error("the other one was let start, too")
		}
	})
}

// What the API server shows is put right, and is not written again.
func TestTheLimitIsPublished(t *testing.T) {
	type settings struct {
		before map[string]string
		writes int
	}
	enginetest.Each(t, map[string]settings{
		"first":            {nil, 2}, // the ConfigMap, and then the ledger of what runs since
		"changed":          {map[string]string{"concurrentBackups": "1", "started": "[]"}, 1},
		"unreadable":       {map[string]string{"concurrentBackups": "many", "started": "[]", "leader": "process-1"}, 1},
		"without a ledger": {map[string]string{"concurrentBackups": "1"}, 1},
		"same":             {map[string]string{"concurrentBackups": "2", "concurrentRestores": "2", "started": "[]", "leader": "process-1"}, 0},
	}, func(t *testing.T, c settings) {
		h := newHarness(t)
		h.setLedger(c.before)
		h.Kube.ClearActions()
		h.start(2)
		if got := h.LedgerObject().Data; got["concurrentBackups"] != "2" || got["concurrentRestores"] != "2" || got["started"] != "[]" {
			t.Errorf("the settings are %q", got)
		}
		if writes := h.Writes("configmaps"); len(writes) != c.writes {
			t.Errorf("%d writes, want %d", len(writes), c.writes)
		}
	})
}

func TestALimitOfNoneIsRefused(t *testing.T) {
	if _, err := New(Config{}); !errors.Is(err, queue.ErrLimit) {
		t.Errorf("New: %v", err)
	}
}
