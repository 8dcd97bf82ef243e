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
//     newly missing, more than ten and more than one in twenty, or when a listing
//     lacks all, they are suspect, as a folder may not be mounted; and as long as so
//     many suspects are missing, no backup leaves. When enough of them are found
//     again, the others are missing as if for the first time. Nothing stays suspect
//     for more than an hour: what every listing of an hour has lacked is gone. So
//     whatever a store does, an hour after it has come to rest the catalogue lists
//     what it holds, which is what it would list after a restart.
//  4. Names and uids depend on nothing but what lies in the stores, and on who is
//     trusted.
//  5. What a backup says of its origin decides nothing by itself: it is listed in a
//     tenant's namespace only if its signature is that of a cluster which is trusted
//     for that namespace. All else is listed in the system namespace. When trust or
//     the namespaces change, what is listed moves, and nothing is read again.
//  6. What is listed in a namespace names the backups of that namespace only; others
//     are another backup, under a pseudonym. In the system namespace all are named.
package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

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
	locations map[string]map[string]*entry     // by location and store name; guarded by mu
	listed    map[string]time.Time             // by location: when its latest listing that is believed was begun; guarded by mu
	rows      map[string][]*entry              // that are listed, by store name; guarded by mu
	volumes   map[types.NamespacedName]*volume // guarded by mu
	trust     trust                            // guarded by mu
}

// entry is one backup in one location. Unless its backup is nil, it is listed.
type entry struct {
	location, storeName string
	systemNamespace     string

	// backup is as stored, in its place, or a stand-in for one that can't be read. It is
	// nil while the folder holds no finished backup.
	backup  *holdfast.Backup
	volumes []Volume
	// claims are what its metadata says of its origin; nil for a stand-in.
	claims *holdfast.BackupOrigin
	// replaced is true if somebody has replaced the metadata of one of our backups here.
	replaced bool

	// shadowed is true if another location's entry comes first of those with the store
	// name; this one then bears its location's name behind its own.
	shadowed bool
	row      *holdfast.Backup

	// recordedAt is when its content was last recorded.
	recordedAt time.Time
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

// Content is what was read of a backup.
type Content struct {
	// Backup is its metadata. Its origin decides where it is listed.
	Backup *holdfast.Backup
	// Volumes are its volumes.
	Volumes []Volume
	// Replaced says that the metadata of one of our backups was replaced, and what is
	// left of it; else it is empty.
	Replaced string
	// VolumesError says why Volumes could not be read; empty if they were.
	VolumesError string
}

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
		rows:            map[string][]*entry{},
		volumes:         map[types.NamespacedName]*volume{},
	}
}

// Put records a backup that was read.
func (c *Catalog) Put(location, storeName string, content Content, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.missingSince, e.suspect = time.Time{}, false
		e.recordedAt = now
		e.retryAt = time.Time{}
		e.replaced = content.Replaced != ""
		if content.VolumesError == "" {
			e.attempts = 0
		} else {
			e.retryLocked(now, unreadableBackoff)
		}
		if e.claims = content.Backup.Status.Origin; e.claims == nil {
			e.claims = unsigned
		}
		backup, volumes := c.placeLocked(e, describe(content, now), content.Volumes)
		c.setLocked(e, backup, volumes, changed)
	})
}

// PutUnreadable records that a backup's metadata can't be used, and why. What was
// read of it before is kept.
func (c *Catalog) PutUnreadable(location, storeName, reason string, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.retryLocked(now, unreadableBackoff)
		switch {
		case e.backup == nil:
			e.missingSince, e.suspect = time.Time{}, false // it is found
		case e.backup.Status.Phase != holdfast.BackupPhaseUnreadable || e.backup.Status.FailureReason == reason:
			return
		}
		e.claims = nil
		c.setLocked(e, unreadable(e, c.systemNamespace, reason, now), nil, changed)
	})
}

// PutUnfinished records that a folder holds no finished backup: its writer is at
// work, or was stopped. It is not listed. What was read of it before is kept. begun
// is when the read was begun that says so.
func (c *Catalog) PutUnfinished(location, storeName string, begun, now time.Time) {
	c.change(func(changed *recorder) {
		e := c.entryLocked(location, storeName)
		e.askedAt = begun
		e.retryLocked(now, unfinishedBackoff)
		if e.backup != nil && e.backup.Status.Phase == holdfast.BackupPhaseUnreadable {
			c.setLocked(e, nil, nil, changed)
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
		}
		delete(c.listed, location)
	})
}

// Remove drops one entry, which its owner has removed from the store.
func (c *Catalog) Remove(location, storeName string) {
	c.change(func(changed *recorder) {
		if e := c.locations[location][storeName]; e != nil {
			c.setLocked(e, nil, nil, changed)
			delete(c.locations[location], storeName)
		}
	})
}

