// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type object = *v1alpha1.Restore

// Resource defines restores.
var Resource = virtual.Resource[object]{
	GroupResource: v1alpha1.Resource("restores"),
	Singular:      "restore",
	ShortNames:    []string{"hfr"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.Restore{},
	List:          &v1alpha1.RestoreList{},
	Fields: map[string]func(object) string{
		"spec.backupName":               func(r object) string { return r.Spec.BackupName },
		"status.backup.name":            backupName,
		"status.phase":                  phase,
		"status.requester":              requester,
		"status.backup.storageLocation": storageLocation,
	},
	Columns: []virtual.Column[object]{
		virtual.Name[object](),
		virtual.Text("Status", "The phase of the restore.", phase),
		virtual.Text("Backup", "The backup that is restored.", backupName),
		virtual.Text("Items", "Objects that are there as in the backup, of those to restore.", func(r object) string {
			if r.Status.Progress == nil {
				return ""
			}
			return fmt.Sprintf("%d/%d", r.Status.Progress.ItemsRestored, r.Status.Progress.TotalItems)
		}),
		virtual.Text("Volumes", "Volumes whose data is restored, of those to restore.", func(r object) string {
			v := r.Status.Volumes
			if v == nil || v.Total == 0 {
				return ""
			}
			return fmt.Sprintf("%d/%d", v.Completed, v.Total)
		}),
		virtual.Number("Warnings", "Number of warnings: about what is there, but differs.", func(r object) int32 { return r.Status.Warnings }),
		virtual.Number("Errors", "Number of errors: about what was asked for and is not there.", func(r object) int32 { return r.Status.Errors }),
		virtual.Text("Queue", "Place in the queue.", func(r object) string {
			if r.Status.QueuePosition == 0 {
				return ""
			}
			return fmt.Sprint(r.Status.QueuePosition)
		}),
		virtual.Timed("Age", "Time since the restore was asked for.", func(r object, now time.Time) string {
			return virtual.Age(&r.CreationTimestamp, now)
		}),
		virtual.Wide(progressed("Created", "Objects that the restore created.", func(p *v1alpha1.RestoreProgress) int64 { return p.ItemsCreated })),
		virtual.Wide(progressed("Unchanged", "Objects that were there, and equal.", func(p *v1alpha1.RestoreProgress) int64 { return p.ItemsUnchanged })),
		virtual.Wide(progressed("Failed", "Objects that are not there, or not as they should be.", func(p *v1alpha1.RestoreProgress) int64 { return p.ItemsFailed })),
		virtual.Wide(virtual.Text("Data", "Bytes written into volumes.", func(r object) string {
			if v := r.Status.Volumes; v == nil || v.Total == 0 {
				return ""
			}
			return virtual.Bytes(r.Status.Volumes.BytesDone)
		})),
		virtual.Wide(virtual.Timed("Took", "Time from start to end.", took)),
		virtual.Wide(virtual.Text("Location", "The storage location.", storageLocation)),
		virtual.Wide(virtual.Text("Requester", "Who asked for the restore.", requester)),
		virtual.Wide(virtual.Text("Origin", "Of a restore that its store remembers: whether it is this cluster's own, a trusted one's, foreign or forged.", func(r object) string {
			if r.Status.Origin == nil {
				return ""
			}
			return string(r.Status.Origin.Trust)
		})),
		virtual.Wide(virtual.Text("Reason", "What the restore waits for, why it failed, or what it lacks.", reason)),
	},
	Compare: func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	},
}

func progressed(name, description string, count func(*v1alpha1.RestoreProgress) int64) virtual.Column[object] {
	return virtual.Text(name, description, func(r object) string {
		if r.Status.Progress == nil {
			return ""
		}
		return fmt.Sprint(count(r.Status.Progress))
	})
}

func phase(r object) string     { return string(r.Status.Phase) }
func requester(r object) string { return r.Status.Requester }

func backupName(r object) string {
	if r.Status.Backup == nil {
		return ""
	}
	if r.Status.Backup.Namespace != r.Namespace {
		return r.Status.Backup.Namespace + "/" + r.Status.Backup.Name
	}
	return r.Status.Backup.Name
}

func storageLocation(r object) string {
	if r.Status.Backup == nil {
		return ""
	}
	return r.Status.Backup.StorageLocation
}

func took(r object, now time.Time) string {
	start, end := r.Status.StartTimestamp, r.Status.CompletionTimestamp
	switch {
	case start.IsZero():
		return ""
	case end.IsZero():
		return duration.HumanDuration(now.Sub(start.Time))
	}
	return duration.HumanDuration(end.Sub(start.Time))
}

func reason(r object) string {
	if queued := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionQueued); queued != nil && queued.Status == metav1.ConditionTrue {
		return queued.Reason
	}
	if len(r.Status.ValidationErrors) > 0 {
		return r.Status.ValidationErrors[0]
	}
	reason := cmp.Or(r.Status.FailureReason, r.Status.Message)
	if complete := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionComplete); reason == "" && complete != nil {
		return complete.Message
	}
	return reason
}
