// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"slices"
	"unique"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/footprint"
)

// A writer to a bucket may put any number of backups there. So the catalogue bounds what it keeps
// of backups without a trusted signature, in each location: neither this cluster has signed them
// nor one that the location trusts. They are kept in an order, up to the first that does not fit.
// That one and all behind it are left out. The order and the sizes follow from the content of the
// store, so the order of reading does not matter.
//
// An entry that is left out is not listed, and nothing else follows from that: it counts as one
// that is there, and no loss. It is read again when there is room for it, or when other clusters
// are trusted.

// DefaultForeignBytes is how much is kept of the backups in a location without a trusted signature.
const DefaultForeignBytes = 64 << 20

// entryBytes is what an entry and the objects that list it have beside its content.
const entryBytes = 1 << 10

// weight gives the place of an entry in the order in which entries are kept.
type weight struct {
	class   int
	created int64
	bytes   int64
}

// The classes of weights, in the order in which they are kept.
const (
	// weightReplaced is the trace of a backup whose metadata was replaced.
	weightReplaced = iota
	weightForeign
	weightUnreadable
)

// foreign is what is kept in a location of entries without a trusted signature.
type foreign struct {
	// kept are those that are listed, the last to go first.
	kept  *btree.BTree[*entry]
	bytes int64
	// first is the first in the order that does not fit; nil if all do. It is a copy, with a
	// name and a weight alone.
	first *entry
	// leftOut counts those that are not listed for that.
	leftOut int
	// freed is true if there may be room for more since that was looked at.
	freed bool
}

// compareForeign is the order in which entries are kept: the newest first.
func compareForeign(a, b *entry) int {
	return cmp.Or(
		cmp.Compare(a.weight.class, b.weight.class), cmp.Compare(b.weight.created, a.weight.created),
		cmp.Compare(a.storeName, b.storeName),
	)
}

func isBefore(a, b *entry) bool { return compareForeign(a, b) < 0 }

// SetForeignBytes bounds what is kept of the backups of each location without a trusted signature.
// It is called before anything is put.
func (c *Catalog) SetForeignBytes(bytes int64) { c.foreignBytes = bytes }

// LeftOut returns how many backups of a location are not listed since they do not fit. The name is
// the first in the order, which is the newest.
func (c *Catalog) LeftOut(location string) (count int, newest string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f := c.foreign[location]
	if f == nil || f.leftOut == 0 {
		return 0, ""
	}
	return f.leftOut, f.first.storeName
}

// isVouchedFor reports whether the backup is this cluster's own, or one of a cluster that the
// location trusts.
func isVouchedFor(backup *v1alpha1.Backup) bool {
	origin := backup.Status.Origin
	return origin != nil && (origin.Trust == v1alpha1.BackupTrustOwn || origin.Trust == v1alpha1.BackupTrustTrusted)
}

// weigh gives the weight of a backup in its place, and its rows.
func (e *entry) weigh(backup *v1alpha1.Backup, rows *packedRows) weight {
	w := weight{class: weightForeign, created: backup.CreationTimestamp.Unix(), bytes: entryBytes + int64(footprint.Of(backup)) + rows.footprint()}
	switch {
	case e.replaced:
		w.class = weightReplaced
	case backup.Status.Phase == v1alpha1.BackupPhaseUnreadable:
		w.class, w.created = weightUnreadable, 0
	}
	return w
}

// footprint estimates what rows keep in memory. Shapes may be shared with other entries, but
// need not be, so they count in each.
func (p *packedRows) footprint() int64 {
	if p.len() == 0 {
		return 0
	}
	size := int64(len(p.cells))*cellBytes + int64(footprint.Of(p.odd))
	var before unique.Handle[shape]
	for _, of := range p.shapes {
		if of != before {
			size += int64(footprint.Of(new(of.Value())))
		}
		before = of
	}
	return size
}

