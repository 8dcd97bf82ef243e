// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule serves schedules, with all verbs, since a schedule is intent and holds no data.
//
// A schedule is kept as a ScheduleEntry in the system namespace, which only Holdfast writes: it names the user of
// the backups. It has the schedule's whole metadata, so finalizers, owners and managed fields work. Reads come
// from a log. A write enters first the record, with its version, so that one of two concurrent writers is refused,
// then the log.
//
// A user that changes a schedule's spec must have the right to make its backups, which are requested as this user
// from then on.
package schedule

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type object = *v1alpha1.Schedule

// Resource defines schedules.
var Resource = virtual.Resource[object]{
	GroupResource: v1alpha1.Resource("schedules"),
	Singular:      "schedule",
	ShortNames:    []string{"hfs"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.Schedule{},
	List:          &v1alpha1.ScheduleList{},
	Columns: []virtual.Column[object]{
		virtual.Name[object](),
		virtual.Text("Schedule", "When a backup is due.", func(s object) string { return s.Spec.Schedule }),
		virtual.Text("Zone", "The time zone of the schedule.", func(s object) string { return cmp.Or(s.Spec.TimeZone, "UTC") }),
		virtual.Text("Last-Backup", "The last backup, of those that are there.", func(s object) string {
			if s.Status.LastBackup == nil {
				return ""
			}
			return s.Status.LastBackup.Name
		}),
		virtual.Text("Status", "The phase of the last backup.", func(s object) string {
			if s.Status.LastBackup == nil {
				return ""
			}
			return string(s.Status.LastBackup.Phase)
		}),
		virtual.Timed("Next", "When a backup is due next.", func(s object, now time.Time) string {
			return virtual.Until(s.Status.NextDueTimestamp, now)
		}),
		virtual.Text("Paused", "Whether nothing is due for now.", func(s object) string {
			if s.Spec.Paused {
				return "true"
			}
			return "false"
		}),
		virtual.Text("Why-Not", "Why there is no backup of the last time that one was due, or else NotPruned if backups that no rule keeps can't be deleted.", func(s object) string {
			if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionScheduled); c != nil && c.Status == metav1.ConditionFalse && !s.Spec.Paused {
				return c.Reason
			}
			if meta.IsStatusConditionFalse(s.Status.Conditions, v1alpha1.ConditionPruned) {
				return "NotPruned"
			}
			return ""
		}),
		virtual.Timed("Age", "Time since the schedule was made.", func(s object, now time.Time) string {
			return virtual.Age(&s.CreationTimestamp, now)
		}),
		virtual.Wide(virtual.Timed("Last-Success", "Time since a backup was Completed, of those that are there.", func(s object, now time.Time) string {
			return virtual.Since(s.Status.LastSuccessTimestamp, now)
		})),
		virtual.Wide(virtual.Number("Missed", "Backups that were due and not made.", func(s object) int32 { return int32(min(s.Status.Missed, 1<<31-1)) })),
		virtual.Wide(virtual.Text("Location", "The storage location.", func(s object) string { return s.Spec.Template.StorageLocation })),
		virtual.Wide(virtual.Text("Requester", "Who changed the schedule last, as whom its backups are asked for.", func(s object) string { return s.Status.Requester })),
	},
}
