// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// refuseFirst refuses so many writes of the end of a run.
func refuseFirst(n int) func(clienttesting.Action) enginetest.Fault {
	return func(action clienttesting.Action) enginetest.Fault {
		run := written(action)
		if run == nil || !run.Status.Phase.Ended() || n == 0 {
			return enginetest.Fault{}
		}
		n--
		return enginetest.Fault{Err: errBroken}
	}
}

// This process was paused, and taken for dead.
func TestARunThatAnotherProcessHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			time.Sleep(time.Minute)
			return failed(errBroken), errBroken
		}}, newRun("a", ready))
		h.start(1)
		release := h.Hold()
		run := h.run("a")
		run.Status.Phase = cancelled
		if _, err := h.EngineV1alpha1().BackupRuns(system).UpdateStatus(t.Context(), run, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.announced()
		time.Sleep(2 * time.Minute)
		h.expect("a", cancelled, false)
		if events := h.announced(); len(events) != 0 {
			t.Errorf("events: %q", events)
		}
		release()
	})
}

func TestTheEndIsWrittenInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.Fault(refuseFirst(20))
		h.start(1)
		h.expect("a", running, false)
		time.Sleep(5 * time.Minute)
		h.expect("a", done, true)
		h.expectExecuted("a")
		h.expectSettled()
		if h.writes("a") != 22 {
			t.Errorf("%d writes", h.writes("a"))
		}
	})
}

func TestTheLostAnswerOfAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.Fault(loseFirst(done))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", done, true)
		if h.writes("a") != 2 {
			t.Errorf("%d writes: the end was not read back", h.writes("a"))
		}
		if events := h.announced(); len(events) != 2 {
			t.Errorf("events: %q", events)
		}
	})
}

// A write of somebody else to the record, such as an annotation, costs another try
// and nothing more.
func TestTheEndOfARunThatSomebodyChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		changed := false
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			run := written(action)
			if run == nil || run.Status.Phase != done || changed {
				return enginetest.Fault{}
			}
			changed = true
			current, err := h.Tracker().Get(action.GetResource(), system, "a")
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			annotated := current.(*enginev1alpha1.BackupRun)
			annotated.Annotations, annotated.ResourceVersion = map[string]string{"note": "mine"}, "1000"
			if err := h.Tracker().Update(action.GetResource(), annotated, system); err != nil {
				t.Error(err)
			}
			return enginetest.Fault{}
		})
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", done, true)
		if h.run("a").Annotations["note"] != "mine" {
			t.Error("the annotation is lost")
		}
	})
}

// The end that another process has stored is not replaced.
func TestWhatIsDurableStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			<-finish
			return failed(errBroken), errBroken
		}}, newRun("a", ready))
		h.start(1)
		h.expect("a", running, false)
		theirs := h.run("a")
		theirs.Status.Phase, theirs.Status.Stored = done, true
		if _, err := h.EngineV1alpha1().BackupRuns(system).UpdateStatus(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		close(finish)
		time.Sleep(time.Minute)
		h.expect("a", done, true)
	})
}
