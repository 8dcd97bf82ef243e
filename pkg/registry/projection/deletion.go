// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// ObserveVolumeDeletion notes a deletion of volume backups: from then on they are not listed. The
// informer shows all deletions before the stores are first read, so deleted backups don't reappear
// after a restart.
func (p *Projector) ObserveVolumeDeletion(record *enginev1alpha1.VolumeDeletion) {
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

// uncacheFolders removes deleted entries that are no Backups from the cache. Their folders have no
// note that they are deleted.
func (p *Projector) uncacheFolders(record *enginev1alpha1.VolumeDeletion) {
	for _, target := range record.Spec.Targets {
		if target.BackupName != "" {
			p.stores.refresher.Removed(target.StorageLocation, target.StoreName)
		}
	}
}

// volumeDeletionGone notes that a record is deleted. The stores know of a deletion that was carried
// out; another one was given up.
func (p *Projector) volumeDeletionGone(record *enginev1alpha1.VolumeDeletion) {
	p.deleting.Lock()
	defer p.deleting.Unlock()
	p.deletions.Delete(record)
	if record.Done() {
		p.stores.catalog.EndVolumeDeletion(record.UID)
		p.uncacheFolders(record) // it may have been read again before it was deleted
		return
	}
	p.stores.catalog.SetVolumeDeletion(record.UID, nil)
	for _, target := range record.Spec.Targets {
		p.stores.refresher.Nudge(target.StorageLocation) // a part of it may be in the store
	}
}

// LoadOfVolumeDeletions counts a namespace's records of deletions, and the unfinished ones. The
// named ones, which are being created, count in any case.
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

// VolumeHistory returns the backups of a volume, by its name as a BackupVolume, and its uid.
func (p *Projector) VolumeHistory(namespace, name string) ([]catalog.HistoryItem, types.UID) {
	return p.stores.catalog.History(namespace, name)
}
