// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	queued    = v1alpha1.BackupPhaseQueued
	ready     = v1alpha1.BackupPhaseReadyToStart
	running   = v1alpha1.BackupPhaseInProgress
	done      = v1alpha1.BackupPhaseCompleted
	broken    = v1alpha1.BackupPhaseFailed
	refused   = v1alpha1.BackupPhaseFailedValidation
	cancelled = v1alpha1.BackupPhaseCancelled
)

var errBroken = errors.New("the connection broke")

// Pitfall 28: the time to live counts from the start, and not from the creation. A
// record written by hand may have none, and its backup must not be born expired.
func TestATinyBackupCostsTwoWrites(t *testing.T) {
	enginetest.Each(t, map[string]time.Duration{"expires": 48 * time.Hour, "without a TTL": 0}, func(t *testing.T, ttl time.Duration) {
		var claimed *enginev1alpha1.BackupRun
		run := newRun("a", ready)
		run.Spec.Backup.TTL = v1alpha1.Duration{Duration: ttl}
		var h *harness
		h = newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			claimed = run
			time.Sleep(time.Second)                     // of a clock that stands until all else waits: the informer shows the claim
			h.controller.Start("a")                     // which the queue does until it sees that
			return stored(done), volumes.Wait(ctx, nil) // for none
		}}, run)
		h.start(1)
		time.Sleep(time.Minute)
		reads := slices.DeleteFunc(h.Actions(), func(action clienttesting.Action) bool { return !action.Matches("get", "backupruns") })
		if len(reads) != 1 {
			t.Errorf("the run was read %d times, want once, before the claim", len(reads))
		}
		h.expect("a", done, true)
		if h.writes("a") != 2 || len(h.Writes("volumeuploads")) != 0 {
			t.Errorf("%d writes of the run and %v of volumes, want 2 and none", h.writes("a"), h.Writes("volumeuploads"))
		}
		status := claimed.Status
		if status.Phase != running || status.Executor != identity || status.StartTimestamp == nil {
			t.Errorf("executed in phase %s by %q, started %v", status.Phase, status.Executor, status.StartTimestamp)
		}
		if want := status.StartTimestamp.Add(ttl); ttl > 0 && (status.Expiration == nil || !status.Expiration.Time.Equal(want)) || ttl == 0 && status.Expiration != nil {
			t.Errorf("expires %v, want %s", status.Expiration, want)
		}
		if h.Run("a").Status.CompletionTimestamp == nil {
			t.Error("the run does not say when it ended")
		}
		if events := h.Told(); !slices.Equal(events, []string{"Normal Started The backup has started; it waited 0s", "Normal Completed The backup has ended with neither errors nor warnings"}) {
			t.Errorf("events: %q", events)
		}
	})
}

