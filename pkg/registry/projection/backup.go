// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

// backupOf returns the Backup of a run. entry is its place in the queue as its namespace may see it, or nil.
func backupOf(run *enginev1alpha1.BackupRun, entry *queue.Entry) *v1alpha1.Backup {
	backup := run.AsBackup()
	status := &backup.Status
	if status.Phase == v1alpha1.BackupPhaseDeleting {
		return deleting(backup, run)
	}
	if status.Phase.Ended() {
		status.Conditions = format.EndConditions(status)
		if run.Status.Stored {
			status.FormatVersion = format.FormatVersion
		}
		return backup
	}
	since := backup.CreationTimestamp
	complete := metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse,
		Reason: string(status.Phase), Message: status.Message, LastTransitionTime: since}
	queued := metav1.Condition{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionTrue,
		Reason: string(status.Phase), LastTransitionTime: since}
	if status.QueuedTimestamp != nil {
		queued.LastTransitionTime = *status.QueuedTimestamp
	}
	switch {
	case status.Phase == v1alpha1.BackupPhaseNew:
	case status.Phase == v1alpha1.BackupPhaseCancelling:
		queued.Status = metav1.ConditionFalse
		queued.LastTransitionTime = run.Spec.Cancellation.Timestamp
		queued.Message = "asked to stop by " + run.Spec.Cancellation.Requester.Username
	case status.Phase != v1alpha1.BackupPhaseQueued:
		queued.Status = metav1.ConditionFalse
		if status.StartTimestamp != nil {
			queued.LastTransitionTime = *status.StartTimestamp
		}
	case entry != nil && entry.State == v1alpha1.QueueStateReady:
		// The start is in the queue's ledger.
		status.Phase = v1alpha1.BackupPhaseReadyToStart
		queued.Status, queued.Reason, complete.Reason = metav1.ConditionFalse, string(status.Phase), string(status.Phase)
	case entry != nil:
		status.QueuePosition = int32(entry.Position)
		queued.Reason, queued.Message = string(entry.Reason), fmt.Sprintf("position %d: %s", entry.Position, entry.Message)
	}
	status.Conditions = []metav1.Condition{queued, complete}
	return backup
}

func deleting(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun) *v1alpha1.Backup {
	backup = backup.DeepCopy()
	backup.Status.Phase = v1alpha1.BackupPhaseDeleting
	meta.SetStatusCondition(&backup.Status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionDeleting,
		Status:             metav1.ConditionTrue,
		Reason:             "Requested",
		Message:            run.Status.FailureReason,
		LastTransitionTime: run.Spec.Deletion.Timestamp,
	})
	return backup
}
