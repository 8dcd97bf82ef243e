// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"slices"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Backups lists all backups, by namespace and name.
func (c *Catalog) Backups() []*v1alpha1.Backup {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var backups []*v1alpha1.Backup
	for _, group := range c.rows {
		for _, e := range group {
			if e.held.row != nil {
				backups = append(backups, e.held.row)
			}
		}
	}
	slices.SortFunc(backups, func(a, b *v1alpha1.Backup) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return backups
}

// Volumes lists all volumes, by namespace and name.
func (c *Catalog) Volumes() []*v1alpha1.BackupVolume {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var volumes []*v1alpha1.BackupVolume
	c.volumes.Ascend(func(v *volume) bool {
		if !ofAPod(v.name.Name) {
			volumes = append(volumes, v.object())
		}
		return true
	})
	return volumes
}

// Named lists the volumes that differ over all namespaces, as they are there.
func (c *Catalog) Named() []*v1alpha1.BackupVolume {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var volumes []*v1alpha1.BackupVolume
	c.volumes.Ascend(func(v *volume) bool {
		if object := v.named(v.object()); object != nil && !ofAPod(v.name.Name) {
			volumes = append(volumes, object)
		}
		return true
	})
	return volumes
}

// VolumeBackups lists the history of all volumes, by namespace, volume and time, as it is shown in
// each namespace.
func (c *Catalog) VolumeBackups() []*v1alpha1.VolumeBackup {
	var history []*v1alpha1.VolumeBackup
	for row := range c.Snapshot().Rows("", Position{}, everything) {
		row.named = false
		history = append(history, row.Object())
	}
	return history
}
