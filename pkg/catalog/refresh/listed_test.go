// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
)

// listed is a catalogue, and what it has told to be listed.
type listed struct {
	*catalog.Catalog

	mu      sync.Mutex
	backups rows[*v1alpha1.Backup]
	volumes rows[*v1alpha1.BackupVolume]
}

// newListed makes an empty catalogue, which calls notify with each change.
func newListed(notify func(catalog.Changes)) *listed {
	l := &listed{backups: rows[*v1alpha1.Backup]{}, volumes: rows[*v1alpha1.BackupVolume]{}}
	l.Catalog = catalog.New(system, func(changes catalog.Changes) {
		l.mu.Lock()
		l.backups.change(changes.Backups)
		l.volumes.change(changes.Volumes)
		l.mu.Unlock()
		notify(changes)
	})
	return l
}

func (l *listed) Backups() []*v1alpha1.Backup {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backups.inOrder()
}

func (l *listed) Volumes() []*v1alpha1.BackupVolume {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.volumes.inOrder()
}

func (l *listed) VolumeBackups() []*v1alpha1.VolumeBackup {
	var all []*v1alpha1.VolumeBackup
	for row := range l.Snapshot().Rows("", catalog.Position{}, func(catalog.VolumeRows) bool { return true }) {
		all = append(all, row.Object())
	}
	return all
}

// rows are objects by name.
type rows[T metav1.Object] map[types.NamespacedName]T

func (r rows[T]) change(delta catalog.Delta[T]) {
	for _, gone := range delta.Gone {
		delete(r, gone)
	}
	for _, object := range delta.Set {
		r[types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}] = object
	}
}

func (r rows[T]) inOrder() []T {
	return slices.SortedFunc(maps.Values(r), func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
