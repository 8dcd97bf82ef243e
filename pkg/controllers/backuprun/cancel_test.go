// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const cancelled = v1alpha1.BackupPhaseCancelled

// expectCancelled compares the end of a run that jane cancelled.
func (h *harness) expectCancelled(name string, stored bool) {
	h.Helper()
	h.expect(name, cancelled, stored)
	status := h.run(name).Status
	if status.FailureReason != "cancelled by jane" || status.CompletionTimestamp == nil {
		h.Errorf("reason %q, completion %v", status.FailureReason, status.CompletionTimestamp)
	}
}

func TestCancellingStopsARunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			if err := volumes.Submit(ctx, volumeOf("data")); err != nil {
				t.Error(err)
			}
			err := volumes.Wait(ctx)
			return failed(err), err
		}}, newRun("a", ready))
		h.start(1)
		if len(h.uploads()) != 1 {
			t.Fatal("there is no upload")
		}
		h.announced()
		begin := time.Now()
		h.cancelRun("a")
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
		if events := h.announced(); !slices.Equal(events, []string{"Normal Cancelled The backup was cancelled by jane"}) {
			t.Errorf("events: %q", events)
		}
		time.Sleep(time.Hour)
		if h.writes("a") != 3+1 { // claim, end, and that the snapshots are removed; and the request
			t.Errorf("%d writes", h.writes("a"))
		}
	})
}

func TestWhatIsStoredWhenTheCancellationComesStands(t *testing.T) {
	t.Run("the answer has come", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &work{execute: func(ctx context.Context, _ *enginev1alpha1.BackupRun, _ backup.Volumes) (backup.Outcome, error) {
				<-ctx.Done()
				return stored(done), nil
			}}, newRun("a", ready))
			h.start(1)
			h.cancelRun("a")
			time.Sleep(time.Second) // the end meets the request, and is written again
			h.expect("a", done, true)
			if len(h.work.cancelled) != 0 {
				t.Error("it was cancelled in the store")
			}
		})
	})
	t.Run("the answer is lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &work{execute: untilStopped, abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
				return stored(done), nil
			}}, newRun("a", ready))
			h.start(1)
			h.cancelRun("a")
			h.expect("a", done, true)
			if reason := h.run("a").Status.FailureReason; reason != "" {
				t.Errorf("the reason is %q", reason)
			}
		})
	})
}

// It ends at once, and that is stored when the store is back, by whichever process.
func TestCancellingWithTheStoreDown(t *testing.T) {
	for name, before := range map[string]v1alpha1.BackupPhase{"while it runs": ready, "after a crash": running} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var up atomic.Bool
				w := &work{execute: untilStopped, abandon: func(ctx context.Context, _ *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
					if up.Load() {
						return abandoned(phase, reason), nil
					}
					<-ctx.Done() // a store that does not answer
					return backup.Outcome{}, ctx.Err()
				}}
				run := newRun("a", before)
				if before == running {
					run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
				}
				h := newHarness(t, w, run)
				h.start(1)
				if before == ready {
					h.expect("a", running, false)
					h.cancelRun("a")
				}
				time.Sleep(cancelTimeout)
				h.expectCancelled("a", false)
				time.Sleep(time.Hour)
				h.expectCancelled("a", false)
				writes := h.writes("a")
				h.announced()
				up.Store(true)
				time.Sleep(time.Minute)
				h.expectCancelled("a", true)
				if h.writes("a") != writes+1 {
					t.Errorf("%d writes", h.writes("a")-writes)
				}
				if events := h.announced(); len(events) != 0 {
					t.Errorf("it was told again: %q", events)
				}
				h.expectSettled()
			})
		})
	}
}

func TestACancelledRunOfADeadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", running)
		run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
		h := newHarness(t, &work{}, run)
		volume := &enginev1alpha1.VolumeUpload{}
		volume.Namespace, volume.Name = system, "volume"
		volume.Labels = map[string]string{enginev1alpha1.LabelRun: "uid-of-a"}
		h.Create(volume)
		h.setOutvoted(true)
		h.start(1)
		time.Sleep(time.Hour)
		h.expect("a", running, false) // that process ends it
		h.setOutvoted(false)
		time.Sleep(10 * time.Second)
		h.expectCancelled("a", true)
		volumes, err := h.EngineV1alpha1().VolumeUploads(system).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(volumes.Items) != 0 {
			t.Errorf("uploads go on: %v, %v", volumes.Items, err)
		}
		if len(h.work.cancelled) != 1 {
			t.Errorf("cancelled in the store: %q", h.work.cancelled)
		}
		h.expectSettled()
	})
}

// The queue ends what is not claimed, though it was let start.
// Pitfall 10: a claim that meets another write fails.
func TestACancelledRunIsNotClaimed(t *testing.T) {
	t.Run("cancelled before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			run := newRun("a", ready)
			run.Spec.Cancellation = &enginev1alpha1.Ask{}
			h := newHarness(t, &work{}, run)
			h.start(1)
			time.Sleep(time.Hour)
			h.expectExecuted()
			if h.writes("a") != 0 {
				t.Errorf("%d writes", h.writes("a"))
			}
		})
	})
	t.Run("cancelled as it is claimed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &work{}, newRun("a", ready))
			h.Fault(func(action clienttesting.Action) enginetest.Fault {
				run := written(action)
				if run == nil || run.Spec.Cancellation != nil {
					return enginetest.Fault{}
				}
				asked := run.DeepCopy()
				asked.Status = enginev1alpha1.BackupRunStatus{Phase: queued, Ticket: 1}
				asked.Spec.Cancellation, asked.ResourceVersion = &enginev1alpha1.Ask{}, "1000"
				if err := h.Tracker().Update(action.GetResource(), asked, system); err != nil {
					t.Error(err)
				}
				return enginetest.Fault{}
			})
			h.start(1)
			time.Sleep(time.Hour)
			h.expectExecuted()
		})
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
					h.cancelRun("a")
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

func TestCancellingABackupWhoseNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped, abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
			return failed(errBroken), fmt.Errorf("%w: backups/a", backup.ErrNameTaken)
		}}, newRun("a", ready))
		h.start(1)
		h.cancelRun("a")
		h.expect("a", v1alpha1.BackupPhaseFailedValidation, false)
	})
}

func TestAnEndThatCannotBeWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped, abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
			return backup.Outcome{}, errors.New("denied")
		}}, newRun("a", ready))
		h.Fault(refuseFirst(3))
		h.start(1)
		h.cancelRun("a")
		time.Sleep(time.Minute)
		h.expectCancelled("a", false)
	})
}
