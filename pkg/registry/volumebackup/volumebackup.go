// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumebackup defines each volume's history: an entry for each volume in each stored backup.
package volumebackup

import (
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type backup = *v1alpha1.VolumeBackup

// Resource defines volumebackups.
var Resource = virtual.Resource[backup]{
	GroupResource: v1alpha1.Resource("volumebackups"),
	Singular:      "volumebackup",
	ShortNames:    []string{"hfvb"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.VolumeBackup{},
	List:          &v1alpha1.VolumeBackupList{},
	Fields: map[string]func(backup) string{
		"spec.volumeName":       func(b backup) string { return b.Spec.VolumeName },
		"spec.backup.name":      func(b backup) string { return b.Spec.Backup.Name },
		"spec.backup.namespace": func(b backup) string { return b.Spec.Backup.Namespace },
		"spec.backupName":       func(b backup) string { return b.Spec.BackupName },
		"spec.backupUID":        func(b backup) string { return string(b.Spec.BackupUID) },
		"spec.podName":          podName,
		"spec.storageLocation":  storageLocation,
		"status.phase":          phase,
		"status.node":           node,
		"status.method":         method,
	},
	Columns: []virtual.Column[backup]{
		virtual.Name[backup](),
		virtual.Text("Volume", "The volume.", func(b backup) string { return b.Spec.VolumeName }),
		virtual.Text("Backup", "The backup that holds it.", holder),
		virtual.Text("Status", "Completed, Failed, InProgress, Unreadable or Damaged.", phase),
		virtual.Text("Method", "How its data was stored.", method),
		virtual.Text("Local", "Whether its snapshot is in the volume's storage too: Stored or Missing.", func(b backup) string { return b.Status.LocalSnapshot }),
		virtual.Text("Size", "Size of the volume's files.", func(b backup) string { return virtual.Bytes(b.Status.SizeBytes) }),
		virtual.Text("New", "Bytes that were new since the backup before.", func(b backup) string { return virtual.Bytes(b.Status.IncrementalBytes) }),
		virtual.Timed("Age", "Time since the upload ended.", func(b backup, now time.Time) string {
			return virtual.Since(b.Status.CompletionTimestamp, now)
		}),
		virtual.Wide(virtual.Text("Pod", "The pod through which the volume was read.", podName)),
		virtual.Wide(virtual.Text("Node", "The node that read it.", node)),
		virtual.Wide(virtual.Text("Location", "The storage location.", storageLocation)),
		virtual.Wide(virtual.Text("Snapshot", "Kopia's id of the snapshot.", func(b backup) string { return b.Status.SnapshotID })),
	},
}

func podName(b backup) string         { return b.Spec.PodName }
func storageLocation(b backup) string { return b.Spec.StorageLocation }
func phase(b backup) string           { return b.Status.Phase }
func node(b backup) string            { return b.Status.Node }
func method(b backup) string          { return b.Status.Method }

// holder returns the backup's name, and its namespace if another.
func holder(b backup) string {
	switch ref := b.Spec.Backup; {
	case ref.Namespace == b.Namespace && ref.Name != "":
		return ref.Name
	case ref.Name != "":
		return ref.Namespace + "/" + ref.Name
	case b.Spec.BackupName != "":
		return b.Spec.BackupName
	}
	return "another backup"
}
