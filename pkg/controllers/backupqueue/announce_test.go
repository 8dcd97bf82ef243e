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
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

func (h *harness) expectTold(want ...string) {
	h.Helper()
	if got := h.Told(); !slices.Equal(got, want) {
		h.Errorf("events %q\nwant   %q", got, want)
	}
}

// Who waits is told so at once, and who does not wait is not.
func TestEventsSayThatABackupIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse))
		h.start(1)
		h.Create(newRun("starts", 1, "a"))
		h.expect(ready, "starts")
		h.expectTold()
		h.Create(newRun("waits", 2, "a"))
		h.expectTold("Normal Queued The backup waits at position 1: overlaps starts (ready) in a")
		held := newRun("held", 3, "b")
		held.Spec.Backup.StorageLocation = "down"
		h.Create(held)
		h.expectTold(`Normal Queued The backup waits at position 2: storage location "down" is unavailable`)
		h.Create(newRun("third", 4, "c"))
		h.expectTold("Normal Queued The backup waits at position 3: waits for a slot: 1 in use, the limit is 1")
		time.Sleep(time.Hour)
		h.expectTold()
	})
}

// Positions are those after the decision that the event comes of.
func TestQueuedEventsDoNotCountWhatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			newRun("a", 1, "a"), newRun("b", 2, "b"), newRun("c", 3, "a"), newRun("d", 4, "d"))
		h.start(2)
		h.expect(ready, "a", "b")
		h.expectTold(
			"Normal Queued The backup waits at position 1: overlaps a (ready) in a",
			"Normal Queued The backup waits at position 2: waits for a slot: 2 in use, the limit is 2")
	})
}

// When thousands wait, the API server is not flooded with events that say so, and
// each of them is told in the end.
func TestEventsOfALongQueueAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 0, "a"), running, 1))
		const n = 3*eventsAtOnce + eventsAtOnce/2
		for i := range n {
			h.Create(newRun(fmt.Sprintf("run-%03d", i), i+1, "a"))
		}
		h.start(1)
		if first := h.Told(); len(first) != eventsAtOnce || first[0] != "Normal Queued The backup waits at position 1: overlaps runs (running) in a" {
			t.Errorf("%d events at once, the first is %q", len(first), first[:1])
		}
		for _, want := range []int{eventsAtOnce, eventsAtOnce, eventsAtOnce / 2, 0} {
			time.Sleep(backstop)
			if told := len(h.Told()); told != want {
				t.Errorf("%d events in %s, want %d", told, backstop, want)
			}
		}
		// More come than may be told: as many as is said.
		time.Sleep(time.Minute)
		told := 0
		for i := range 10 * eventsAtOnce {
			h.Create(newRun(fmt.Sprintf("more-%04d", i), n+i+1, "a"))
			time.Sleep(backstop / (5 * eventsAtOnce))
			told += len(h.Told())
		}
		if most := 3 * eventsAtOnce; told > most || told < most-1 {
			t.Errorf("%d events in %s, want %d", told, 2*backstop, most)
		}
	})
}

// It waits, though nobody knows yet whether its place was written.
func TestALostAnswerLosesNoQueuedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "a"), running, 1))
		h.start(1)
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if run := enginetest.Written(action); run != nil && run.Status.Phase == queued {
				return enginetest.Fault{Err: errors.New("the connection broke"), Lost: true}
			}
			return enginetest.Fault{}
		})
		h.Create(newRun("waits", 2, "a"))
		time.Sleep(time.Second)
		h.expectTold("Normal Queued The backup waits at position 1: overlaps runs (running) in a")
	})
}

