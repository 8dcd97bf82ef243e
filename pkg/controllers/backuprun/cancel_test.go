// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// expectCancelled compares the end of a run that jane cancelled.
func (h *harness) expectCancelled(name string, stored bool) {
	h.Helper()
	h.expect(name, cancelled, stored)
	status := h.Run(name).Status
	if status.FailureReason != "cancelled by jane" || status.CompletionTimestamp == nil {
		h.Errorf("reason %q, completion %v", status.FailureReason, status.CompletionTimestamp)
	}
}

func TestCancellingStopsARunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			data := volumeOf("data")
			if err := volumes.Submit(ctx, data); err != nil {
				t.Error(err)
			}
			err := volumes.Wait(ctx, []*format.Volume{data})
			return failed(err), err
		}}, newRun("a", ready))
		h.start(1)
		if len(h.uploads()) != 1 {
			t.Fatal("there is no upload")
		}
		h.Told()
		begin := time.Now()
		h.Cancel("a")
		h.expectCancelled("a", true)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it took %s", waited)
		}
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("uploads go on: %v", left)
		}
		if !slices.Equal(h.work.cancelled, []string{"a"}) {
			t.Errorf("cancelled in the store: %q", h.work.cancelled)
		}
		h.expectSettled()
		if events := h.Told(); !slices.Equal(events, []string{"Normal Cancelled The backup was cancelled by jane"}) {
			t.Errorf("events: %q", events)
		}
		time.Sleep(time.Hour)
		if h.writes("a") != 3+1 { // claim, end, and that the snapshots are removed; and the request
			t.Errorf("%d writes", h.writes("a"))
		}
	})
}

// A post hook that fails after the cancellation leaves a pod frozen, and there are no results to
// say so.
func TestPostHooksOfACancelledBackupThatFail(t *testing.T) {
	enginetest.Each(t, map[string]error{"the store is told": nil, "the store does not answer": errors.New("away")}, func(t *testing.T, away error) {
		ended := v1alpha1.HookStatus{HooksAttempted: 2, HooksFailed: 1}
		stops := 0
		h := newHarness(t, &work{execute: func(ctx context.Context, _ *enginev1alpha1.BackupRun, _ backup.Volumes) (backup.Outcome, error) {
			<-ctx.Done()
			outcome := failed(ctx.Err())
			outcome.Status.HookStatus, outcome.FailedPostHooks = ended.DeepCopy(), "pods shop/db: its post hook thaw failed"
			return outcome, ctx.Err()
		}, abandon: func(_ context.Context, run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
			outcome := abandoned(phase, reason)
			outcome.Status.HookStatus = run.AsBackup().Status.HookStatus
			if stops++; stops == 1 && away != nil {
				return failed(away), away
			}
			return outcome, nil
		}}, newRun("a", ready))
		h.start(1)
		h.Told()
		h.Cancel("a")
		time.Sleep(time.Minute)
		h.expectCancelled("a", true)
		if status := h.Run("a").Status.HookStatus; status == nil || *status != ended {
			t.Errorf("the hooks: %+v", status)
		}
		if events := h.Told(); !slices.Equal(events, []string{
			"Warning PostHookFailed The backup was stopped, and of the post hooks that were run then, these failed: pods shop/db: its post hook thaw failed",
			"Normal Cancelled The backup was cancelled by jane",
		}) {
			t.Errorf("events: %q", events)
		}
	})
}

// What was counted before an attempt that is cancelled as it begins stays counted.
func TestHooksBeforeACancelledAttemptAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := v1alpha1.HookStatus{HooksAttempted: 2, HooksFailed: 1}
		run := newRun("a", running)
		run.Status.HookStatus = before.DeepCopy()
		var asked *v1alpha1.HookStatus
		h := newHarness(t, &work{execute: untilStopped, abandon: func(_ context.Context, run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
			asked = run.Status.HookStatus.DeepCopy()
			return abandoned(phase, reason), nil
		}}, run)
		h.start(1)
		time.Sleep(time.Minute)
		h.Cancel("a")
		time.Sleep(time.Minute)
		h.expectCancelled("a", true)
		if written := h.Run("a").Status.HookStatus; asked == nil || *asked != before || written == nil || *written != before {
			t.Errorf("in the store: %+v, in the record: %+v", asked, written)
		}
	})
}

func TestWhatIsStoredWhenTheCancellationComesStands(t *testing.T) {
	ended := func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
		return stored(done), nil
	}
	enginetest.Each(t, map[string]*work{
		"the answer has come": {execute: func(ctx context.Context, _ *enginev1alpha1.BackupRun, _ backup.Volumes) (backup.Outcome, error) {
			<-ctx.Done()
			return stored(done), nil
		}},
		"the answer is lost": {execute: untilStopped, abandon: ended},
	}, func(t *testing.T, work *work) {
		h := newHarness(t, work, newRun("a", ready))
		h.start(1)
		h.Cancel("a")
		time.Sleep(time.Second) // the end meets the request, and is written again
		h.expect("a", done, true)
		if reason := h.Run("a").Status.FailureReason; reason != "" || (len(work.cancelled) != 0) != (work.abandon != nil) {
			t.Errorf("the reason is %q, and %q were cancelled in the store", reason, work.cancelled)
		}
	})
}

// The queue ends what is not claimed, though it was let start.
// Pitfall 10: a claim that meets another write fails.
func TestACancelledRunIsNotClaimed(t *testing.T) {
	enginetest.Each(t, map[string]bool{"cancelled before": true, "cancelled as it is claimed": false}, func(t *testing.T, before bool) {
		run := newRun("a", ready)
		asked := run.DeepCopy()
		asked.Status.Phase, asked.Spec.Cancellation = queued, &enginev1alpha1.Ask{}
		if before {
			run.Spec.Cancellation = &enginev1alpha1.Ask{}
		}
		h := newHarness(t, &work{}, run)
		h.FaultRuns(enginetest.Fault{}, func(*enginev1alpha1.BackupRun) bool {
			h.Meanwhile(asked)
			return false
		})
		h.start(1)
		time.Sleep(time.Hour)
		h.expectExecuted()
		if writes := h.writes("a"); before && writes != 0 || writes > 1 {
			t.Errorf("%d writes", writes)
		}
	})
}

// It was asked between the claim and the execution, or the answer of the claim was
// lost.
func TestARunThatIsCancelledAsItBegins(t *testing.T) {
	t.Run("after the claim", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready))
			asked := false
			h.announcing = func() {
				if !asked {
					asked = true
					h.Cancel("a")
					time.Sleep(time.Second) // until the informer has seen that
				}
			}
			h.start(1)
			time.Sleep(2 * time.Second)
			h.expectCancelled("a", true)
		})
	})
	t.Run("with the answer of the claim lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			run := newRun("a", running)
			run.Status.Executor = identity
			run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
			h := newHarness(t, &work{execute: untilStopped}, run)
			h.writeLedger(records.Start{UID: run.UID, Name: "a"})
			h.start(1)
			h.expectCancelled("a", true)
		})
	})
}
