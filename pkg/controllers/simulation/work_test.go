// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// lengthKey is the annotation of a run that says how long its work takes.
const lengthKey = "length"

var errUnreachable = store.ErrUnavailable

// work stands for the engine: it takes its time, and has an outcome, which it
// stores. All processes share the stores.
type work struct{ *process }

func (w work) Reach(_ context.Context, run *enginev1alpha1.BackupRun) error {
	w.awake()
	if !w.world.reachable(run) {
		return errUnreachable
	}
	return nil
}

func (w work) Execute(ctx context.Context, run *enginev1alpha1.BackupRun, _ backup.Volumes, _ backuprun.PendingHooks, _ *backup.Progress) (backup.Outcome, error) {
	w.world.referee.executes(w.process, run)
	defer w.world.referee.stops(run)
	length, err := time.ParseDuration(run.Spec.Annotations[lengthKey])
	if err != nil {
		return backup.Outcome{}, err
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		w.awake()
	case <-ctx.Done():
		w.awake()
		time.Sleep(length % (2 * time.Second)) // it takes a while to stop
		// Some have written their last word before they notice.
		if length%5 > 0 {
			return backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed}}, ctx.Err()
		}
	}
	if w.isDead() {
		return backup.Outcome{}, errDead
	}
	phase := v1alpha1.BackupPhaseCompleted
	if length%7 == 0 {
		phase = v1alpha1.BackupPhasePartiallyFailed
	}
	return w.world.store(run, phase, "")
}

// Abandon writes the end of a run under the condition that none is stored, as
// backup.Abandon does. What it then cleans up is not simulated.
func (w work) Abandon(_ context.Context, run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	w.awake()
	w.world.referee.abandons(w.process, run)
	return w.world.store(run, phase, reason)
}

// store stores how a run has ended, unless it has been stored before: that stands. An
// answer may be lost.
func (w *world) store(run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	if !w.reachable(run) {
		return backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed, FailureReason: errUnreachable.Error()}}, errUnreachable
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.stored[run.UID]; ok {
		phase = before
	}
	w.stored[run.UID] = phase
	return stored(phase, reason), nil
}

func stored(phase v1alpha1.BackupPhase, reason string) backup.Outcome {
	return backup.Outcome{Stored: true, Status: v1alpha1.BackupStatus{Phase: phase, FailureReason: reason}}
}

func (w *world) reachable(run *enginev1alpha1.BackupRun) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.down || run.Spec.Backup.StorageLocation != flaky
}

// RunPostHooks has nothing to do: no run has hooks.
func (w work) RunPostHooks(context.Context, *enginev1alpha1.BackupRun) error { return nil }

// DiscardSnapshots has nothing to do: no run has volumes.
func (w work) DiscardSnapshots(context.Context, *enginev1alpha1.BackupRun, string) error { return nil }

// noVolumes says nothing about nodes: no run has volumes.
type noVolumes struct{}

func (noVolumes) HasSynced() bool                         { return true }
func (noVolumes) OnNodeRemoved(func())                    {}
func (noVolumes) Absence(string, time.Time) time.Duration { return 0 }
func (noVolumes) NodeGone(string, time.Time) bool         { return false }