// While nothing can start, backups get their places, and are told why they wait.
func TestEventsWithoutALedger(t *testing.T) {
	enginetest.Each(t, map[string]string{"unreadable": "Warning LedgerUnreadable", "refused": "Warning LedgerRefused"}, func(t *testing.T, reason string) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "a"), running, 1))
		controller := h.prepare(2)
		go controller.Run(t.Context(), h, h.restores)
		synctest.Wait()
		if reason == "Warning LedgerUnreadable" {
			h.setLedger(map[string]string{records.StartedKey: "garbage", records.LeaderKey: "process-1"})
		}
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			run := enginetest.Written(action)
			if isStart(action, "free") || run != nil && run.Name == "refused" {
				return enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("backupruns"), "any", errors.New("a policy denies it"))}
			}
			return enginetest.Fault{}
		})
		h.Create(newRun("free", 2, "b"))
		h.Create(newRun("waits", 3, "a"))
		h.Create(newRun("refused", 4, "a"))
		time.Sleep(time.Hour)
		var places []string
		told := false
		for _, event := range h.Told() {
			told = told || strings.HasPrefix(event, reason)
			if strings.HasPrefix(event, "Normal Queued") {
				places = append(places, event)
			}
		}
		if !slices.Equal(places, []string{"Normal Queued The backup waits at position 2: overlaps runs (running) in a"}) || !told {
			t.Errorf("events %q, and %s: %t", places, reason, told)
		}
		if len(controller.unannounced) > 1 {
			t.Errorf("it remembers %d places", len(controller.unannounced))
		}
	})
}

// Nobody but an event tells it to who wrote the record by hand.
func TestAnInvalidRecordIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a["))
		h.start(1)
		h.expect(v1alpha1.BackupPhaseFailedValidation, "a")
		if told := h.Told(); len(told) != 1 || !strings.HasPrefix(told[0], "Warning FailedValidation The backup is not valid: spec.includedNamespaces[0]: ") {
			t.Errorf("events %q", told)
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
		h.expectTold(`Normal Queued The backup waits at position 1: overlaps another backup in shop`)
	})
}

// Where patterns overlap, people are told the namespaces that exist.
func TestEventsNameTheNamespacesInConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("runs", 1, "team-*"), running, 1), newRun("waits", 2, "*-db"))
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a-db"}}
		if _, err := h.Kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.start(2)
		if told := h.Told(); len(told) != 1 || !strings.Contains(told[0], "in team-a-db") {
			t.Errorf("people are told %q", told)
		}
	})
}

// What waited is known. What was created meanwhile is not.
func TestARestartTellsNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits, held := inPhase(newRun("waits", 2, "a"), queued, 2), inPhase(newRun("held", 3, "b"), queued, 3)
		queuedAt := metav1.NewTime(time.Now().Add(-time.Hour))
		waits.Status.QueuedTimestamp, held.Status.QueuedTimestamp = &queuedAt, &queuedAt
		held.Spec.Backup.StorageLocation = "down"
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
			inPhase(newRun("runs", 1, "a"), running, 1), waits, held, newRun("new", 4, "a"))
		h.start(2)
		h.expectTold("Normal Queued The backup waits at position 3: overlaps runs (running) in a")
		time.Sleep(time.Hour)
		h.expectTold()
	})
}

// The log names each run that others pass by, with the namespaces in conflict: once, until it waits
// for something else.
func TestPassedOverIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("first", 1, "a"), running, 1), inPhase(newRun("second", 1, "b"), running, 2))
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		controller := h.prepare(4)
		go controller.Run(klog.NewContext(h.Context(), logger), h, h.restores)
		synctest.Wait()
		logged := func(want ...string) {
			t.Helper()
			var got []string
			for _, line := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
				if line.Message == "Passed over in the queue" {
					got = append(got, fmt.Sprint(line.ParameterKVList))
				}
			}
			if !slices.EqualFunc(got, want, strings.Contains) {
				t.Fatalf("the log has %q, want %q", got, want)
			}
		}
		h.Create(newRun("waits", 2, "a", "b"))
		h.expect(queued, "waits")
		logged()
		h.Create(newRun("free", 3, "c"))
		h.expect(ready, "free")
		logged("conflictNamespaces [a b]")
		h.Create(newRun("also-free", 4, "d"))
		h.expect(ready, "also-free", "free")
		logged("conflictNamespaces [a b]")
		h.end("first")
		h.end("free")
		h.Create(newRun("free-too", 5, "e"))
		h.expect(ready, "also-free", "free-too")
		logged("conflictNamespaces [a b]", "conflictNamespaces [b]")
	})
}
