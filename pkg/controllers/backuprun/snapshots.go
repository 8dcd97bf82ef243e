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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// listsVolumes reports whether a backup is stored with a list of its volumes, which
// then refers to their snapshots.
func listsVolumes(outcome backup.Outcome) bool {
	return outcome.Stored &&
		(outcome.Status.Phase == v1alpha1.BackupPhaseCompleted || outcome.Status.Phase == v1alpha1.BackupPhasePartiallyFailed)
}

// noteSnapshots writes into a run of which namespaces' volumes there may be snapshots
// that no stored backup will list, before the records of the volumes go, which say
// it, too. It returns the run as it is then.
func (c *Controller) noteSnapshots(ctx context.Context, run *enginev1alpha1.BackupRun, namespaces sets.Set[string]) (*enginev1alpha1.BackupRun, error) {
	live, err := c.read(ctx, run.Name) // a cancellation has changed it
	switch {
	case err != nil:
		return nil, err
	case live == nil || live.UID != run.UID || live.Status.Phase != v1alpha1.BackupPhaseInProgress:
		return run, nil // removed by hand, or ended by another process, which has noted it
	case live.Status.Executor != run.Status.Executor:
		return nil, fmt.Errorf("BackupRun %s was taken over by the controller %s", run.Name, live.Status.Executor)
	}
	noted := sets.New(live.Status.LeftoverSnapshots...)
	if noted.IsSuperset(namespaces) {
		return live, nil
	}
	live.Status.LeftoverSnapshots = sets.List(noted.Union(namespaces))
	written, err := c.runs.UpdateStatus(ctx, live, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("writing that snapshots of BackupRun %s are to be removed: %w", run.Name, err)
	}
	return written, nil
}

// noteSnapshotsAtLast tries until it succeeds, or the record may not be written: the
// uploads must stop, and their snapshots stay then.
func (c *Controller) noteSnapshotsAtLast(ctx context.Context, run *enginev1alpha1.BackupRun, namespaces sets.Set[string]) (*enginev1alpha1.BackupRun, error) {
	err := untilDone(ctx, func(ctx context.Context) (bool, error) {
		noted, err := c.noteSnapshots(ctx, run, namespaces)
		if err == nil {
			run = noted
			return true, nil
		}
		klog.FromContext(ctx).Info("It could not be noted that snapshots are to be removed", "err", err)
		c.tellRefused(run, err)
		return records.Refused(err), nil
	})
	return run, err
}

// submittedNamespaces are those of the volumes that have records.
func (c *Controller) submittedNamespaces(ctx context.Context, run *enginev1alpha1.BackupRun) (sets.Set[string], error) {
	list, err := c.uploads.List(ctx, volumesOf(run.UID))
	if err != nil {
		return nil, fmt.Errorf("reading which volumes of BackupRun %s may have snapshots: %w", run.Name, err)
	}
	namespaces := sets.New[string]()
	for i := range list.Items {
		namespaces.Insert(list.Items[i].Spec.Pod.Namespace)
	}
	return namespaces, nil
}

// hasLeftoverSnapshots reports whether snapshots of a run are to be removed: it has
// ended, and it is certain that no stored backup lists them.
func hasLeftoverSnapshots(run *enginev1alpha1.BackupRun) bool {
	if len(run.Status.LeftoverSnapshots) == 0 || run.Deleting() {
		return false // whoever deletes the backup removes them
	}
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled:
		return run.Status.Stored // so that nothing else will be
	case v1alpha1.BackupPhaseFailedValidation:
		return true
	}
	return false
}

// syncLeftoverSnapshots removes the snapshots of a run that has ended, and writes which
// are left. It may take minutes, and nothing else waits for it.
func (c *Controller) syncLeftoverSnapshots(ctx context.Context, key string) error {
	run, err := c.read(ctx, key)
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
