// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"io"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Velero's data about volumes that it stored by snapshots. Holdfast makes none.

const (
	// MethodCSISnapshot is a snapshot by the volume's driver, whose data Velero may have uploaded.
	MethodCSISnapshot = "CSISnapshot"
	// MethodNativeSnapshot is a snapshot of a cloud's API.
	MethodNativeSnapshot = "NativeSnapshot"
)

// CSISnapshotInfo describes a snapshot by the volume's driver.
type CSISnapshotInfo struct {
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	Size           int64  `json:"size,omitempty"`
	VSCName        string `json:"vscName,omitempty"`
}

// DataMovementInfo describes the upload of a snapshot's data.
type DataMovementInfo struct {
	UploaderType   string `json:"uploaderType,omitempty"`
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// In bytes.
	Size            int64 `json:"size,omitempty"`
	IncrementalSize int64 `json:"incrementalSize,omitempty"`
	// Phase has no JSON name in the format.
	Phase string `json:"Phase,omitempty"`
}

// NativeSnapshotInfo describes a snapshot through a cloud's API.
type NativeSnapshotInfo struct {
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// Phase has no JSON name in the format.
	Phase string `json:"Phase,omitempty"`
}

// Failed reports whether the volume was not backed up. Old versions of Velero give no result.
func (i *VolumeInfo) Failed() bool {
	return i.Result == resultFailed ||
		i.SnapshotDataMoved && i.DataMovementInfo != nil && i.DataMovementInfo.Phase != "" && i.DataMovementInfo.Phase != phaseCompleted ||
		i.NativeSnapshotInfo != nil && i.NativeSnapshotInfo.Phase == phaseFailed
}

const (
	phaseCompleted = "Completed"
	phaseFailed    = "Failed"
)

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

// ReadVolumeInfos reads the content of VolumeInfoKey one by one.
func ReadVolumeInfos(r io.Reader, each func(VolumeInfo) error) error {
	return readList(r, MaxVolumesBytes, each)
}

// ReadNativeSnapshots reads the content of VolumeSnapshotsKey one by one.
func ReadNativeSnapshots(r io.Reader, each func(NativeSnapshot) error) error {
	return readList(r, MaxVolumesBytes, each)
}

// ReadCSISnapshots reads the content of CSISnapshotsKey one by one.
func ReadCSISnapshots(r io.Reader, each func(CSISnapshot) error) error {
	return readList(r, MaxVolumesBytes, each)
}
