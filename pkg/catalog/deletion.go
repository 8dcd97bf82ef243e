// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// BackupID identifies a stored backup; without UID a bare entry.
type BackupID struct {
	Location, StoreName string
	UID                 types.UID
}

// VolumeInBackup is a volume in a backup.
type VolumeInBackup struct {
	Backup BackupID
	Volume format.VolumeID
	// BackupName is the name in a bare entry.
	BackupName string
}

type deletion struct {
	record     types.UID
	volume     format.VolumeID
	backupName string
	// stored is true once the store has it. It counts until the next read.
	stored bool
}

// SetVolumeDeletion hides all volumes of a deletion record at once; nil if the record is deleted.
func (c *Catalog) SetVolumeDeletion(record types.UID, deleted []VolumeInBackup) {
	c.relist(c.changeDeletions(func() map[BackupID]bool {
		concerned := map[BackupID]bool{}
		for of := range c.recorded[record] {
			c.deletions[of] = slices.DeleteFunc(c.deletions[of], func(d deletion) bool { return d.record == record })
			concerned[of] = true
		}
		delete(c.recorded, record)
		for _, d := range deleted {
			if c.recorded[record] == nil {
				c.recorded[record] = map[BackupID]bool{}
			}
			c.recorded[record][d.Backup] = true
			c.deletions[d.Backup] = append(c.deletions[d.Backup], deletion{record: record, volume: d.Volume, backupName: d.BackupName})
			concerned[d.Backup] = true
		}
		for of := range concerned {
			if len(c.deletions[of]) == 0 {
				delete(c.deletions, of)
			}
		}
		return concerned
	}))
}

// EndVolumeDeletion says that the store has the deletion: the next read decides.
func (c *Catalog) EndVolumeDeletion(record types.UID) {
	c.relist(c.changeDeletions(func() map[BackupID]bool {
		concerned := c.recorded[record]
		for of := range concerned {
			for i := range c.deletions[of] {
				if d := &c.deletions[of][i]; d.record == record {
					d.stored = true
				}
			}
		}
		delete(c.recorded, record)
		return concerned
	}))
}

func (c *Catalog) changeDeletions(change func() map[BackupID]bool) []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var entries []*entry
	for of := range change() {
		if e := c.locations[of.Location][of.StoreName]; e != nil && (e.bare && of.UID == "" || e.backup != nil && e.claims != nil && e.backup.UID == of.UID) {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.location, b.location), cmp.Compare(a.storeName, b.storeName))
	})
	return entries
}

// deletedLocked returns the rows deleted by the store's trusted change or a record, or nil, and updates
// the backup's counts.
func (c *Catalog) deletedLocked(e *entry, backup *v1alpha1.Backup, rows *packedRows, newest *format.Expiration) []bool {
	deleted := map[format.VolumeID]bool{}
	if newest != nil {
		for _, d := range newest.Deleted {
			deleted[d.VolumeID] = true
		}
	}
	of := BackupID{e.location, e.storeName, backup.UID}
	known := slices.DeleteFunc(c.deletions[of], func(d deletion) bool { return d.stored && deleted[d.volume] })
	if len(known) > 0 {
		c.deletions[of] = known
	} else {
		delete(c.deletions, of)
	}
	for _, d := range known {
		deleted[d.volume] = true
	}
	var gone []bool
	for i := range rows.len() {
		if len(deleted) > 0 && deleted[rows.at(i).id()] {
			if gone == nil {
				gone = make([]bool, rows.len())
			}
			gone[i] = true
		}
	}
	backup.Status.Volumes = sum(rows, gone, backup.Status.Volumes)
	return gone
}

func (c *Catalog) leftLocked(e *entry) *packedRows {
	of := BackupID{Location: e.location, StoreName: e.storeName}
	if len(c.deletions[of]) == 0 {
		return e.read
	}
	there := map[string]bool{}
	for i := range e.read.len() {
		there[e.read.at(i).backupName()] = true
	}
	deleted := map[string]bool{}
	c.deletions[of] = slices.DeleteFunc(c.deletions[of], func(d deletion) bool { return d.stored && !there[d.backupName] })
	for _, d := range c.deletions[of] {
		deleted[d.backupName] = true
	}
	if len(deleted) == 0 {
		delete(c.deletions, of)
	}
	left := slices.DeleteFunc(e.read.unpack(), func(r row) bool { return deleted[r.backupName()] })
	if len(left) == e.read.len() {
		return e.read
	}
	return pack(left)
}

