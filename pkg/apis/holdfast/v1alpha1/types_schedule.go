// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelScheduleName is Velero's label of backups with their schedule's name. Holdfast identifies a
// schedule's backups by their origin.
const LabelScheduleName = "velero.io/schedule-name"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Schedule makes backups when they are due. It holds no data, so it has all verbs: deleting it, or
// its namespace, deletes no backup. Each backup is requested, and authorised anew, as the user that
// last changed the spec.
type Schedule struct {
	metav1.TypeMeta `json:",inline"`
	// The name must be a DNS label of at most 48 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// When to make which backups, and how many to keep.
	// +optional
	Spec ScheduleSpec `json:"spec,omitempty"`
	// Results. Computed on read.
	// +optional
	Status ScheduleStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ScheduleList is a list of Schedules.
type ScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The schedules.
	Items []Schedule `json:"items"`
}

// ScheduleSpec says when to make which backups.
type ScheduleSpec struct {
	// When a backup is due: five fields as in cron (minute, hour, day of the month, month, day of
	// the week), or one of @hourly, @daily, @weekly, @monthly, @yearly. With the suffix -random, as
	// in @daily-random, each schedule gets its own fixed time.
	// +kubebuilder:validation:MaxLength=256
	Schedule string `json:"schedule"`
	// IANA time zone, as in Europe/Berlin. Default UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// The schedule's backups.
	// +optional
	Template ScheduleTemplate `json:"template,omitempty"`
	// Whether the schedule makes no backups. Backups due meanwhile are not made later.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Has no effect: no backup is made before one is due.
	// +optional
	SkipImmediately *bool `json:"skipImmediately,omitempty"`
	// Whether backups are deleted with the schedule. They never are: only false or unset is
	// accepted.
	// +optional
	UseOwnerReferencesInBackup *bool `json:"useOwnerReferencesInBackup,omitempty"`
	// Seconds that a backup may be requested late, before it is missed. Unset means no limit; of
	// several late ones, only the last is made.
	// +optional
	// +kubebuilder:validation:Minimum=1
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// How many of its backups to keep. The others are deleted, if the user that last changed the
	// spec may delete backups here. Unset means that each stays for its ttl.
	// +optional
	Keep *ScheduleKeep `json:"keep,omitempty"`
}

// ScheduleTemplate is the backup that a schedule makes.
type ScheduleTemplate struct {
	// The spec of the backups.
	BackupSpec `json:",inline"`
}

// ScheduleKeep says which backups to keep. Completed backups count, for each rule that keeps them.
// Days, weeks, months and years are in the schedule's time zone; weeks begin on Monday. The last
// backup of each stays. Backups with another result stay until a newer one is Completed.
type ScheduleKeep struct {
	// Number of last backups to keep.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Last int32 `json:"last,omitempty"`
	// Days with a backup, to keep one each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Daily int32 `json:"daily,omitempty"`
	// Weeks with a backup, to keep one each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Weekly int32 `json:"weekly,omitempty"`
	// Months with a backup, to keep one each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Monthly int32 `json:"monthly,omitempty"`
	// Years with a backup, to keep one each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Yearly int32 `json:"yearly,omitempty"`
}

// ConditionScheduled of a Schedule is True if its last due backup was requested, or none was due
// yet. Otherwise its reason says why not.
const ConditionScheduled = "Scheduled"

// ConditionPruned of a Schedule is False if backups that no rule keeps could not be deleted.
const ConditionPruned = "Pruned"

// Reasons of the condition Scheduled.
const (
	// ScheduleReasonOnTime: the last due backup was requested.
	ScheduleReasonOnTime = "OnTime"
	// ScheduleReasonPaused: spec.paused is set.
	ScheduleReasonPaused = "Paused"
	// ScheduleReasonForbidden: the spec's last editor may not make the backup.
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
	// ScheduleReasonChanged: the schedule was changed before the backup could be requested.
	ScheduleReasonChanged = "Changed"
	// ScheduleReasonNotAnswered: unknown whether the backup was made; the request is repeated.
	ScheduleReasonNotAnswered = "NotAnswered"
)

// ScheduleStatus is a schedule's state.
type ScheduleStatus struct {
	// Its last existing backup.
	// +optional
	LastBackup *ScheduledBackup `json:"lastBackup,omitempty"`
	// When the last existing Completed backup ended.
	// +optional
	LastSuccessTimestamp *metav1.Time `json:"lastSuccessTimestamp,omitempty"`
	// The last due time with a backup, or a reason for none.
	// +optional
	LastDueTimestamp *metav1.Time `json:"lastDueTimestamp,omitempty"`
	// The next due time. Absent while it is paused.
	// +optional
	NextDueTimestamp *metav1.Time `json:"nextDueTimestamp,omitempty"`
	// Number of due backups not made.
	// +optional
	Missed int64 `json:"missed,omitempty"`
	// The user that last changed the spec, and that backups are requested as.
	// +optional
	Requester string `json:"requester,omitempty"`
	// Conditions: Scheduled, Pruned.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScheduledBackup is a schedule's backup.
type ScheduledBackup struct {
	// Its name.
	Name string `json:"name"`
	// Its phase.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// When it was requested.
	// +optional
	CreationTimestamp metav1.Time `json:"creationTimestamp,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ScheduleTrigger is the body of a POST to schedules/NAME/trigger, which requests a backup now,
// even if the schedule is paused. The answer names it.
type ScheduleTrigger struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the schedule's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}
