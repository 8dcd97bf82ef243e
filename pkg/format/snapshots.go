// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"cmp"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Velero's data about volumes stored by snapshots.

const (
	// MethodCSISnapshot is a CSI snapshot, whose data Velero may have uploaded.
	MethodCSISnapshot = "CSISnapshot"
	// MethodNativeSnapshot is a snapshot of a cloud's API.
	MethodNativeSnapshot = "NativeSnapshot"
)

// CSISnapshotInfo describes a CSI snapshot.
type CSISnapshotInfo struct {
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	Size           int64  `json:"size,omitempty"`
	VSCName        string `json:"vscName,omitempty"`
	Driver         string `json:"driver,omitempty"`
	// ReadyToUse has no JSON name in the format.
	ReadyToUse *bool `json:"ReadyToUse,omitempty"`
}

// DataMovementInfo describes the upload of a snapshot's data. Velero 1.13 names no snapshot and no
// result.
type DataMovementInfo struct {
	DataMover    string `json:"dataMover,omitempty"`
	UploaderType string `json:"uploaderType,omitempty"`
	// SnapshotHandle is the id in the repository of the claim's namespace.
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// In bytes.
	Size            int64 `json:"size,omitempty"`
	IncrementalSize int64 `json:"incrementalSize,omitempty"`
	// Phase has no JSON name in the format.
	Phase string `json:"Phase,omitempty"`
}

// NativeSnapshotInfo describes a snapshot of a cloud's API.
type NativeSnapshotInfo struct {
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// Phase has no JSON name in the format.
	Phase string `json:"Phase,omitempty"`
}

// Failed reports whether the volume has no backup. Old versions of Velero give no result.
func (i *VolumeInfo) Failed() bool {
	return i.Result == ResultFailed ||
		i.SnapshotDataMoved && i.DataMovementInfo != nil && i.DataMovementInfo.Phase != "" && i.DataMovementInfo.Phase != phaseCompleted ||
		i.NativeSnapshotInfo != nil && i.NativeSnapshotInfo.Phase == phaseFailed
}

const (
	phaseCompleted = "Completed"
	phaseFailed    = "Failed"

	// Velero's data movers: the first two read files, and are the default.
	moverVelero = "velero"
	moverFiles  = "velero-fs"
	moverBlocks = "velero-block"
)

// Reasons against restoring a volume that Velero stored by a snapshot.
const (
	StoredFailed = "Velero says that its snapshot, or the upload of that, has failed"
	// KeptInStorage is for snapshots that Holdfast's backup keeps.
	KeptInStorage   = "it lies only in the storage of the volume, and is no second copy: a restore makes a new volume from the snapshot"
	StoredInStorage = "it lies only in the storage of the volume: Velero has made a CSI snapshot of it, and has not moved the data"
	StoredNative    = "it lies only in the storage of the volume: Velero has made a snapshot of it through a cloud's API"
	StoredAsBlocks  = "it was uploaded by Velero's data mover of blocks, and Holdfast restores the uploads of its other one"
	// StoredUnnamed is for Velero 1.13, whose DataUpload in the tarball names the snapshot.
	StoredUnnamed = "Velero's data mover has uploaded it, and the list of volumes does not name its snapshot in the repository"
)

// Stored says why a volume that Velero stored by a snapshot can't be restored, or "".
func (i *VolumeInfo) Stored() string {
	switch {
	case i.Failed():
		return StoredFailed
	case i.BackupMethod == MethodNativeSnapshot:
		return StoredNative
	case !i.SnapshotDataMoved:
		return StoredInStorage
	case i.DataMovementInfo == nil:
		return StoredUnnamed
	}
	return i.DataMovementInfo.Stored()
}

