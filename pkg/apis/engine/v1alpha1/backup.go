// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// AsBackup returns the run's Backup, without computed conditions and queue place. It shares nothing
// with the run.
func (r *BackupRun) AsBackup() *v1alpha1.Backup {
	status := &r.Status
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         r.Spec.BackupRef.Namespace,
			Name:              r.Spec.BackupRef.Name,
			UID:               r.UID,
			CreationTimestamp: r.CreationTimestamp,
			Labels:            maps.Clone(r.Spec.Labels),
			Annotations:       maps.Clone(r.Spec.Annotations),
		},
		Spec: *r.Spec.Backup.DeepCopy(),
		Status: v1alpha1.BackupStatus{
			Phase:               status.Phase,
			QueuedTimestamp:     status.QueuedTimestamp.DeepCopy(),
			StartTimestamp:      status.StartTimestamp.DeepCopy(),
			CompletionTimestamp: status.CompletionTimestamp.DeepCopy(),
			Expiration:          status.Expiration.DeepCopy(),
			Progress:            status.Progress.DeepCopy(),
			Volumes:             status.Volumes.DeepCopy(),
			HookStatus:          status.HookStatus.DeepCopy(),
			Encryption:          status.Encryption.DeepCopy(),
			Warnings:            status.Warnings,
			Errors:              status.Errors,
			Message:             status.Message,
			FailureReason:       status.FailureReason,
			ValidationErrors:    slices.Clone(status.ValidationErrors),
			Requester:           r.Spec.Requester.Username,
		},
	}
	backup.Status.Phase = r.Phase()
	if r.Spec.NamespaceUID != "" {
		backup.Status.Origin = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn, NamespaceUID: r.Spec.NamespaceUID, ScheduleUID: r.Spec.ScheduleUID}
	}
	if r.standsForStored() {
		stored := r.Spec.Deletion.Stored
		backup.UID, backup.CreationTimestamp = stored.UID, stored.CreationTimestamp
	}
	return backup
}

// Deleting reports whether the run only removes a backup from its store. A deletion in an
// unfinished run counts, and frees anything, only when the run has ended.
func (r *BackupRun) Deleting() bool {
	return r.Spec.Deletion != nil && (r.Status.Phase.Ended() || r.standsForStored())
}

// NeverStored reports an end that the store can't hold: refused, or another backup has the name.
func (s *BackupRunStatus) NeverStored() bool {
	return s.Phase == v1alpha1.BackupPhaseFailedValidation || s.Phase.Ended() && !s.Stored && len(s.ValidationErrors) > 0
}

// standsForStored reports whether the run, which never begins, was created to delete a backup
// without a run.
func (r *BackupRun) standsForStored() bool {
	if r.Spec.Deletion == nil || r.Spec.Deletion.Stored == nil {
		return false
	}
	switch r.Status.Phase {
	case "", v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// Phase returns the status's phase, unless a request says more.
func (r *BackupRun) Phase() v1alpha1.BackupPhase {
	switch {
	case r.Deleting():
		return v1alpha1.BackupPhaseDeleting
	case r.Status.Phase.Ended():
		return r.Status.Phase
	case r.Spec.Cancellation != nil:
		return v1alpha1.BackupPhaseCancelling
	case r.Status.Phase == "":
		return v1alpha1.BackupPhaseNew
	}
	return r.Status.Phase
}

// Unavailable reports whether the location is known not to answer.
func (l *StorageLocation) Unavailable() bool {
	return meta.IsStatusConditionFalse(l.Status.Conditions, ConditionAvailable)
}

// Cloned reports whether another cluster with this one's uid may write to the store.
func (l *StorageLocation) Cloned() bool {
	return meta.IsStatusConditionTrue(l.Status.Conditions, ConditionClonedCluster)
}

// Closed reports whether no backup may begin in the store, and nothing be changed or removed.
// Running work and reading continue unless the location is Unavailable.
func (l *StorageLocation) Closed() bool { return l.Unavailable() || l.Cloned() }

// WhyClosed returns why the location is Closed.
func (l *StorageLocation) WhyClosed() string {
	condition := ConditionClonedCluster
	if l.Unavailable() {
		condition = ConditionAvailable
	}
	if found := meta.FindStatusCondition(l.Status.Conditions, condition); found != nil {
		return found.Message
	}
	return ""
}
