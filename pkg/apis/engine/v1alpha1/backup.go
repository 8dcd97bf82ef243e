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
	if backup.Status.Phase == "" {
		backup.Status.Phase = holdfastv1alpha1.BackupPhaseNew
	}
	return backup
}
