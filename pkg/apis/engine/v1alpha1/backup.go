// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	holdfastv1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// AsBackup is the Backup that the run stands for, without the conditions and the
// place in the queue, which are computed. It shares nothing with the run.
func (r *BackupRun) AsBackup() *holdfastv1alpha1.Backup {
	status := &r.Status
	backup := &holdfastv1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         r.Spec.BackupRef.Namespace,
			Name:              r.Spec.BackupRef.Name,
			UID:               r.UID,
			CreationTimestamp: r.CreationTimestamp,
			Labels:            maps.Clone(r.Spec.Labels),
			Annotations:       maps.Clone(r.Spec.Annotations),
		},
		Spec: *r.Spec.Backup.DeepCopy(),
		Status: holdfastv1alpha1.BackupStatus{
			Phase:               status.Phase,
			QueuedTimestamp:     status.QueuedTimestamp.DeepCopy(),
			StartTimestamp:      status.StartTimestamp.DeepCopy(),
			CompletionTimestamp: status.CompletionTimestamp.DeepCopy(),
			Expiration:          status.Expiration.DeepCopy(),
			Progress:            status.Progress.DeepCopy(),
			Volumes:             status.Volumes.DeepCopy(),
			Warnings:            status.Warnings,
			Errors:              status.Errors,
			FailureReason:       status.FailureReason,
			ValidationErrors:    slices.Clone(status.ValidationErrors),
			Requester:           r.Spec.Requester.Username,
		},
	}
	backup.Status.Phase = r.Phase()
	if d := r.Spec.Deletion; d != nil && d.Stored != nil {
		backup.UID, backup.CreationTimestamp = d.Stored.UID, d.Stored.CreationTimestamp
	}
	return backup
}

// Phase is the backup's phase: what the status says, unless a request about the
// run says more.
func (r *BackupRun) Phase() holdfastv1alpha1.BackupPhase {
	switch {
	case r.Spec.Deletion != nil:
		return holdfastv1alpha1.BackupPhaseDeleting
	case r.Status.Phase.Ended():
		return r.Status.Phase
	case r.Spec.Cancellation != nil:
		return holdfastv1alpha1.BackupPhaseCancelling
	case r.Status.Phase == "":
		return holdfastv1alpha1.BackupPhaseNew
	}
	return r.Status.Phase
}