// A claim and an end are written in the end, and the work is done once. A lost answer is
// read back, a write of somebody else costs another try, and people are told of one that
// is refused.
func TestClaimsAndEndsAreWrittenInTheEnd(t *testing.T) {
	none, lost, failed := enginetest.Fault{}, enginetest.Fault{Err: errBroken, Lost: true}, enginetest.Fault{Err: errBroken}
	denied := enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("backupruns"), "a", errors.New("a policy denies it"))}
	enginetest.Each(t, map[string]struct {
		phase  v1alpha1.BackupPhase
		first  int
		fault  enginetest.Fault
		writes int
	}{
		"the answer of the claim is lost": {running, 1, lost, 2},
		"the claim is denied":             {running, 3, denied, 5},
		"the answer of the end is lost":   {done, 1, lost, 2},
		"the end fails":                   {done, 20, failed, 22},
		"the end is denied":               {done, 3, denied, 5},
		"somebody annotates the run":      {done, 0, none, 3},
		"or just before it is claimed":    {running, 0, none, 3},
	}, func(t *testing.T, c struct {
		phase  v1alpha1.BackupPhase
		first  int
		fault  enginetest.Fault
		writes int
	}) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.FaultRuns(c.fault, func(run *enginev1alpha1.BackupRun) bool {
			if run.Status.Phase == c.phase {
				c.first--
			}
			if c.first == -1 && c.fault == none {
				theirs, err := h.Tracker().Get(enginev1alpha1.SchemeGroupVersion.WithResource("backupruns"), system, "a")
				if err != nil {
					t.Error(err)
				}
				theirs.(*enginev1alpha1.BackupRun).Annotations = map[string]string{"note": "mine"}
				h.Meanwhile(theirs)
			}
			return run.Status.Phase == c.phase && c.first >= 0
		})
		h.start(1)
		time.Sleep(5 * time.Minute)
		h.expect("a", done, true)
		h.expectExecuted("a")
		h.expectSettled()
		if h.writes("a") != c.writes {
			t.Errorf("%d writes", h.writes("a"))
		}
		events := h.Told()
		if last := events[len(events)-1]; !strings.HasPrefix(last, "Normal Completed") {
			t.Errorf("its end is not told: %q", events)
		}
		if tells := slices.ContainsFunc(events, func(event string) bool {
			return strings.HasPrefix(event, "Warning RecordRefused") && strings.Contains(event, "a policy denies it")
		}); tells != (c.fault == denied) {
			t.Errorf("events: %q", events)
		}
	})
}

// What another process has written stands: this one was paused, and taken for dead.
func TestWhatIsDurableStands(t *testing.T) {
	enginetest.Each(t, map[string]enginev1alpha1.BackupRunStatus{
		"ended": {Phase: cancelled}, "ended, and stored": {Phase: done, Stored: true},
	}, func(t *testing.T, theirs enginev1alpha1.BackupRunStatus) {
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			time.Sleep(time.Minute)
			return failed(errBroken), errBroken
		}}, newRun("a", ready))
		h.start(1)
		h.expect("a", running, false)
		release := h.Hold()
		defer release()
		run := h.Run("a")
		run.Status.Phase, run.Status.Stored = theirs.Phase, theirs.Stored
		h.Update(run)
		h.Told()
		time.Sleep(2 * time.Minute)
		h.expect("a", theirs.Phase, theirs.Stored)
		if events := h.Told(); len(events) != 0 && !theirs.Stored {
			t.Errorf("events: %q", events)
		}
	})
}

// Another process, which leads by now, claims a run first. It is left alone, and
// made when this process leads again.
func TestALostRaceForAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.setOutvoted(true)
		h.FaultRuns(enginetest.Fault{}, func(run *enginev1alpha1.BackupRun) bool {
			if run.Status.Executor == identity {
				theirs := run.DeepCopy()
				theirs.Status.Executor = "the other one"
				h.Meanwhile(theirs)
			}
			return false
		})
		h.start(1)
		time.Sleep(time.Hour)
		h.expect("a", running, false)
		h.expectExecuted()
		h.expectSettled()
		h.Fault(nil)
		h.setOutvoted(false)
		time.Sleep(10 * time.Second)
		h.expect("a", done, true)
		h.expectExecuted("a")
	})
}

