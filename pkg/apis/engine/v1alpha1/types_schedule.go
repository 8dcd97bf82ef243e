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

// ScheduleEntry is the record of a Schedule. It names the user of its backups, so it is in the
// system namespace, where only Holdfast writes.
type ScheduleEntry struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The schedule and its owner.
	Spec ScheduleEntrySpec `json:"spec"`
	// The last due run.
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
	// The Schedule.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a record keeps its schedule"
	ScheduleRef v1alpha1.BackupReference `json:"scheduleRef"`
	// Uid of the Schedule's namespace. Another namespace of that name is not meant.
	NamespaceUID types.UID `json:"namespaceUID"`
	// The user that last changed the spec. Backups are requested as this user.
	Requester Requester `json:"requester"`
	// Begin of due times: the schedule's creation, or the last change of its times.
	Since metav1.Time `json:"since"`
	// Earlier due times, unhandled when the times changed.
	// +optional
	Unsettled *UnsettledTimes `json:"unsettled,omitempty"`
	// The Schedule's metadata, in JSON, with its field managers.
	// +kubebuilder:validation:MaxLength=524288
	Metadata string `json:"metadata"`
	// The Schedule's spec.
	Schedule v1alpha1.ScheduleSpec `json:"schedule"`
}

// UnsettledTimes are due times of a schedule's earlier version.
type UnsettledTimes struct {
	// All of them are later.
	After metav1.Time `json:"after"`
	// The last of them.
	Last metav1.Time `json:"last"`
	// Their number.
	Count int64 `json:"count"`
}

// ScheduleEntryStatus has the due runs.
type ScheduleEntryStatus struct {
	// The last due time with a backup, or a reason for none.
	// +optional
	LastDueTimestamp *metav1.Time `json:"lastDueTimestamp,omitempty"`
	// Number of due backups not made.
	// +optional
	Missed int64 `json:"missed,omitempty"`
	// Conditions: Scheduled, Pruned.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
