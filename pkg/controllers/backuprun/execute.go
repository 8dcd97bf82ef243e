// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

// start claims a run for this process: a compare-and-swap, so that no two
// processes execute it. A run whose store does not answer goes back to its place
// in the queue instead.
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
		return fmt.Errorf("claiming BackupRun %s: %w", run.Name, err)
	}
	note := "The backup has started"
	if queued := run.Status.QueuedTimestamp; queued != nil {
		note += fmt.Sprintf("; it waited %s", now.Sub(queued.Time).Round(time.Second))
	}
	c.Events.Eventf(backupReference(run), nil, corev1.EventTypeNormal, "Started", "Backup", "%s", note)
	return c.execute(ctx, claimed)
}

// putBack makes a run wait that was about to start. The location's condition comes
// first, so that the queue holds the run until the store is back.
func (c *Controller) putBack(ctx context.Context, run *enginev1alpha1.BackupRun, cause error) error {
	if err := c.CheckLocation(ctx, run.Spec.Backup.StorageLocation); err != nil {
		return err
	}
	waiting := run.DeepCopy()
	waiting.Status.Phase = v1alpha1.BackupPhaseQueued
	waiting.Status.ReadyTimestamp = nil
	if _, err := c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("putting BackupRun %s back into the queue: %w", run.Name, err)
	}
	klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since its store does not answer", "backupRun", klog.KObj(run), "reason", cause.Error())
	return nil
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx = klog.NewContext(ctx, logger)
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	current := &execution{
		cancel: cancel,
		volumes: newVolumes(run, c.pvbs, func(ctx context.Context, volumeNamespace string) error {
			return c.ensureRepository(ctx, volumeNamespace, run.Spec.Backup.StorageLocation)
		}, c.Clock, c.VolumeTimeout),
	}
	c.begin(run, current)
	defer c.leave(run, current)

	logger.Info("Backup started")
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
	if current.volumes.used() {
		if err := stop(ctx, c.pvbs, run.UID); err != nil {
			logger.Error(err, "The records of the volumes stay until the run is removed")
		}
	}
	if c.isRemoved(current) {
		logger.Info("Backup stopped, since its record was removed")
		return nil
	}
	if err != nil {
		logger.Error(err, "Backup failed, and its failure is not stored yet")
	}
	outcome = refuseTakenName(outcome, err)
	return c.finish(ctx, latest, outcome)
}

// begin makes an execution known, so that the removal of its record stops it.
func (c *Controller) begin(run *enginev1alpha1.BackupRun, current *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[run.UID] = current
	// It may have been removed since it was claimed.
	if cached, err := c.runLister.Get(run.Name); err != nil || cached.UID != run.UID {
		current.removed = true
		current.cancel()
	}
}

func (c *Controller) leave(run *enginev1alpha1.BackupRun, current *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, run.UID)
	if !current.removed {
		return
	}
	waiting, err := c.runLister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
	}
	for _, run := range waiting {
		c.enqueue(run, false)
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