// Pitfalls 1 and 7: what was let start starts, what waits keeps its place, and what was in
// progress is made by the next process, or has failed and says why.
func TestAfterACrash(t *testing.T) {
	type how struct {
		failing  bool
		attempts int32
		phase    v1alpha1.BackupPhase
		reason   string
		told     string
	}
	enginetest.Each(t, map[string]how{
		"an older version's": {phase: done, told: "Warning Resumed The controller stopped while the backup was in progress, and the next one makes it: attempt 2 of 3"},
		"once":               {attempts: 1, phase: done, told: "Warning Resumed The controller stopped while the backup was in progress, and the next one makes it: attempt 2 of 3"},
		"twice":              {attempts: 2, phase: done, told: "Warning Resumed The controller stopped while the backup was in progress, and the next one makes it: attempt 3 of 3"},
		"three times":        {attempts: 3, phase: broken, reason: "the controller stopped 3 times while the backup was in progress: see the logs of its pods"},
		"not wanted":         {attempts: 1, failing: true, phase: broken, reason: "the controller stopped while the backup was in progress"},
	}, func(t *testing.T, c how) {
		interrupted := newRun("interrupted", running)
		interrupted.Status.Attempts = c.attempts
		h := newHarness(t, &work{}, interrupted, newRun("let-start", ready), newRun("waits", queued))
		h.failing = c.failing
		begin := time.Now()
		h.start(1)
		h.expect("interrupted", c.phase, true)
		if got := h.Run("interrupted").Status.FailureReason; got != c.reason {
			t.Errorf("the reason is %q, want %q", got, c.reason)
		}
		h.expect("let-start", done, true)
		h.expect("waits", queued, false)
		if h.writes("waits") != 0 {
			t.Error("a queued run was written to")
		}
		told := c.told
		if c.phase == broken {
			h.expectExecuted("let-start")
			told = "Warning Failed The backup has failed: " + c.reason
		} else {
			h.expectExecuted("interrupted", "let-start")
		}
		h.AtOnce(begin)
		if events := h.Told(); !slices.Contains(events, told) {
			t.Errorf("events: %q", events)
		}
	})
}

// Pitfall 29: a backup that could not be stored is never shown as completed. However it
// ends while its store does not answer, it ends at once, nobody else waits for that
// store, and the end is stored when the store is back. As long as it is not known what
// the store has of it, its snapshots stay; for good, if it is stored after all.
func TestAFailureThatIsNotStored(t *testing.T) {
	type how struct {
		leftBehind, cancel bool
		phase              v1alpha1.BackupPhase
		reason             string
		after              time.Duration
	}
	for after, isStored := range map[string]bool{"": false, ", and it is stored after all": true} {
		cases := map[string]how{}
		for name, c := range map[string]how{
			"it fails":                    {phase: broken, reason: errBroken.Error(), after: time.Minute},
			"it is cancelled":             {cancel: true, phase: cancelled, reason: "cancelled by jane", after: cancelTimeout},
			"after a crash":               {leftBehind: true, phase: broken, reason: "the controller stopped while the backup was in progress", after: settleTimeout},
			"cancelled, and then a crash": {leftBehind: true, cancel: true, phase: cancelled, reason: "cancelled by jane", after: cancelTimeout},
		} {
			cases[name+after] = c
		}
		enginetest.Each(t, cases, func(t *testing.T, c how) {
			var up atomic.Bool
			run := newRun("a", ready)
			if c.leftBehind {
				run = newRun("a", running)
				if c.cancel {
					run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
				}
			}
			h := newHarness(t, &work{
				execute: uploading(t, failed(errBroken), errBroken, "shop"),
				abandon: func(ctx context.Context, _ *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
					switch {
					case !up.Load():
						<-ctx.Done() // a store that does not answer
						return failed(ctx.Err()), ctx.Err()
					case isStored:
						return stored(done), nil
					}
					return abandoned(phase, reason), nil
				},
			}, run)
			if h.failing = true; c.leftBehind {
				h.Create(newUpload("volume", run, "shop"))
			}
			h.start(1)
			if c.cancel && !c.leftBehind {
				h.Cancel("a")
			}
			time.Sleep(c.after)
			h.expect("a", c.phase, false)
			begin := time.Now()
			h.work.execute = nil
			h.Create(newRun("other", ready))
			h.expect("other", done, true)
			h.AtOnce(begin)
			time.Sleep(time.Hour)
			status := h.Run("a").Status
			if h.expect("a", c.phase, false); status.FailureReason != c.reason || !slices.Equal(status.LeftoverSnapshots, []string{"shop"}) || status.CompletionTimestamp == nil {
				t.Errorf("%+v", status)
			}
			h.expectSnapshotsRemoved()
			writes := h.writes("a")
			h.Told()
			up.Store(true)
			time.Sleep(2 * time.Minute)
			if isStored {
				h.expect("a", done, true)
				h.expectSnapshotsRemoved()
				writes--
			} else {
				h.expect("a", c.phase, true)
				h.expectSnapshotsRemoved("a shop")
				if events := h.Told(); len(events) != 0 {
					t.Errorf("it was told again: %q", events)
				}
			}
			if left := h.Run("a").Status.LeftoverSnapshots; len(left) != 0 {
				t.Errorf("noted are %q", left)
			}
			if h.writes("a") != writes+2 { // the end, and that the snapshots are removed
				t.Errorf("%d writes", h.writes("a")-writes)
			}
		})
	}
}

