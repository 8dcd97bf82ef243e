// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// acquire claims a run for this process: a compare-and-swap, so that no two
// processes execute it. A run whose store does not answer goes back to its place in the
// queue instead; its location's condition comes first, so that the queue holds the run
// until the store is back. One that can have nothing of its location ends.
func (c *Controller) acquire(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	if err := c.Executor.Reach(ctx, run); err != nil {
		if ctx.Err() == nil && location.IsFinal(err) {
			return c.finish(ctx, run, backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailedValidation, FailureReason: err.Error()}}, nil)
		}
		return c.TakeBack(ctx, run, err)
	}
	now := metav1.NewTime(c.Clock.Now())
	claimed, err := c.Acquire(ctx, e.Execution, run, func(claimed *enginev1alpha1.BackupRun) {
		claimed.Status.Phase = v1alpha1.BackupPhaseInProgress
		claimed.Status.StartTimestamp = &now
		if ttl := run.Spec.Backup.TTL.Duration; ttl > 0 {
			expiration := metav1.NewTime(now.Add(ttl))
			claimed.Status.Expiration = &expiration
		}
	})
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, run)
	}
	if err != nil {
		return err
	}
	return c.executeClaimed(ctx, claimed, e)
}

// gone lets go of a run whose record a write has not found. One that is there after all is tried
// again, since nobody else would come back to it; and so is another one of its name, which may
// have been let start meanwhile.
func (c *Controller) gone(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	live, err := c.Get(ctx, run.Name)
	if err == nil && live != nil && live.UID == run.UID {
		err = fmt.Errorf("a write has not found BackupRun %s, which exists", run.Name)
	}
	if err == nil && live != nil {
		c.queue.Add(run.Name)
	}
	return err
}

