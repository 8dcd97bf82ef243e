// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupVolume is a volume that at least one stored backup holds. It lives in
// the namespace of the volume claim and has the claim's name; a volume without
// a claim, such as an emptyDir, is named pod:POD:VOLUME.
type BackupVolume struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Which volume it is.
	// +optional
	Spec BackupVolumeSpec `json:"spec,omitempty"`
	// Its latest backup, and how many there are.
	// +optional
	Status BackupVolumeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupVolumeList is a list of BackupVolumes.
type BackupVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The volumes.
	Items []BackupVolume `json:"items"`
}

// BackupVolumeSpec identifies a volume.
type BackupVolumeSpec struct {
	// Name of the PersistentVolumeClaim. Empty for a volume without a claim.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// Name of the pod, for a volume without a claim.
	// +optional
	PodName string `json:"podName,omitempty"`
	// Name of the volume in the pod, for a volume without a claim.
	// +optional
	PodVolume string `json:"podVolume,omitempty"`
}

// BackupVolumeStatus sums up the volume's backups.
type BackupVolumeStatus struct {
	// The latest completed backup of the volume, if it is of the same namespace.
	// Backups of other namespaces are named in the system namespace only.
	// +optional
	LastBackup *BackupReference `json:"lastBackup,omitempty"`
	// When the latest completed backup of the volume ended.
	// +optional
	LastBackupTimestamp *metav1.Time `json:"lastBackupTimestamp,omitempty"`
	// Size of the volume's files in the latest completed backup, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// How many completed backups of the volume are stored.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// How many attempts to back up the volume failed.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// The storage locations that hold backups of the volume.
	// +optional
	// +listType=set
	StorageLocations []string `json:"storageLocations,omitempty"`
}

// BackupReference names a Backup.
type BackupReference struct {
	// Namespace of the backup.
	Namespace string `json:"namespace"`
	// Name of the backup.
	Name string `json:"name"`
}

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeBackup is one volume in one stored backup: an entry of the volume's
// history. It lives in the namespace of the volume claim.
type VolumeBackup struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Which volume, in which backup.
	// +optional
	Spec VolumeBackupSpec `json:"spec,omitempty"`
	// What was stored.
	// +optional
	Status VolumeBackupStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeBackupList is a list of VolumeBackups.
type VolumeBackupList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The volume backups.
	Items []VolumeBackup `json:"items"`
}

// VolumeBackupSpec identifies a volume and a backup.
type VolumeBackupSpec struct {
	// Name of the BackupVolume: the claim's name, or pod:POD:VOLUME.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
	// The backup that holds the volume, if it is of the same namespace. Backups of
	// other namespaces are named in the system namespace only.
	// +optional
	Backup BackupReference `json:"backup,omitzero"`
	// Uid of the backup that holds the volume.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// Name of the pod through which the volume was read.
	// +optional
	PodName string `json:"podName,omitempty"`
	// Name of the volume in that pod.
	// +optional
	PodVolume string `json:"podVolume,omitempty"`
	// Name of the storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
}

// VolumeBackupStatus is the result for one volume.
type VolumeBackupStatus struct {
	// Completed or Failed.
	// +optional
	Phase string `json:"phase,omitempty"`
	// Kopia's id of the snapshot in the repository of the volume's namespace.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// Size of the volume's files, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Bytes that were new since the previous backup and had to be uploaded.
	// +optional
	IncrementalBytes int64 `json:"incrementalBytes,omitempty"`
	// Name of the node that read the volume.
	// +optional
	Node string `json:"node,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the upload ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Why it failed.
	// +optional
	Message string `json:"message,omitempty"`
}
