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

// BackupVolume is a volume in at least one stored backup. It is in the claim's namespace, with the
// claim's name. If only the volume's own name is known, it is named volume:NAME. A volume without a
// claim, such as an emptyDir, has VolumeBackups only.
type BackupVolume struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The identity of the volume.
	// +optional
	Spec BackupVolumeSpec `json:"spec,omitempty"`
	// Its latest backup, and the number of backups.
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
	// Name of the PersistentVolumeClaim.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// Name of the volume itself, if nothing else is known of it.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
}

// BackupVolumeStatus sums up the volume's backups.
type BackupVolumeStatus struct {
	// The latest completed backup of the volume, if it is of the same namespace. Only the system
	// namespace, and requests over all namespaces, show backups of other namespaces.
	// +optional
	LastBackup *BackupReference `json:"lastBackup,omitempty"`
	// Name of the VolumeBackup of the latest completed backup.
	// +optional
	LastVolumeBackup string `json:"lastVolumeBackup,omitempty"`
	// When the latest completed backup of the volume ended.
	// +optional
	LastBackupTimestamp *metav1.Time `json:"lastBackupTimestamp,omitempty"`
	// Size of the volume's files in the latest completed backup, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Bytes that all completed backups together have stored anew.
	// +optional
	DataStoredBytes int64 `json:"dataStoredBytes,omitempty"`
	// The volume itself, by the latest backup with information about it.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// Labels that the store keeps with the latest completed backup.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Number of completed backups of the volume.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// Number of other backups of the volume: failed, unreadable, or without a known end.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// Errors of the backups since the latest completed one, the newest first, and of unreadable
	// ones.
	// +optional
	// +listType=atomic
	Messages []string `json:"messages,omitempty"`
	// The storage locations that hold backups of the volume.
	// +optional
	// +listType=set
	StorageLocations []string `json:"storageLocations,omitempty"`
}

// BackedUpVolume is a store's information about a volume itself.
type BackedUpVolume struct {
	// Name of the persistent volume, or of the volume in its storage system.
	// +optional
	Name string `json:"name,omitempty"`
	// Size of the volume, in bytes, used or not.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// When the volume was created, or first backed up.
	// +optional
	CreationTimestamp *metav1.Time `json:"creationTimestamp,omitempty"`
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

// VolumeBackup is one volume in one stored backup: an entry of the volume's history. It is in the
// claim's namespace.
type VolumeBackup struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The volume and the backup.
	// +optional
	Spec VolumeBackupSpec `json:"spec,omitempty"`
	// The result.
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
	// Name of the BackupVolume: the claim's name, or pod:POD:VOLUME, or volume:NAME.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
	// Its own name in a store with a backup for each volume, such as Longhorn's. Then it is in no
	// Backup.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// The backup that holds the volume, if it is of the same namespace. Only the system namespace,
	// and requests over all namespaces, show backups of other namespaces.
	// +optional
	Backup BackupReference `json:"backup,omitzero"`
	// Uid of the backup that holds the volume.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// Name of the pod that gave access to the volume.
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
	// Completed, Failed, InProgress (its end is unknown), Unreadable, or Damaged: after it was
	// Completed, its store has lost data of it.
	// +optional
	Phase string `json:"phase,omitempty"`
	// How its data was stored: kopia, by the files of the volume; csi-snapshot-moved, by the files of a
	// snapshot; restic by an old Velero; longhorn; or csi-snapshot and native-snapshot, by Velero in
	// the storage.
	// +optional
	Method string `json:"method,omitempty"`
	// Its place: store://LOCATION/kopia/NAMESPACE?snapshot=ID, or, in a Longhorn store,
	// store://LOCATION/?backup=NAME&volume=NAME.
	// +optional
	URL string `json:"url,omitempty"`
	// Name of its source snapshot. Kopia reads the volume without one: then it is the id of Kopia's
	// snapshot.
	// +optional
	SnapshotName string `json:"snapshotName,omitempty"`
	// When the source snapshot was made, or Kopia began to read.
	// +optional
	SnapshotTimestamp *metav1.Time `json:"snapshotTimestamp,omitempty"`
	// The volume itself.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// Labels that the store keeps with it. Valid labels of Kubernetes are also in the metadata.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Kopia's id of the snapshot in the repository of the volume's namespace.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// Size of the volume's files, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Bytes that were new since the previous backup and were uploaded.
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
	// Why it failed, or can't be read or restored.
	// +optional
	Message string `json:"message,omitempty"`
}

// States of volume backups.
const (
	VolumeBackupCompleted = "Completed"
	VolumeBackupFailed    = "Failed"
	// VolumeBackupInProgress is one that runs, or has failed without a message: stores such as
	// Longhorn's don't distinguish them.
	VolumeBackupInProgress = "InProgress"
	VolumeBackupUnreadable = "Unreadable"
	// VolumeBackupDamaged is one whose store has lost data of it.
	VolumeBackupDamaged = "Damaged"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeDeletion is the body of a POST to backupvolumes/NAME/deletion, which deletes a volume's
// whole history, or to volumebackups/NAME/deletion, which deletes one volume backup. The backups
// stay, without the volume. It can't be undone.
type VolumeDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the volume's or the volume backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Conditions of the deletion.
	// +optional
	Preconditions *VolumeDeletionPreconditions `json:"preconditions,omitempty"`
}

// VolumeDeletionPreconditions are the conditions of a deletion.
type VolumeDeletionPreconditions struct {
	// Uid of the volume, or of the volume backup.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}