func isDeleted(deleted []bool, i int) bool { return deleted != nil && deleted[i] }

func (e *entry) staysInPlace(backup *v1alpha1.Backup) bool {
	if e.bare || backup == nil || e.backup == nil || e.held == nil {
		return false
	}
	was, is := e.backup, backup
	return was.Namespace == is.Namespace && was.Name == is.Name && was.UID == is.UID && was.CreationTimestamp.Equal(&is.CreationTimestamp) &&
		e.rank() == (&entry{backup: backup}).rank()
}

func (c *Catalog) setDeletedLocked(e *entry, backup *v1alpha1.Backup, deleted []bool, changed *recorder) {
	before := e.deleted
	for i := range e.rows.len() {
		if isDeleted(deleted, i) && !isDeleted(before, i) {
			c.unlistRowLocked(e, i, changed)
		}
	}
	e.backup, e.deleted = backup, deleted
	c.holdLocked(e)
	changed.backups[nameOf(e.held.row)] = e.held.row
	for i := range e.rows.len() {
		if !isDeleted(deleted, i) && isDeleted(before, i) {
			c.listRowLocked(e, i, changed)
		}
	}
}

func (r row) id() format.VolumeID {
	of := r.shape.Value()
	return format.VolumeID{Namespace: of.namespace, Name: of.bareName(), Repeat: int32(r.repeat)}
}

func sum(rows *packedRows, deleted []bool, before *v1alpha1.BackupVolumesProgress) *v1alpha1.BackupVolumesProgress {
	sum := &v1alpha1.BackupVolumesProgress{}
	if before != nil {
		sum.LeftOut = before.LeftOut
	}
	if rows.len() == 0 && sum.LeftOut == 0 {
		return nil
	}
	for i := range rows.len() {
		if isDeleted(deleted, i) {
			sum.Deleted++
			continue
		}
		r := rows.at(i)
		sum.Total++
		sum.TotalBytes += r.size
		sum.BytesDone += r.bytesDone()
		if r.state == stateCompleted {
			sum.Completed++
			if r.shape.Value().method == MethodInStorage {
				sum.InStorage++
			}
		} else {
			sum.Failed++
		}
	}
	return sum
}

// HistoryItem is a volume's backup.
type HistoryItem struct {
	VolumeInBackup
	// Listed is its name as a VolumeBackup.
	Listed types.NamespacedName
	UID    types.UID
	// Of is the listed backup; nil for a bare entry.
	Of *v1alpha1.Backup
	// InStorage means that the only copy is in the volume's storage.
	InStorage bool
}

// History returns a BackupVolume's volume backups, sorted by store name, and its uid.
func (c *Catalog) History(namespace, name string) (items []HistoryItem, uid types.UID) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	of := types.NamespacedName{Namespace: namespace, Name: name}
	listed, ok := c.volumes.Get(&volume{name: of})
	if !ok {
		return nil, ""
	}
	for _, m := range listed.members {
		h, r := m.held, m.row()
		object := h.volumeBackup(r, listed.name, false)
		of := BackupID{Location: h.location, StoreName: h.storeName}
		if h.backup != nil {
			of.UID = h.backup.UID
		}
		items = append(items, HistoryItem{
			VolumeInBackup: VolumeInBackup{Backup: of, Volume: r.id(), BackupName: r.backupName()},
			Listed:         types.NamespacedName{Namespace: object.Namespace, Name: object.Name}, UID: object.UID,
			// The row may have an older held of the same place.
			Of: c.locations[h.location][h.storeName].held.row, InStorage: object.Status.Method == MethodInStorage,
		})
	}
	slices.SortFunc(items, func(a, b HistoryItem) int {
		return cmp.Or(cmp.Compare(a.Backup.StoreName, b.Backup.StoreName), cmp.Compare(a.Backup.Location, b.Backup.Location), cmp.Compare(a.Volume.Repeat, b.Volume.Repeat))
	})
	return items, volumeUID(of)
}

func volumeUID(volume types.NamespacedName) types.UID {
	return format.DerivedUID("volume", volume.Namespace, volume.Name)
}
