// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// filled has n backups in location default.
func filled(t *testing.T, n int) (*Catalog, *mirror, []string) {
	t.Helper()
	c, m := newMirror(t)
	var storeNames []string
	for i := range n {
		storeName := fmt.Sprintf("b%04d", i)
		storeNames = append(storeNames, storeName)
		c.Put("default", storeName, Content{Backup: stored("default", storeName, 5), Volumes: []Volume{claim("shop", "data", int64(i), 5)}}, t0)
	}
	return c, m, storeNames
}

func TestObserveAsksForNewOnes(t *testing.T) {
	c, _, storeNames := filled(t, 3)
	found := c.Observe("default", append([]string{"z", "a", "a"}, storeNames...), minute(1), minute(1))
	if !slices.Equal(found.Read, []string{"a", "z"}) || found.Suspicion != "" {
		t.Errorf("found %+v", found)
	}
	if found := c.Observe("default", storeNames, minute(2), minute(2)); len(found.Read) > 0 || found.Suspicion != "" {
		t.Errorf("unchanged: %+v", found)
	}
	if found := c.Observe("other", storeNames, minute(2), minute(2)); len(found.Read) != 3 {
		t.Errorf("another location: %+v", found)
	}
}

func TestDisappearanceIsConfirmed(t *testing.T) {
	c, m, all := filled(t, 5)
	most := all[1:]
	gone := func() bool { m.check(c); return c.Backup(system, all[0]) == nil }
	observe := func(at int, listing []string) {
		t.Helper()
		if found := c.Observe("default", listing, minute(at), minute(at)); found.Suspicion != "" || len(found.Read) > 0 {
			t.Fatalf("minute %d: %+v", at, found)
		}
	}
	observe(1, most)
	if gone() {
		t.Error("dropped after one listing without it")
	}
	observe(2, all)
	observe(3, most)
	if gone() {
		t.Error("dropped although it was listed in between")
	}
	observe(4, most)
	if !gone() {
		t.Error("still there after two listings without it")
	}
	if found := c.Observe("default", all, minute(5), minute(5)); !slices.Equal(found.Read, all[:1]) {
		t.Errorf("after its return: %+v", found)
	}
}

func TestSuspiciousLoss(t *testing.T) {
	for _, test := range []struct {
		known, lost int
		suspicious  bool
	}{
		{1, 1, true}, // an empty listing says that something is wrong with the store
		{2, 2, true},
		{2, 1, false},
		{11, 10, false},
		{12, 11, true},
		{200, 10, false},
		{200, 11, true},
		{1000, 50, false},
		{1000, 51, true},
		{1000, 1000, true},
	} {
		c, m, all := filled(t, test.known)
		for i := range 3 {
			found := c.Observe("default", all[test.lost:], minute(i+1), minute(i+1))
			// Once the loss is confirmed there is nothing left to suspect.
			if suspicious := found.Suspicion != ""; suspicious != test.suspicious {
				t.Errorf("%d of %d lost, listing %d: %+v", test.lost, test.known, i, found)
			}
		}
		left := test.known - test.lost
		if test.suspicious {
			left = test.known
		}
		if got := c.Len("default"); got != left {
			t.Errorf("%d of %d lost: %d are left, want %d", test.lost, test.known, got, left)
		}
		m.check(c)
	}
}

// Velero's expiry, for instance, removes some each minute.
func TestLossesThatFollowEachOther(t *testing.T) {
	c, m, all := filled(t, 100)
	for i := 1; i <= 10; i++ {
		if found := c.Observe("default", all[6*i:], minute(i), minute(i)); found.Suspicion != "" {
			t.Fatalf("listing %d: %+v", i, found)
		}
		if got, want := c.Len("default"), 100-6*(i-1); got != want {
			t.Fatalf("listing %d: %d are left, want %d", i, got, want)
		}
	}
	m.check(c)
}

// What the store has really lost is believed after an hour, one that is empty too.
func TestSuspicionLastsAnHour(t *testing.T) {
	for _, left := range []int{0, 1, 50} {
		c, m, all := filled(t, 100)
		for i := 1; i <= 60; i++ {
			if found := c.Observe("default", all[100-left:], minute(i), minute(i)); found.Suspicion == "" || c.Len("default") != 100 {
				t.Fatalf("%d left, minute %d: %d are known, %+v", left, i, c.Len("default"), found)
			}
		}
		if found := c.Observe("default", all[100-left:], minute(61), minute(61)); found.Suspicion != "" || c.Len("default") != left {
			t.Errorf("%d left, after an hour: %d are known, %+v", left, c.Len("default"), found)
		}
		m.check(c)
	}
}

func TestSuspicionEndsByItself(t *testing.T) {
	c, m, all := filled(t, 30)
	if found := c.Observe("default", nil, minute(1), minute(1)); !strings.Contains(found.Suspicion, "0 of 30") {
		t.Errorf("empty: %+v", found)
	}
	if found := c.Observe("default", all, minute(2), minute(2)); found.Suspicion != "" || len(found.Read) > 0 {
		t.Errorf("back again: %+v", found)
	}
	// New ones are read even from a listing that is not believed otherwise.
	if found := c.Observe("default", []string{"new"}, minute(3), minute(3)); found.Suspicion == "" || !slices.Equal(found.Read, []string{"new"}) {
		t.Errorf("another store: %+v", found)
	}
	// A first listing without them that was suspicious does not count.
	if found := c.Observe("default", all[1:], minute(4), minute(4)); found.Suspicion != "" || c.Len("default") != 30 {
		t.Errorf("one lost: %+v", found)
	}
	m.check(c)
}

// A listing that was begun before a backup was recorded need not have it.
func TestListingOlderThanTheEntry(t *testing.T) {
	c, _, _ := filled(t, 1)
	for range 3 {
		if found := c.Observe("default", nil, t0, minute(1)); found.Suspicion != "" || c.Len("default") != 1 {
			t.Errorf("found %+v", found)
		}
	}
}

func TestUnfinishedFoldersGoQuietly(t *testing.T) {
	c, m, all := filled(t, 2)
	for i := range 40 {
		c.PutUnfinished("default", fmt.Sprintf("running-%d", i), t0, t0)
	}
	if found := c.Observe("default", all, minute(1), minute(1)); found.Suspicion != "" || len(c.locations["default"]) != 2 {
		t.Errorf("found %+v, %d entries", found, len(c.locations["default"]))
	}
	m.check(c)
}
