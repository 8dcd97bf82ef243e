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

// BackupVolume is a volume in at least one stored backup. It has its claim's namespace and name. If
// only the volume's own name is known, it is named volume:NAME. A volume without a claim, such as
// an emptyDir, has VolumeBackups only.
type BackupVolume struct {
	metav1.TypeMeta `json:",inline"`
	// Object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Its identity.
	// +optional
	Spec BackupVolumeSpec `json:"spec,omitempty"`
	// Its latest backup, and their number.
	// +optional
	Status BackupVolumeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupVolumeList is a list of BackupVolumes.
type BackupVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The volumes.
	Items []BackupVolume `json:"items"`
}

// BackupVolumeSpec identifies a volume.
type BackupVolumeSpec struct {
	// Name of the claim.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// The volume's own name, if nothing else is known.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
}

// BackupVolumeStatus sums up the volume's backups.
type BackupVolumeStatus struct {
	// The latest completed backup, if in the same namespace. Others are shown only in the system
	// namespace and requests over all namespaces.
	// +optional
	LastBackup *BackupReference `json:"lastBackup,omitempty"`
	// The latest completed backup's VolumeBackup.
	// +optional
	LastVolumeBackup string `json:"lastVolumeBackup,omitempty"`
	// When the latest completed backup ended.
	// +optional
	LastBackupTimestamp *metav1.Time `json:"lastBackupTimestamp,omitempty"`
	// Bytes of the volume's files in the latest completed backup.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Bytes that all completed backups stored anew.
	// +optional
	DataStoredBytes int64 `json:"dataStoredBytes,omitempty"`
	// The volume itself, by the latest backup that describes it.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// The store's labels of the latest completed backup.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Number of completed backups.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// Number of other backups: failed, unreadable, or without a known end.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// Errors of backups since the latest completed one, newest first, and of unreadable ones.
	// +optional
	// +listType=atomic
	Messages []string `json:"messages,omitempty"`
	// The storage locations with backups of the volume.
	// +optional
	// +listType=set
	StorageLocations []string `json:"storageLocations,omitempty"`
}

// BackedUpVolume is a store's knowledge of a volume itself.
type BackedUpVolume struct {
	// Name of the PersistentVolume, or of the volume in its storage.
	// +optional
	Name string `json:"name,omitempty"`
	// Size in bytes, used or not.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// When it was created, or first backed up.
	// +optional
	CreationTimestamp *metav1.Time `json:"creationTimestamp,omitempty"`
}

// BackupReference names a Backup.
type BackupReference struct {
	// Its namespace.
	Namespace string `json:"namespace"`
	// Its name.
	Name string `json:"name"`
}

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeBackup is one volume in one stored backup: an entry of its history, in the claim's
// namespace.
type VolumeBackup struct {
	metav1.TypeMeta `json:",inline"`
	// Object metadata.
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
	// List metadata.
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
	// Its own name in a store with a backup for each volume, such as Longhorn's, where it is in no
	// Backup.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// The backup that holds the volume, if in the same namespace. Others are shown only in the
	// system namespace and requests over all namespaces.
	// +optional
	Backup BackupReference `json:"backup,omitzero"`
	// Its backup's uid.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// The pod that gave access to the volume.
	// +optional
	PodName string `json:"podName,omitempty"`
	// Name of the volume in that pod.
	// +optional
	PodVolume string `json:"podVolume,omitempty"`
	// The storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
}

// VolumeBackupStatus is the result for one volume.
type VolumeBackupStatus struct {
	// Completed, Failed, InProgress (its end is unknown), Unreadable, or Damaged: Completed, but
	// its store lost data later.
	// +optional
	Phase string `json:"phase,omitempty"`
	// How its data was stored: kopia, from the volume's files; csi-snapshot-moved, from a
	// snapshot's files; csi-snapshot, as a snapshot in the volume's storage; restic, by an old
	// Velero; longhorn; native-snapshot, by Velero in the storage.
	// +optional
	Method string `json:"method,omitempty"`
	// Whether this cluster has a record of the volume's snapshot in its storage, a
	// VolumeSnapshotContent. It is Stored, Missing if the backup has no other copy, or empty:
	// unknown, of another cluster, or without a snapshot. A change does not change the
	// resourceVersion.
	// +optional
	LocalSnapshot string `json:"localSnapshot,omitempty"`
	// Its place: store://LOCATION/kopia/NAMESPACE?snapshot=ID, or, in a Longhorn store,
	// store://LOCATION/?backup=NAME&volume=NAME.
	// +optional
	URL string `json:"url,omitempty"`
	// Name of its source snapshot. Without one, it is the id of Kopia's snapshot.
	// +optional
	SnapshotName string `json:"snapshotName,omitempty"`
	// When the source snapshot was made, or Kopia began to read.
	// +optional
	SnapshotTimestamp *metav1.Time `json:"snapshotTimestamp,omitempty"`
	// The volume itself.
	// +optional
	Volume *BackedUpVolume `json:"volume,omitempty"`
	// The store's labels of it. Valid Kubernetes labels are also in the metadata.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Kopia's snapshot id in the repository of the volume's namespace.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// Bytes of the volume's files.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Uploaded bytes, new since the previous backup.
	// +optional
	IncrementalBytes int64 `json:"incrementalBytes,omitempty"`
	// The node that read the volume.
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
	// VolumeBackupInProgress runs, or has failed without a message: stores such as Longhorn's don't
	// distinguish these.
	VolumeBackupInProgress = "InProgress"
	VolumeBackupUnreadable = "Unreadable"
	// VolumeBackupDamaged has lost data in its store.
	VolumeBackupDamaged = "Damaged"
)

// Whether the cluster has the record of a snapshot.
const (
	LocalSnapshotStored  = "Stored"
	LocalSnapshotMissing = "Missing"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeDeletion is the body of a POST to backupvolumes/NAME/deletion, which deletes a volume's
// history, or volumebackups/NAME/deletion, which deletes one volume backup. The backups stay,
// without the volume. It can't be undone.
type VolumeDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the volume's or the volume backup's.
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
