// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MaxVolumeDeletionTargets bounds the volume backups in one record, to fit into etcd.
const MaxVolumeDeletionTargets = 5000

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumedeletions,singular=volumedeletion,scope=Namespaced
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Processed",type=integer,JSONPath=`.status.processed`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeDeletion is the record of a request to delete one or all backups of a volume. They are not
// listed from then on. The controller records that in the store, beside each backup, and has the
// snapshots removed. The record is removed some time later.
type VolumeDeletion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request. It does not change.
	Spec VolumeDeletionSpec `json:"spec"`
	// The state of the deletion.
	// +optional
	Status VolumeDeletionStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeDeletionList is a list of VolumeDeletions.
type VolumeDeletionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeDeletion `json:"items"`
}

// VolumeDeletionSpec is the request.
type VolumeDeletionSpec struct {
	// The user and time of the request.
	Ask Ask `json:"ask"`
	// Namespace of the volume when it was backed up.
	Namespace string `json:"namespace"`
	// Name of the volume there: the claim's name, or pod:POD:VOLUME.
	Volume string `json:"volume"`
	// Namespace in which the volume is listed, for events.
	// +optional
	ListedIn string `json:"listedIn,omitempty"`
	// Whether the whole history is deleted.
	// +optional
	History bool `json:"history,omitempty"`
	// The backups to delete the volume from.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5000
	Targets []VolumeDeletionTarget `json:"targets"`
}

// VolumeDeletionTarget is the volume in one backup.
type VolumeDeletionTarget struct {
	// The backup's storage location.
	StorageLocation string `json:"storageLocation"`
	// Name of the backup in the store.
	StoreName string `json:"storeName"`
	// Uid of the backup. Another one of its name is not meant.
	UID types.UID `json:"uid"`
	// Longhorn's name of the backup, in a store of its format. There storeName is the volume's
	// name, and uid is empty.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// Number of earlier volumes of this name in the backup's list.
	// +optional
	Repeat int32 `json:"repeat,omitempty"`
}

// VolumeDeletionStatus is the state of a deletion.
type VolumeDeletionStatus struct {
	// How many targets, from the first, are recorded in the store, or can't be.
	// +optional
	Processed int32 `json:"processed,omitempty"`
	// Targets that can't be deleted. They are listed again.
	// +optional
	// +listType=atomic
	Refused []VolumeDeletionRefusal `json:"refused,omitempty"`
	// When all was recorded in the store, and the removal of the snapshots requested.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// The reason for waiting.
	// +optional
	Message string `json:"message,omitempty"`
}

// VolumeDeletionRefusal is a target that can't be deleted.
type VolumeDeletionRefusal struct {
	// Index in spec.targets.
	Target int32 `json:"target"`
	// The reason.
	Message string `json:"message"`
}

// Done reports whether only the record is left to remove.
func (d *VolumeDeletion) Done() bool { return d.Status.CompletionTimestamp != nil }