func TestANameThatIsTakenInTheStore(t *testing.T) {
	taken := fmt.Errorf("%w: backups/a", backup.ErrNameTaken)
	enginetest.Each(t, map[string]struct {
		before v1alpha1.BackupPhase
		cancel bool
	}{
		"when it runs": {before: ready}, "when it is cancelled": {before: ready, cancel: true}, "when its end is to be stored": {before: broken},
	}, func(t *testing.T, c struct {
		before v1alpha1.BackupPhase
		cancel bool
	}) {
		run := newRun("a", running)
		if run.Status.Phase = c.before; c.before == ready {
			run = newRun("a", ready)
		}
		h := newHarness(t, &work{
			execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
				if c.cancel {
					return untilStopped(ctx, run, volumes)
				}
				return failed(taken), taken
			},
			abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
				return failed(taken), taken
			},
		}, run)
		end := refused
		if c.before == broken {
			end = broken // as users have seen it
		}
		h.faultFirst(1, enginetest.Fault{Err: errBroken}, end)
		h.start(1)
		if c.cancel {
			h.Cancel("a")
		}
		time.Sleep(time.Hour)
		h.expect("a", end, false)
		if got := h.Run("a").Status.ValidationErrors; c.before == broken && (len(got) != 1 || !strings.Contains(got[0], "backups/a")) {
			t.Errorf("why it is not stored is %q", got)
		}
		writes := h.writes("a")
		time.Sleep(time.Hour)
		if h.writes("a") != writes {
			t.Errorf("%d more writes", h.writes("a")-writes)
		}
	})
}

// Pitfall 22: the run keeps what it holds until it has stopped, and nobody goes on
// trying to write its end.
func TestRemovingARecordStopsItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			if run.Name == "next" {
				return stored(done), nil
			}
			outcome, err := untilStopped(ctx, run, volumes)
			<-stop // it takes its time
			return outcome, err
		}}, newRun("a", ready))
		h.start(2)
		h.expect("a", running, false)
		h.Remove("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if run := h.controller.Executing()["a"]; run == nil || run.UID != "uid-of-a" || len(h.stoppedNames) > 0 {
			t.Errorf("while it stops %v is worked on, and the queue was told of %q", run, h.stoppedNames)
		}
		begin := time.Now()
		close(stop)
		synctest.Wait()
		if run := h.controller.Executing()["a"]; run != nil || !h.stoppedNames.Has("a") {
			t.Errorf("%v is worked on, and the queue was told of %q", run, h.stoppedNames)
		}
		h.AtOnce(begin)
		h.Create(newRun("next", ready))
		h.expect("next", done, true)
		if h.writes("a") != 1 {
			t.Errorf("%d writes of a run that is gone", h.writes("a"))
		}
		if events := h.Told(); slices.ContainsFunc(events, func(event string) bool { return event[:7] == "Warning" }) {
			t.Errorf("events: %q", events)
		}
	})
}

// An informer that was cut off for a while sees a record that was replaced as one
// that has changed.
func TestARecordThatWasReplacedUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready))
		controller := h.start(1)
		h.expect("a", running, false)
		before := h.Run("a")
		release := h.Hold()
		defer release()
		h.Remove("a")
		next := newRun("a", queued)
		next.UID = "another"
		h.Create(next)
		controller.runChanged(before, h.Run("a"))
		synctest.Wait()
		if len(controller.Executing()) > 0 {
			t.Error("the run goes on whose record is gone")
		}
	})
}