// Len is the number of backups that are listed from a location.
func (c *Catalog) Len(location string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	count := 0
	for _, e := range c.locations[location] {
		if e.backup != nil {
			count++
		}
	}
	return count
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
	case e != nil && e.backup == nil:
		return !e.askedAt.IsZero() && !e.askedAt.Before(since)
	case e != nil && (e.claims == nil || e.backup.UID == uid):
		return true
	}
	listed, known := c.listed[location]
	return known && !listed.Before(since)
}

// Readable is the store name of some backup of a location that could be read;
// empty if there is none.
func (c *Catalog) Readable(location string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for storeName, e := range c.locations[location] {
		if e.backup != nil && e.backup.Status.Phase != holdfast.BackupPhaseUnreadable && e.missingSince.IsZero() {
			return storeName
		}
	}
	return ""
}

// Backup is the backup that is listed under a name, or nil.
func (c *Catalog) Backup(namespace, name string) *holdfast.Backup {
	c.mu.RLock()
	defer c.mu.RUnlock()
	bare, _, _ := strings.Cut(name, "@") // no name of a backup has one
	for _, e := range c.rows[format.StoreName(namespace, bare, c.systemNamespace)] {
		if e.row.Namespace == namespace && e.row.Name == name {
			return e.row
		}
	}
	return nil
}

// change runs do under the locks, and tells of what it changed.
func (c *Catalog) change(do func(*recorder)) {
	c.changing.Lock()
	defer c.changing.Unlock()
	changed := newRecorder()
	c.mu.Lock()
	do(changed)
	changes := changed.changesLocked(c)
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
		e = &entry{location: location, storeName: storeName, systemNamespace: c.systemNamespace}
		entries[storeName] = e
	}
	return e
}

// setLocked gives an entry another content; nil for none. All rows that change
// are taken away first, and listed anew afterwards, since one may get the name
// that another one had.
func (c *Catalog) setLocked(e *entry, backup *holdfast.Backup, volumes []Volume, changed *recorder) {
	if equality.Semantic.DeepEqual(e.backup, backup) && slices.Equal(e.volumes, volumes) {
		return
	}
	relist := map[*entry]bool{}
	if e.backup != nil {
		c.unlistLocked(e, changed)
		c.rows[e.storeName] = slices.DeleteFunc(c.rows[e.storeName], func(other *entry) bool { return other == e })
		c.shadowLocked(e.storeName, relist, changed)
	}
	e.backup, e.volumes = backup, volumes
	if e.backup != nil {
		c.rows[e.storeName] = append(c.rows[e.storeName], e)
		slices.SortFunc(c.rows[e.storeName], func(a, b *entry) int {
			return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.location, b.location))
		})
		relist[e] = true
		c.shadowLocked(e.storeName, relist, changed)
	}
	for other := range relist {
		c.listLocked(other, changed)
	}
}

// shadowLocked decides which of the entries with one store name bears it alone: the
// first of the group, wherever the others are listed. It takes away the rows that
// change by that, and marks them to be listed anew.
func (c *Catalog) shadowLocked(storeName string, relist map[*entry]bool, changed *recorder) {
	group := c.rows[storeName]
	if len(group) == 0 {
		delete(c.rows, storeName)
	}
	for i, e := range group {
		if e.shadowed == (i > 0) {
			continue
		}
		if e.row != nil {
			c.unlistLocked(e, changed)
		}
		e.shadowed = i > 0
		relist[e] = true
	}
}

func (c *Catalog) unlistLocked(e *entry, changed *recorder) {
	changed.backups[nameOf(e.row)] = nil
	for i := range e.volumes {
		changed.history[e.volumeBackupName(i)] = nil
		name := e.volumes[i].name(e.systemNamespace)
		changed.volumes[name] = true
		if c.volumes[name].remove(member{e, i}); c.volumes[name].empty() {
			delete(c.volumes, name)
		}
	}
	e.row = nil
}

func (c *Catalog) listLocked(e *entry, changed *recorder) {
	e.row = e.backup
	if e.shadowed {
		row := *e.backup
		row.Name = e.backup.Name + "@" + e.location
		// A store may be a copy of another one, uids included.
		row.UID = format.DerivedUID("backup", e.location, e.storeName, string(e.backup.UID))
		e.row = &row
	}
	changed.backups[nameOf(e.row)] = e.row
	for i := range e.volumes {
		object := e.volumeBackup(i)
		changed.history[types.NamespacedName{Namespace: object.Namespace, Name: object.Name}] = object
		name := e.volumes[i].name(e.systemNamespace)
		changed.volumes[name] = true
		if c.volumes[name] == nil {
			c.volumes[name] = &volume{}
		}
		c.volumes[name].add(member{e, i})
	}
}

func nameOf(backup *holdfast.Backup) types.NamespacedName {
	return types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
