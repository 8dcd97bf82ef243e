// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=scheduleentries,singular=scheduleentry,scope=Namespaced
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule.schedule`
// +kubebuilder:printcolumn:name="Last Due",type=date,JSONPath=`.status.lastDueTimestamp`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// ScheduleEntry is the record of a Schedule. It is in the system namespace, where only
// Holdfast writes: it says as whom backups are asked for, and whoever could write that
// could ask as anybody.
type ScheduleEntry struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the schedule is, and whose.
	Spec ScheduleEntrySpec `json:"spec"`
	// The run that was due.
	// +optional
	Status ScheduleEntryStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// ScheduleEntryList is a list of ScheduleEntries.
type ScheduleEntryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ScheduleEntry `json:"items"`
}

// ScheduleEntrySpec is a schedule as its users wrote it.
type ScheduleEntrySpec struct {
	// The Schedule that the record is of.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a record keeps its schedule"
	ScheduleRef v1alpha1.BackupReference `json:"scheduleRef"`
	// Uid of the Schedule's namespace. Another namespace of that name has nothing to do
	// with it.
	NamespaceUID types.UID `json:"namespaceUID"`
	// Who changed the schedule's spec last, as whom its backups are asked for.
	Requester Requester `json:"requester"`
	// From when on something can be due: when the schedule was made, or when a change
	// of it moved the times.
	Since metav1.Time `json:"since"`
	// What had been due before a change moved the times, and was not dealt with by then.
	// +optional
	Unsettled *UnsettledTimes `json:"unsettled,omitempty"`
	// The Schedule's metadata, in JSON, with who manages which field: it is another
	// object's than the record's own.
	// +kubebuilder:validation:MaxLength=524288
	Metadata string `json:"metadata"`
	// The Schedule's spec.
	Schedule v1alpha1.ScheduleSpec `json:"schedule"`
}

// UnsettledTimes are times at which backups were due, by what a schedule said before.
type UnsettledTimes struct {
	// All of them are after this one.
	After metav1.Time `json:"after"`
	// The last of them.
	Last metav1.Time `json:"last"`
	// How many they are.
	Count int64 `json:"count"`
}

// ScheduleEntryStatus says what was due.
type ScheduleEntryStatus struct {
	// The last time when a backup was due for which there is a backup, or a reason for none.
	// +optional
	LastDueTimestamp *metav1.Time `json:"lastDueTimestamp,omitempty"`
	// How many backups were due and not made.
	// +optional
	Missed int64 `json:"missed,omitempty"`
	// Conditions: Scheduled, Pruned.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
