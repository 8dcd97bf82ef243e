// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog is the in-memory cache of all stores: which backups lie there,
// and which volumes they hold. It is pure state: what is listed and read in the
// stores comes in as values (package refresh does that), what people see comes
// out as objects and changes.
//
// Nouns: an entry is one backup in one location; its row is how it is listed; a
// volume is a claim, or a pod's volume without one, that some entry holds.
//
// Its promises:
//
//  1. The metadata of a backup is read once and kept.
//  2. One bad file is one bad row: it is listed as Unreadable, its neighbours as
//     they are, and it is tried again now and then.
//  3. The store has the last word, but not at once. A backup leaves the catalogue
//     with the second complete listing in a row that lacks it. When too many are
//     newly missing, more than ten and more than one in twenty, or when all are, they
//     are suspect, as a folder may not be mounted; and as long as so many suspects are
//     missing, no backup leaves, for however long. When enough of them are found again,
//     the others are missing as if for the first time. Two losses need no excuse: of
//     backups that have expired, and those that an administrator has accepted. What a
//     catalogue does not know it can't miss: after a restart it lists what the stores
//     hold. Of the volume backups in an entry that is no Backup each leaves so by itself,
//     however many do, but none while its folder is listed and has nothing.
//  4. Names and uids depend on nothing but what lies in the stores, and on who is
//     trusted.
//  5. What a backup says of its origin decides nothing by itself: it is listed in a
//     tenant's namespace only if its signature is that of a cluster which is trusted
//     for that namespace. All else is listed in the system namespace. When trust or
//     the namespaces change, what is listed moves, and nothing is read again.
//  6. What is listed in a namespace names the backups of that namespace only; others
//     are another backup, under a pseudonym. In the system namespace all are named,
//     and so they are in what is listed over all namespaces.
//  7. Memory for backups without a trusted signature is bounded in each location, see
//     budget.go. The content of the store alone decides which of them are left out, and these
//     count as being there.
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

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Catalog holds the entries of all locations. It is safe for concurrent use. All
// objects that it hands out are shared, and must not be modified.
type Catalog struct {
	systemNamespace string
	notify          func(Changes)

	// changing serialises changes, and so the calls of notify. It is taken before mu.
	changing sync.Mutex

	mu        sync.RWMutex
	locations map[string]map[string]*entry // by location and store name; guarded by mu
	listed    map[string]time.Time         // by location: when its latest listing that is believed was begun; guarded by mu
	rows      map[group][]*entry           // that are listed; guarded by mu
	volumes   *btree.BTree[*volume]        // by name; guarded by mu
	foreign   map[string]*foreign          // by location; guarded by mu
	// foreignBytes bounds each of foreign.
	foreignBytes int64
	trust        trust  // guarded by mu
	sought       volume // the name that is looked for in volumes; guarded by mu
	// deletions of volumes that are recorded, by backup, and the backups of each record.
	deletions map[BackupID][]deletion         // guarded by mu
	recorded  map[types.UID]map[BackupID]bool // guarded by mu

	// version and floor are those of the Snapshot, and taken is the present one, if somebody
	// has taken it. epoch counts those, and copied is what they have cost. Guarded by mu.
	version, floor, epoch, copied uint64
	taken                         *History
	// resting is Resting; guarded by mu.
	resting int64
	// withdrawn counts how often rows have left a namespace of somebody who may read it no
	// more; guarded by mu.
	withdrawn uint64
}

// entry is what is listed and read as one in one location: a backup, or in a store of
// another layout all backups of one volume. It is listed if it is known.
type entry struct {
	location, storeName string

	// backup is as stored, in its place, or a stand-in for one that can't be read. It is
	// nil while the folder holds no finished backup, and if the entry is bare.
	backup *holdfast.Backup
	rows   *packedRows
	// deleted are those of the rows that are not listed, since they were deleted from the
	// backup; nil if none is.
	deleted []bool
	// bare is true if it is no Backup, but one volume's folder, whose volume backups are
	// all that is listed of it.
	bare bool
	// read are the rows with those that are deleted, if it is bare.
	read *packedRows
	// missed are those of read that the store lacked when it was read last, by the backups'
	// names, and since when; nil if there are none.
	missed map[string]time.Time
	// emptied is since when nothing at all was read, if all that was known is missed;
	// lossAccepted is whether that may go if it is so again.
	emptied      time.Time
	lossAccepted bool
	// claims are what its metadata says of its origin; nil for a stand-in, and if it is bare.
	claims *holdfast.BackupOrigin
	// expiration is as the metadata has it.
	expiration *metav1.Time
	// changes are those of the expiration that were read, by whomever, of changesRead, and
	// changesListed the keys of those that lie beside the folder.
	changes                    []format.Expiration
	changesRead, changesListed []string
	// replaced is true if somebody has replaced the metadata of one of our backups here.
	replaced bool
	// versions are those of what was read, as Content.Versions.
	versions map[string]string
	// digests are Content.Digests.
	digests Digests

	// shadowed is true if another location's entry comes first of those with the store
	// name; this one then bears its location's name behind its own.
	shadowed bool
	// held is the entry as it is listed; nil while it is not.
	held *held

	// weight is its place among those without a trusted signature; it counts there while counted is
	// true. leftOut is true if it is not listed for that, and again if it is to be read all the
	// same.
	weight                  weight
	counted, leftOut, again bool

	// recordedAt is when its content was last recorded.
	recordedAt time.Time
	// listedAt is when the latest listing was begun that had it.
	listedAt time.Time
	// missingSince is when the first of the listings that have lacked it in a row was
	// begun; zero if the latest one had it.
	missingSince time.Time
	// suspect is true if suspiciously many are missing with it.
	suspect bool
	// askedAt is when the latest read was begun that found no finished backup.
	askedAt time.Time
	// retryAt is when it is to be read again; never, if zero. An entry that was never
	// read has none, and no backup.
	retryAt  time.Time
	attempts int
}

