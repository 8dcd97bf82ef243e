// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// stopUploads stops a run's uploads. It reports whether all have stopped, and the namespaces that may
// have snapshots. An upload has stopped when its agent says so, or has been absent long enough; that
// agent is told too, or it would begin anew. An upload never begins once its record is deleted. Other
// records stay until the run's end is written.
func (c *Controller) stopUploads(ctx context.Context, run *enginev1alpha1.BackupRun) (namespaces sets.Set[string], stopped bool, err error) {
	list, err := c.uploads.List(ctx, uploadsOf(run))
	if err != nil {
		return nil, false, fmt.Errorf("reading which volumes of BackupRun %s are being uploaded: %w", run.Name, err)
	}
	namespaces, stopped = sets.New[string](), true
	for i := range list.Items {
		record := &list.Items[i]
		namespaces.Insert(record.Spec.Pod.Namespace)
		has, err := c.stopUpload(ctx, record)
		if err != nil {
			return nil, false, fmt.Errorf("stopping the upload %s: %w", record.Name, err)
		}
		stopped = stopped && has
	}
	return namespaces, stopped, nil
}

func (c *Controller) stopUpload(ctx context.Context, record *enginev1alpha1.VolumeUpload) (bool, error) {
	var err error
	switch phase := record.Status.Phase; {
	case phase.Done():
		return true, nil
	case phase != enginev1alpha1.VolumePhaseInProgress:
		err = c.uploads.Delete(ctx, record.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion},
		})
		if err == nil || apierrors.IsNotFound(err) {
			return true, nil
		}
	default:
		if !record.Spec.Cancel {
			record.Spec.Cancel = true
			_, err = c.uploads.Update(ctx, record, metav1.UpdateOptions{})
		}
		if err == nil {
			return c.agentGone(record.Spec.Node), nil
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // try again: it may have begun, or ended
	}
	return false, err
}

// spoilUploads cancels uploads that must begin anew, before pods are thawed. Another process may have
// frozen pods for them, so their data would be from before and after the thaw. The same holds for
// unfinished uploads with hooks: the pre hooks run again and may write the data. Where snapshots are made, it
// holds for finished ones too: a pod goes on once it is cut, and its other volumes may be cut again. The
// records remember it until removed.
func (c *Controller) spoilUploads(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	frozen := sets.New[string]()
	for _, pod := range run.Status.PendingHooks {
		frozen.Insert(pod.Namespace) // pods of a namespace may share volumes
	}
	list, err := c.uploads.List(ctx, uploadsOf(run))
	if err != nil {
		return fmt.Errorf("reading which volumes of BackupRun %s are being uploaded: %w", run.Name, err)
	}
	for i := range list.Items {
		record := &list.Items[i]
		hooked := record.Labels[enginev1alpha1.LabelHooked] != "" && (!record.Status.Phase.Done() || c.Mover != nil)
		if !hooked && !frozen.Has(record.Spec.Pod.Namespace) || record.Spec.Cancel {
			continue
		}
		var err error
		if phase := record.Status.Phase; phase.Done() || phase == enginev1alpha1.VolumePhaseInProgress {
			record.Spec.Cancel = true
			_, err = c.uploads.Update(ctx, record, metav1.UpdateOptions{})
		} else {
			err = c.uploads.Delete(ctx, record.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion},
			})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("stopping the upload %s: %w", record.Name, err)
		}
	}
	return nil
}

// removeSpoiled removes the records of cancelled uploads once all have stopped. It reports whether they
// have, and their namespaces.
func (c *Controller) removeSpoiled(ctx context.Context, run *enginev1alpha1.BackupRun) (namespaces sets.Set[string], all bool, err error) {
	list, err := c.uploads.List(ctx, uploadsOf(run))
	if err != nil {
		return nil, false, fmt.Errorf("reading which volumes of BackupRun %s are being uploaded: %w", run.Name, err)
	}
	spoiled := slices.DeleteFunc(list.Items, func(record enginev1alpha1.VolumeUpload) bool { return !record.Spec.Cancel })
	namespaces, all = sets.New[string](), true
	for i := range spoiled {
		stopped, err := c.stopUpload(ctx, &spoiled[i])
		if err != nil {
			return nil, false, fmt.Errorf("stopping the upload %s: %w", spoiled[i].Name, err)
		}
		namespaces.Insert(spoiled[i].Spec.Pod.Namespace)
		all = all && stopped
	}
	if !all {
		return nil, false, nil
	}
	for i := range spoiled {
		err := c.uploads.Delete(ctx, spoiled[i].Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &spoiled[i].UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, false, fmt.Errorf("removing the upload %s: %w", spoiled[i].Name, err)
		}
	}
	return namespaces, true, nil
}

func (c *Controller) namespacesOfUploads(ctx context.Context, run *enginev1alpha1.BackupRun) (sets.Set[string], error) {
	namespaces := sets.New(run.Status.LeftoverSnapshots...)
	if run.Status.Attempts <= 1 {
		return namespaces, nil
	}
	list, err := c.uploads.List(ctx, uploadsOf(run))
	if err != nil {
		return nil, fmt.Errorf("reading which volumes of BackupRun %s are being uploaded: %w", run.Name, err)
	}
	for i := range list.Items {
		namespaces.Insert(list.Items[i].Spec.Pod.Namespace)
	}
	return namespaces, nil
}

// removeUploads also ends running uploads.
func (c *Controller) removeUploads(ctx context.Context, run *enginev1alpha1.BackupRun, namespaces sets.Set[string]) {
	if namespaces.Len() == 0 {
		return
	}
	if err := c.uploads.DeleteCollection(ctx, metav1.DeleteOptions{}, uploadsOf(run)); err != nil {
		klog.FromContext(ctx).Error(err, "The records of the volumes stay until the run is removed", "backupRun", klog.KObj(run))
	}
}

func uploadsOf(run *enginev1alpha1.BackupRun) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(run.UID)}
}
