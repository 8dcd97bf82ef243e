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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
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
// their creation.
func TestTicketsAfterAColdStartFollowCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			newRun("second", 20, "b"), newRun("third", 30, "c"), newRun("first", 10, "a"),
			inPhase(newRun("before", 40, "d"), queued, 7))
		h.start(1)
		h.expect(ready, "before")
		h.expect(queued, "first", "second", "third")
		for i, name := range []string{"first", "second", "third"} {
			run := h.run(name)
			if want := int64(8 + i); run.Status.Ticket != want {
				t.Errorf("%s has ticket %d, want %d", name, run.Status.Ticket, want)
			}
			if run.Status.QueuedTimestamp == nil {
				t.Errorf("%s does not say when it was queued", name)
			}
		}
		if h.run("before").Status.Ticket != 7 {
			t.Errorf("a run got a second ticket: %d", h.run("before").Status.Ticket)
		}
	})
}

func TestEachBackupCostsTwoWrites(t *testing.T) {
	for _, n := range []int{1, 10, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 4
				objects := []runtime.Object{location("default", metav1.ConditionTrue)}
				for i := range n {
					objects = append(objects, newRun(fmt.Sprintf("b%03d", i), i, fmt.Sprintf("ns-%03d", i)))
				}
				h := newHarness(t, objects...)
				h.start(limit)
				begin := time.Now()
				var order []string
				for {
					synctest.Wait()
					started := h.inPhases()[ready]
					if len(started) > limit {
						t.Fatalf("%d run at once, the limit is %d", len(started), limit)
					}
					if len(started) == 0 {
						break
					}
					order = append(order, started[0])
					h.end(started[0])
				}
				h.atOnce(begin)
				if len(order) != n || !slices.IsSorted(order) {
					t.Errorf("%d of %d runs started, in the order %q", len(order), n, order)
				}
				queueWrites := 0
				for _, phase := range []v1alpha1.BackupPhase{queued, ready} {
					for name, writes := range h.writesTo(phase) {
						queueWrites += writes
						if writes != 1 {
							t.Errorf("%d writes made %s %s", writes, name, phase)
						}
					}
				}
				if queueWrites != 2*n {
					t.Errorf("the queue wrote %d times for %d backups", queueWrites, n)
				}
				// The starts of one decision share a write. Leases are renewed whether
				// there are backups or not.
				if all := len(h.Writes("configmaps")) - 1; all != max(1, n-limit+1) { // one tells the limit
					t.Errorf("there were %d writes of starts for %d backups", all, n)
				}
				if all := len(h.Writes("backupruns")); all != 2*n { // this test ends each with one
					t.Errorf("there were %d writes for %d backups, and should be %d", all, n, 2*n)
				}
			})
		})
	}
}

// Pitfalls 5 and 11: a write whose answer is lost counts, and is not made again, so
// that neither a slot nor a ticket is given twice.
func TestLostAnswersAreReadBack(t *testing.T) {
	for _, phase := range []v1alpha1.BackupPhase{queued, ready} {
		t.Run(string(phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue),
					newRun("a", 1, "a"), newRun("b", 2, "b"), newRun("c", 3, "c"))
				lost := map[string]bool{}
				h.Fault(func(action kubetesting.Action) enginetest.Fault {
					name := ""
					if run := written(action); run != nil && run.Status.Phase == phase {
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
				synctest.Wait()
				h.expect(ready, "a")
				h.expect(queued, "b", "c")
				release()
				h.expect(ready, "a")
				h.end("a")
				h.expect(ready, "b")
				for _, phase := range []v1alpha1.BackupPhase{queued, ready} {
					for name, writes := range h.writesTo(phase) {
						if writes != 1 {
							t.Errorf("%d writes made %s %s: it was not read back", writes, name, phase)
						}
					}
				}
				tickets := map[int64]string{}
				for _, name := range []string{"a", "b", "c"} {
					ticket := h.run(name).Status.Ticket
					if other, taken := tickets[ticket]; taken {
						t.Errorf("%s and %s share the ticket %d", name, other, ticket)
					}
					tickets[ticket] = name
				}
				if len(lost) == 0 {
					t.Error("no answer was lost")
				}
			})
		})
	}
}

// Pitfall 12: a decision counts what this controller has written, seen or not.
func TestAStaleInformerNeverExceedsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			newRun("a", 1, "a"), newRun("b", 2, "b"), newRun("c", 3, "c"), newRun("d", 4, "a"))
		release := h.Hold()
		h.start(2)
		h.expect(ready, "a", "b")
		for i := range 3 { // it looks again, at what the informer still shows as new
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("wake-%d", i)}}
			if _, err := h.Kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			h.expect(ready, "a", "b")
			h.expect(queued, "c", "d")
		}
		h.end("a") // not seen yet
		h.expect(ready, "b")
		release()
		h.expect(ready, "b", "c")
		h.expect(queued, "d")
	})
}

// Pitfalls 2 and 12: before it led, another process may have done what its informer
// has not seen.
func TestANewLeaderReadsTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("a", 1, "a"), queued, 1), inPhase(newRun("b", 2, "b"), queued, 2))
		controller := h.prepare(2)
		h.Hold()
		h.Create(inPhase(newRun("c", 3, "c"), ready, 3))
		h.Create(inPhase(newRun("d", 4, "d"), running, 4))
		go controller.Run(t.Context(), h)
		h.expect(queued, "a", "b")
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
		h.remove("run")
		synctest.Wait()
		h.Create(after)
		h.expect(ready, "run")
	})
}

