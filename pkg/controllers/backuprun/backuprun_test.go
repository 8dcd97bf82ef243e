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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	queued  = v1alpha1.BackupPhaseQueued
	ready   = v1alpha1.BackupPhaseReadyToStart
	running = v1alpha1.BackupPhaseInProgress
	done    = v1alpha1.BackupPhaseCompleted
	broken  = v1alpha1.BackupPhaseFailed
	refused = v1alpha1.BackupPhaseFailedValidation
)

var errBroken = errors.New("the connection broke")

// Pitfall 28: the time to live counts from the start, and not from the creation.
func TestATinyBackupCostsTwoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var claimed *enginev1alpha1.BackupRun
		h := newHarness(t, &work{execute: func(_ context.Context, run *enginev1alpha1.BackupRun, _ backup.Volumes) (backup.Outcome, error) {
			claimed = run
			return stored(done), nil
		}}, newRun("a", ready))
		h.start(1)
		h.expect("a", done, true)
		if h.writes("a") != 2 || len(h.Writes("volumeuploads")) != 0 {
			t.Errorf("%d writes of the run and %v of volumes, want 2 and none", h.writes("a"), h.Writes("volumeuploads"))
		}
		status := claimed.Status
		if status.Phase != running || status.Executor != identity || status.StartTimestamp == nil {
			t.Errorf("executed in phase %s by %q, started %v", status.Phase, status.Executor, status.StartTimestamp)
		}
		if want := status.StartTimestamp.Add(48 * time.Hour); status.Expiration == nil || !status.Expiration.Time.Equal(want) {
			t.Errorf("expires %v, want %s", status.Expiration, want)
		}
		if h.run("a").Status.CompletionTimestamp == nil {
			t.Error("the run does not say when it ended")
		}
		if events := h.announced(); len(events) != 2 || events[0] != "Normal Started The backup has started; it waited 0s" ||
			events[1] != "Normal Completed The backup has ended with 0 errors and 0 warnings" {
			t.Errorf("events: %q", events)
		}
	})
}

// A record written by hand may have no TTL. Its backup must not be born expired.
func TestABackupWithoutATTLNeverExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", ready)
		run.Spec.Backup.TTL = metav1.Duration{}
		h := newHarness(t, &work{}, run)
		h.start(1)
		h.expect("a", done, true)
		if got := h.run("a").Status.Expiration; got != nil {
			t.Errorf("it expires %s", got)
		}
	})
}

func TestTheLostAnswerOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.Fault(loseFirst(running))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", done, true)
		h.expectExecuted("a")
		h.expectSettled()
		if h.writes("a") != 2 {
			t.Errorf("%d writes", h.writes("a"))
		}
	})
}

// loseFirst loses the first answer to a write that brings a run into a phase.
func loseFirst(phase v1alpha1.BackupPhase) func(clienttesting.Action) enginetest.Fault {
	lost := false
	return func(action clienttesting.Action) enginetest.Fault {
		run := written(action)
		if run == nil || run.Status.Phase != phase || lost {
			return enginetest.Fault{}
		}
		lost = true
		return enginetest.Fault{Err: errBroken, Lost: true}
	}
}

// Another process, which leads by now, claims a run first. It is left alone, and
// ended when this process leads again.
func TestALostRaceForAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		h.setOutvoted(true)
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			run := written(action)
			if run == nil || run.Status.Executor != identity {
				return enginetest.Fault{}
			}
			theirs := run.DeepCopy()
			theirs.Status.Executor, theirs.ResourceVersion = "the other one", "1000"
			if err := h.Tracker().Update(action.GetResource(), theirs, system); err != nil {
				t.Error(err)
			}
			return enginetest.Fault{}
		})
		h.start(1)
		time.Sleep(time.Hour)
		h.expect("a", running, false)
		h.expectExecuted()
		h.expectSettled()
		h.Fault(nil)
		h.setOutvoted(false)
		time.Sleep(10 * time.Second)
		h.expect("a", broken, true)
		h.expectExecuted()
	})
}