// Pitfall 22: the same between the claim and the execution.
func TestARecordThatIsRemovedAsItIsClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready))
		removed := false
		h.announcing = func() { // between the claim and the execution
			if removed {
				return
			}
			removed = true
			if err := h.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // until the informer has seen that
		}
		h.start(2)
		h.Create(newRun("next", ready))
		time.Sleep(2 * time.Second)
		h.expectExecuted("a", "next")
		if !h.stoppedNames.Has("a") {
			t.Errorf("the queue was told of %q", h.stoppedNames)
		}
	})
}

// What was started of a removed run does not count for the next one of its name.
func TestTheEntryOfARemovedNamesake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", queued))
		h.writeLedger(records.Start{UID: "the one before", Name: "a"})
		h.start(1)
		time.Sleep(time.Minute)
		h.expectExecuted()
	})
}

func TestShutdownLeavesTheRunToTheNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready))
		h.start(1)
		h.expect("a", running, false)
		h.stop()
		<-h.stopped
		h.expect("a", running, false)
		h.expectExecuted("a")
		if h.writes("a") != 2 { // claim, and that it is given back
			t.Errorf("%d writes", h.writes("a"))
		}
		if status := h.Run("a").Status; status.Attempts != 1 || status.GivenBack != 1 || status.Executor != identity || status.Progress == nil {
			t.Errorf("%+v", status)
		}
	})
}

// What is all read when the process is told to stop may end, for as long as its pod has; and the
// process stops after that.
func TestShutdownWaitsForWhatIsNearlyDone(t *testing.T) {
	for name, test := range map[string]struct {
		takes     time.Duration
		cancelled bool
		phase     v1alpha1.BackupPhase
	}{
		"in time": {19 * time.Second, false, done}, "too late": {time.Hour, false, running}, "but not if it is cancelled": {19 * time.Second, true, cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{end: func(ctx, ending context.Context) (backup.Outcome, error) {
					<-ctx.Done()
					select {
					case <-ending.Done():
						return failed(ending.Err()), ending.Err()
					case <-time.After(test.takes):
						return stored(done), nil
					}
				}}, newRun("a", ready))
				h.start(1)
				begin := time.Now()
				if test.cancelled {
					h.Cancel("a")
				} else {
					h.stop()
					<-h.stopped
				}
				synctest.Wait()
				if took, want := time.Since(begin), map[v1alpha1.BackupPhase]time.Duration{done: test.takes, running: lastTime}[test.phase]; took != want {
					t.Errorf("it took %s, want %s", took, want)
				}
				h.expect("a", test.phase, test.phase != running)
				if status := h.Run("a").Status; (status.GivenBack != 0) != (test.phase == running) {
					t.Errorf("%+v", status)
				}
			})
		})
	}
}

// A process that stops since it may have been taken for dead gives nothing back: that is not the
// run's process any more. Nor does one that goes on.
func TestALostLeaseIsNoShutdown(t *testing.T) {
	for name, cause := range map[string]error{"lost": lease.ErrLost, "told to stop": context.Canceled, "going on": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{}, newRun("a", running))
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if cause != nil {
					stop(cause)
				}
				h.runsOf("a process before this one").GiveBack(ctx, h.Run("a"), wasExecuted)
				if given := h.Run("a").Status.GivenBack; (given == 1) != (cause == context.Canceled) {
					t.Errorf("given back %d times", given)
				}
			})
		})
	}
}

