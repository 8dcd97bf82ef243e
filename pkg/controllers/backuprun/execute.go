// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
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
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// start claims a run for this process: a compare-and-swap, so that no two
// processes execute it. It is prepared by reading the run and then the ledger:
// whoever takes the start back changes the run first, so that the claim fails. A
// run whose store does not answer goes back to its place in the queue instead.
func (c *Controller) start(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	if err := c.Executor.Reach(ctx, run); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return c.putBack(ctx, run, err)
	}
	now := metav1.NewTime(c.Clock.Now())
	claimed := run.DeepCopy()
	claimed.Status.Phase = v1alpha1.BackupPhaseInProgress
	claimed.Status.Executor = c.Identity
	claimed.Status.StartTimestamp = &now
	if ttl := run.Spec.Backup.TTL.Duration; ttl > 0 {
		expiration := metav1.NewTime(now.Add(ttl))
		claimed.Status.Expiration = &expiration
	}
	claimed, err := c.runs.UpdateStatus(ctx, claimed, metav1.UpdateOptions{})
	if err != nil {
		c.tellRefused(run, err)
		return fmt.Errorf("claiming BackupRun %s: %w", run.Name, err)
	}
	settings, err := c.readLedger(ctx)
	if err != nil {
		return err
	}
	return c.executeClaimed(ctx, claimed, settings)
}

// executeClaimed executes a run that this process has claimed, if the ledger, read
// after the claim, says that it may: it may have been lost and made anew before. Else
// the run goes back to its place.
func (c *Controller) executeClaimed(ctx context.Context, run *enginev1alpha1.BackupRun, settings *corev1.ConfigMap) error {
	if c.isStart(settings, run) {
		return c.execute(ctx, run)
	}
	waiting := run.DeepCopy()
	waiting.Status.Phase = v1alpha1.BackupPhaseQueued
	waiting.Status.Executor, waiting.Status.StartTimestamp, waiting.Status.Expiration = "", nil, nil
	waiting.Status.Returned++
	_, err := c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.tellRefused(run, err)
		return fmt.Errorf("putting BackupRun %s back into the queue, whose start was taken back: %w", run.Name, err)
	}
	klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since the ledger of those that were started was lost", "backupRun", klog.KObj(run))
	return nil
}

// tellRefused tells people that a record may not be written, for instance since an
// admission webhook does not want it: the backup keeps its slot until it may.
func (c *Controller) tellRefused(run *enginev1alpha1.BackupRun, err error) {
	if records.Refused(err) {
		c.Events.Eventf(records.BackupReference(run), nil, corev1.EventTypeWarning, "RecordRefused", "Backup",
			"The record of the backup may not be written, and it keeps its slot until it may: %v", err)
	}
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx = klog.NewContext(ctx, logger)
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	current := &execution{
		cancel: cancel,
		volumes: &volumes{
			run: run, client: c.uploads, clock: c.Clock,
			repository: func(ctx context.Context, volumeNamespace string) error {
				return c.ensureRepository(ctx, volumeNamespace, run.Spec.Backup.StorageLocation)
			},
			limits:     volumeLimits{work: c.VolumeTimeout, agent: c.AgentTimeout},
			nodes:      knownNodes{c.Agents, &c.activity},
			warn:       func(node string, absence time.Duration) { c.warnAbsent(run, node, absence) },
			records:    map[string]*volumeRecord{},
			progress:   make(chan struct{}),
			warned:     sets.New[string](),
			namespaces: sets.New[string](),
		},
	}
	defer c.leave(run, current)
	if err := c.begin(ctx, run, current); err != nil {
		return err
	}

	logger.Info("Backup started")
	if start := run.Status.StartTimestamp; start != nil {
		c.Events.Eventf(records.BackupReference(run), nil, corev1.EventTypeNormal, "Started", "Backup", "%s",
			fmt.Sprintf("The backup has started; it waited %s", start.Sub(records.WaitingSince(run)).Round(time.Second)))
	}
	progress := &backup.Progress{}
	latest := run
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) {
		latest = c.reportProgress(ctx, run, progress, current.volumes)
	})
	outcome, err := c.Executor.Execute(working, run, current.volumes, progress)
	stopReporting()
	reporting.Wait()
	if ctx.Err() != nil {
		// The process stops. The next one finds the run InProgress, and says so.
		return ctx.Err()
	}
	submitted := current.volumes.submitted()
	if submitted.Len() > 0 {
		if !listsVolumes(outcome) {
			noted, err := c.noteSnapshotsAtLast(ctx, latest, submitted)
			if err != nil {
				return err
			}
			latest = noted
		}
		// The run holds its slot and its namespaces while they are read.
		if err := c.untilStopped(ctx, run, current.volumes); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			logger.Error(err, "The records of the volumes stay until the run is removed")
		}
	}
	removed, cancelled := c.flags(current)
	switch {
	case removed:
		logger.Info("Backup stopped, since its record was removed")
		if !listsVolumes(outcome) {
			c.abandonRemoved(ctx, run, submitted)
		}
		return nil
	case cancelled && !outcome.Stored:
		return c.finishCancelled(ctx, latest)
	case err != nil:
		logger.Error(err, "Backup failed, and its failure is not stored yet")
	}
	outcome = refuseTakenName(outcome, err)
	return c.finish(ctx, latest, outcome)
}

// begin makes an execution known, so that it stops when its record is removed or
// it is cancelled. That may have happened since the run was read, and the informer
// have told it already: then it shows it, or shows no run.
func (c *Controller) begin(ctx context.Context, run *enginev1alpha1.BackupRun, current *execution) error {
	c.mu.Lock()
	c.active[run.UID] = current
	c.mu.Unlock()
	latest, err := c.runLister.Get(run.Name)
	if apierrors.IsNotFound(err) { // or it has not seen it yet
		latest, err = c.fresh(ctx, run.Name)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if latest == nil || latest.UID != run.UID {
		current.removed = true
		current.cancel()
	} else if run.Spec.Cancellation != nil || latest.Spec.Cancellation != nil {
		current.cancelled = true
		current.cancel()
	}
	return nil
}

func (c *Controller) leave(run *enginev1alpha1.BackupRun, current *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, run.UID)
	if current.removed {
		c.queue.Add(run.Name) // it is still in the ledger
	}
}

// reportProgress writes the progress of a run now and then, until ctx ends, and
// returns the run as last written.
func (c *Controller) reportProgress(ctx context.Context, run *enginev1alpha1.BackupRun, progress *backup.Progress, volumes *volumes) *enginev1alpha1.BackupRun {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return run
		case <-ticker.C:
		}
		changed := run.DeepCopy()
		if !setProgress(&changed.Status, progress, volumes) {
			continue
		}
		updated, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Writing the progress failed", "err", err)
			if live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{}); err == nil && live.UID == run.UID {
				run = live
			}
			continue
		}
		run = updated
	}
}
