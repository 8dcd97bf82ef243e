// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog is the in-memory cache of all stores' backups and their volumes. It is pure state:
// package refresh puts in what it reads; objects and changes come out. See docs/catalogue.md.
//
// An entry is one backup in one location. A row is a volume backup. A volume is a claim, or a pod's
// volume without one. A "bare" entry is the folder of one volume, as in Longhorn. An unreadable backup
// is one row.
//
// Names and uids depend only on the stores and on trust. A backup is listed in a tenant's namespace if
// a cluster trusted for it has signed it, else in the system namespace. A namespace's objects name only
// its own backups, and give others a pseudonym, except in the system namespace and in lists over all
// namespaces.
package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Catalog has the entries of all locations. It is safe for concurrent use. Its objects are shared:
// don't modify them.
type Catalog struct {
	systemNamespace string
	notify          func(Changes)

	// changing serialises changes and calls of notify. It is locked before mu.
	changing sync.Mutex

	mu           sync.RWMutex
	locations    map[string]map[string]*entry // by location and store name; guarded by mu
	listed       map[string]time.Time         // start of the latest trusted listing, by location; guarded by mu
	rows         map[group][]*entry           // listed entries; guarded by mu
	past         map[string]bool              // locations that show an earlier time; guarded by mu
	volumes      *btree.BTree[*volume]        // by name; guarded by mu
	foreign      map[string]*foreign          // by location; guarded by mu
	foreignBytes int64
	trust        trust                           // guarded by mu
	sought       volume                          // search key for volumes; guarded by mu
	deletions    map[BackupID][]deletion         // guarded by mu
	recorded     map[types.UID]map[BackupID]bool // guarded by mu

	// version and floor are for the next Snapshot; taken is the current one, or nil. epoch counts
	// snapshots, copied their bytes. Guarded by mu.
	version, floor, epoch, copied uint64
	taken                         *History
	// guarded by mu
	resting int64
	// withdrawn counts rows that readers may no longer see; guarded by mu.
	withdrawn uint64
}

type entry struct {
	location, storeName string

	// backup is as stored, with its namespace and name here, or a stand-in for an unreadable one, or
	// nil.
	backup  *v1alpha1.Backup
	rows    *packedRows
	deleted []bool
	bare    bool
	read    *packedRows
	missed  map[string]time.Time
	// emptied is since when a bare entry lacks all rows; with lossAccepted, the next such read removes
	// them.
	emptied      time.Time
	lossAccepted bool
	// claims is the metadata's origin; nil for a stand-in or bare entry.
	claims     *v1alpha1.BackupOrigin
	expiration *metav1.Time
	// changes are the readable ones of the keys changesRead; changesListed are the keys beside the
	// folder.
	changes                    []format.Expiration
	changesRead, changesListed []string
	replaced                   bool
	versions                   map[string]string
	digests                    Digests

	// shadowed entries have a suffix, since another location's entry with the store name precedes, or
	// the location shows an earlier time.
	shadowed bool
	held     *held

	// weight is its place among foreign entries, while counted. leftOut entries are not listed; again
	// requests a read.
	weight                  weight
	counted, leftOut, again bool

	recordedAt time.Time
	listedAt   time.Time
	// missingSince is the start of the first listing that lacked it since; zero if none.
	missingSince time.Time
	suspect      bool
	// askedAt is the start of the latest read without a finished backup.
	askedAt  time.Time
	retryAt  time.Time
	attempts int
}

func (e *entry) known() bool { return e.backup != nil || e.bare }

// Content is an entry's content as read.
type Content struct {
	// Backup is the metadata, whose origin decides where it is listed; nil for a bare entry.
	Backup *v1alpha1.Backup
	// Volumes are volumes or volume backups, unless Packed has some.
	Volumes []Volume
	Packed  Rows `json:"-"`
	// Trusted lists a bare entry's volume backups in their namespaces instead of the system namespace.
	Trusted     bool
	Changes     []format.Expiration
	ChangesRead []string
	// Replaced says that our backup's metadata was replaced, and what remains.
	Replaced     string
	VolumesError string
	// Versions are the objects', by the layout's names; nil if the layout detects changes otherwise.
	Versions map[string]string
	Digests  Digests `json:",omitzero"`
}

// Digests are the SHA-256 of a backup's files in hexadecimal; empty if unknown.
type Digests struct {
	Log      string `json:",omitempty"`
	Results  string `json:",omitempty"`
	Manifest string `json:",omitempty"`
}

