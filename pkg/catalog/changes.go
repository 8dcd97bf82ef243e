// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Changes are what one change of the catalogue did to what is listed. An object
// that comes with another uid than the one of its name before is another object.
// Of volume backups there are too many for that: see History.
type Changes struct {
	Backups Delta[*holdfast.Backup]
	Volumes Delta[*holdfast.BackupVolume]
	// Named has the set volumes that a list over all namespaces shows differently: each with
	// the name of its last backup, which is in another namespace.
	Named []*holdfast.BackupVolume
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
	return c.Backups.empty() && c.Volumes.empty()
}

func (d *Delta[T]) empty() bool { return len(d.Set)+len(d.Gone) == 0 }

// recorder collects, by name, what became of objects during one change: the
// object, or nil for none. Volumes are only marked, and summed up at the end.
type recorder struct {
	backups map[types.NamespacedName]*holdfast.Backup
	volumes map[types.NamespacedName]bool
	// added are the volumes that rows were added to, by what these have in common.
	added map[kind]*volume
}

// kind is what rows of one volume have in common.
type kind struct {
	shape     unique.Handle[shape]
	displaced bool
}

func newRecorder() *recorder {
	return &recorder{
		backups: map[types.NamespacedName]*holdfast.Backup{},
		volumes: map[types.NamespacedName]bool{},
		added:   map[kind]*volume{},
	}
}

// ofAPod reports whether a name is that of a volume without a claim, which comes and goes with
// its pod: nobody looks for it among the volumes. Its volume backups are listed all the same.
func ofAPod(name string) bool { return strings.HasPrefix(name, "pod:") }

func (r *recorder) changesLocked(c *Catalog) Changes {
	var named []*holdfast.BackupVolume
	volumes := make(map[types.NamespacedName]*holdfast.BackupVolume, len(r.volumes))
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
