// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

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

type object = *v1alpha1.Backup

// Resource defines backups.
var Resource = virtual.Resource[object]{
	GroupResource: v1alpha1.Resource("backups"),
	Singular:      "backup",
	ShortNames:    []string{"hfb"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.Backup{},
	List:          &v1alpha1.BackupList{},
	Fields: map[string]func(object) string{
		"spec.storageLocation": storageLocation,
		"status.phase":         phase,
		"status.requester":     func(b object) string { return b.Status.Requester },
	},
	Columns: []virtual.Column[object]{
		virtual.Name[object](),
		virtual.Text("Status", "The phase of the backup.", phase),
		virtual.Text("Items", "Objects backed up, of those found.", func(b object) string {
			if b.Status.Progress == nil {
				return ""
			}
			return fmt.Sprintf("%d/%d", b.Status.Progress.ItemsBackedUp, b.Status.Progress.TotalItems)
		}),
		virtual.Text("Volumes", "Volumes backed up, of those whose data was wanted.", func(b object) string {
			v := b.Status.Volumes
			if v == nil || v.Total == 0 && v.LeftOut == 0 {
				return ""
			}
			return fmt.Sprintf("%d/%d", v.Completed, int64(v.Total)+int64(v.LeftOut))
		}),
		virtual.Text("Data", "Size of the files in the volumes backed up.", func(b object) string {
			if v := b.Status.Volumes; v == nil || v.Total == 0 {
				return ""
			}
			return virtual.Bytes(b.Status.Volumes.BytesDone)
		}),
		virtual.Number("Warnings", "Number of warnings.", func(b object) int32 { return b.Status.Warnings }),
		virtual.Number("Errors", "Number of errors.", func(b object) int32 { return b.Status.Errors }),
		virtual.Timed("Expires", "Until when the backup is to be kept.", func(b object, now time.Time) string {
			if b.Status.Hold != nil {
				return "held"
			}
			return virtual.Until(b.Status.Expiration, now)
		}),
		virtual.Timed("Age", "Time since the backup was asked for.", func(b object, now time.Time) string {
			return virtual.Age(&b.CreationTimestamp, now)
		}),
		virtual.Wide(virtual.Text("Position", "Place in the queue.", func(b object) string {
			if b.Status.QueuePosition == 0 {
				return ""
			}
			return fmt.Sprint(b.Status.QueuePosition)
		})),
		virtual.Wide(virtual.Timed("Took", "Time from start to end.", took)),
		virtual.Wide(virtual.Text("Location", "The storage location.", storageLocation)),
		virtual.Wide(virtual.Text("Requester", "Who asked for the backup, in brackets if nothing but the store says so.", requester)),
		virtual.Wide(virtual.Text("Origin", "Whether the backup is this cluster's own, a trusted one's, foreign or forged.", func(b object) string {
			if b.Status.Origin == nil {
				return ""
			}
			return string(b.Status.Origin.Trust)
		})),
		virtual.Wide(virtual.Text("Reason", "What the backup waits for, why it failed, or what it lacks.", reason)),
	},
	Compare: func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	},
}

func storageLocation(b object) string { return b.Spec.StorageLocation }
func phase(b object) string           { return string(b.Status.Phase) }

func took(b object, now time.Time) string {
	start, end := b.Status.StartTimestamp, b.Status.CompletionTimestamp
	switch {
	case start.IsZero():
		return ""
	case end.IsZero():
		return duration.HumanDuration(now.Sub(start.Time))
	}
	return duration.HumanDuration(end.Sub(start.Time))
}

func requester(b object) string {
	if origin := b.Status.Origin; b.Status.Requester == "" && origin != nil && origin.ClaimedRequester != "" {
		return "(" + origin.ClaimedRequester + ")"
	}
	return b.Status.Requester
}

func reason(b object) string {
	for _, condition := range b.Status.Conditions {
		if condition.Type == v1alpha1.ConditionQueued && condition.Status == metav1.ConditionTrue {
			return condition.Reason
		}
	}
	if len(b.Status.ValidationErrors) > 0 {
		return b.Status.ValidationErrors[0]
	}
	reason := cmp.Or(b.Status.FailureReason, b.Status.Message)
	if complete := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete); reason == "" && complete != nil {
		return complete.Message
	}
	return reason
}
