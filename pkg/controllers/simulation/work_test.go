// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/restorerun"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/restore"
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
	return w.world.reach(run.Spec.Backup.StorageLocation)
}

func (w work) Execute(ctx, _ context.Context, run *enginev1alpha1.BackupRun, _ backup.PostHooks, _ backup.Volumes, _ backuprun.Notes, _ *backup.Progress) (backup.Outcome, error) {
	w.world.referee.executes(w.process, run)
	defer w.world.referee.stops(w.process, run)
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
func (w work) Abandon(_ context.Context, run *enginev1alpha1.BackupRun, _ backup.PostHooks, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	w.awake()
	w.world.referee.abandons(w.process, run)
	return w.world.store(run, phase, reason)
}

// store stores how a run has ended, unless it has been stored before: that stands. An
// answer may be lost.
func (w *world) store(run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	if !w.reachable(run.Spec.Backup.StorageLocation) {
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

// reach is what a run finds that is to start.
func (w *world) reach(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case name != flaky:
		return nil
	case w.foreign:
		return location.ErrForeign
	case w.down || w.deaf:
		return errUnreachable
	}
	return nil
}

func (w *world) reachable(location string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.down || location != flaky
}

// RunPostHooks has nothing to do: no run has hooks.
func (w work) RunPostHooks(context.Context, *enginev1alpha1.BackupRun, backup.PostHooks) backup.PostHooks {
	return backup.PostHooks{}
}

// DiscardSnapshots has nothing to do: no run has volumes.
func (w work) DiscardSnapshots(context.Context, *enginev1alpha1.BackupRun, string) error { return nil }

// restoring stands for the engine of restores.
type restoring struct{ *process }

func (r restoring) Reach(_ context.Context, run *enginev1alpha1.RestoreRun) error {
	r.awake()
	return r.world.reach(run.Spec.Backup.StorageLocation)
}

func (r restoring) Execute(ctx context.Context, run *enginev1alpha1.RestoreRun, _ *restorerun.Progress) *restore.Ended {
	r.world.referee.executes(r.process, run)
	defer r.world.referee.stops(r.process, run)
	fail := func(err error) *restore.Ended {
		return restore.Fail(ctx, restore.Request{Run: run, SystemNamespace: system}, clock.RealClock{}, err)
	}
	length, err := time.ParseDuration(run.Spec.Annotations[lengthKey])
	if err != nil {
		return fail(err)
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		r.awake()
	case <-ctx.Done():
		r.awake()
		time.Sleep(length % (2 * time.Second)) // it takes a while to stop
		// Some have done the last thing before they notice.
		if length%5 > 0 {
			return fail(ctx.Err())
		}
	}
	if r.isDead() {
		return fail(errDead)
	}
	phase := v1alpha1.RestorePhaseCompleted
	if length%7 == 0 {
		phase = v1alpha1.RestorePhasePartiallyFailed
	}
	return &restore.Ended{Status: v1alpha1.RestoreStatus{Phase: phase, CompletionTimestamp: &metav1.Time{Time: time.Now()}}}
}

// Stop and Forget are requests about the records of volumes, of which there are none.
func (r restoring) Stop(context.Context, *enginev1alpha1.RestoreRun) error {
	return link{r.process, "volumes"}.carry("update", "volumerestores", func() error { return nil })
}

func (r restoring) Forget(context.Context, *enginev1alpha1.RestoreRun) error {
	return link{r.process, "volumes"}.carry("delete", "volumerestores", func() error { return nil })
}

// Store stores how a run has ended, unless it has been stored before: that stands. An answer
// may be lost.
func (r restoring) Store(_ context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended) error {
	var stands v1alpha1.BackupPhase
	err := link{r.process, "store"}.carry("create", "store", func() error {
		if !r.world.reachable(run.Spec.Backup.StorageLocation) {
			return errUnreachable
		}
		r.world.mu.Lock()
		defer r.world.mu.Unlock()
		if r.world.stored[run.UID] == "" {
			r.world.stored[run.UID] = v1alpha1.BackupPhase(ended.Status.Phase)
		}
		stands = r.world.stored[run.UID]
		return nil
	})
	if err == nil {
		ended.Status.Phase = v1alpha1.RestorePhase(stands)
	}
	return err
}

// noVolumes says nothing about nodes: no run has volumes.
type noVolumes struct{ *lease.Activity }

func (noVolumes) HasSynced() bool                         { return true }
func (noVolumes) OnNodeRemoved(func())                    {}
func (noVolumes) Absence(string, time.Time) time.Duration { return 0 }
func (noVolumes) NodeGone(string, time.Time) bool         { return false }
