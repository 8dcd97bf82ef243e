// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Changes are a change's effects on the lists. A new uid means another object. History has volume
// backups.
type Changes struct {
	Backups Delta[*v1alpha1.Backup]
	Volumes Delta[*v1alpha1.BackupVolume]
	// Named has the set volumes with a last backup in another namespace, for lists over all namespaces.
	Named []*v1alpha1.BackupVolume
}

// Delta is the change of one kind, sorted by name.
type Delta[T any] struct {
	Set  []T
	Gone []types.NamespacedName
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return c.Backups.empty() && c.Volumes.empty()
}

func (d *Delta[T]) empty() bool { return len(d.Set)+len(d.Gone) == 0 }

// recorder collects one change's objects; nil if removed. Volumes are built at the end.
type recorder struct {
	backups map[types.NamespacedName]*v1alpha1.Backup
	volumes map[types.NamespacedName]bool
	added   map[kind]*volume
}

type kind struct {
	shape     unique.Handle[shape]
	displaced bool
}

func newRecorder() *recorder {
	return &recorder{
		backups: map[types.NamespacedName]*v1alpha1.Backup{},
		volumes: map[types.NamespacedName]bool{},
		added:   map[kind]*volume{},
	}
}

// ofAPod reports whether a name is of a volume without a claim. Only lists of volume backups have it.
func ofAPod(name string) bool { return strings.HasPrefix(name, "pod:") }

func (r *recorder) changesLocked(c *Catalog) Changes {
	var named []*v1alpha1.BackupVolume
	volumes := make(map[types.NamespacedName]*v1alpha1.BackupVolume, len(r.volumes))
	for name := range r.volumes {
		if ofAPod(name.Name) {
			continue
		}
		volumes[name] = nil
		if v, ok := c.volumes.Get(&volume{name: name}); ok {
			c.settleLocked(v)
			v.recount()
			volumes[name] = v.object()
			if other := v.named(volumes[name]); other != nil {
				named = append(named, other)
			}
		}
	}
	return Changes{Backups: delta(r.backups), Volumes: delta(volumes), Named: named}
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
