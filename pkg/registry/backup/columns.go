// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
)

var columns = []metav1.TableColumnDefinition{
	table.Name(),
	table.Column("Status", "The phase of the backup."),
	table.Column("Items", "Objects backed up, of those found."),
	table.Column("Data", "Size of the files in the volumes backed up."),
	table.Number("Warnings", "Number of warnings."),
	table.Number("Errors", "Number of errors."),
	table.Column("Expires", "Until when the backup is to be kept."),
	table.Column("Age", "Time since the backup was asked for."),
	table.Wide(table.Column("Position", "Place in the queue.")),
	table.Wide(table.Column("Reason", "Why the backup waits, or failed.")),
	table.Wide(table.Column("Took", "Time from start to end.")),
	table.Wide(table.Column("Location", "The storage location.")),
	table.Wide(table.Column("Requester", "Who asked for the backup, in brackets if nothing but the store says so.")),
	table.Wide(table.Column("Origin", "Whether the backup is this cluster's own, a trusted one's, foreign or forged.")),
}

func cells(backup *v1alpha1.Backup, now time.Time) []any {
	status := &backup.Status
	items, data, position, took := table.None, table.None, table.None, table.None
	if p := status.Progress; p != nil {
		items = fmt.Sprintf("%d/%d", p.ItemsBackedUp, p.TotalItems)
	}
	if v := status.Volumes; v != nil && v.Total > 0 {
		data = table.Bytes(v.BytesDone)
	}
	if status.QueuePosition > 0 {
		position = fmt.Sprint(status.QueuePosition)
	}
	if start := status.StartTimestamp; !start.IsZero() {
		end := now
		if !status.CompletionTimestamp.IsZero() {
			end = status.CompletionTimestamp.Time
		}
		took = duration.HumanDuration(end.Sub(start.Time))
	}
	return []any{
		backup.Name, string(status.Phase), items, data, int64(status.Warnings), int64(status.Errors),
		table.Until(status.Expiration, now), table.Age(&backup.CreationTimestamp, now),
		position, reason(status), took, table.Text(backup.Spec.StorageLocation), requester(status), origin(status),
	}
}

func requester(status *v1alpha1.BackupStatus) string {
	if status.Requester == "" && status.Origin != nil && status.Origin.ClaimedRequester != "" {
		return "(" + status.Origin.ClaimedRequester + ")"
	}
	return table.Text(status.Requester)
}

func origin(status *v1alpha1.BackupStatus) string {
	if status.Origin == nil {
		return table.None
	}
	return table.Text(string(status.Origin.Trust))
}

// reason is why a backup waits, or why it failed.
func reason(status *v1alpha1.BackupStatus) string {
	for _, condition := range status.Conditions {
		if condition.Type == v1alpha1.ConditionQueued && condition.Status == metav1.ConditionTrue {
			return condition.Reason
		}
	}
	if len(status.ValidationErrors) > 0 {
		return status.ValidationErrors[0]
	}
	return table.Text(status.FailureReason)
}

// compare puts the newest backup of a namespace first.
func compare(a, b *v1alpha1.Backup) int {
	if a.Namespace != b.Namespace {
		if a.Namespace < b.Namespace {
			return -1
		}
		return 1
	}
	return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
}
