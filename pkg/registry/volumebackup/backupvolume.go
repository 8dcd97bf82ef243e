// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup

import (
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type volume = *v1alpha1.BackupVolume

// VolumeResource is backupvolumes, the volumes in stored backups.
var VolumeResource = virtual.Resource[volume]{
	GroupResource: v1alpha1.Resource("backupvolumes"),
	Singular:      "backupvolume",
	ShortNames:    []string{"hfv"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.BackupVolume{},
	List:          &v1alpha1.BackupVolumeList{},
	Fields: map[string]func(volume) string{
		"spec.claimName": func(v volume) string { return v.Spec.ClaimName },
	},
	Columns: []virtual.Column[volume]{
		virtual.Name[volume](),
		virtual.Text("Last-Backup", "The latest completed backup of the volume.", lastBackup),
		virtual.Timed("Age", "Time since that backup ended.", func(v volume, now time.Time) string {
			return virtual.Since(v.Status.LastBackupTimestamp, now)
		}),
		virtual.Text("Size", "Size of the volume's files in that backup.", func(v volume) string {
			if v.Status.Backups == 0 {
				return ""
			}
			return virtual.Bytes(v.Status.SizeBytes)
		}),
		virtual.Number("Backups", "Completed backups of the volume that are stored.", func(v volume) int32 { return v.Status.Backups }),
		virtual.Number("Failures", "Failed attempts to back up the volume.", func(v volume) int32 { return v.Status.Failures }),
		virtual.Wide(virtual.Text("Locations", "The storage locations that hold backups of the volume.", func(v volume) string {
			return strings.Join(v.Status.StorageLocations, ",")
		})),
	},
}

// lastBackup names the last backup, and its namespace if another.
func lastBackup(v volume) string {
	switch backup := v.Status.LastBackup; {
	case backup != nil && backup.Namespace != v.Namespace:
		return backup.Namespace + "/" + backup.Name
	case backup != nil:
		return backup.Name
	case v.Status.Backups > 0:
		return "another backup"
	}
	return ""
}
