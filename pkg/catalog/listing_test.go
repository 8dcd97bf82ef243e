// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{400, 20, false},
		{400, 21, true},
		{400, 400, true},
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

// What is suspect stays, for however long, until its loss is accepted: what was missing then,
// and has been so for two listings, goes, and nothing that went missing later.
func TestALossIsAccepted(t *testing.T) {
	for _, left := range []int{0, 1, 50} {
		c, m, all := filled(t, 100)
		observe := func(at int, names []string, accepted int) Findings {
			listing := Listing{Names: names, Begun: minute(at)}
			if accepted >= 0 {
				listing.Accepted = minute(accepted)
			}
			return c.ObserveListing("default", listing, minute(at))
		}
		for _, at := range []int{1, 60, 6000} {
			if found := observe(at, all[100-left:], -1); found.Suspicion == "" || c.Len("default") != 100 {
				t.Fatalf("%d left, minute %d: %d are known, %+v", left, at, c.Len("default"), found)
			}
		}
		if found := observe(6001, all[100-left:], 7000); found.Suspicion == "" {
			t.Errorf("%d left: an instant yet to come was accepted: %+v", left, found)
		}
		if found := observe(6002, all[100-left:], 0); found.Suspicion == "" {
			t.Errorf("%d left: one before the loss was accepted: %+v", left, found)
		}
		if found := observe(6003, all[100-left:], 6000); found.Suspicion != "" || c.Len("default") != left {
			t.Errorf("%d left, accepted: %d are known, %+v", left, c.Len("default"), found)
		}
		if left > 11 { // what is lost after that is another loss
			if found := observe(6004, nil, 6000); found.Suspicion == "" || c.Len("default") != left {
				t.Errorf("%d left, and lost later: %d are known, %+v", left, c.Len("default"), found)
			}
		}
		m.check(c)
	}
}

// The loss of backups that have expired explains itself, unless somebody holds them; but not
// that of all the others.
func TestExpiredOnesMayGo(t *testing.T) {
	c, m, all := filled(t, 100)
	past := metav1.NewTime(minute(1))
	for i, name := range all[:60] {
		backup := stored("default", name, 5)
		if backup.Status.Expiration = &past; i >= 50 {
			backup.Status.Expiration = nil
		}
		c.Put("default", name, Content{Backup: backup}, t0)
	}
	for i := 2; i < 5; i++ {
		want := 100
		if i > 2 {
			want = 50
		}
		if found := c.Observe("default", all[50:], minute(i), minute(i)); found.Suspicion != "" || c.Len("default") != want {
			t.Errorf("minute %d: %d are known, %+v", i, c.Len("default"), found)
		}
	}
	if found := c.Observe("default", nil, minute(6), minute(6)); found.Suspicion == "" {
		t.Errorf("nothing is listed: %+v", found)
	}
	m.check(c)
}

// What a shard lacks is missed only if it would be in it; and the missing of all shards are
// judged together.
func TestShards(t *testing.T) {
	c, m, all := filled(t, 100)
	half := func(first, last int, names []string, at int) Findings {
		return c.ObserveListing("default", Listing{Names: names, Begun: minute(at), Holds: func(name string) bool {
			return name >= all[first] && name <= all[last]
		}}, minute(at))
	}
	for at, test := range []struct {
		first, last int
		names       []string
		suspicious  bool
		left        int
	}{
		{0, 49, all[5:50], false, 100},
		{50, 99, all[55:], false, 100},  // ten in all
		{50, 99, all[55:], false, 95},   // those of this shard are confirmed
		{50, 99, all[62:], true, 95},    // twelve, with those of the other shard
		{0, 49, all[5:50], true, 95},    // nothing leaves meanwhile
		{50, 99, all[55:], false, 95},   // they are found again
		{0, 49, all[5:50], false, 90},   // so these leave
		{0, 49, all[:0], true, 90},      // a shard that is empty
		{50, 99, all[55:100], true, 90}, // and stays suspect, whatever others list
	} {
		if found := half(test.first, test.last, test.names, at+1); (found.Suspicion != "") != test.suspicious || c.Len("default") != test.left {
			t.Errorf("listing %d: %d are known, %+v", at+1, c.Len("default"), found)
		}
	}
	m.check(c)
}

func TestSuspicionEndsByItself(t *testing.T) {
	c, m, all := filled(t, 30)
	if found := c.Observe("default", nil, minute(1), minute(1)); !strings.Contains(found.Suspicion, "30 of 30") {
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
