// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Changes are what one change of the catalogue did to what is listed. An object
// that comes with another uid than the one of its name before is another object.
type Changes struct {
	Backups       Delta[*holdfast.Backup]
	Volumes       Delta[*holdfast.BackupVolume]
	VolumeBackups Delta[*holdfast.VolumeBackup]
}

// Delta is the change of one kind of object, in the order of names.
type Delta[T any] struct {
	// Set are the objects that are new or different.
	Set []T
	// Gone are the names of those that are not listed any more.
	Gone []types.NamespacedName
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return c.Backups.empty() && c.Volumes.empty() && c.VolumeBackups.empty()
}

func (d *Delta[T]) empty() bool { return len(d.Set)+len(d.Gone) == 0 }

// recorder collects, by name, what became of objects during one change: the
// object, or nil for none. Volumes are only marked, and summed up at the end.
type recorder struct {
	backups map[types.NamespacedName]*holdfast.Backup
	history map[types.NamespacedName]*holdfast.VolumeBackup
	volumes map[types.NamespacedName]bool
}

func newRecorder() *recorder {
	return &recorder{
		backups: map[types.NamespacedName]*holdfast.Backup{},
		history: map[types.NamespacedName]*holdfast.VolumeBackup{},
		volumes: map[types.NamespacedName]bool{},
	}
}

func (r *recorder) changesLocked(c *Catalog) Changes {
	volumes := make(map[types.NamespacedName]*holdfast.BackupVolume, len(r.volumes))
	for name := range r.volumes {
		volumes[name] = nil
		if v := c.volumes[name]; v != nil {
			v.recount()
			volumes[name] = v.object(name)
		}
	}
	return Changes{Backups: delta(r.backups), Volumes: delta(volumes), VolumeBackups: delta(r.history)}
}

func delta[T any](objects map[types.NamespacedName]*T) Delta[*T] {
	var d Delta[*T]
	for _, name := range slices.SortedFunc(maps.Keys(objects), compareNames) {
		if object := objects[name]; object != nil {
			d.Set = append(d.Set, object)
		} else {
			d.Gone = append(d.Gone, name)
		}
	}
	return d
}
