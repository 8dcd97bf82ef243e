// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// runs are the records, by where their backups are shown. Projector.mu guards them.
type runs struct {
	systemNamespace string
	byBackup        *recorded.Set[backupKey, *enginev1alpha1.BackupRun]
	namespaces      map[string]types.UID
	successions     clusteridentity.Successions
	// unread are recorded as stored, but the store has not answered about them. They are shown as recorded, even
	// without a record.
	unread map[backupKey]unread
}

type backupKey = types.NamespacedName

type unread struct {
	run   *enginev1alpha1.BackupRun
	since time.Time
}

func newRuns(systemNamespace string) *runs {
	r := &runs{
		systemNamespace: systemNamespace,
		namespaces:      map[string]types.UID{},
		unread:          map[backupKey]unread{},
	}
	r.byBackup = recorded.NewSet(func(run *enginev1alpha1.BackupRun) backupKey { return r.key(run) })
	return r
}

// key returns where a run is shown: in its namespace, or in the system namespace if another namespace has that
// name and does not continue it.
func (r *runs) key(run enginev1alpha1.QueuedRun) backupKey {
	asked := run.Asked()
	present, exists := r.namespaces[asked.Ref.Namespace]
	if exists && asked.NamespaceUID != "" && !r.successions.Same(asked.Ref.Namespace, asked.NamespaceUID, present) {
		return backupKey{Namespace: r.systemNamespace, Name: run.GetName()}
	}
	return backupKey{Namespace: asked.Ref.Namespace, Name: asked.Ref.Name}
}

// observe returns the version before, or nil, and whether it kept the record.
func (r *runs) observe(run *enginev1alpha1.BackupRun) (before *enginev1alpha1.BackupRun, kept bool) {
	if before, kept = r.byBackup.Observe(run); kept {
		key := r.key(run)
		if u := r.unread[key].run; u != nil && u.UID != run.UID {
			delete(r.unread, key) // another backup has the name
		}
	}
	return before, kept
}

// remove reports whether the record stood for its backup.
func (r *runs) remove(run *enginev1alpha1.BackupRun) bool {
	known := r.byBackup.Delete(run)
	if known && run.Deleting() {
		delete(r.unread, r.key(run))
	}
	return known
}

// setNamespace sets a namespace's uid, "" if deleted, and reports a change.
func (r *runs) setNamespace(name string, uid types.UID) bool {
	switch {
	case r.namespaces[name] == uid:
		return false
	case uid == "":
		delete(r.namespaces, name)
	default:
		r.namespaces[name] = uid
	}
	return true
}

// move places the records by the current namespaces, and returns affected places.
func (r *runs) move() (places []backupKey) {
	for key, run := range r.byBackup.Rekey() {
		if u, ok := r.unread[key]; ok && u.run.UID == run.UID {
			delete(r.unread, key)
			r.unread[r.key(run)] = u
		}
		places = append(places, key, r.key(run))
	}
	return places
}