// Stored is VolumeInfo.Stored for an upload that has not failed.
func (m *DataMovementInfo) Stored() string {
	switch mover := cmp.Or(m.DataMover, moverVelero); {
	case mover == moverBlocks:
		return StoredAsBlocks
	case mover != moverVelero && mover != moverFiles, m.UploaderType != UploaderKopia:
		return fmt.Sprintf("it was uploaded by the data mover %q with %q, and Holdfast restores the uploads of Velero's own with Kopia", mover, m.UploaderType)
	case m.SnapshotHandle == "":
		return StoredUnnamed
	}
	return ""
}

// DataUpload is the used part of a data mover's record of an upload, stored among the backup's objects,
// in Velero's namespace.
type DataUpload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SourcePVC       string `json:"sourcePVC"`
		SourceNamespace string `json:"sourceNamespace"`
		DataMover       string `json:"datamover"`
	} `json:"spec"`
	Status struct {
		Phase               string       `json:"phase"`
		SnapshotID          string       `json:"snapshotID"`
		StartTimestamp      *metav1.Time `json:"startTimestamp"`
		CompletionTimestamp *metav1.Time `json:"completionTimestamp"`
		Progress            struct {
			TotalBytes int64 `json:"totalBytes"`
		} `json:"progress"`
		IncrementalBytes int64 `json:"incrementalBytes"`
	} `json:"status"`
}

// IsOf reports whether the upload was made for a backup. A backup of Velero's namespace also has
// others'.
func (u *DataUpload) IsOf(backup types.UID) bool { return u.Labels[labelBackupUID] == string(backup) }

// Info describes the upload as a VolumeInfo of Velero since 1.14.
func (u *DataUpload) Info() VolumeInfo {
	return VolumeInfo{
		PVCName: u.Spec.SourcePVC, PVCNamespace: u.Spec.SourceNamespace, BackupMethod: MethodCSISnapshot, SnapshotDataMoved: true,
		StartTimestamp: u.Status.StartTimestamp, CompletionTimestamp: u.Status.CompletionTimestamp,
		DataMovementInfo: &DataMovementInfo{
			DataMover: u.Spec.DataMover, UploaderType: UploaderKopia, SnapshotHandle: u.Status.SnapshotID,
			Size: u.Status.Progress.TotalBytes, IncrementalSize: u.Status.IncrementalBytes, Phase: cmp.Or(u.Status.Phase, phaseFailed),
		},
	}
}

// NativeSnapshot is an element of VolumeSnapshotsKey.
type NativeSnapshot struct {
	Spec struct {
		PersistentVolumeName string `json:"persistentVolumeName"`
	} `json:"spec"`
	Status struct {
		ProviderSnapshotID string `json:"providerSnapshotID"`
		Phase              string `json:"phase"`
	} `json:"status"`
}

// Failed reports whether it was not made.
func (s *NativeSnapshot) Failed() bool { return s.Status.Phase == phaseFailed }

// CSISnapshot is the used part of a VolumeSnapshot.
type CSISnapshot struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Source struct {
			ClaimName string `json:"persistentVolumeClaimName"`
		} `json:"source"`
	} `json:"spec"`
	Status struct {
		CreationTime *metav1.Time       `json:"creationTime"`
		RestoreSize  *resource.Quantity `json:"restoreSize"`
		Error        *struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

// CSISnapshotsKey returns the key of the VolumeSnapshots of Velero up to 1.15.
func CSISnapshotsKey(storeName string) string {
	return sideKey(storeName, "-csi-volumesnapshots.json.gz")
}

// ReadVolumeInfos calls each for every element of VolumeInfoKey.
func ReadVolumeInfos(r io.Reader, each func(VolumeInfo) error) error {
	return readList(r, MaxVolumesBytes, each)
}

// ReadNativeSnapshots calls each for every element of VolumeSnapshotsKey.
func ReadNativeSnapshots(r io.Reader, each func(NativeSnapshot) error) error {
	return readList(r, MaxVolumesBytes, each)
}

// ReadCSISnapshots calls each for every element of CSISnapshotsKey.
func ReadCSISnapshots(r io.Reader, each func(CSISnapshot) error) error {
	return readList(r, MaxVolumesBytes, each)
}
