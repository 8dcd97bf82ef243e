// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Methods of volumes stored by snapshots. MethodMoved with a snapshot's id is in a repository, and
// restorable. MethodInStorage is in the volume's own storage.
const (
	MethodInStorage = "csi-snapshot"
	MethodMoved     = "csi-snapshot-moved"
	methodNative    = "native-snapshot"
)

// ReadVolumeInfos reads the volumes that Velero (since 1.13) stored by snapshots, from
// format.VolumeInfoKey. ReadVolumes has more about uploads from pods.
func ReadVolumeInfos(r io.Reader) (volumes []Volume, err error) {
	err = format.ReadVolumeInfos(r, func(info format.VolumeInfo) error {
		v := Volume{Namespace: info.PVCNamespace, ClaimName: info.PVCName, VolumeName: info.PVName}
		switch {
		case info.Skipped:
			return nil
		case info.BackupMethod == format.MethodNativeSnapshot:
			v.Method = methodNative
			if native := info.NativeSnapshotInfo; native != nil {
				v.SnapshotName = native.SnapshotHandle
			}
		case info.BackupMethod != format.MethodCSISnapshot:
			return nil
		case info.SnapshotDataMoved:
			v.Method = MethodMoved
			if moved := info.DataMovementInfo; moved != nil {
				v.SizeBytes, v.IncrementalBytes = moved.Size, moved.IncrementalSize
				if moved.Stored() == "" {
					v.SnapshotID = moved.SnapshotHandle
				}
			}
		default:
			v.Method = MethodInStorage
		}
		if csi := info.CSISnapshotInfo; csi != nil {
			v.SnapshotName, v.VolumeSize = cmp.Or(csi.VSCName, csi.SnapshotHandle), csi.Size
		}
		if info.StartTimestamp != nil {
			v.Start = *info.StartTimestamp
		}
		if info.CompletionTimestamp != nil {
			v.Completion = *info.CompletionTimestamp
		}
		why := info.Stored()
		if why == format.StoredUnnamed {
			why += ": a restore looks for it among the backup's objects"
		}
		return appendSnapshot(&volumes, &v, info.Failed(), why)
	})
	return volumes, err
}

// ReadNativeSnapshots reads format.VolumeSnapshotsKey, which names no claims.
func ReadNativeSnapshots(r io.Reader) (volumes []Volume, err error) {
	err = format.ReadNativeSnapshots(r, func(s format.NativeSnapshot) error {
		v := Volume{VolumeName: s.Spec.PersistentVolumeName, SnapshotName: s.Status.ProviderSnapshotID, Method: methodNative}
		if s.Failed() {
			return appendSnapshot(&volumes, &v, true, format.StoredFailed)
		}
		return appendSnapshot(&volumes, &v, false, format.StoredNative)
	})
	return volumes, err
}

// ReadCSISnapshots reads format.CSISnapshotsKey, which names no volumes.
func ReadCSISnapshots(r io.Reader) (volumes []Volume, err error) {
	err = format.ReadCSISnapshots(r, func(s format.CSISnapshot) error {
		v := Volume{Namespace: s.Namespace, ClaimName: s.Spec.Source.ClaimName, SnapshotName: s.Name, Method: MethodInStorage}
		if at := s.Status.CreationTime; at != nil {
			v.SnapshotCreated, v.Start, v.Completion = *at, *at, *at
		}
		if size := s.Status.RestoreSize; size != nil {
			v.VolumeSize = size.Value()
		}
		if failure := s.Status.Error; failure != nil && failure.Message != "" {
			return appendSnapshot(&volumes, &v, true, failure.Message)
		}
		return appendSnapshot(&volumes, &v, false, format.StoredInStorage)
	})
	return volumes, err
}

func appendSnapshot(volumes *[]Volume, v *Volume, failed bool, message string) error {
	if v.ClaimName == "" {
		v.Namespace = ""
		if v.VolumeName == "" {
			return nil
		}
	}
	if v.ClaimName != "" && (len(validation.IsDNS1123Label(v.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(v.ClaimName)) > 0) ||
		v.VolumeName != "" && !validVolumeName(v.VolumeName) {
		return fmt.Errorf("it names a volume that can't exist: %q, claim %q in namespace %q", v.VolumeName, v.ClaimName, v.Namespace)
	}
	v.Namespace, v.ClaimName, v.VolumeName, v.Method = intern(v.Namespace), intern(v.ClaimName), intern(v.VolumeName), intern(v.Method)
	v.SnapshotName, v.SnapshotID = bounded(v.SnapshotName, maxText), bounded(v.SnapshotID, maxText)
	v.VolumeSize, v.SizeBytes = max(v.VolumeSize, 0), max(v.SizeBytes, 0)
	v.IncrementalBytes = min(max(v.IncrementalBytes, 0), v.SizeBytes)
	v.State, v.Message = v1alpha1.VolumeBackupCompleted, intern(bounded(message, maxMessage))
	v.BytesDone = v.SizeBytes
	if failed {
		v.State, v.BytesDone = v1alpha1.VolumeBackupFailed, 0
	}
	*volumes = append(*volumes, *v)
	return nil
}
