// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// AsRestore returns the run's Restore, without computed conditions and queue place. It shares
// nothing with the run.
func (r *RestoreRun) AsRestore() *v1alpha1.Restore {
	status := &r.Status
	return &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         r.Spec.RestoreRef.Namespace,
			Name:              r.Spec.RestoreRef.Name,
			UID:               r.UID,
			CreationTimestamp: r.CreationTimestamp,
			Labels:            maps.Clone(r.Spec.Labels),
			Annotations:       maps.Clone(r.Spec.Annotations),
		},
		Spec: *r.Spec.Restore.DeepCopy(),
		Status: v1alpha1.RestoreStatus{
			Phase:               r.Phase(),
			Backup:              r.Spec.Backup.RestoredBackup.DeepCopy(),
			QueuedTimestamp:     status.QueuedTimestamp.DeepCopy(),
			StartTimestamp:      status.StartTimestamp.DeepCopy(),
			CompletionTimestamp: status.CompletionTimestamp.DeepCopy(),
			Progress:            status.Progress.DeepCopy(),
			Volumes:             status.Volumes.DeepCopy(),
			HookStatus:          status.HookStatus.DeepCopy(),
			Warnings:            status.Warnings,
			Errors:              status.Errors,
			Message:             status.Message,
			FailureReason:       status.FailureReason,
			ValidationErrors:    slices.Clone(status.ValidationErrors),
			Requester:           r.Spec.Requester.Username,
		},
	}
}

// Phase returns the status's phase, unless a cancellation says more.
func (r *RestoreRun) Phase() v1alpha1.RestorePhase {
	switch {
	case r.Status.Phase.Ended():
		return r.Status.Phase
	case r.Spec.Cancellation != nil:
		return v1alpha1.RestorePhaseCancelling
	case r.Status.Phase == "":
		return v1alpha1.RestorePhaseNew
	}
	return r.Status.Phase
}
