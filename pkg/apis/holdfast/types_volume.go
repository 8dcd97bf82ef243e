// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package holdfast

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupVolume is a volume that at least one stored backup holds. It lives in
// the namespace of the volume claim and has the claim's name; a volume without
// a claim, such as an emptyDir, is named pod:POD:VOLUME.
type BackupVolume struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   BackupVolumeSpec
	Status BackupVolumeStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupVolumeList is a list of BackupVolumes.
type BackupVolumeList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []BackupVolume
}

// BackupVolumeSpec identifies a volume.
type BackupVolumeSpec struct {
	ClaimName string
	PodName   string
	PodVolume string
}

// BackupVolumeStatus sums up the volume's backups.
type BackupVolumeStatus struct {
	LastBackup          *BackupReference
	LastBackupTimestamp *metav1.Time
	SizeBytes           int64
	Backups             int32
	Failures            int32
	StorageLocations    []string
}

// BackupReference names a Backup.
type BackupReference struct {
	Namespace string
	Name      string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeBackup is one volume in one stored backup: an entry of the volume's
// history. It lives in the namespace of the volume claim.
type VolumeBackup struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   VolumeBackupSpec
	Status VolumeBackupStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VolumeBackupList is a list of VolumeBackups.
type VolumeBackupList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []VolumeBackup
}

// VolumeBackupSpec identifies a volume and a backup.
type VolumeBackupSpec struct {
	VolumeName      string
	Backup          BackupReference
	BackupUID       types.UID
	PodName         string
	PodVolume       string
	StorageLocation string
}

// VolumeBackupStatus is the result for one volume.
type VolumeBackupStatus struct {
	Phase               string
	SnapshotID          string
	SizeBytes           int64
	IncrementalBytes    int64
	Node                string
	StartTimestamp      *metav1.Time
	CompletionTimestamp *metav1.Time
	Message             string
}
