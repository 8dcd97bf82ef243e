// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumebackup serves the history of every volume: one entry for each
// volume in each stored backup.
package volumebackup

import (
	"fmt"
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

// NewREST returns the storage of the volumebackups resource, with the verbs get
// and list.
func NewREST(log storage.Interface) (*virtual.ListOnly, error) {
	return virtual.NewListOnly(virtual.Resource{
		GroupResource: v1alpha1.Resource("volumebackups"),
		Singular:      "volumebackup",
		ShortNames:    []string{"hfvb"},
		Categories:    []string{"holdfast"},
		Namespaced:    true,
		New:           func() runtime.Object { return &v1alpha1.VolumeBackup{} },
		NewList:       func() runtime.Object { return &v1alpha1.VolumeBackupList{} },
		Attrs:         attrs,
		Table:         &table.Convertor[*v1alpha1.VolumeBackup]{Columns: columns, Cells: cells},
	}, log)
}

func attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	backup, ok := obj.(*v1alpha1.VolumeBackup)
	if !ok {
		return nil, nil, fmt.Errorf("not a VolumeBackup: %T", obj)
	}
	return labels.Set(backup.Labels), fields.Set{
		"metadata.name":         backup.Name,
		"metadata.namespace":    backup.Namespace,
		"spec.volumeName":       backup.Spec.VolumeName,
		"spec.backup.name":      backup.Spec.Backup.Name,
		"spec.backup.namespace": backup.Spec.Backup.Namespace,
		"spec.backupUID":        string(backup.Spec.BackupUID),
		"spec.podName":          backup.Spec.PodName,
		"spec.storageLocation":  backup.Spec.StorageLocation,
		"status.phase":          backup.Status.Phase,
		"status.node":           backup.Status.Node,
	}, nil
}

var columns = []metav1.TableColumnDefinition{
	table.Name(),
	table.Column("Volume", "The volume."),
	table.Column("Backup", "The backup that holds it."),
	table.Column("Status", "Completed or Failed."),
	table.Column("Size", "Size of the volume's files."),
	table.Column("New", "Bytes that were new since the backup before."),
	table.Column("Age", "Time since the upload ended."),
	table.Wide(table.Column("Pod", "The pod through which the volume was read.")),
	table.Wide(table.Column("Node", "The node that read it.")),
	table.Wide(table.Column("Location", "The storage location.")),
	table.Wide(table.Column("Snapshot", "Kopia's id of the snapshot.")),
}

func cells(backup *v1alpha1.VolumeBackup, now time.Time) []any {
	of := "another backup"
	if ref := backup.Spec.Backup; ref.Namespace == backup.Namespace {
		of = ref.Name
	} else if ref.Name != "" {
		of = ref.Namespace + "/" + ref.Name
	}
	status := &backup.Status
	return []any{
		backup.Name, backup.Spec.VolumeName, of, table.Text(status.Phase),
		table.Bytes(status.SizeBytes), table.Bytes(status.IncrementalBytes), table.Since(status.CompletionTimestamp, now),
		table.Text(backup.Spec.PodName), table.Text(status.Node), table.Text(backup.Spec.StorageLocation), table.Text(status.SnapshotID),
	}
}
