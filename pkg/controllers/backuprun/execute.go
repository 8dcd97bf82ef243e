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

// acquire claims a run by a compare-and-swap, so that no two processes execute it. If its store does
// not answer, it takes the run back. A run that may not use its location ends.
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

// gone drops a run whose record a write did not find. If it or a namesake exists, it is tried again:
// nothing else would.
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

// executeClaimed executes a claimed run if the ledger, read after the claim, has its start. Else the
// run returns to its place: docs/design/fences.md. A run that only moves data needs no start.
func (c *Controller) executeClaimed(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	if isMoving(run) {
		e.leavePlace()
		return c.execute(ctx, run, e)
	}
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

func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx, working := klog.NewContext(ctx, logger), klog.NewContext(e.Working, logger)
	before, err := c.namespacesOfUploads(ctx, run)
	if err != nil {
		c.GiveBack(ctx, run, nil)
		return err
	}
	volumes := &volumes{c: c, run: run, uploads: map[string]*upload{}, records: map[*format.Volume]string{}, changed: make(chan struct{}), warned: sets.New[string](), namespaces: before, repositories: sets.New[string]()}
	var stopMoving context.CancelFunc
	volumes.ctx, stopMoving = context.WithCancel(working)
	endMoves := func() { stopMoving(); volumes.moving.Wait() }
	defer endMoves()
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
	record := &record{c.Record(run), c.Clock, e.leavePlace}
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
	postHooks := c.postHooksOf(run) // forgotten when the record is removed
	outcome, err := c.Executor.Execute(working, e.ending, run, postHooks, volumes, record, progress)
	endMoves()
	stopReporting()
	reporting.Wait()
	last := klog.NewContext(e.lasting, logger)
	if ctx.Err() != nil && (err != nil || !outcome.Stored) {
		// The next process finds the run InProgress and continues it.
		c.GiveBack(ctx, run, wasExecuted)
		return ctx.Err()
	}
	ctx = last
	takenOver := record.Latest().Status.Executor != c.Identity
	if errors.Is(err, backup.ErrTakenOver) && !takenOver {
		// The store says so, but others may write to it; if it is wrong, nothing else ends the run.
		live, failure := c.GetWithRetry(ctx, run)
		if failure != nil {
			return failure
		}
		takenOver = live != nil && !c.claimed(live)
	}
	if takenOver {
		c.queue.Add(run.Name)
		logger.Info("Another controller, which took this one for dead, makes the backup")
		return nil
	}
	namespaces := volumes.submitted()
	if namespaces.Len() > 0 {
		// The run holds its slot and namespaces until its uploads have stopped.
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
			if hooks := outcome.Status.HookStatus; hooks != nil {
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

func (c *Controller) setVolumes(run *enginev1alpha1.BackupRun, volumes *volumes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.volumes[run.UID] = volumes; volumes == nil {
		delete(c.volumes, run.UID)
	}
}

func wasExecuted(run *enginev1alpha1.BackupRun) {
	if run.Status.Progress == nil {
		run.Status.Progress = &v1alpha1.BackupProgress{}
	}
}

// executedBefore reports an earlier attempt that was not given back, or has progress.
func executedBefore(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Attempts > 1 && (run.Status.Attempts-run.Status.GivenBack > 1 || run.Status.Progress != nil)
}

type record struct {
	*runs.Record[*enginev1alpha1.BackupRun]
	clock      clock.Clock
	leavePlace func()
}

// Pending implements PendingHooks.
func (r *record) Pending(ctx context.Context, pods []enginev1alpha1.PodReference) error {
	return r.change(ctx, func(status *enginev1alpha1.BackupRunStatus) bool {
		status.PendingHooks = pods
		return true
	})
}

// Moving implements Notes: hooks have ended, and the run's slot and namespaces are free.
func (r *record) Moving(ctx context.Context) error {
	err := r.change(ctx, func(status *enginev1alpha1.BackupRunStatus) bool {
		written := status.Phase == v1alpha1.BackupPhaseWaitingForPluginOperations // the answer was lost
		status.Phase, status.PendingHooks = v1alpha1.BackupPhaseWaitingForPluginOperations, nil
		return !written
	})
	if err == nil {
		r.leavePlace()
	}
	return err
}

// change writes the status if change reports a change. It fails with ErrTakenOver if another process
// has ended or taken over the run.
func (r *record) change(ctx context.Context, change func(*enginev1alpha1.BackupRunStatus) bool) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8}
	for {
		lost := false
		err := r.Write(ctx, func(run *enginev1alpha1.BackupRun) bool {
			lost = !run.Status.Phase.Executing()
			return !lost && change(&run.Status)
		})
		switch {
		case lost, errors.Is(err, runs.ErrTakenOver):
			return fmt.Errorf("%w: its record says so", backup.ErrTakenOver)
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