// Pitfalls 1 and 7: what was let start starts, what waits keeps its place, and only
// what was in progress fails, saying why.
func TestAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("interrupted", running), newRun("let-start", ready), newRun("waits", queued))
		volume := &enginev1alpha1.VolumeUpload{}
		volume.Namespace, volume.Name = system, "volume"
		volume.Labels = map[string]string{enginev1alpha1.LabelRun: "uid-of-interrupted"}
		h.Create(volume)
		begin := time.Now()
		h.start(1)
		h.expect("interrupted", broken, true)
		if got, want := h.run("interrupted").Status.FailureReason, "the controller stopped while the backup was in progress"; got != want {
			t.Errorf("the reason is %q, want %q", got, want)
		}
		h.expect("let-start", done, true)
		h.expect("waits", queued, false)
		if h.writes("waits") != 0 {
			t.Error("a queued run was written to")
		}
		h.expectExecuted("let-start")
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it took %s", waited)
		}
		volumes, err := h.EngineV1alpha1().VolumeUploads(system).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(volumes.Items) != 0 {
			t.Errorf("uploads of a dead run go on: %v, %v", volumes.Items, err)
		}
		if events := h.announced(); !slices.Contains(events, "Warning Failed The backup has failed: the controller stopped while the backup was in progress") {
			t.Errorf("events: %q", events)
		}
	})
}

// Pitfall 7: what a process before this one has stored stands, even if it could not
// say so.
func TestARunThatEndedBeforeTheCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
			return stored(done), nil
		}}, newRun("a", running))
		h.start(1)
		h.expect("a", done, true)
		if reason := h.run("a").Status.FailureReason; reason != "" {
			t.Errorf("it failed: %s", reason)
		}
	})
}

func TestAStoreThatIsDownWhenARunIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := make(chan struct{})
		h := newHarness(t, &work{abandon: func(ctx context.Context, run *enginev1alpha1.BackupRun, _ v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
			select {
			case <-up:
				outcome := stored(broken)
				outcome.Status.FailureReason = reason
				return outcome, nil
			case <-ctx.Done(): // a store that does not answer
				return failed(ctx.Err()), ctx.Err()
			}
		}}, newRun("a", running), newRun("b", running), newRun("c", running))
		h.start(1)
		begin := time.Now()
		h.Create(newRun("ready", ready))
		h.expect("ready", done, true)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("a run waited %s for a store that it does not use", waited)
		}
		time.Sleep(4 * settleTimeout)
		for _, name := range []string{"a", "b", "c"} {
			h.expect(name, broken, false)
		}
		close(up)
		time.Sleep(time.Minute)
		for _, name := range []string{"a", "b", "c"} {
			h.expect(name, broken, true)
			if got, want := h.run(name).Status.FailureReason, "the controller stopped while the backup was in progress"; got != want {
				t.Errorf("the reason is %q, want %q", got, want)
			}
		}
	})
}

// Pitfall 29: a backup that could not be stored is never shown as completed.
func TestAFailureThatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		h := newHarness(t, &work{
			execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
				return failed(errBroken), errBroken
			},
			abandon: func(_ context.Context, _ *enginev1alpha1.BackupRun, _ v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
				if !up.Load() {
					return failed(errBroken), errBroken
				}
				outcome := stored(broken)
				outcome.Status.FailureReason = reason
				return outcome, nil
			},
		}, newRun("a", ready))
		h.start(1)
		h.expect("a", broken, false)
		time.Sleep(time.Hour)
		h.expect("a", broken, false)
		writes := h.writes("a")
		up.Store(true)
		time.Sleep(time.Minute)
		h.expect("a", broken, true)
		h.expectExecuted("a")
		if got := h.run("a").Status.FailureReason; got != errBroken.Error() {
			t.Errorf("the reason is %q", got)
		}
		if writes != 2 || h.writes("a") != 3 {
			t.Errorf("%d writes while the store was down, %d in all; want 2 and 3", writes, h.writes("a"))
		}
	})
}

func TestANameThatIsTakenInTheStore(t *testing.T) {
	taken := fmt.Errorf("%w: backups/a", backup.ErrNameTaken)
	refuse := func() (backup.Outcome, error) { return failed(taken), taken }
	w := func() *work {
		return &work{
			execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
				return refuse()
			},
			abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
				return refuse()
			},
		}
	}
	t.Run("when it runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, w(), newRun("a", ready))
			h.start(1)
			time.Sleep(time.Hour)
			h.expect("a", refused, false)
			h.expectSettled()
		})
	})
	t.Run("when it is settled, and the first write fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			run := newRun("a", running)
			run.Status.Phase = broken
			h := newHarness(t, w(), run)
			h.Fault(refuseFirst(1))
			h.start(1)
			time.Sleep(time.Hour)
			h.expect("a", refused, false)
			h.expectSettled("a")
		})
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
		h.remove("a")
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
		h.atOnce(begin)
		h.Create(newRun("next", ready))
		h.expect("next", done, true)
		if h.writes("a") != 1 {
			t.Errorf("%d writes of a run that is gone", h.writes("a"))
		}
		if events := h.announced(); slices.ContainsFunc(events, func(event string) bool { return event[:7] == "Warning" }) {
			t.Errorf("events: %q", events)
		}
	})
}

