// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"maps"
	"slices"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Backups lists all backups, by namespace and name.
func (c *Catalog) Backups() []*holdfast.Backup {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var backups []*holdfast.Backup
	for _, group := range c.rows {
		for _, e := range group {
			backups = append(backups, e.row)
		}
	}
	slices.SortFunc(backups, func(a, b *holdfast.Backup) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return backups
}

// Volumes lists all volumes, by namespace and name.
func (c *Catalog) Volumes() []*holdfast.BackupVolume {
	c.mu.RLock()
	defer c.mu.RUnlock()
	volumes := make([]*holdfast.BackupVolume, 0, len(c.volumes))
	for _, name := range slices.SortedFunc(maps.Keys(c.volumes), compareNames) {
		volumes = append(volumes, c.volumes[name].object(name))
	}
	return volumes
}

// VolumeBackups lists the history of all volumes, by namespace and name.
func (c *Catalog) VolumeBackups() []*holdfast.VolumeBackup {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var history []*holdfast.VolumeBackup
	for _, group := range c.rows {
		for _, e := range group {
			for i := range e.volumes {
				history = append(history, e.volumeBackup(i))
			}
		}
	}
	slices.SortFunc(history, func(a, b *holdfast.VolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return history
}