// Pitfall 10: a start that was decided on an outdated record is not written over a run
// that has begun.
func TestALostRaceIsDecidedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), location("other", metav1.ConditionFalse),
			newRun("a", 1, "a"), newRun("b", 2, "b"))
		raced := false
		h.Fault(func(action kubetesting.Action) enginetest.Fault {
			if !isStart(action, "a") || raced {
				return enginetest.Fault{}
			}
			raced = true
			// Another leader was faster, and so was its executor.
			runs := enginev1alpha1.SchemeGroupVersion.WithResource("backupruns")
			obj, err := h.Tracker().Get(runs, system, "a")
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			run := obj.(*enginev1alpha1.BackupRun)
			run.ResourceVersion, run.Status.Phase, run.Status.Executor = "1000", running, "another process"
			if err := h.Tracker().Update(runs, run, system); err != nil {
				t.Error(err)
			}
			h.elect("another process")
			theirs := action.(kubetesting.UpdateActionImpl).GetObject().(*corev1.ConfigMap).DeepCopy()
			theirs.ResourceVersion, theirs.Data[records.LeaderKey] = "1000", "another process"
			if err := h.Kube.Tracker().Update(action.GetResource(), theirs, system); err != nil {
				t.Error(err)
			}
			return enginetest.Fault{}
		})
		h.start(1)
		time.Sleep(time.Second)
		h.expect(running, "a")
		h.expect(queued, "b")
		if got := h.run("a").Status.Executor; got != "another process" || !raced {
			t.Errorf("the run of another leader was overwritten: executor %q", got)
		}
		if leader := records.Leader(h.LedgerObject(t, system)); leader != "another process" {
			t.Errorf("the ledger of another leader was overwritten by %s", leader)
		}
	})
}

// Pitfalls 13 and 24: what waits starts when that changes, without any time between.
func TestEventsWakeTheQueue(t *testing.T) {
	cases := map[string]func(*harness){
		"the blocker ends":       func(h *harness) { h.end("blocker") },
		"the blocker is deleted": func(h *harness) { h.remove("blocker") },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, location("default", metav1.ConditionTrue),
					inPhase(newRun("blocker", 1, "a"), running, 1), newRun("waits", 2, "a"))
				h.start(2)
				h.expect(queued, "waits")
				begin := time.Now()
				change(h)
				h.expect(ready, "waits")
				h.atOnce(begin)
			})
		})
	}
	t.Run("the one ahead is deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			held := newRun("ahead", 1, "a")
			held.Spec.Backup.StorageLocation = "down"
			h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
				held, newRun("waits", 2, "a"))
			h.start(1)
			h.expect(queued, "ahead", "waits")
			begin := time.Now()
			h.remove("ahead")
			h.expect(ready, "waits")
			h.atOnce(begin)
		})
	})
	t.Run("the store is back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, location("default", metav1.ConditionFalse), newRun("waits", 1, "a"))
			h.start(1)
			time.Sleep(3 * backstop)
			h.expect(queued, "waits") // held, and not failed
			begin := time.Now()
			h.setAvailable("default", metav1.ConditionTrue)
			h.expect(ready, "waits")
			h.atOnce(begin)
		})
	})
	t.Run("a location appears", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, newRun("waits", 1, "a"))
			h.start(1)
			h.expect(queued, "waits")
			begin := time.Now()
			h.Create(location("default", metav1.ConditionTrue))
			h.expect(ready, "waits")
			h.atOnce(begin)
		})
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
			status := h.run(name).Status
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
	cases := map[string][]runtime.Object{
		"new":     {newRun("gone", 1, "a"), newRun("waits", 2, "b")},
		"queued":  {inPhase(newRun("gone", 1, "a"), queued, 1), inPhase(newRun("waits", 2, "b"), queued, 2)},
		"invalid": {newRun("gone", 1, "a["), newRun("waits", 2, "b")},
	}
	for name, runs := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, append(runs, location("default", metav1.ConditionTrue))...)
				removed := false
				h.Fault(func(action kubetesting.Action) enginetest.Fault {
					run := written(action)
					get, isGet := action.(kubetesting.GetActionImpl)
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
		})
	}
}

func TestTheLimitIsPublished(t *testing.T) {
	for name, before := range map[string]map[string]string{
		"first": nil, "changed": {"concurrentBackups": "1", "started": "[]"}, "without a ledger": {"concurrentBackups": "1"}, "same": {"concurrentBackups": "2", "started": "[]", "leader": "process-1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.setLedger(before)
				h.ClearActions()
				h.Kube.ClearActions()
				h.start(2)
				if got := h.LedgerObject(t, system).Data; got["concurrentBackups"] != "2" || got["started"] != "[]" {
					t.Errorf("the settings are %q", got)
				}
				want := 1
				switch name {
				case "same":
					want = 0
				case "first": // the ConfigMap, and then the ledger of what runs since
					want = 2
				}
				if writes := h.Writes("configmaps"); len(writes) != want {
					t.Errorf("%d writes, want %d", len(writes), want)
				}
			})
		})
	}
}

// What the API server shows is put right again.
func TestTheLimitIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.start(2)
		h.setLedger(map[string]string{"concurrentBackups": "many", "started": "[]"})
		synctest.Wait()
		if got := h.LedgerObject(t, system).Data["concurrentBackups"]; got != "2" {
			t.Errorf("the limit is %q", got)
		}
	})
}

func TestALimitOfNoneIsRefused(t *testing.T) {
	if _, err := New(Config{}); !errors.Is(err, queue.ErrLimit) {
		t.Errorf("New: %v", err)
	}
}