// known reports whether something of it is listed.
func (e *entry) known() bool { return e.backup != nil || e.bare }

// Content is what was read of an entry.
type Content struct {
	// Backup is its metadata. Its origin decides where it is listed. Nil is for an entry
	// that is no Backup: a folder of one volume with all its backups.
	Backup *holdfast.Backup
	// Volumes are its volumes, or its volume backups. Packed takes their place if it holds any.
	Volumes []Volume
	Packed  Rows `json:"-"`
	// Trusted says of one without a Backup that its volume backups are listed in the
	// namespaces that they name, as far as these are not the system namespace; else they
	// are listed there.
	Trusted bool
	// Changes are those of the expiration that can be read, of ChangesRead.
	Changes     []format.Expiration
	ChangesRead []string
	// Replaced says that the metadata of one of our backups was replaced, and what is
	// left of it; else it is empty.
	Replaced string
	// VolumesError says why Volumes could not be read; empty if they were.
	VolumesError string
	// Versions are those of the objects that this was read from, by what the layout calls
	// them; nil if it tells by other means whether the entry is to be read again.
	Versions map[string]string
	// Digests are those of a backup's files, as its signed metadata has them; empty where it
	// has none.
	Digests Digests `json:",omitzero"`
}

// Digests are the SHA-256 of files of a backup as they are stored, in hexadecimal. An empty one
// is not known.
type Digests struct {
	Log      string `json:",omitempty"`
	Results  string `json:",omitempty"`
	Manifest string `json:",omitempty"`
}

// Rows is how many volumes there are.
func (c *Content) Rows() int { return max(len(c.Volumes), c.Packed.Len()) }

// New makes an empty catalogue. Unreadable backups are listed in systemNamespace.
// notify, if not nil, is called after each change, one call at a time and in
// order; it may read from the catalogue but not change it.
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

// Put records a backup that was read.
func (c *Catalog) Put(location, storeName string, content Content, now time.Time) {
	c.PutAll(location, []Item{{storeName, content}}, now)
}

// Item is what was read of one entry.
type Item struct {
	StoreName string
	Content   Content
}

// PutAll is Put of several, as one change: whatever follows from all of them is made once.
func (c *Catalog) PutAll(location string, items []Item, now time.Time) {
	rows := make([]*packedRows, len(items)) // made without a lock
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
		c.takeLocked(e)
		e.claims, e.expiration, e.changes, e.changesRead = nil, nil, nil, nil
		read := c.keepLocked(e, rows, now)
		e.read = read.displace(func(i int) bool {
			return !content.Trusted || read.shape(i).Value().namespace == c.systemNamespace
		})
		c.setLocked(e, nil, c.leftLocked(e), nil, true, changed)
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

// PutUnreadable records that a backup's metadata can't be used, and why. What was
// read of it before is kept.
func (c *Catalog) PutUnreadable(location, storeName, reason string, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.retryLocked(now, unreadableBackoff)
		switch {
		case e.bare:
			return
		case e.backup == nil:
			e.missingSince, e.suspect = time.Time{}, false // it is found
		case e.backup.Status.Phase != holdfast.BackupPhaseUnreadable || e.backup.Status.FailureReason == bounded(reason, maxText):
			return
		}
		e.claims = nil
		if backup := unreadable(e, c.systemNamespace, bounded(reason, maxText), now); c.fitsLocked(e, backup, nil, changed) {
			c.setLocked(e, backup, nil, nil, false, changed)
		}
	})
}

// PutUnfinished records that a folder holds no finished backup: its writer is at
// work, or was stopped. It is not listed. What was read of it before is kept. begun
// is when the read was begun that says so.
func (c *Catalog) PutUnfinished(location, storeName string, begun, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.askedAt = begun
		c.takeLocked(e)
		e.retryLocked(now, unfinishedBackoff)
		if e.backup != nil && e.backup.Status.Phase == holdfast.BackupPhaseUnreadable {
			c.setLocked(e, nil, nil, nil, false, changed)
		}
	})
}