// A backup that takes longer than the nodes of its controller stay is made all the same.
func TestAttemptsThatWereGivenBackDoNotCount(t *testing.T) {
	enginetest.Each(t, map[string]struct {
		attempts, givenBack int32
		phase               v1alpha1.BackupPhase
	}{
		"all but one": {9, 8, done}, "the last one": {5, 3, done}, "enough": {5, 2, broken},
		"too many in all": {20, 19, broken},
	}, func(t *testing.T, c struct {
		attempts, givenBack int32
		phase               v1alpha1.BackupPhase
	}) {
		run := newRun("a", running)
		run.Status.Attempts, run.Status.GivenBack = c.attempts, c.givenBack
		h := newHarness(t, &work{}, run)
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", c.phase, true)
		status := h.Run("a").Status
		reason := "the controller stopped 3 times while the backup was in progress: see the logs of its pods"
		if c.attempts == 20 {
			reason = "the controller stopped 20 times while the backup was in progress, and 19 times it was told to, or had not begun: see in the events of its pods by whom"
		}
		if c.phase == broken && status.FailureReason != reason {
			t.Errorf("%q", status.FailureReason)
		}
		if c.phase == done && (status.Attempts != c.attempts+1 || status.GivenBack != c.givenBack) {
			t.Errorf("%+v", status)
		}
	})
}

// Pitfall 30: what runs need at once has a bound, whatever the queue lets start.
func TestNoMoreThanTheWorkersRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready), newRun("b", ready), newRun("c", ready))
		h.start(2)
		synctest.Wait()
		if executed, _ := h.work.done(); len(executed) != 2 {
			t.Errorf("%q run at once", executed)
		}
	})
}

// Pitfall 24: a store that goes away just before the start costs a backup nothing but
// time.
func TestARunWhoseStoreDoesNotAnswerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := &work{unreachable: errors.New("the store does not answer")}
		h := newHarness(t, work, newRun("a", v1alpha1.BackupPhaseReadyToStart))
		h.start(1)
		run := h.Run("a")
		h.expect("a", queued, false)
		if run.Status.Ticket != 1 || run.Status.StartTimestamp != nil {
			t.Errorf("got %+v, want it back in its place in the queue", run.Status)
		}
		if executed, settled := work.done(); len(executed)+len(settled) > 0 {
			t.Errorf("executed %v, settled %v, want neither", executed, settled)
		}
		if want := []string{run.Spec.Backup.StorageLocation + ": the store does not answer"}; !slices.Equal(work.held, want) {
			t.Errorf("held %q, want %q: else the queue would start it again at once", work.held, want)
		}
		h.stop()
		<-h.stopped
	})
}

// A location that was made anew in another format keeps no backups, and one may be for other
// namespaces by now: trying again is in vain, and the location is none the worse for it.
func TestARunThatCanHaveNothingOfItsLocationEnds(t *testing.T) {
	enginetest.Each(t, map[string]error{"of another format": location.ErrForeign, "of others": location.ErrNotAllowed}, func(t *testing.T, reason error) {
		work := &work{unreachable: fmt.Errorf("storage location %q: %w", "default", reason)}
		h := newHarness(t, work, newRun("a", v1alpha1.BackupPhaseReadyToStart))
		h.start(1)
		h.expect("a", v1alpha1.BackupPhaseFailedValidation, false)
		if run := h.Run("a"); !strings.Contains(run.Status.FailureReason, reason.Error()) || run.Status.Attempts != 0 {
			t.Errorf("got %+v", run.Status)
		}
		if executed, _ := work.done(); len(executed)+len(work.held) > 0 {
			t.Errorf("executed %v, held %v, want neither", executed, work.held)
		}
		h.stop()
		<-h.stopped
	})
}

