// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

func listsVolumes(outcome backup.Outcome) bool {
	return outcome.Stored &&
		(outcome.Status.Phase == v1alpha1.BackupPhaseCompleted || outcome.Status.Phase == v1alpha1.BackupPhasePartiallyFailed)
}

// hasLeftoverSnapshots reports whether an ended run has snapshots that no stored backup lists.
func hasLeftoverSnapshots(run *enginev1alpha1.BackupRun) bool {
	if len(run.Status.LeftoverSnapshots) == 0 || run.Deleting() {
		return false // its deletion removes them
	}
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled, v1alpha1.BackupPhaseFailedValidation:
		return run.Status.Stored || run.Status.NeverStored() // so that nothing else will be
	}
	return false
}

// syncLeftoverSnapshots requests the removal of an ended run's snapshots, and records the remaining
// namespaces.
func (c *Controller) syncLeftoverSnapshots(ctx context.Context, key string) error {
	run, err := c.Get(ctx, key)
	if err != nil || run == nil || !hasLeftoverSnapshots(run) {
		return err
	}
	if err := c.Leads(ctx); err != nil {
		return err
	}
	if err := c.Executor.Reach(ctx, run); err != nil {
		return fmt.Errorf("removing the snapshots of BackupRun %s: %w", run.Name, err)
	}
	var failures []error
	left := slices.DeleteFunc(slices.Clone(run.Status.LeftoverSnapshots), func(namespace string) bool {
		timed, cancel := context.WithTimeout(ctx, snapshotsTimeout)
		defer cancel()
		err := c.Executor.DiscardSnapshots(timed, run, namespace)
		if err != nil {
			failures = append(failures, fmt.Errorf("removing the snapshots of BackupRun %s in the namespace %s: %w", run.Name, namespace, err))
		}
		return err == nil
	})
	if len(left) < len(run.Status.LeftoverSnapshots) {
		changed := run.DeepCopy()
		changed.Status.LeftoverSnapshots = left
		_, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("writing which snapshots of BackupRun %s are removed: %w", run.Name, err))
		}
	}
	return errors.Join(failures...)
}
