// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationRPO of a workload, claim or namespace is the maximum age of its last good backup: a
// duration such as 24h. The object's annotation overrides the namespace's.
const AnnotationRPO = "holdfast.io/rpo"

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Protection says whether a workload or claim has a good backup that is new enough. It has the
// object's namespace and labels, and is named by its kind and name, such as deployment.web.
type Protection struct {
	metav1.TypeMeta `json:",inline"`
	// Object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The workload or claim.
	Spec ProtectionSpec `json:"spec"`
	// Its protecting backups. Computed on read.
	// +optional
	Status ProtectionStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProtectionList is a list of Protections.
type ProtectionList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The protections.
	Items []Protection `json:"items"`
}

// ProtectionSpec names a workload or a claim.
type ProtectionSpec struct {
	// API version of the object, such as apps/v1.
	APIVersion string `json:"apiVersion"`
	// Kind of the object: Deployment, StatefulSet, DaemonSet, CronJob, Pod or
	// PersistentVolumeClaim. Only pods without an owner are listed.
	Kind string `json:"kind"`
	// Its name.
	Name string `json:"name"`
	// Its UID. Backups of a former object of its name do not protect it.
	UID types.UID `json:"uid"`
}

// ProtectionState says whether an object is protected.
type ProtectionState string

const (
	// ProtectionYes: a good backup, new enough, holds it and, for a claim, its data.
	ProtectionYes ProtectionState = "Yes"
	// ProtectionLate: the last good backup is older than expected.
	ProtectionLate ProtectionState = "Late"
	// ProtectionNone: no good backup is known to hold it or, for a claim, its data.
	ProtectionNone ProtectionState = "UNPROTECTED"
	// ProtectionUnknown: a backup may hold it, and its manifest could not be read yet.
	ProtectionUnknown ProtectionState = "Unknown"
)

// ProtectionStatus says which backups protect an object.
type ProtectionStatus struct {
	// Yes, Late, UNPROTECTED or Unknown.
	// +optional
	Protected ProtectionState `json:"protected,omitempty"`
	// The last good backup that holds the object.
	// +optional
	Objects *ProtectedBy `json:"objects,omitempty"`
	// For a claim, the last good backup that holds the object and its data.
	// +optional
	Data *ProtectedBy `json:"data,omitempty"`
	// The schedule with the shortest interval that selects the object. The name is absent if in
	// another namespace, except in requests over all namespaces.
	// +optional
	Schedule *ProtectingSchedule `json:"schedule,omitempty"`
	// The last good backup's maximum age.
	// +optional
	Expectation Duration `json:"expectation,omitempty"`
	// Source of the expectation: Annotation, NamespaceAnnotation, Schedule or Default.
	// +optional
	ExpectedBy string `json:"expectedBy,omitempty"`
	// Why it is not Yes, or why an annotation is not followed.
	// +optional
	Message string `json:"message,omitempty"`
}

// Values of ProtectionStatus.ExpectedBy.
const (
	ExpectedByAnnotation          = "Annotation"
	ExpectedByNamespaceAnnotation = "NamespaceAnnotation"
	ExpectedBySchedule            = "Schedule"
	ExpectedByDefault             = "Default"
)

// ProtectedBy is a backup that holds an object or a claim's data.
type ProtectedBy struct {
	// The backup, if in the same namespace. Others are named only in the system namespace and
	// requests over all namespaces.
	// +optional
	Backup BackupReference `json:"backup,omitzero"`
	// When the backup began to read.
	Timestamp metav1.Time `json:"timestamp"`
}

// ProtectingSchedule is a schedule that selects an object.
type ProtectingSchedule struct {
	// Its namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Its name.
	// +optional
	Name string `json:"name,omitempty"`
}
