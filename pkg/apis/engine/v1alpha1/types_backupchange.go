// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// MaxBackupChangeTargets bounds a record's volume backups, to fit into etcd.
const MaxBackupChangeTargets = 5000

// LabelDeletesVolumes is on records that delete volumes. They may be large, so lists of holds omit
// them.
const LabelDeletesVolumes = "engine.holdfast.io/deletes-volumes"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=backupchanges,singular=backupchange,scope=Namespaced
// +kubebuilder:printcolumn:name="Expiration",type=string,JSONPath=`.spec.expiration`
// +kubebuilder:printcolumn:name="Hold",type=boolean,JSONPath=`.spec.hold`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Processed",type=integer,JSONPath=`.status.processed`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// BackupChange is the record of a request to change stored backups. It counts once recorded. The
// controller writes the change into the store beside each backup, and later deletes the record.
// There are two requests:
//
//   - to change a backup's expiration, or to hold it. The record's name is the backup's name in
//     the store, and the next request for the backup changes the record.
//   - to delete backups of one volume. The record has targets, and its spec does not change.
type BackupChange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request, with earlier unstored ones for the same backup.
	Spec BackupChangeSpec `json:"spec"`
	// The state of the request.
	// +optional
	Status BackupChangeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// BackupChangeList is a list of BackupChanges.
type BackupChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BackupChange `json:"items"`
}

// BackupChangeSpec is the request.
type BackupChangeSpec struct {
	// User and time of the last request.
	Ask Ask `json:"ask"`

	// The Backup whose expiration changes.
	// +optional
	BackupRef v1alpha1.BackupReference `json:"backupRef,omitzero"`
	// Its uid. Another one of its name is not meant.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Its storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
	// The reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// The new expiration. Absent if unchanged.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Whether the backup is held. Absent if unchanged.
	// +optional
	Hold *bool `json:"hold,omitempty"`

	// The deleted volume's namespace when backed up.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Its name there: the claim's, or pod:POD:VOLUME.
	// +optional
	Volume string `json:"volume,omitempty"`
	// Namespace that lists the volume, for events.
	// +optional
	ListedIn string `json:"listedIn,omitempty"`
	// Whether the whole history is deleted.
	// +optional
	History bool `json:"history,omitempty"`
	// Backups to delete the volume from.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	Targets []BackupChangeTarget `json:"targets,omitempty"`
}

// BackupChangeTarget is the volume in one backup.
type BackupChangeTarget struct {
	// The backup's storage location.
	StorageLocation string `json:"storageLocation"`
	// Name of the backup in the store.
	StoreName string `json:"storeName"`
	// Its uid. Another one of its name is not meant.
	UID types.UID `json:"uid"`
	// Longhorn's name of the backup, in a Longhorn store. There storeName is the volume's name, and
	// uid is empty.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// Number of earlier same-named volumes in the backup's list.
	// +optional
	Repeat int32 `json:"repeat,omitempty"`
}

// BackupChangeStatus is a request's state.
type BackupChangeStatus struct {
	// The finished generation.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Number of the expiration's change in the store; 0 if impossible.
	// +optional
	Number int64 `json:"number,omitempty"`
	// How many targets, from the first, are recorded in the store, or can't be.
	// +optional
	Processed int32 `json:"processed,omitempty"`
	// Undeletable targets, which are listed again.
	// +optional
	// +listType=atomic
	Refused []BackupChangeRefusal `json:"refused,omitempty"`
	// When it was finished, and removal of deleted volumes' snapshots requested.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Why it was not made, or waits.
	// +optional
	Message string `json:"message,omitempty"`
	// When an ExpirationChange was done, as the previous version wrote it.
	// +optional
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
}

// BackupChangeRefusal is an undeletable target.
type BackupChangeRefusal struct {
	// Index in spec.targets.
	Target int32 `json:"target"`
	// The reason.
	Message string `json:"message"`
}

// Deletes reports whether volumes are deleted. Otherwise a backup's expiration changes.
func (c *BackupChange) Deletes() bool { return len(c.Spec.Targets) > 0 }

// Done reports whether the change was made, or can't be.
func (c *BackupChange) Done() bool {
	if c.Deletes() {
		return c.Status.CompletionTimestamp != nil
	}
	return c.Status.ObservedGeneration == c.Generation
}

// Changes reports whether an expiration or a hold changes.
func (c *BackupChange) Changes() bool { return c.Spec.Expiration != nil || c.Spec.Hold != nil }

// Counts reports whether the change counts for a backup with a number of changes known from the
// store.
func (c *BackupChange) Counts(backup types.UID, known int64) bool {
	return c.Changes() && c.Spec.UID == backup && (!c.Done() || c.Status.Number > known)
}

// DoneAt returns when the change was done; nil if that is unknown.
func (c *BackupChange) DoneAt() *metav1.Time {
	return cmp.Or(c.Status.CompletionTimestamp, c.Status.Timestamp)
}

// At reports whether the change affects backups in a location.
func (c *BackupChange) At(location string) bool {
	return c.Spec.StorageLocation == location ||
		slices.ContainsFunc(c.Spec.Targets, func(target BackupChangeTarget) bool { return target.StorageLocation == location })
}
