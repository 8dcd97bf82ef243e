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
// the namespace of the volume claim and has the claim's name; one of which only
// its own name is known is named volume:NAME. A volume without a claim, such as an
// emptyDir, has VolumeBackups only.
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
	// Name of the PersistentVolumeClaim.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// Name of the volume itself, if that is all that is known of it.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
}

// BackupVolumeStatus sums up the volume's backups.
type BackupVolumeStatus struct {
	// The latest completed backup of the volume, if it is of the same namespace. Backups of
	// other namespaces are named in the system namespace, and in requests over all namespaces.
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
	// The volume itself, as the latest backup that tells of it knew it.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// Labels that the store keeps with the latest completed backup.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// How many completed backups of the volume are stored.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// How many other backups of the volume there are: they failed, can't be read,
	// or are not known to have ended.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// What is wrong: with each backup since the latest completed one, the newest
	// first, and with those that can't be read.
	// +optional
	// +listType=atomic
	Messages []string `json:"messages,omitempty"`
	// The storage locations that hold backups of the volume.
	// +optional
	// +listType=set
	StorageLocations []string `json:"storageLocations,omitempty"`
}

// BackedUpVolume is what a store knows of a volume itself.
type BackedUpVolume struct {
	// Name of the persistent volume, or of the volume in its storage system.
	// +optional
	Name string `json:"name,omitempty"`
	// Size of the volume, in bytes, however much of it is in use.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// When the volume was made, or was first backed up.
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
	// Name of the BackupVolume: the claim's name, or pod:POD:VOLUME, or volume:NAME.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
	// Name that it has in a store which has a backup for each volume, such as
	// Longhorn's. It is in no Backup then.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// The backup that holds the volume, if it is of the same namespace. Backups of other
	// namespaces are named in the system namespace, and in requests over all namespaces.
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
	// Completed, Failed, InProgress (it is not known to have ended), Unreadable, or Damaged: its
	// store has lost data of it since it was Completed.
	// +optional
	Phase string `json:"phase,omitempty"`
	// How its data was stored: kopia, restic by an old Velero, or longhorn.
	// +optional
	Method string `json:"method,omitempty"`
	// Where it lies: store://LOCATION/kopia/NAMESPACE?snapshot=ID, or, in a store
	// of Longhorn's, store://LOCATION/?backup=NAME&volume=NAME.
	// +optional
	URL string `json:"url,omitempty"`
	// Name of the snapshot that it was made of; of one that Kopia has stored, which reads the volume
	// as it is, Kopia's id of it.
	// +optional
	SnapshotName string `json:"snapshotName,omitempty"`
	// When that snapshot was made, or Kopia began to read.
	// +optional
	SnapshotTimestamp *metav1.Time `json:"snapshotTimestamp,omitempty"`
	// The volume itself.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// Labels that the store keeps with it. Those that are labels in Kubernetes, too,
	// are among the metadata's.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
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
	// Why it failed, or can't be read or restored.
	// +optional
	Message string `json:"message,omitempty"`
}

// States of volume backups.
const (
	VolumeBackupCompleted = "Completed"
	VolumeBackupFailed    = "Failed"
	// VolumeBackupInProgress is one that runs, or has failed without a word: stores such
	// as Longhorn's don't tell these apart.
	VolumeBackupInProgress = "InProgress"
	VolumeBackupUnreadable = "Unreadable"
	// VolumeBackupDamaged is one that was stored, and that needs data which its store has lost
	// since.
	VolumeBackupDamaged = "Damaged"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeDeletion is the body of a POST to backupvolumes/NAME/deletion, which deletes the whole
// history of a volume, and of one to volumebackups/NAME/deletion, which deletes one volume
// backup. The backups stay, without the volume. It can't be undone.
type VolumeDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be that of the volume, or of the
	// volume backup.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What must be true, or nothing is deleted.
	// +optional
	Preconditions *VolumeDeletionPreconditions `json:"preconditions,omitempty"`
}

// VolumeDeletionPreconditions are what must be true of what is to be deleted.
type VolumeDeletionPreconditions struct {
	// Uid of the volume, or of the volume backup.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}
