// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MaxVolumeDeletionTargets is how many volume backups one record may name, so that etcd takes
// it.
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

// VolumeDeletion is the record of a request to delete backups of one volume: its whole
// history, or one. From when it is recorded they are not listed any more. The controller
// writes that into the store, beside each of the backups, and has the snapshots removed. The
// record is removed some time after that.
type VolumeDeletion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What was asked for. It does not change.
	Spec VolumeDeletionSpec `json:"spec"`
	// How far it is.
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
	// Who asked, and when.
	Ask Ask `json:"ask"`
	// Namespace that the volume was in when it was backed up.
	Namespace string `json:"namespace"`
	// What the volume is called there: the claim's name, or pod:POD:VOLUME.
	Volume string `json:"volume"`
	// Where the volume is listed, for events.
	// +optional
	ListedIn string `json:"listedIn,omitempty"`
	// Whether it is the whole history.
	// +optional
	History bool `json:"history,omitempty"`
	// The backups that it is deleted from.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5000
	Targets []VolumeDeletionTarget `json:"targets"`
}

// VolumeDeletionTarget is the volume in one backup.
type VolumeDeletionTarget struct {
	// Where the backup lies.
	StorageLocation string `json:"storageLocation"`
	// Name of the backup in the store.
	StoreName string `json:"storeName"`
	// Uid of the backup: another one of its name is not meant.
	UID types.UID `json:"uid"`
	// Longhorn's name of the backup, in a store of its format: storeName is that of the
	// volume there, and there is no uid.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// How many volumes of this name come before it in the backup's list.
	// +optional
	Repeat int32 `json:"repeat,omitempty"`
}

// VolumeDeletionStatus says how far a deletion is.
type VolumeDeletionStatus struct {
	// How many of the targets, from the first, are written into the store, or can't be.
	// +optional
	Processed int32 `json:"processed,omitempty"`
	// Those that can't be deleted, which are listed again.
	// +optional
	// +listType=atomic
	Refused []VolumeDeletionRefusal `json:"refused,omitempty"`
	// When all was written into the store, and the removal of the snapshots asked for there.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// What it waits for.
	// +optional
	Message string `json:"message,omitempty"`
}

// VolumeDeletionRefusal says why a target can't be deleted.
type VolumeDeletionRefusal struct {
	// Which one it is in spec.targets, from 0.
	Target int32 `json:"target"`
	// Why.
	Message string `json:"message"`
}

// Done reports whether nothing is left to do but to remove the record.
func (d *VolumeDeletion) Done() bool { return d.Status.CompletionTimestamp != nil }