// Rows counts the volumes.
func (c *Content) Rows() int { return max(len(c.Volumes), c.Packed.Len()) }

// New returns an empty catalogue. notify, if not nil, is called after each change, serially and in
// order. It may only read the catalogue.
func New(systemNamespace string, notify func(Changes)) *Catalog {
	if notify == nil {
		notify = func(Changes) {}
	}
	return &Catalog{
		systemNamespace: systemNamespace,
		notify:          notify,
		locations:       map[string]map[string]*entry{},
		listed:          map[string]time.Time{},
		rows:            map[group][]*entry{},
		foreign:         map[string]*foreign{},
		foreignBytes:    DefaultForeignBytes,
		volumes:         btree.New(16, func(a, b *volume) bool { return compareNames(a.name, b.name) < 0 }),
		deletions:       map[BackupID][]deletion{},
		recorded:        map[types.UID]map[BackupID]bool{},
	}
}

// Put records an entry's content.
func (c *Catalog) Put(location, storeName string, content Content, now time.Time) {
	c.PutAll(location, []Item{{storeName, content}}, now)
}

// Item is an entry's content.
type Item struct {
	StoreName string
	Content   Content
}

// PutAll puts several entries as one, cheaper change.
func (c *Catalog) PutAll(location string, items []Item, now time.Time) {
	rows := make([]*packedRows, len(items))
	for i := range items {
		if rows[i] = items[i].Content.Packed.rows; rows[i] == nil {
			rows[i] = new(Packer).Pack(items[i].Content.Volumes).rows
		}
	}
	c.change(func(changed *recorder) {
		for i := range items {
			c.putLocked(c.entryLocked(location, items[i].StoreName), &items[i].Content, rows[i], now, changed)
		}
	})
}

func (c *Catalog) putLocked(e *entry, content *Content, rows *packedRows, now time.Time, changed *recorder) {
	e.missingSince, e.suspect = time.Time{}, false
	e.recordedAt = now
	e.retryAt = time.Time{}
	e.again = false
	e.replaced, e.versions, e.digests = content.Replaced != "", content.Versions, content.Digests
	if content.VolumesError == "" {
		e.attempts = 0
	} else {
		e.retryLocked(now, unreadableBackoff)
	}
	if content.Backup == nil {
		e.claims, e.expiration, e.changes, e.changesRead = nil, nil, nil, nil
		read := c.keepLocked(e, rows, now)
		e.read = read.displace(func(i int) bool {
			return !content.Trusted || read.shape(i).Value().namespace == c.systemNamespace
		})
		if left := c.leftLocked(e); c.fitsLocked(e, nil, left, changed) {
			c.setLocked(e, nil, left, nil, true, changed)
		}
		return
	}
	if e.claims = content.Backup.Status.Origin; e.claims == nil {
		e.claims = unsigned
	}
	e.expiration, e.changes, e.changesRead = content.Backup.Status.Expiration, content.Changes, content.ChangesRead
	backup, rows, deleted := c.placeLocked(e, describe(content, now), rows)
	if c.fitsLocked(e, backup, rows, changed) {
		e.again = isVouchedFor(backup) && IsAbridged(backup) // its reader did not trust it yet
		c.setLocked(e, backup, rows, deleted, false, changed)
	}
}

// PutUnreadable records why metadata can't be used. It keeps earlier content.
func (c *Catalog) PutUnreadable(location, storeName, reason string, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.retryLocked(now, unreadableBackoff)
		switch {
		case e.bare:
			return
		case e.backup == nil:
			e.missingSince, e.suspect = time.Time{}, false
		case e.backup.Status.Phase != v1alpha1.BackupPhaseUnreadable || e.backup.Status.FailureReason == bounded(reason, maxText):
			return
		}
		e.claims = nil
		if backup := unreadable(e, c.systemNamespace, bounded(reason, maxText), now); c.fitsLocked(e, backup, nil, changed) {
			c.setLocked(e, backup, nil, nil, false, changed)
		}
	})
}

// PutUnfinished records a read from begun on without a finished backup. It keeps earlier content.
func (c *Catalog) PutUnfinished(location, storeName string, begun, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.askedAt = begun
		c.takeLocked(e)
		e.retryLocked(now, unfinishedBackoff)
		if e.backup != nil && e.backup.Status.Phase == v1alpha1.BackupPhaseUnreadable {
			c.setLocked(e, nil, nil, nil, false, changed)
		}
	})
}