// executeClaimed executes a run that this process has claimed, if the ledger, read
// after the claim, says that it may. Else the run goes back to its place: its start was
// taken back while the claim was under way, another process leads by now, or the ledger
// was lost and made anew.
func (c *Controller) executeClaimed(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	started, err := c.IsStarted(ctx, run)
	if err != nil {
		c.GiveBack(ctx, run, nil)
		return err
	}
	if started {
		return c.execute(ctx, run, e)
	}
	waiting := run.DeepCopy()
	waiting.Status.GivenBack++
	waiting.Status.Phase = v1alpha1.BackupPhaseQueued
	waiting.Status.Executor, waiting.Status.StartTimestamp, waiting.Status.Expiration = "", nil, nil
	e.Set(waiting)
	_, err = c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, run)
	}
	if err != nil {
		c.TellRefused(run, err)
		return fmt.Errorf("putting BackupRun %s back into the queue, which the ledger does not let this process execute: %w", run.Name, err)
	}
	klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since the ledger does not let this process execute it", "backupRun", klog.KObj(run))
	return nil
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx, working := klog.NewContext(ctx, logger), klog.NewContext(e.Working, logger)
	before, err := c.namespacesOfUploads(ctx, run)
	if err != nil {
		c.GiveBack(ctx, run, nil)
		return err
	}
	volumes := &volumes{c: c, run: run, uploads: map[string]*upload{}, records: map[*format.Volume]string{}, changed: make(chan struct{}), warned: sets.New[string](), namespaces: before, repositories: sets.New[string]()}
	e.Set(run)
	c.setVolumes(run, volumes)
	defer c.setVolumes(run, nil)
	if run.Spec.Cancellation != nil {
		e.Stop()
	}

	logger.Info("Backup started")
	if executedBefore(run) {
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "Resumed", "Backup",
			"The controller stopped while the backup was in progress, and the next one makes it: attempt %d of %d", run.Status.Attempts, min(MaxAttempts+run.Status.GivenBack, runs.MaxGiven))
	} else if start := run.Status.StartTimestamp; start != nil {
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeNormal, "Started", "Backup", "%s",
			fmt.Sprintf("The backup has started; it waited %s", start.Sub(records.WaitingSince(run)).Round(time.Second)))
	}
	progress := &backup.Progress{}
	noted := waits.New(c.Clock)
	working = waits.With(working, noted)
	record := &record{c.Record(run), c.Clock}
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) {
		runs.ReportProgress(ctx, func(ctx context.Context) error {
			volumes.noteWaits()
			waitsFor := noted.Line(run.Spec.BackupRef.Namespace, c.Namespace)
			return record.Write(ctx, func(changed *enginev1alpha1.BackupRun) bool {
				return setProgress(&changed.Status, progress, volumes, waitsFor)
			})
		})
	})
	postHooks := c.postHooksOf(run) // which are forgotten when the record is removed
	outcome, err := c.Executor.Execute(working, e.ending, run, postHooks, volumes, record, progress)
	stopReporting()
	reporting.Wait()
	last := klog.NewContext(e.lasting, logger)
	if ctx.Err() != nil && (err != nil || !outcome.Stored) {
		// The process stops. The next one finds the run InProgress, and goes on with it.
		c.GiveBack(ctx, run, wasExecuted)
		return ctx.Err()
	}
	ctx = last
	takenOver := record.Latest().Status.Executor != c.Identity
	if errors.Is(err, backup.ErrTakenOver) && !takenOver {
		// So the store says, which others may write to; nobody else ends the run if it is wrong.
		live, failure := c.GetWithRetry(ctx, run)
		if failure != nil {
			return failure
		}
		takenOver = live != nil && !c.claimed(live)
	}
	if takenOver {
		c.queue.Add(run.Name) // in case that it is this one again
		logger.Info("Another controller, which took this one for dead, makes the backup")
		return nil
	}
	namespaces := volumes.submitted()
	if namespaces.Len() > 0 {
		// The run holds its slot and its namespaces while they are read.
		if err := volumes.stop(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			logger.Error(err, "The uploads of the volumes go on until the end of the run is written")
		}
	}
	if working.Err() != nil {
		if !outcome.Stored && outcome.FailedPostHooks != "" {
			c.tellPostHooks(run, "The backup was stopped, and of the post hooks that were run then, these failed: "+outcome.FailedPostHooks)
		}
		live, err := c.GetWithRetry(ctx, run)
		switch {
		case err != nil:
			return err
		case live == nil:
			logger.Info("Backup stopped, since its record was removed")
			if !listsVolumes(outcome) {
				c.abandonRemoved(ctx, run, postHooks, namespaces)
			}
			c.removeUploads(ctx, run, namespaces)
			return nil
		case !outcome.Stored && live.Spec.Cancellation != nil:
			if hooks := outcome.Status.HookStatus; hooks != nil { // else it ran none
				live.Status.HookStatus = hooks
			}
			return c.settle(ctx, live, namespaces, cancelTimeout, v1alpha1.BackupPhaseCancelled, records.CancelledReason(live))
		}
	}
	switch {
	case errors.Is(err, backup.ErrNameTaken):
		outcome.Status.Phase = v1alpha1.BackupPhaseFailedValidation
	case err != nil:
		logger.Error(err, "Backup failed, and its failure is not stored yet")
	}
	return c.finish(ctx, record.Latest(), outcome, namespaces)
}

// setVolumes notes the volumes of a run that is executed; nil once it is not.
func (c *Controller) setVolumes(run *enginev1alpha1.BackupRun, volumes *volumes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.volumes[run.UID] = volumes; volumes == nil {
		delete(c.volumes, run.UID)
	}
}

// wasExecuted notes in a run that is given back that something was executed of it.
func wasExecuted(run *enginev1alpha1.BackupRun) {
	if run.Status.Progress == nil {
		run.Status.Progress = &v1alpha1.BackupProgress{}
	}
}

// executedBefore reports whether an attempt before this one may have executed a run: one that was
// not given back, or one of which there is progress.
func executedBefore(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Attempts > 1 && (run.Status.Attempts-run.Status.GivenBack > 1 || run.Status.Progress != nil)
}

// record is the run that is executed, as it was last written.
type record struct {
	*runs.Record[*enginev1alpha1.BackupRun]
	clock clock.Clock
}

// Pending implements PendingHooks. A run that another process has ended, or taken over,
// gets none.
func (r *record) Pending(ctx context.Context, pods []enginev1alpha1.PodReference) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8}
	for {
		lost := false
		err := r.Write(ctx, func(run *enginev1alpha1.BackupRun) bool {
			lost = run.Status.Phase != v1alpha1.BackupPhaseInProgress
			run.Status.PendingHooks = pods
			return !lost
		})
		switch {
		case lost, errors.Is(err, runs.ErrTakenOver):
			return errors.New("another controller has taken over the backup")
		case err == nil || ctx.Err() != nil || backoff.Steps <= 1:
			return err
		}
		select {
		case <-r.clock.After(backoff.Step()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
