// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// start claims a run for this process: a compare-and-swap, so that no two
// processes execute it. A run whose store does not answer goes back to its place in the
// queue instead; its location's condition comes first, so that the queue holds the run
// until the store is back. One that can have nothing of its location ends.
func (c *Controller) start(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	if err := c.Executor.Reach(ctx, run); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if location.IsFinal(err) {
			return c.finish(ctx, run, backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailedValidation, FailureReason: err.Error()}}, nil)
		}
		held, failure := c.HoldLocation(ctx, run.Spec.Backup.StorageLocation, err)
		if failure != nil {
			return failure
		}
		klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since its store does not answer", "backupRun", klog.KObj(run), "reason", err.Error())
		return c.Queue.TakeBack(ctx, run.UID, held)
	}
	now := metav1.NewTime(c.Clock.Now())
	claimed := run.DeepCopy()
	claimed.Status.Phase = v1alpha1.BackupPhaseInProgress
	claimed.Status.Executor = c.Identity
	claimed.Status.Attempts++ // also after a claim that came to nothing: no two have the same
	claimed.Status.StartTimestamp = &now
	if ttl := run.Spec.Backup.TTL.Duration; ttl > 0 {
		expiration := metav1.NewTime(now.Add(ttl))
		claimed.Status.Expiration = &expiration
	}
	c.setRun(e, claimed)
	claimed, err := c.runs.UpdateStatus(ctx, claimed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, run)
	}
	if err != nil {
		c.tellRefused(run, err)
		return fmt.Errorf("claiming BackupRun %s: %w", run.Name, err)
	}
	return c.executeClaimed(ctx, claimed, e)
}

// gone lets go of a run whose record a write has not found. One that is there after all is tried
// again, since nobody else would come back to it; and so is another one of its name, which may
// have been let start meanwhile.
func (c *Controller) gone(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	live, err := c.read(ctx, run.Name)
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
	started, err := c.isStarted(ctx, run)
	if err != nil {
		(&record{c: c, run: run}).giveBack(ctx, false)
		return err
	}
	if started {
		return c.execute(ctx, run, e)
	}
	waiting := run.DeepCopy()
	waiting.Status.GivenBack++
	waiting.Status.Phase = v1alpha1.BackupPhaseQueued
	waiting.Status.Executor, waiting.Status.StartTimestamp, waiting.Status.Expiration = "", nil, nil
	c.setRun(e, waiting)
	_, err = c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return c.gone(ctx, run)
	}
	if err != nil {
		c.tellRefused(run, err)
		return fmt.Errorf("putting BackupRun %s back into the queue, which the ledger does not let this process execute: %w", run.Name, err)
	}
	klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since the ledger does not let this process execute it", "backupRun", klog.KObj(run))
	return nil
}

// tellRefused tells people that a record may not be written, for instance since an
// admission webhook does not want it: the backup keeps its slot until it may.
func (c *Controller) tellRefused(run *enginev1alpha1.BackupRun, err error) {
	if records.Refused(err) {
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "RecordRefused", "Backup",
			"The record of the backup may not be written, and it keeps its slot until it may: %v", err)
	}
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx, working := klog.NewContext(ctx, logger), klog.NewContext(e.working, logger)
	before, err := c.namespacesOfUploads(ctx, run)
	if err != nil {
		(&record{c: c, run: run}).giveBack(ctx, false)
		return err
	}
	volumes := &volumes{c: c, run: run, uploads: map[string]*upload{}, records: map[*format.Volume]string{}, changed: make(chan struct{}), warned: sets.New[string](), namespaces: before, repositories: sets.New[string]()}
	c.mu.Lock()
	e.run, e.volumes = run, volumes
	c.mu.Unlock()
	if run.Spec.Cancellation != nil {
		e.stop()
	}

	logger.Info("Backup started")
	if executedBefore(run) {
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "Resumed", "Backup",
			"The controller stopped while the backup was in progress, and the next one makes it: attempt %d of %d", run.Status.Attempts, min(MaxAttempts+run.Status.GivenBack, maxGiven))
	} else if start := run.Status.StartTimestamp; start != nil {
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeNormal, "Started", "Backup", "%s",
			fmt.Sprintf("The backup has started; it waited %s", start.Sub(records.WaitingSince(run)).Round(time.Second)))
	}
	progress := &backup.Progress{}
	noted := waits.New(c.Clock)
	working = waits.With(working, noted)
	record := &record{c: c, run: run}
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) { record.reportProgress(ctx, progress, volumes, noted) })
	postHooks := c.postHooksOf(run) // which are forgotten when the record is removed
	outcome, err := c.Executor.Execute(working, e.ending, run, postHooks, volumes, record, progress)
	stopReporting()
	reporting.Wait()
	last := klog.NewContext(e.lasting, logger)
	if ctx.Err() != nil && (err != nil || !outcome.Stored) {
		// The process stops. The next one finds the run InProgress, and goes on with it.
		record.giveBack(ctx, true)
		return ctx.Err()
	}
	ctx = last
	takenOver := record.latest().Status.Executor != c.Identity
	if errors.Is(err, backup.ErrTakenOver) && !takenOver {
		// So the store says, which others may write to; nobody else ends the run if it is wrong.
		live, failure := c.readAtLast(ctx, run.Name)
		if failure != nil {
			return failure
		}
		takenOver = live != nil && live.UID == run.UID && !c.claimed(live)
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
		live, err := c.readAtLast(ctx, run.Name)
		switch {
		case err != nil:
			return err
		case live == nil || live.UID != run.UID:
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
	return c.finish(ctx, record.latest(), outcome, namespaces)
}

// record is the run that is executed, as it was last written. It is safe for concurrent use.
type record struct {
	c *Controller

	mu  sync.Mutex
	run *enginev1alpha1.BackupRun
}

func (r *record) latest() *enginev1alpha1.BackupRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.run
}