// Forget drops all entries of a location, which is no longer one.
func (c *Catalog) Forget(location string) {
	c.mu.RLock()
	storeNames := slices.Sorted(maps.Keys(c.locations[location]))
	c.mu.RUnlock()
	// One by one, so that nobody waits long for the lock.
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

// Remove drops one entry, which its owner has removed from the store.
func (c *Catalog) Remove(location, storeName string) {
	c.change(func(changed *recorder) {
		if e := c.locations[location][storeName]; e != nil {
			c.setLocked(e, nil, nil, nil, false, changed)
			c.dropLocked(e)
		}
	})
}

// Len is the number of backups that are known of a location: those that are listed, and those
// that are left out.
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

// CountIn is the number of backups that are listed in a namespace.
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

// Resting is how many bytes of all rows have no pointers, so that a collection of memory has
// nothing to look at in them.
func (c *Catalog) Resting() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.resting
}

// Replaced is the number of backups in a location whose metadata somebody has replaced.
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

// Knows reports whether the catalogue has the store's word on a backup of which a
// record says, at the given instant, that it is stored: it is listed, if only as
// unreadable, or the store was asked since, and has none or another one.
func (c *Catalog) Knows(location, storeName string, uid types.UID, since time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	switch {
	case e != nil && e.leftOut:
		return !e.recordedAt.Before(since)
	case e != nil && !e.known():
		return !e.askedAt.IsZero() && !e.askedAt.Before(since)
	case e != nil && (e.claims == nil || e.backup.UID == uid): // unreadable or bare, or that one
		return true
	}
	listed, known := c.listed[location]
	return known && !listed.Before(since)
}

// IsMissing reports whether the latest listing that would have an entry has lacked it.
func (c *Catalog) IsMissing(location, storeName string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	return e != nil && !e.missingSince.IsZero()
}

// Readable is the store name of some backup of a location that could be read, and was not
// asked for in vain since; empty if there is none.
func (c *Catalog) Readable(location string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for storeName, e := range c.locations[location] {
		if e.backup != nil && e.backup.Status.Phase != holdfast.BackupPhaseUnreadable && e.missingSince.IsZero() && !e.askedAt.After(e.recordedAt) {
			return storeName
		}
	}
	return ""
}

// Backup is the backup that is listed under a name, or nil.
func (c *Catalog) Backup(namespace, name string) *holdfast.Backup {
	backup, _, _, _ := c.Find(namespace, name)
	return backup
}

// Find is the backup that is listed under a name, the location that it lies in, its
// store name there, and what is known of its files; nil if there is none.
func (c *Catalog) Find(namespace, name string) (backup *holdfast.Backup, location, storeName string, digests Digests) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	bare, _, _ := strings.Cut(name, "@") // no name of a backup has one
	for _, e := range c.rows[group{storeName: format.StoreName(namespace, bare, c.systemNamespace)}] {
		if row := e.held.row; row.Namespace == namespace && row.Name == name {
			return row, e.location, e.storeName, e.digests
		}
	}
	return nil, "", "", Digests{}
}

// change runs do under the locks, and tells of what it changed.
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

// group are entries that want one name. A backup, and what is none, never do.
type group struct {
	storeName string
	bare      bool
}

func (e *entry) group() group { return group{e.storeName, e.bare} }

// setLocked gives an entry another content; a nil backup is none, unless it is bare. All
// rows that change are taken away first, and listed anew afterwards, since one may get
// the name that another one had.
func (c *Catalog) setLocked(e *entry, backup *holdfast.Backup, rows *packedRows, deleted []bool, bare bool, changed *recorder) {
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
			return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.location, b.location))
		})
		relist[e] = true
		c.shadowLocked(of, relist, changed)
	}
	for other := range relist {
		c.listLocked(other, changed)
	}
}

// shadowLocked decides which of the entries of a group bears the name alone: the
// first of the group, wherever the others are listed. It takes away the rows that
// change by that, and marks them to be listed anew.
func (c *Catalog) shadowLocked(of group, relist map[*entry]bool, changed *recorder) {
	if len(c.rows[of]) == 0 {
		delete(c.rows, of)
	}
	for i, e := range c.rows[of] {
		if e.shadowed == (i > 0) {
			continue
		}
		if e.held != nil {
			c.unlistLocked(e, changed)
		}
		e.shadowed = i > 0
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
	clear(changed.added) // this may have been the last one of a volume
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

// holdLocked makes an entry as it is to be listed.
func (c *Catalog) holdLocked(e *entry) {
	e.held = &held{
		location: e.location, storeName: e.storeName, systemNamespace: c.systemNamespace,
		bare: e.bare, shadowed: e.shadowed, backup: e.backup, row: e.backup, rows: e.rows, version: c.version + 1,
	}
	if e.shadowed && e.backup != nil {
		row := *e.backup
		row.Name = e.backup.Name + "@" + e.location
		// A store may be a copy of another one, uids included.
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

func nameOf(backup *holdfast.Backup) types.NamespacedName {
	return types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
