// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const tellTimeout = 30 * time.Second

// End stops the restore's writes and deletes its holders. It returns nil when nothing is written
// any more, or an error when ctx ends. Any process may call it again. Records stay until Forget, so
// that a continuing process does not write all again.
func (r *Restorer) End(ctx context.Context) error {
	selector := ofRun(r.run)
	for {
		r.mu.Lock()
		changed := r.change
		r.mu.Unlock()
		stopped, err := r.stopAll(ctx, selector)
		if stopped {
			break
		}
		if err != nil {
			klog.FromContext(ctx).Info("Stopping the volumes of a restore failed; it will be tried again", "err", err)
		}
		select {
		case <-changed:
		case <-r.Clock.After(recheck):
		case <-ctx.Done():
			return fmt.Errorf("volumes of the restore may still be written to: %w", ctx.Err())
		}
	}
	if err := r.removeHolders(ctx, selector); err != nil {
		// Its requester may have lost the right. A restore that never ends would be worse.
		klog.FromContext(ctx).Info("Removing what held the claims of a restore failed; it is tried again every so often", "err", err)
	}
	return nil
}

// Forget deletes the records of a restore whose end is recorded, and tells waiting pods.
func (v *Volumes) Forget(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
	if err := v.records.DeleteCollection(ctx, metav1.DeleteOptions{}, ofRun(run)); err != nil {
		return fmt.Errorf("removing the records of the restore's volumes: %w", err)
	}
	pods, err := v.waiting(ctx, enginev1alpha1.LabelWaits+"="+string(run.UID))
	if err != nil {
		return err
	}
	// It delays the report of the end: sweeps do the rest.
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	var errs []error
	for i := range pods {
		_, err := v.giveUp(ctx, &pods[i], nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func ofRun(run *enginev1alpha1.RestoreRun) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore + "=" + string(run.UID)}
}

func (r *Restorer) stopAll(ctx context.Context, selector metav1.ListOptions) (stopped bool, err error) {
	list, err := r.records.List(ctx, selector)
	if err != nil {
		return false, fmt.Errorf("reading which volumes of RestoreRun %s are being written: %w", r.run.Name, err)
	}
	stopped = true
	for i := range list.Items {
		has, err := r.stop(ctx, &list.Items[i])
		if err != nil {
			return false, fmt.Errorf("stopping VolumeRestore %s: %w", list.Items[i].Name, err)
		}
		stopped = stopped && has
	}
	return stopped, nil
}

// stop asks the agent to stop a volume, and reports whether it has: it says so, or has been absent
// long enough. It is always asked, so that it does not begin again. Without its record, a volume
// never begins.
func (r *Restorer) stop(ctx context.Context, record *enginev1alpha1.VolumeRestore) (bool, error) {
	node := record.Spec.Node
	var err error
	switch phase := record.Status.Phase; {
	case phase.Done():
		return true, nil
	case phase != enginev1alpha1.VolumePhaseInProgress:
		err = r.records.Delete(ctx, record.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion},
		})
		if err == nil || apierrors.IsNotFound(err) {
			return true, nil
		}
	default:
		if !record.Spec.Cancel {
			record = record.DeepCopy()
			record.Spec.Cancel = true
			_, err = r.records.Update(ctx, record, metav1.UpdateOptions{})
		}
		if err == nil {
			return r.Agents.NodeGone(node, time.Time{}) || r.Agents.Absence(node, time.Time{}) >= r.AgentTimeout, nil
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // look again: it may have begun, or ended
	}
	return false, err
}
