// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"slices"
	"time"
	"unique"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/footprint"
)

// Each location has a bound for backups that neither this nor a trusted cluster has signed:
// docs/catalogue.md ("Backups that others write"). Their order depends only on the store's content.
// From the first that does not fit on, they are omitted, but count as present.

// DefaultForeignBytes is the default of SetForeignBytes.
const DefaultForeignBytes = 64 << 20

const entryBytes = 1 << 10

type weight struct {
	class   int
	created int64
	bytes   int64
}

const (
	weightReplaced = iota
	weightForeign
	weightUnreadable
)

type foreign struct {
	kept  *btree.BTree[*entry]
	bytes int64
	// first copies name and weight of the first omitted entry; nil if none.
	first   *entry
	leftOut int
	freed   bool
}

func compareForeign(a, b *entry) int {
	return cmp.Or(
		cmp.Compare(a.weight.class, b.weight.class), cmp.Compare(b.weight.created, a.weight.created),
		cmp.Compare(a.storeName, b.storeName),
	)
}

func isBefore(a, b *entry) bool { return compareForeign(a, b) < 0 }

// SetForeignBytes bounds each location's backups without a trusted signature, before the first Put.
func (c *Catalog) SetForeignBytes(bytes int64) { c.foreignBytes = bytes }

// LeftOut returns the number of omitted backups, and the newest one's name.
func (c *Catalog) LeftOut(location string) (count int, newest string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f := c.foreign[location]
	if f == nil || f.leftOut == 0 {
		return 0, ""
	}
	return f.leftOut, f.first.storeName
}

// Unfinished counts a location's folders without a finished backup.
func (c *Catalog) Unfinished(location string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	count := 0
	for _, e := range c.locations[location] {
		if !e.known() && !e.leftOut {
			count++
		}
	}
	return count
}

func isVouchedFor(backup *v1alpha1.Backup) bool {
	origin := backup.Status.Origin
	return origin != nil && (origin.Trust == v1alpha1.BackupTrustOwn || origin.Trust == v1alpha1.BackupTrustTrusted)
}

func (e *entry) weigh(backup *v1alpha1.Backup, rows *packedRows) weight {
	if backup == nil {
		w := weight{class: weightForeign, bytes: entryBytes + rows.footprint()}
		for i := range rows.len() {
			w.created = max(w.created, int64(rows.cells[i].ended))
		}
		return w
	}
	w := weight{class: weightForeign, created: backup.CreationTimestamp.Unix(), bytes: entryBytes + int64(footprint.Of(backup)) + rows.footprint()}
	switch {
	case e.replaced:
		w.class = weightReplaced
	case backup.Status.Phase == v1alpha1.BackupPhaseUnreadable:
		w.class, w.created = weightUnreadable, 0
	}
	return w
}

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

func (c *Catalog) fitsLocked(e *entry, backup *v1alpha1.Backup, rows *packedRows, changed *recorder) bool {
	c.takeLocked(e)
	if backup != nil && isVouchedFor(backup) {
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

func (c *Catalog) leaveOutLocked(e *entry, of weight, changed *recorder) {
	f := c.foreignLocked(e.location)
	if e.read == nil { // its listing needs them to know when to read it again
		e.versions = nil
	}
	c.setLocked(e, nil, nil, nil, false, changed)
	e.claims, e.expiration, e.changes, e.changesRead, e.digests = nil, nil, nil, nil, Digests{}
	e.read, e.missed, e.emptied = nil, nil, time.Time{}
	e.again, e.leftOut, e.weight = false, true, of
	f.leftOut++
	if f.first == nil || isBefore(e, f.first) {
		f.first = &entry{storeName: e.storeName, weight: of}
	}
}

func (c *Catalog) takeLocked(e *entry) {
	if !e.leftOut {
		return
	}
	e.leftOut, e.again = false, false
	f := c.foreign[e.location]
	f.leftOut--
	f.freed = true
}

func (c *Catalog) dropLocked(e *entry) {
	c.takeLocked(e)
	delete(c.locations[e.location], e.storeName)
}

func (c *Catalog) countLocked(e *entry) {
	f := c.foreign[e.location]
	if e.counted {
		f.kept.Delete(e)
		f.bytes -= e.weight.bytes
		e.counted, f.freed = false, true
	}
	if !e.known() || e.backup != nil && isVouchedFor(e.backup) {
		return
	}
	f = c.foreignLocked(e.location)
	e.weight, e.counted = e.weigh(e.backup, e.rows), true
	f.kept.ReplaceOrInsert(e)
	f.bytes += e.weight.bytes
}

func (c *Catalog) shedLocked(changed *recorder) {
	for _, f := range c.foreign {
		freed := f.freed
		for f.bytes > c.foreignBytes {
			last, _ := f.kept.Max()
			c.leaveOutLocked(last, last.weight, changed)
			f.freed = freed // the room is taken
		}
	}
}

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