// Somebody may refuse to have the record written. People are told, and it is tried
// again until it is allowed.
func TestARecordThatMayNotBeWrittenIsReported(t *testing.T) {
	for name, phase := range map[string]v1alpha1.BackupPhase{"the claim": running, "the end": done} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{}, newRun("a", ready))
				h.Fault(func(action clienttesting.Action) enginetest.Fault {
					if run := written(action); run != nil && run.Status.Phase == phase {
						return enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("backupruns"), "a", errors.New("a policy denies it"))}
					}
					return enginetest.Fault{}
				})
				h.start(1)
				time.Sleep(time.Minute)
				if events := h.announced(); !slices.ContainsFunc(events, func(event string) bool {
					return strings.HasPrefix(event, "Warning RecordRefused") && strings.Contains(event, "a policy denies it")
				}) {
					t.Errorf("events: %q", events)
				}
				h.Fault(nil)
				time.Sleep(time.Minute)
				h.expect("a", done, true)
				h.expectExecuted("a")
			})
		})
	}
}

// An informer that was cut off for a while sees a record that was replaced as one
// that has changed.
func TestARecordThatWasReplacedUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", ready))
		controller := h.start(1)
		h.expect("a", running, false)
		before := h.run("a")
		release := h.Hold()
		defer release()
		h.remove("a")
		next := newRun("a", queued)
		next.UID = "another"
		h.Create(next)
		controller.runChanged(before, h.run("a"))
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
		if h.writes("a") != 1 {
			t.Errorf("%d writes", h.writes("a"))
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
		run := h.run("a")
		h.expect("a", queued, false)
		if run.Status.Ticket != 1 || run.Status.StartTimestamp != nil {
			t.Errorf("got %+v, want it back in its place in the queue", run.Status)
		}
		if executed, settled := work.done(); len(executed)+len(settled) > 0 {
			t.Errorf("executed %v, settled %v, want neither", executed, settled)
		}
		if want := []string{run.Spec.Backup.StorageLocation}; !slices.Equal(work.checked, want) {
			t.Errorf("checked %v, want %v: else the queue would start it again at once", work.checked, want)
		}
		h.stop()
		<-h.stopped
	})
}

// Pitfall 6: a claim was held back while another process took over, or while the ledger
// was lost and made anew without the run: it goes back to its place, and is not executed
// until it is let start again.
func TestAClaimThatTheLedgerDoesNotKnowGoesBack(t *testing.T) {
	for leader, starts := range map[string][]records.Start{identity: nil, "another process": {{UID: "uid-of-a", Name: "a"}}} {
		t.Run(leader, func(t *testing.T) { testLateClaim(t, leader, starts) })
	}
}

func testLateClaim(t *testing.T, leader string, starts []records.Start) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		run := h.run("a")
		claims := 0
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if written := written(action); written != nil && written.Status.Phase == running {
				if claims++; claims > 1 {
					return enginetest.Fault{}
				}
				ledger, err := h.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), system, records.LedgerName)
				if err != nil {
					t.Error(err)
					return enginetest.Fault{}
				}
				anew, err := records.WithLedger(ledger.(*corev1.ConfigMap), starts)
				if err != nil {
					t.Error(err)
				}
				anew.ResourceVersion, anew.Data[records.LeaderKey] = "1000", leader
				if err := h.Kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), anew, system); err != nil {
					t.Error(err)
				}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		synctest.Wait()
		if phase := h.run("a").Status.Phase; phase != queued {
			t.Errorf("it is %q", phase)
		}
		h.expectExecuted()
		if status := h.run("a").Status; status.Executor != "" || status.StartTimestamp != nil || status.Expiration != nil || status.Ticket != run.Status.Ticket {
			t.Errorf("it went back as %+v", status)
		}
		if told := h.announced(); len(told) > 0 {
			t.Errorf("people were told %q", told)
		}
		h.Kube.ClearActions()
		h.Fault(nil)
		h.setLeader(identity)
		h.writeLedger(records.Start{UID: run.UID, Name: "a"})
		h.expect("a", v1alpha1.BackupPhaseCompleted, true)
		h.expectExecuted("a")
	})
}
