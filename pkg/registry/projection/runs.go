// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/lru"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
)

// runs are the records, by where the backup of each is shown. It is pure state, which
// Projector.mu guards.
type runs struct {
	systemNamespace string
	// byBackup are the records in their latest versions.
	byBackup map[backupKey]*enginev1alpha1.BackupRun
	// removed are the uids of the last records that were removed. The answer to a
	// client's write of one of them may come after that.
	removed *lru.Cache
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

func newRuns(systemNamespace string) runs {
	return runs{
		systemNamespace: systemNamespace,
		byBackup:        map[backupKey]*enginev1alpha1.BackupRun{},
		removed:         lru.New(1000),
		namespaces:      map[string]types.UID{},
		unread:          map[backupKey]unread{},
	}
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

// known is the record that stands for the backup of a run, if it is one of the same
// uid, in the version that was seen last; else nil.
func (r *runs) known(run *enginev1alpha1.BackupRun) *enginev1alpha1.BackupRun {
	if known := r.byBackup[r.key(run)]; known != nil && known.UID == run.UID {
		return known
	}
	return nil
}

// observe takes note of a record, unless a later version of it has been seen.
func (r *runs) observe(run *enginev1alpha1.BackupRun) bool {
	if known := r.known(run); known != nil && !newer(run, known) {
		return false
	}
	if _, removed := r.removed.Get(run.UID); removed {
		return false
	}
	key := r.key(run)
	if u := r.unread[key].run; u != nil && u.UID != run.UID {
		delete(r.unread, key) // another backup has the name
	}
	r.byBackup[key] = run
	return true
}

// remove takes note that a record is gone, and reports whether it stood for its backup.
func (r *runs) remove(run *enginev1alpha1.BackupRun) bool {
	r.removed.Add(run.UID, nil)
	if r.known(run) == nil {
		return false
	}
	key := r.key(run)
	delete(r.byBackup, key)
	if run.Deleting() {
		delete(r.unread, key)
	}
	return true
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
	moved := map[backupKey]*enginev1alpha1.BackupRun{}
	for key, run := range r.byBackup {
		if r.key(run) != key {
			moved[key] = run
		}
	}
	for key, run := range moved {
		delete(r.byBackup, key)
		if u, ok := r.unread[key]; ok && u.run.UID == run.UID {
			delete(r.unread, key)
			r.unread[r.key(run)] = u
		}
		places = append(places, key)
	}
	for _, run := range moved {
		r.byBackup[r.key(run)] = run
		places = append(places, r.key(run))
	}
	return places
}

// newer reports whether a is a later version of a run than b.
func newer(a, b *enginev1alpha1.BackupRun) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}