// write writes the status, if change reports that there is something to write. After an
// error the run is read, for the next time.
func (r *record) write(ctx context.Context, change func(*enginev1alpha1.BackupRunStatus) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.run.DeepCopy()
	if changed.Status.Executor != r.c.Identity {
		return backup.ErrTakenOver
	}
	if !change(&changed.Status) {
		return nil
	}
	updated, err := r.c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err == nil {
		r.run = updated
		return nil
	}
	if live, err := r.c.runs.Get(ctx, r.run.Name, metav1.GetOptions{}); err == nil && live.UID == r.run.UID {
		r.run = live
	}
	return err
}

// executedBefore reports whether an attempt before this one may have executed a run: one that was
// not given back, or one of which there is progress.
func executedBefore(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Attempts > 1 && (run.Status.Attempts-run.Status.GivenBack > 1 || run.Status.Progress != nil)
}

// giveBack writes that the attempt has ended with ctx, since the process is told to stop, and
// whether it has executed anything. One that ends since the Lease is lost counts.
func (r *record) giveBack(ctx context.Context, executed bool) {
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), liveness.ErrLost) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	err := r.write(ctx, func(status *enginev1alpha1.BackupRunStatus) bool {
		status.GivenBack++
		if executed && status.Progress == nil {
			status.Progress = &v1alpha1.BackupProgress{}
		}
		return status.Phase == v1alpha1.BackupPhaseInProgress
	})
	if err != nil {
		klog.FromContext(ctx).Info("The attempt counts, though the controller was told to stop: writing that failed", "err", err)
	}
}

// reportProgress writes the progress of the run now and then, until ctx ends.
func (r *record) reportProgress(ctx context.Context, progress *backup.Progress, volumes *volumes, noted *waits.Waits) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		volumes.noteWaits()
		waitsFor := noted.Line(r.latest().Spec.BackupRef.Namespace, r.c.Namespace)
		err := r.write(ctx, func(status *enginev1alpha1.BackupRunStatus) bool {
			return setProgress(status, progress, volumes, waitsFor)
		})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Writing the progress failed", "err", err)
		}
	}
}

// Pending implements PendingHooks. A run that another process has ended, or taken over,
// gets none.
func (r *record) Pending(ctx context.Context, pods []enginev1alpha1.PodReference) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8}
	for {
		lost := false
		err := r.write(ctx, func(status *enginev1alpha1.BackupRunStatus) bool {
			lost = status.Phase != v1alpha1.BackupPhaseInProgress
			status.PendingHooks = pods
			return !lost
		})
		switch {
		case lost, errors.Is(err, backup.ErrTakenOver):
			return errors.New("another controller has taken over the backup")
		case err == nil || ctx.Err() != nil || backoff.Steps <= 1:
			return err
		}
		select {
		case <-r.c.Clock.After(backoff.Step()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