// Forget drops all entries of a former location.
func (c *Catalog) Forget(location string) {
	c.mu.RLock()
	storeNames := slices.Sorted(maps.Keys(c.locations[location]))
	c.mu.RUnlock()
	// One by one, for short locks.
	for _, storeName := range storeNames {
		c.Remove(location, storeName)
	}
	c.change(func(*recorder) {
		if len(c.locations[location]) == 0 {
			delete(c.locations, location)
			delete(c.foreign, location)
		}
		delete(c.listed, location)
	})
}

// Remove drops an entry that this cluster has removed from the store.
func (c *Catalog) Remove(location, storeName string) {
	c.change(func(changed *recorder) {
		if e := c.locations[location][storeName]; e != nil {
			c.setLocked(e, nil, nil, nil, false, changed)
			c.dropLocked(e)
		}
	})
}

// Len counts a location's known backups, also omitted ones.
func (c *Catalog) Len(location string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	count := 0
	for _, e := range c.locations[location] {
		if e.known() || e.leftOut {
			count++
		}
	}
	return count
}

// CountIn counts the backups listed in a namespace.
func (c *Catalog) CountIn(namespace string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	count := 0
	for _, of := range c.locations {
		for _, e := range of {
			if e.backup != nil && e.backup.Namespace == namespace {
				count++
			}
		}
	}
	return count
}

// Resting returns the bytes of rows that the garbage collector skips.
func (c *Catalog) Resting() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.resting
}

// Replaced counts a location's backups with replaced metadata.
func (c *Catalog) Replaced(location string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	count := 0
	for _, e := range c.locations[location] {
		if e.replaced {
			count++
		}
	}
	return count
}

// Knows reports whether a record's backup was read, or looked for since the given time.
func (c *Catalog) Knows(location, storeName string, uid types.UID, since time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	switch {
	case e != nil && e.leftOut:
		return !e.recordedAt.Before(since)
	case e != nil && !e.known():
		return !e.askedAt.IsZero() && !e.askedAt.Before(since)
	case e != nil && (e.claims == nil || e.backup.UID == uid): // unreadable, bare, or this one
		return true
	}
	listed, known := c.listed[location]
	return known && !listed.Before(since)
}

// IsMissing reports whether the latest listing lacked an entry.
func (c *Catalog) IsMissing(location, storeName string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	return e != nil && !e.missingSince.IsZero()
}

// Readable returns any readable backup's store name in a location, or "".
func (c *Catalog) Readable(location string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for storeName, e := range c.locations[location] {
		if e.backup != nil && e.backup.Status.Phase != v1alpha1.BackupPhaseUnreadable && e.missingSince.IsZero() && !e.askedAt.After(e.recordedAt) {
			return storeName
		}
	}
	return ""
}

// Backup returns the backup listed under a name, or nil.
func (c *Catalog) Backup(namespace, name string) *v1alpha1.Backup {
	backup, _, _, _ := c.Find(namespace, name)
	return backup
}

// Find returns a listed backup, its location, store name and digests.
func (c *Catalog) Find(namespace, name string) (backup *v1alpha1.Backup, location, storeName string, digests Digests) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	bare, _, _ := strings.Cut(name, "@") // backups' names have no @
	for _, e := range c.rows[group{storeName: format.StoreName(namespace, bare, c.systemNamespace)}] {
		if row := e.held.row; row.Namespace == namespace && row.Name == name {
			return row, e.location, e.storeName, e.digests
		}
	}
	return nil, "", "", Digests{}
}

func (c *Catalog) change(do func(*recorder)) {
	c.changing.Lock()
	defer c.changing.Unlock()
	changed := newRecorder()
	c.mu.Lock()
	do(changed)
	c.shedLocked(changed)
	changes := changed.changesLocked(c)
	if len(changed.volumes) > 0 {
		c.version++
		c.taken = nil
	}
	c.mu.Unlock()
	if !changes.Empty() {
		c.notify(changes)
	}
}

func (c *Catalog) entryLocked(location, storeName string) *entry {
	entries := c.locations[location]
	if entries == nil {
		entries = map[string]*entry{}
		c.locations[location] = entries
	}
	e := entries[storeName]
	if e == nil {
		e = &entry{location: location, storeName: storeName}
		entries[storeName] = e
	}
	return e
}

