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

// runs are the records, by where the backup of each is shown. It is pure state, which
// Projector.mu guards.
type runs struct {
	systemNamespace string
	// byBackup has the records in their newest versions.
	byBackup *recorded.Set[backupKey, *enginev1alpha1.BackupRun]
	// namespaces are those that exist.
	namespaces map[string]types.UID
	// successions say which of them continue others.
	successions clusteridentity.Successions
	// unread are the backups that are stored, as their records said, and of which the
	// store has not been heard yet. They are shown as recorded until it has, whether
	// or not the record is still there. Then the store has the last word.
	unread map[backupKey]unread
}

// backupKey identifies a Backup.
type backupKey = types.NamespacedName

// unread is a backup that is to be read in its store.
type unread struct {
	run *enginev1alpha1.BackupRun
	// since is from when on the store's word counts.
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

// key is where a run's backup or restore is shown: where it was asked for, unless another
// namespace of that name exists, which does not continue that one. Then it is the administrator's, as what is stored.
func (r *runs) key(run enginev1alpha1.QueuedRun) backupKey {
	asked := run.Asked()
	present, exists := r.namespaces[asked.Ref.Namespace]
	if exists && asked.NamespaceUID != "" && !r.successions.Same(asked.Ref.Namespace, asked.NamespaceUID, present) {
		return backupKey{Namespace: r.systemNamespace, Name: run.GetName()}
	}
	return backupKey{Namespace: asked.Ref.Namespace, Name: asked.Ref.Name}
}

// observe takes note of a record. It returns the version that was known before, or nil, and
// whether the record was kept.
func (r *runs) observe(run *enginev1alpha1.BackupRun) (before *enginev1alpha1.BackupRun, kept bool) {
	if before, kept = r.byBackup.Observe(run); kept {
		key := r.key(run)
		if u := r.unread[key].run; u != nil && u.UID != run.UID {
			delete(r.unread, key) // another backup has the name
		}
	}
	return before, kept
}

// remove takes note that a record is gone, and reports whether it stood for its backup.
func (r *runs) remove(run *enginev1alpha1.BackupRun) bool {
	known := r.byBackup.Delete(run)
	if known && run.Deleting() {
		delete(r.unread, r.key(run))
	}
	return known
}

// setNamespace takes note that a namespace has a uid, or is gone without one, and
// reports whether that is a change.
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

// move puts the records to where their backups are shown by the namespaces as they are
// now, and gives the places that this concerns.
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
