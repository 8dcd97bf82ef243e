// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// lockedRepository is a repository in a bucket with object lock.
type lockedRepository struct {
	t     *testing.T
	locks *storetest.Locks
	loc   Location
	key   Key
}

// newLockedRepository creates a repository before its location has a lock.
func newLockedRepository(t *testing.T) *lockedRepository {
	t.Helper()
	locks := storetest.NewLocks()
	spec, secret := storetest.FakeS3(t, locks.Wrap)
	w := &lockedRepository{t: t, locks: locks, loc: Location{Spec: spec, Secret: secret}, key: NewKey()}
	if err := Create(t.Context(), w.loc, namespace, w.key); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *lockedRepository) lock(days int32) {
	w.loc.Spec.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockCompliance, Days: days}
}

// blobs returns the names of the repository's blobs, and their locks.
func (w *lockedRepository) blobs() map[string]storetest.ObjectLock {
	w.t.Helper()
	all, found := w.locks.All(), map[string]storetest.ObjectLock{}
	bucket := storetest.Open(w.t, w.loc.Spec, w.loc.Secret)
	for object, err := range bucket.List(w.t.Context(), Folder("", namespace), store.ListOptions{Recursive: true}) {
		if err != nil {
			w.t.Fatal(err)
		}
		found[path.Base(object.Key)] = all[object.Key]
	}
	return found
}

// needed reports whether a blob is a pack, an index or the format: without it data is lost.
func needed(name string) bool {
	return name == "kopia.repository" || strings.ContainsAny(name[:1], "pqx")
}

// expect compares the locks of all blobs.
func (w *lockedRepository) expect(what string, least time.Time) {
	w.t.Helper()
	count := 0
	for name, lock := range w.blobs() {
		switch {
		case needed(name):
			if count++; lock.Mode != "COMPLIANCE" || lock.Until.Before(least) {
				w.t.Errorf("%s: %s has the lock %v, want one until %s", what, name, lock, least)
			}
		case name == "kopia.blobcfg":
			w.t.Errorf("%s: the store has a kopia.blobcfg, which a writer could remove", what)
		case lock.Mode != "":
			w.t.Errorf("%s: %s is rewritten, and has the lock %v", what, name, lock)
		}
	}
	if count < 3 {
		w.t.Errorf("%s: there are only %d blobs to lock", what, count)
	}
}

func (w *lockedRepository) write() {
	w.t.Helper()
	r := open1(w.t, w.loc, w.key, Options{})
	put(w.t, r)
	if err := r.Close(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *lockedRepository) maintain() Maintenance {
	w.t.Helper()
	r := open1(w.t, w.loc, w.key, Options{})
	done, err := r.Maintain(w.t.Context())
	if err := errors.Join(err, r.Close(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
	return done
}

// TestLockedRepository: packs, indexes and the format are written with the location's lock. The
// first full maintenance locks those that are older. Each later one extends the locks that end early,
// and no others. A change of the key keeps the lock.
func TestLockedRepository(t *testing.T) {
	const day = 24 * time.Hour
	w := newLockedRepository(t)
	w.write()
	if locks := w.locks.All(); len(locks) > 0 {
		t.Fatalf("without a lock of the location there are %v", locks)
	}
	w.lock(40)
	begin := time.Now()
	w.write()
	if locks := w.locks.All(); len(locks) < 2 {
		t.Errorf("an open repository has written with the locks %v only", locks)
	}
	done := w.maintain()
	if done.Kind != MaintenanceFull || done.LockedUntil.Before(begin.Add(30*day)) {
		t.Errorf("a maintenance says that blobs are locked until %s: %+v", done.LockedUntil, done)
	}
	w.expect("after the first maintenance", begin.Add(30*day))

	next := NewKey()
	if err := ChangeKey(t.Context(), w.loc, namespace, w.key, next); err != nil {
		t.Fatal(err)
	}
	w.key = next
	w.write()
	w.expect("after a change of the key", begin.Add(30*day))
	if err := Create(t.Context(), w.loc, "another", w.key); err != nil {
		t.Fatal(err)
	}
	if lock := w.locks.All()["kopia/another/kopia.repository"]; lock.Until.Before(begin.Add(39 * day)) {
		t.Errorf("the format of a new repository has the lock %v", lock)
	}
	if _, err := Open(t.Context(), w.loc, namespace, NewKey(), Options{}); !errors.Is(err, ErrWrongKey) {
		t.Errorf("with a wrong key: %v", err)
	}
	if _, err := Open(t.Context(), w.loc, "none", w.key, Options{}); !errors.Is(err, ErrNotInitialized) {
		t.Errorf("of no repository: %v", err)
	}
}

// TestLocksOfADamagedRepository: a maintenance that a lost index ends extends the locks all the same.
func TestLocksOfADamagedRepository(t *testing.T) {
	const day = 24 * time.Hour
	w := newLockedRepository(t)
	w.lock(40)
	w.write()
	w.write()
	r := open1(t, w.loc, w.key, Options{})
	if err := errors.Join(r.noteIndexes(t.Context()), r.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	begin, bucket, lost := time.Now(), storetest.Open(t, w.loc.Spec, w.loc.Secret), false
	for name := range w.blobs() {
		key := Folder("", namespace) + name
		switch {
		case name[0] == 'x' && !lost:
			lost = true
			if err := bucket.Remove(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		case needed(name):
			w.locks.Set(key, storetest.ObjectLock{Mode: "COMPLIANCE", Until: begin.Add(day).Truncate(time.Second)})
		}
	}
	r = open1(t, w.loc, w.key, Options{})
	defer r.Close(t.Context())
	if _, err := r.Maintain(t.Context()); !errors.Is(err, ErrIndexLost) {
		t.Fatalf("the maintenance says %v", err)
	}
	w.expect("in a damaged repository", begin.Add(30*day))
}

// TestLocksAreExtended: the storage extends a lock that ends within three quarters of its days, and
// leaves others alone, and blobs that were removed meanwhile.
func TestLocksAreExtended(t *testing.T) {
	const day = 24 * time.Hour
	w := newLockedRepository(t)
	w.lock(40)
	r := open1(t, w.loc, w.key, Options{})
	defer r.Close(t.Context())
	options := blob.ExtendOptions{RetentionMode: blob.Compliance, RetentionPeriod: 40 * day}
	extend := func(id blob.ID) {
		t.Helper()
		if err := r.storage.ExtendBlobRetention(t.Context(), id, options); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	const key = "kopia/" + namespace + "/kopia.repository"
	for until, extended := range map[time.Duration]bool{29 * day: true, 31 * day: false} {
		w.locks.Set(key, storetest.ObjectLock{Mode: "COMPLIANCE", Until: time.Now().Add(until).Truncate(time.Second)})
		before := w.locks.Extended()
		if extend("kopia.repository"); w.locks.Extended() > before != extended {
			t.Errorf("a lock of %s is extended: %t, want %t", until, !extended, extended)
		}
	}
	extend("p-removed")
}
