// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

type changes = recorded.Set[string, *enginev1alpha1.BackupChange]

// ObserveChange notes a change of stored backups. It shows it until the catalogue has it.
func (p *Projector) ObserveChange(change *enginev1alpha1.BackupChange) {
	if change.Deletes() {
		p.observeDeletion(change)
	} else {
		p.observeExpiration(p.changes, change)
	}
}

func (p *Projector) changeGone(change *enginev1alpha1.BackupChange) {
	if change.Deletes() {
		p.deletionGone(change)
	} else {
		p.expirationGone(p.changes, change)
	}
}

func (p *Projector) observeExpiration(of *changes, change *enginev1alpha1.BackupChange) {
	p.mu.Lock()
	known, kept := of.Observe(change)
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

func (p *Projector) expirationGone(of *changes, change *enginev1alpha1.BackupChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.Delete(change) {
		p.projectLocked(backupKey(change.Spec.BackupRef))
	}
}

// changedLocked returns a copy of a backup with the changes of its expiration that the catalogue lacks.
func (p *Projector) changedLocked(backup *v1alpha1.Backup) *v1alpha1.Backup {
	if backup == nil || p.changes.Len()+p.former.Len() == 0 {
		return backup
	}
	known, changed := backup, *backup
	name := format.StoreName(backup.Namespace, backup.Name, p.SystemNamespace)
	for _, change := range enginev1alpha1.InOrder(p.changes.Get(name), p.former.Get(name)) {
		if !change.Counts(known.UID, known.Status.ExpirationChanges) {
			continue
		}
		backup = &changed
		status := &changed.Status
		// Above 0, the keep of the schedule does not count the backup.
		status.ExpirationChanges = max(status.ExpirationChanges+1, change.Status.Number)
		if change.Spec.Expiration != nil {
			status.Expiration = change.Spec.Expiration
		}
		if hold := change.Spec.Hold; hold != nil {
			status.Hold = nil
			if *hold {
				status.Hold = &v1alpha1.BackupHold{
					Requester: change.Spec.Ask.Requester.Username, Timestamp: change.Spec.Ask.Timestamp, Reason: change.Spec.Reason,
				}
			}
		}
	}
	return backup
}

// observeDeletion hides volume backups that are being deleted. The informer shows all deletions before the stores
// are first read, so they don't reappear after a restart.
func (p *Projector) observeDeletion(record *enginev1alpha1.BackupChange) {
	p.deleting.Lock()
	defer p.deleting.Unlock()
	known, kept := p.deletions.Observe(record)
	if !kept || known != nil && len(known.Status.Refused) == len(record.Status.Refused) {
		return
	}
	refused := map[int]bool{}
	for _, r := range record.Status.Refused {
		refused[int(r.Target)] = true
	}
	deleted := make([]catalog.VolumeInBackup, 0, len(record.Spec.Targets))
	for i, target := range record.Spec.Targets {
		if !refused[i] {
			deleted = append(deleted, catalog.VolumeInBackup{
				Backup:     catalog.BackupID{Location: target.StorageLocation, StoreName: target.StoreName, UID: target.UID},
				Volume:     format.VolumeID{Namespace: record.Spec.Namespace, Name: record.Spec.Volume, Repeat: target.Repeat},
				BackupName: target.BackupName,
			})
		}
	}
	p.stores.catalog.SetVolumeDeletion(record.UID, deleted)
	p.uncacheFolders(record)
}

// uncacheFolders removes deleted entries without a Backup from the cache: their folders have no note of it.
func (p *Projector) uncacheFolders(record *enginev1alpha1.BackupChange) {
	for _, target := range record.Spec.Targets {
		if target.BackupName != "" {
			p.stores.refresher.Removed(target.StorageLocation, target.StoreName)
		}
	}
}

// deletionGone notes a deleted record. The stores know of a finished deletion; others were given up.
func (p *Projector) deletionGone(record *enginev1alpha1.BackupChange) {
	p.deleting.Lock()
	defer p.deleting.Unlock()
	p.deletions.Delete(record)
	if record.Done() {
		p.stores.catalog.EndVolumeDeletion(record.UID)
		p.uncacheFolders(record) // perhaps read again before the deletion
		return
	}
	p.stores.catalog.SetVolumeDeletion(record.UID, nil)
	for _, target := range record.Spec.Targets {
		p.stores.refresher.Nudge(target.StorageLocation) // a part may be in the store
	}
}

// LoadOfVolumeDeletions counts a namespace's records of deletions, and the unfinished ones, with the coming ones.
func (p *Projector) LoadOfVolumeDeletions(namespace string, coming sets.Set[string]) (records, unfinished int) {
	p.deleting.Lock()
	defer p.deleting.Unlock()
	unseen := coming.Clone()
	for _, record := range p.deletions.All() {
		if record.Spec.ListedIn != namespace {
			continue
		}
		unseen.Delete(record.Name)
		records++
		if !record.Done() {
			unfinished++
		}
	}
	return records + unseen.Len(), unfinished + unseen.Len()
}

// VolumeHistory returns the backups of a BackupVolume, and its uid.
func (p *Projector) VolumeHistory(namespace, name string) ([]catalog.HistoryItem, types.UID) {
	return p.stores.catalog.History(namespace, name)
}