func (c *Catalog) foreignLocked(location string) *foreign {
	f := c.foreign[location]
	if f == nil {
		f = &foreign{kept: btree.New(16, isBefore)}
		c.foreign[location] = f
	}
	return f
}

// fitsLocked reports whether an entry may be listed with another content. If it may not, it is
// left out.
func (c *Catalog) fitsLocked(e *entry, backup *v1alpha1.Backup, rows *packedRows, changed *recorder) bool {
	c.takeLocked(e)
	if isVouchedFor(backup) {
		return true
	}
	f := c.foreignLocked(e.location)
	is := &entry{storeName: e.storeName, weight: e.weigh(backup, rows)}
	if f.first == nil || isBefore(is, f.first) {
		return true
	}
	c.leaveOutLocked(e, is.weight, changed)
	return false
}

// leaveOutLocked has an entry not be listed, and forgets all but its place in the order.
func (c *Catalog) leaveOutLocked(e *entry, of weight, changed *recorder) {
	f := c.foreignLocked(e.location)
	c.setLocked(e, nil, nil, nil, false, changed)
	e.claims, e.expiration, e.changes, e.changesRead, e.versions, e.digests = nil, nil, nil, nil, nil, Digests{}
	e.again, e.leftOut, e.weight = false, true, of
	f.leftOut++
	if f.first == nil || isBefore(e, f.first) {
		f.first = &entry{storeName: e.storeName, weight: of}
	}
}

// takeLocked has an entry be none that is left out.
func (c *Catalog) takeLocked(e *entry) {
	if !e.leftOut {
		return
	}
	e.leftOut, e.again = false, false
	f := c.foreign[e.location]
	f.leftOut--
	f.freed = true
}

// dropLocked forgets an entry that is not listed.
func (c *Catalog) dropLocked(e *entry) {
	c.takeLocked(e)
	delete(c.locations[e.location], e.storeName)
}

// countLocked counts what is kept of an entry as it is now.
func (c *Catalog) countLocked(e *entry) {
	f := c.foreign[e.location]
	if e.counted {
		f.kept.Delete(e)
		f.bytes -= e.weight.bytes
		e.counted, f.freed = false, true
	}
	if e.backup == nil || isVouchedFor(e.backup) {
		return
	}
	f = c.foreignLocked(e.location)
	e.weight, e.counted = e.weigh(e.backup, e.rows), true
	f.kept.ReplaceOrInsert(e)
	f.bytes += e.weight.bytes
}

// shedLocked leaves out what does not fit any more.
func (c *Catalog) shedLocked(changed *recorder) {
	for _, f := range c.foreign {
		freed := f.freed
		for f.bytes > c.foreignBytes {
			last, _ := f.kept.Max()
			c.leaveOutLocked(last, last.weight, changed)
			f.freed = freed // that is the room which it lacked
		}
	}
}

// readmitLocked has those entries of a location read again that there is room for by now.
func (c *Catalog) readmitLocked(location string) {
	f := c.foreign[location]
	if f == nil || !f.freed {
		return
	}
	if f.freed = false; f.leftOut == 0 {
		f.first = nil
		return
	}
	var order []*entry
	for _, e := range c.locations[location] {
		if e.leftOut || e.counted {
			order = append(order, e)
		}
	}
	slices.SortFunc(order, compareForeign)
	bytes := int64(0)
	f.first = nil
	for _, e := range order {
		if bytes += e.weight.bytes; bytes > c.foreignBytes {
			f.first = &entry{storeName: e.storeName, weight: e.weight}
			return
		}
		e.again = e.leftOut
	}
}

// readLeftOut has all that is left out of a location be read again, and what was abridged of
// backups that are vouched for by now.
func (c *Catalog) readLeftOut(concerned func(location string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for location, of := range c.locations {
		for _, e := range of {
			if concerned(location) {
				e.again = e.again || e.leftOut || e.backup != nil && isVouchedFor(e.backup) && IsAbridged(e.backup)
			}
		}
	}
}