// Pitfall 6: a claim was held back while another process took over, or while the ledger
// was lost and made anew without the run: it goes back to its place, and is not executed
// until it is let start again.
func TestAClaimThatTheLedgerDoesNotKnowGoesBack(t *testing.T) {
	enginetest.Each(t, map[string]bool{"another process leads": true, "the ledger was lost": false}, func(t *testing.T, another bool) {
		h := newHarness(t, &work{}, newRun("a", ready))
		run, ledger, claims := h.Run("a"), h.LedgerObject(), 0
		if another {
			ledger.Data[records.LeaderKey] = "another process"
		} else {
			ledger.Data[records.StartedKey] = "[]"
		}
		h.FaultRuns(enginetest.Fault{}, func(run *enginev1alpha1.BackupRun) bool {
			if run.Status.Phase == running {
				if claims++; claims == 1 {
					h.Meanwhile(ledger)
				}
			}
			return false
		})
		h.start(1)
		h.expectExecuted()
		if status := h.Run("a").Status; status.Attempts != 1 || status.GivenBack != 1 || status.Phase != queued || status.Executor != "" || status.StartTimestamp != nil || status.Expiration != nil || status.Ticket != run.Status.Ticket {
			t.Errorf("it went back as %+v", status)
		}
		if told := h.Told(); len(told) > 0 {
			t.Errorf("people were told %q", told)
		}
		h.setLeader(identity)
		h.writeLedger(records.Start{UID: run.UID, Name: "a"})
		h.expect("a", done, true)
		h.expectExecuted("a")
		if told := h.Told(); !slices.ContainsFunc(told, func(event string) bool { return strings.HasPrefix(event, "Normal Started ") }) {
			t.Errorf("people were told %q", told)
		}
	})
}

// A process that is told to stop before it has executed anything of what it has claimed gives that
// back too. People are told of an attempt before only if one has executed something.
func TestWhatWasNotExecutedDoesNotCount(t *testing.T) {
	enginetest.Each(t, map[string]struct {
		attempts, givenBack int32
		progress            *v1alpha1.BackupProgress
		uploads             bool
		told                string
	}{
		"the ledger is not read":     {attempts: 1, told: "Normal Started The backup has started; it waited "},
		"the uploads are not read":   {attempts: 2, givenBack: 1, uploads: true, told: "Normal Started The backup has started; it waited "},
		"one before was told to":     {attempts: 2, givenBack: 1, progress: &v1alpha1.BackupProgress{}, told: "Warning Resumed The controller stopped while the backup was in progress, and the next one makes it: attempt 3 of 5"},
		"one before was not told to": {attempts: 2, told: "Warning Resumed The controller stopped while the backup was in progress, and the next one makes it: attempt 3 of 4"},
	}, func(t *testing.T, c struct {
		attempts, givenBack int32
		progress            *v1alpha1.BackupProgress
		uploads             bool
		told                string
	}) {
		run := newRun("a", running)
		run.Status.Executor, run.Status.Attempts, run.Status.GivenBack, run.Status.Progress = identity, c.attempts, c.givenBack, c.progress
		run.Status.StartTimestamp = new(metav1.Now())
		h := newHarness(t, &work{})
		h.WriteLedger(records.Start{UID: run.UID, Name: "a"})
		h.start(1)
		stopping := true
		resource := map[bool]string{true: "volumeuploads", false: "configmaps"}[c.uploads]
		fail := func(action clienttesting.Action) (bool, runtime.Object, error) {
			if list, ok := action.(clienttesting.ListAction); !stopping || ok && list.GetListRestrictions().Labels.Empty() { // an informer's
				return false, nil, nil
			}
			h.stop()
			return true, nil, context.Canceled
		}
		h.Kube.PrependReactor("get", resource, fail)
		h.PrependReactor("list", resource, fail)
		h.Cluster.Create(run)
		<-h.stopped
		h.expectExecuted()
		if status := h.Run("a").Status; status.Attempts != c.attempts || status.GivenBack != c.givenBack+1 {
			t.Errorf("%+v", status)
		}
		stopping, h.stopped = false, make(chan struct{})
		next := h.Run("a")
		next.Status.Executor = "the process before"
		h.Update(next)
		h.start(1)
		h.expect("a", done, true)
		if told := h.Told(); !slices.ContainsFunc(told, func(event string) bool { return strings.HasPrefix(event, c.told) }) {
			t.Errorf("people were told %q, want %q", told, c.told)
		}
	})
}