type group struct {
	storeName string
	bare      bool
}

func (e *entry) group() group { return group{e.storeName, e.bare} }

// setLocked changes an entry's content; backup may be nil. It unlists all changed rows before it lists
// any, since they may exchange names.
func (c *Catalog) setLocked(e *entry, backup *v1alpha1.Backup, rows *packedRows, deleted []bool, bare bool, changed *recorder) {
	same := e.bare == bare && e.rows.equal(rows)
	if same && slices.Equal(e.deleted, deleted) && equality.Semantic.DeepEqual(e.backup, backup) {
		return
	}
	defer c.countLocked(e)
	if !bare {
		e.read = nil
	}
	if same && e.staysInPlace(backup) {
		c.setDeletedLocked(e, backup, deleted, changed)
		return
	}
	relist := map[*entry]bool{}
	if e.known() {
		of := e.group()
		c.unlistLocked(e, changed)
		c.rows[of] = slices.DeleteFunc(c.rows[of], func(other *entry) bool { return other == e })
		c.shadowLocked(of, relist, changed)
	}
	c.resting += int64(rows.len()-e.rows.len()) * cellBytes
	e.backup, e.rows, e.deleted, e.bare = backup, rows, deleted, bare
	if e.known() {
		of := e.group()
		c.rows[of] = append(c.rows[of], e)
		slices.SortFunc(c.rows[of], func(a, b *entry) int {
			return cmp.Or(c.comparePast(a, b), cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.location, b.location))
		})
		relist[e] = true
		c.shadowLocked(of, relist, changed)
	}
	for other := range relist {
		c.listLocked(other, changed)
	}
}

// shadowLocked gives a group's first entry the plain name, unless its location shows an earlier time.
// It unlists changed entries, and adds them to relist.
func (c *Catalog) shadowLocked(of group, relist map[*entry]bool, changed *recorder) {
	if len(c.rows[of]) == 0 {
		delete(c.rows, of)
	}
	for i, e := range c.rows[of] {
		shadowed := i > 0 || c.past[e.location]
		if e.shadowed == shadowed {
			continue
		}
		if e.held != nil {
			c.unlistLocked(e, changed)
		}
		e.shadowed = shadowed
		relist[e] = true
	}
}

func (c *Catalog) unlistLocked(e *entry, changed *recorder) {
	if e.held.row != nil {
		changed.backups[nameOf(e.held.row)] = nil
	}
	for i := range e.held.rows.len() {
		if !isDeleted(e.deleted, i) {
			c.unlistRowLocked(e, i, changed)
		}
	}
	e.held = nil
}

func (c *Catalog) unlistRowLocked(e *entry, i int, changed *recorder) {
	name := e.held.rows.at(i).volumeName(c.systemNamespace)
	changed.volumes[name] = true
	clear(changed.added) // it may have been a volume's last row
	c.removeLocked(newMember(e.held, i), name)
}

func (c *Catalog) listLocked(e *entry, changed *recorder) {
	c.holdLocked(e)
	if e.held.row != nil {
		changed.backups[nameOf(e.held.row)] = e.held.row
	}
	for i := range e.rows.len() {
		if !isDeleted(e.deleted, i) {
			c.listRowLocked(e, i, changed)
		}
	}
}

func (c *Catalog) holdLocked(e *entry) {
	e.held = &held{
		location: e.location, storeName: e.storeName, systemNamespace: c.systemNamespace,
		bare: e.bare, shadowed: e.shadowed, backup: e.backup, row: e.backup, rows: e.rows, version: c.version + 1,
	}
	if e.shadowed && e.backup != nil {
		row := *e.backup
		row.Name = e.backup.Name + "@" + e.location
		// A store may be a copy of another, with its uids.
		row.UID = format.DerivedUID("backup", e.location, e.storeName, string(e.backup.UID))
		e.held.row = &row
	}
}

func (c *Catalog) listRowLocked(e *entry, i int, changed *recorder) {
	r := e.rows.at(i)
	of := kind{r.shape, r.displaced}
	v := changed.added[of]
	if v == nil {
		name := r.volumeName(c.systemNamespace)
		changed.volumes[name] = true
		v = c.volumeLocked(name)
		changed.added[of] = v
	}
	c.addLocked(v, newMember(e.held, i))
}

func nameOf(backup *v1alpha1.Backup) types.NamespacedName {
	return types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
