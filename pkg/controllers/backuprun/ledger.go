// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// isStart reports whether the ledger says that this process may claim a run.
func (c *Controller) isStart(settings *corev1.ConfigMap, run *enginev1alpha1.BackupRun) bool {
	starts, err := records.Ledger(settings)
	return err == nil && slices.ContainsFunc(starts, func(start records.Start) bool {
		return start.UID == run.UID && start.By == c.Identity
	})
}

// releaseRemoved reads the ledger, and removes from it the runs of a name that this
// process was to execute and that are gone. run is the one of this name that
// exists, or nil. None of this name is being executed, since each has one worker at
// a time. It returns the ledger as it is then; nil if there is none. Runs that had
// ended are left to the queue, which sees that in the same informer: a write here
// would only meet its next start.
func (c *Controller) releaseRemoved(ctx context.Context, name string, run *enginev1alpha1.BackupRun) (*corev1.ConfigMap, error) {
	return c.release(ctx, func(start records.Start) bool {
		return start.Name == name && (run == nil || start.UID != run.UID) && !c.isLeftToQueue(start)
	})
}

// isLeftToQueue reports whether the informer showed, before the run of an entry went,
// that it had ended. If this process has written that end a moment ago, the informer
// may be about to show it: then the answer is yes, and the entry is looked at again
// later, in case that a gap hides the end from the informer, and so from the queue.
func (c *Controller) isLeftToQueue(start records.Start) bool {
	if run, err := c.runLister.Get(start.Name); err == nil && run.UID == start.UID && run.Status.Phase.Ended() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Has(start.UID) {
		return true
	}
	finished, ok := c.finished[start.UID]
	if !ok || c.Clock.Since(finished) >= informed {
		return false
	}
	c.queue.AddAfter(start.Name, informed)
	return true
}

// noteFinished remembers that this process has written the end of a run.
func (c *Controller) noteFinished(run *enginev1alpha1.BackupRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.finished, func(_ types.UID, at time.Time) bool { return c.Clock.Since(at) >= informed })
	c.finished[run.UID] = c.Clock.Now()
}

// readLedger reads the ledger from the cluster; nil if there is none.
func (c *Controller) readLedger(ctx context.Context) (*corev1.ConfigMap, error) {
	settings, err := c.ConfigMaps.Get(ctx, records.SettingsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ledger of started backups: %w", err)
	}
	return settings, nil
}

// release removes entries of this process from the ledger, by compare-and-swap.
func (c *Controller) release(ctx context.Context, remove func(records.Start) bool) (*corev1.ConfigMap, error) {
	for {
		settings, err := c.readLedger(ctx)
		if err != nil || settings == nil {
			return nil, err
		}
		starts, err := records.Ledger(settings)
		if err != nil {
			return nil, nil // nothing starts, and the queue says so
		}
		before := len(starts)
		starts = slices.DeleteFunc(starts, func(start records.Start) bool { return start.By == c.Identity && remove(start) })
		if len(starts) == before {
			return settings, nil
		}
		if settings, err = records.WithLedger(settings, starts); err != nil {
			return nil, err
		}
		updated, err := c.ConfigMaps.Update(ctx, settings, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("removing a backup from the ledger of those that were started: %w", err)
		}
		return updated, nil
	}
}

// putBack makes a run wait that was about to start. The location's condition comes
// first, so that the queue holds the run until the store is back. Then the run is
// changed, so that a claim of it fails that was prepared before and is still under
// way, and at last it leaves the ledger.
func (c *Controller) putBack(ctx context.Context, run *enginev1alpha1.BackupRun, cause error) error {
	if err := c.CheckLocation(ctx, run.Spec.Backup.StorageLocation); err != nil {
		return err
	}
	waiting := run.DeepCopy()
	waiting.Status.Returned++
	if _, err := c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("putting BackupRun %s back into the queue: %w", run.Name, err)
	}
	if _, err := c.release(ctx, func(start records.Start) bool { return start.UID == run.UID }); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Backup goes back to its place in the queue, since its store does not answer", "backupRun", klog.KObj(run), "reason", cause.Error())
	return nil
}
