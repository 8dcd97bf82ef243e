// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelScheduleName is the label of a backup that a schedule made, with the schedule's
// name. The label is Velero's; what the schedule's own backups are follows from their
// origin.
const LabelScheduleName = "velero.io/schedule-name"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Schedule makes backups when they are due. It is intent and holds no data, so it has
// all verbs: deleting it, or its namespace, ends it and no backup. Each of its backups
// is asked for as whoever changed its spec last, and authorised anew as theirs.
type Schedule struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name must be a DNS label of at most 48 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// When to make which backups, and how many of them to keep.
	// +optional
	Spec ScheduleSpec `json:"spec,omitempty"`
	// What came of it. Computed on read.
	// +optional
	Status ScheduleStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ScheduleList is a list of Schedules.
type ScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The schedules.
	Items []Schedule `json:"items"`
}

// ScheduleSpec says when to make which backups.
type ScheduleSpec struct {
	// When a backup is due: five fields as in cron (minute, hour, day of the month,
	// month, day of the week), or one of @hourly, @daily, @weekly, @monthly, @yearly, or
	// one of these with -random, as in @daily-random: at a time that stays the same, and
	// is another one for each schedule.
	// +kubebuilder:validation:MaxLength=256
	Schedule string `json:"schedule"`
	// Time zone of the schedule, by its name in the IANA database, as in Europe/Berlin.
	// Default UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// The backups that it makes.
	// +optional
	Template ScheduleTemplate `json:"template,omitempty"`
	// Whether nothing is due for now. Backups that were due meanwhile are not made up for.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Has no effect: no backup is made before one is due.
	// +optional
	SkipImmediately *bool `json:"skipImmediately,omitempty"`
	// Whether the backups are to be deleted with the schedule. They never are: only false, or
	// unset, is accepted.
	// +optional
	UseOwnerReferencesInBackup *bool `json:"useOwnerReferencesInBackup,omitempty"`
	// How many seconds late a backup may be asked for. One that is later than that is
	// missed. Unset means as late as may be; of several, only the last one is made up.
	// +optional
	// +kubebuilder:validation:Minimum=1
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// How many of its backups to keep. What none of the rules keeps is deleted, if whoever
	// changed the spec last may delete backups here. Unset means that each stays for its ttl.
	// +optional
	Keep *ScheduleKeep `json:"keep,omitempty"`
}

// ScheduleTemplate is the backup that a schedule makes.
type ScheduleTemplate struct {
	// The spec of the backups.
	BackupSpec `json:",inline"`
}

// ScheduleKeep says which of a schedule's backups to keep. Completed backups count; one
// that is kept by several rules counts for each. Days, weeks, months and years are those
// of the schedule's time zone, weeks begin on Monday, and of each the last backup stays. One
// that ended in another way stays until a newer one is Completed.
type ScheduleKeep struct {
	// How many of the last backups to keep.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Last int32 `json:"last,omitempty"`
	// Of how many days that have a backup to keep one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Daily int32 `json:"daily,omitempty"`
	// Of how many weeks that have a backup to keep one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Weekly int32 `json:"weekly,omitempty"`
	// Of how many months that have a backup to keep one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Monthly int32 `json:"monthly,omitempty"`
	// Of how many years that have a backup to keep one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Yearly int32 `json:"yearly,omitempty"`
}

// ConditionScheduled of a Schedule is True when its last due backup was asked for, or
// none has been due yet; else its reason says why there is no backup.
const ConditionScheduled = "Scheduled"

// ConditionPruned of a Schedule is False when backups that no rule keeps could not be
// deleted.
const ConditionPruned = "Pruned"

// Reasons of the condition Scheduled.
const (
	// ScheduleReasonOnTime: all is well.
	ScheduleReasonOnTime = "OnTime"
	// ScheduleReasonPaused: spec.paused is set.
	ScheduleReasonPaused = "Paused"
	// ScheduleReasonForbidden: whoever changed the spec last may not make the backup.
	ScheduleReasonForbidden = "Forbidden"
	// ScheduleReasonTooMany: too many backups of the namespace wait.
	ScheduleReasonTooMany = "TooManyBackups"
	// ScheduleReasonInvalid: the backup was refused as invalid.
	ScheduleReasonInvalid = "Invalid"
	// ScheduleReasonNameTaken: another backup has its name.
	ScheduleReasonNameTaken = "NameTaken"
	// ScheduleReasonWaiting: a backup of the schedule waits already.
	ScheduleReasonWaiting = "BackupWaits"
	// ScheduleReasonTooLate: it was due longer ago than spec.startingDeadlineSeconds.
	ScheduleReasonTooLate = "TooLate"
	// ScheduleReasonChanged: the schedule was changed before the backup could be asked for.
	ScheduleReasonChanged = "Changed"
	// ScheduleReasonNotAnswered: whether the backup is made is not known yet; it is asked for
	// again and again.
	ScheduleReasonNotAnswered = "NotAnswered"
)

// ScheduleStatus is what came of a schedule.
type ScheduleStatus struct {
	// Its last backup, of those that are there.
	// +optional
	LastBackup *ScheduledBackup `json:"lastBackup,omitempty"`
	// When a backup of it that is Completed ended last, of those that are there.
	// +optional
	LastSuccessTimestamp *metav1.Time `json:"lastSuccessTimestamp,omitempty"`
	// The last time when a backup was due for which there is a backup, or a reason for
	// none.
	// +optional
	LastDueTimestamp *metav1.Time `json:"lastDueTimestamp,omitempty"`
	// When a backup is due next. Absent while it is paused.
	// +optional
	NextDueTimestamp *metav1.Time `json:"nextDueTimestamp,omitempty"`
	// How many backups were due and not made.
	// +optional
	Missed int64 `json:"missed,omitempty"`
	// Who changed the spec last, as whom its backups are asked for.
	// +optional
	Requester string `json:"requester,omitempty"`
	// Conditions: Scheduled, Pruned.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScheduledBackup is a backup that a schedule made.
type ScheduledBackup struct {
	// Name of the Backup.
	Name string `json:"name"`
	// Its phase.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// When it was asked for.
	// +optional
	CreationTimestamp metav1.Time `json:"creationTimestamp,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ScheduleTrigger is the body of a POST to schedules/NAME/trigger: it asks for a backup
// now, whatever the time, and even if the schedule is paused. The answer names it.
type ScheduleTrigger struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the schedule's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}
