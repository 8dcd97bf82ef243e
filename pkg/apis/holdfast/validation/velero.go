// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Velero's default values.
const (
	velerosGroupLabelKey    = "velero.io/volume-group"
	velerosSnapshotLocation = "default"
	velerosDataMover        = "velero"
)

// BackupWarnings names set fields of a Backup's spec that have no effect. Velero's own defaults
// cause no warning.
func BackupWarnings(spec *v1alpha1.BackupSpec, options Options, at *field.Path) []string {
	const snapshotsOff = "snapshots of volumes are off (docs/snapshots.md)"
	var warnings []string
	ignored := func(set bool, name, because string) {
		if set {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", at.Child(name), because))
		}
	}
	ignored(!options.Snapshots && other(spec.CSISnapshotTimeout, v1alpha1.DefaultCSISnapshotTimeout), "csiSnapshotTimeout", snapshotsOff)
	ignored(spec.DataMover != "" && spec.DataMover != velerosDataMover, "datamover", "the nodes' agents move the data")
	ignored(spec.DefaultVolumesToRestic != nil && !*spec.DefaultVolumesToRestic, "defaultVolumesToRestic", "set defaultVolumesToFsBackup: false to back up no volumes but those that pods name")
	ignored(!options.Snapshots && other(spec.ItemOperationTimeout, v1alpha1.DefaultItemOperationTimeout), "itemOperationTimeout", "--pod-volume-timeout of the controller says how long a volume may take")
	if options.Snapshots && spec.ItemOperationTimeout.Duration > v1alpha1.DefaultItemOperationTimeout {
		warnings = append(warnings, fmt.Sprintf("%s limits only the time until the storage can make a volume from a snapshot: --pod-volume-timeout of the controller, by default 4h, limits the upload", at.Child("itemOperationTimeout")))
	}
	ignored(spec.UploaderConfig != nil && spec.UploaderConfig.ParallelFilesUpload != 0, "uploaderConfig.parallelFilesUpload", "the node's agent reads as many files at once as its processors allow; loadConcurrency of the node agents says how many volumes move at once")
	ignored(spec.VolumeGroupSnapshotLabelKey != "" && spec.VolumeGroupSnapshotLabelKey != velerosGroupLabelKey, "volumeGroupSnapshotLabelKey", "each volume has a snapshot of its own")
	ignored(len(spec.VolumeSnapshotLocations) > 0 && !slices.Equal(spec.VolumeSnapshotLocations, []string{velerosSnapshotLocation}), "volumeSnapshotLocations", "snapshots are made by CSI drivers, whose classes name their place")
	return warnings
}

// RestoreWarnings names set fields of a Restore's spec that have no effect.
func RestoreWarnings(spec *v1alpha1.RestoreSpec, at *field.Path) []string {
	var warnings []string
	ignored := func(set bool, name, because string) {
		if set {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", at.Child(name), because))
		}
	}
	ignored(other(spec.ItemOperationTimeout, v1alpha1.DefaultItemOperationTimeout), "itemOperationTimeout", "--pod-volume-timeout of the controller says how long a volume may take")
	if uploader := spec.UploaderConfig; uploader != nil {
		ignored(uploader.ParallelFilesDownload != 0, "uploaderConfig.parallelFilesDownload", "the node's agent writes as many files at once as its processors allow; loadConcurrency of the node agents says how many volumes move at once")
		ignored(uploader.WriteSparseFiles != nil && !*uploader.WriteSparseFiles, "uploaderConfig.writeSparseFiles", "blocks of zeros become holes of the files in any case")
	}
	return warnings
}

func other(is v1alpha1.Duration, fills time.Duration) bool {
	return is.Duration != 0 && is.Duration != fills
}
