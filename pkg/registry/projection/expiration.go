// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// ObserveChange takes note of a change of the expiration of a backup, as an informer or a
// client got it. It counts from then on, and is shown: by its record, until the catalogue has
// it from the store.
func (p *Projector) ObserveChange(change *enginev1alpha1.ExpirationChange) {
	p.mu.Lock()
	known := p.changes[change.Spec.UID]
	if known != nil && known.UID == change.UID && !laterChange(change, known) {
		p.mu.Unlock()
		return
	}
	p.changes[change.Spec.UID] = change
	p.projectLocked(backupKey(change.Spec.BackupRef))
	p.mu.Unlock()
	if change.Done() && change.Status.Number > 0 && (known == nil || !known.Done()) {
		p.stores.refresher.Nudge(change.Spec.StorageLocation)
	}
}

func laterChange(a, b *enginev1alpha1.ExpirationChange) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

func (p *Projector) changeChanged(before, after any) {
	was, is := before.(*enginev1alpha1.ExpirationChange), after.(*enginev1alpha1.ExpirationChange)
	if was.Spec.UID != is.Spec.UID || was.UID != is.UID {
		p.changeGone(was)
	}
	p.ObserveChange(is)
}

func (p *Projector) changeGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	change, ok := obj.(*enginev1alpha1.ExpirationChange)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.changes[change.Spec.UID]; known != nil && known.UID == change.UID {
		delete(p.changes, change.Spec.UID)
		p.projectLocked(backupKey(change.Spec.BackupRef))
	}
}

// changedLocked is a backup with the change of its expiration that the catalogue does not
// know yet. What is known is left as it is, since others share it.
func (p *Projector) changedLocked(backup *v1alpha1.Backup) *v1alpha1.Backup {
	if backup == nil || len(p.changes) == 0 {
		return backup
	}
	change := p.changes[backup.UID]
	if change == nil || !change.Counts(backup.UID, backup.Status.ExpirationChanges) {
		return backup
	}
	changed := *backup
	status := &changed.Status
	// What only shortens backups that nobody has changed is to leave it alone from now on.
	status.ExpirationChanges = max(status.ExpirationChanges+1, change.Status.Number)
	if change.Spec.Expiration != nil {
		status.Expiration = change.Spec.Expiration
	}
	switch hold := change.Spec.Hold; {
	case hold == nil:
	case *hold:
		status.Hold = &v1alpha1.BackupHold{
			Requester: change.Spec.Ask.Requester.Username, Timestamp: change.Spec.Ask.Timestamp, Reason: change.Spec.Reason,
		}
	default:
		status.Hold = nil
	}
	return &changed
}
