// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupvolume serves the volumes that stored backups hold.
package backupvolume

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

// NewREST returns the storage of the backupvolumes resource, with the verbs get,
// list and watch.
func NewREST(log storage.Interface) (*virtual.ReadOnly, error) {
	return virtual.NewReadOnly(virtual.Resource{
		GroupResource: v1alpha1.Resource("backupvolumes"),
		Singular:      "backupvolume",
		ShortNames:    []string{"hfv"},
		Categories:    []string{"holdfast"},
		Namespaced:    true,
		New:           func() runtime.Object { return &v1alpha1.BackupVolume{} },
		NewList:       func() runtime.Object { return &v1alpha1.BackupVolumeList{} },
		Attrs:         attrs,
		Table:         &table.Convertor[*v1alpha1.BackupVolume]{Columns: columns, Cells: cells},
	}, log)
}

func attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	volume, ok := obj.(*v1alpha1.BackupVolume)
	if !ok {
		return nil, nil, fmt.Errorf("not a BackupVolume: %T", obj)
	}
	return labels.Set(volume.Labels), fields.Set{
		"metadata.name":      volume.Name,
		"metadata.namespace": volume.Namespace,
		"spec.claimName":     volume.Spec.ClaimName,
		"spec.podName":       volume.Spec.PodName,
	}, nil
}

var columns = []metav1.TableColumnDefinition{
	table.Name(),
	table.Column("Last-Backup", "The latest completed backup of the volume."),
	table.Column("Age", "Time since that backup ended."),
	table.Column("Size", "Size of the volume's files in that backup."),
	table.Number("Backups", "Completed backups of the volume that are stored."),
	table.Number("Failures", "Failed attempts to back up the volume."),
	table.Wide(table.Column("Locations", "The storage locations that hold backups of the volume.")),
}

func cells(volume *v1alpha1.BackupVolume, now time.Time) []any {
	last, size := table.None, table.None
	if volume.Status.Backups > 0 {
		last, size = "another backup", table.Bytes(volume.Status.SizeBytes)
	}
	if backup := volume.Status.LastBackup; backup != nil {
		last = backup.Name
		if backup.Namespace != volume.Namespace {
			last = backup.Namespace + "/" + last
		}
	}
	return []any{
		volume.Name, last, table.Since(volume.Status.LastBackupTimestamp, now), size,
		int64(volume.Status.Backups), int64(volume.Status.Failures),
		table.Text(strings.Join(volume.Status.StorageLocations, ",")),
	}
}
