// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// ObserveChange notes a change of a backup's expiration. It is shown from its record until the
// catalogue has it from the store.
func (p *Projector) ObserveChange(change *enginev1alpha1.ExpirationChange) {
	p.mu.Lock()
	known, kept := p.changes.Observe(change)
	if kept {
		p.projectLocked(backupKey(change.Spec.BackupRef))
		if known != nil && known.Spec.BackupRef != change.Spec.BackupRef {
			p.projectLocked(backupKey(known.Spec.BackupRef))
		}
	}
	p.mu.Unlock()
	if kept && change.Done() && change.Status.Number > 0 && (known == nil || !known.Done() || known.Spec.UID != change.Spec.UID) {
		p.stores.refresher.Nudge(change.Spec.StorageLocation)
	}
}

func (p *Projector) changeGone(change *enginev1alpha1.ExpirationChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changes.Delete(change) {
		p.projectLocked(backupKey(change.Spec.BackupRef))
	}
}

// changedLocked returns a backup with the changed expiration that the catalogue does not know yet.
// It copies: others share the backup.
func (p *Projector) changedLocked(backup *v1alpha1.Backup) *v1alpha1.Backup {
	if backup == nil || p.changes.Len() == 0 {
		return backup
	}
	change := p.changes.Get(format.StoreName(backup.Namespace, backup.Name, p.SystemNamespace))
	if change == nil || !change.Counts(backup.UID, backup.Status.ExpirationChanges) {
		return backup
	}
	changed := *backup
	status := &changed.Status
	// Automatic shortening leaves a changed backup alone from now on.
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
