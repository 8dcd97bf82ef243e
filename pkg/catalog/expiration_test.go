// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

const changedUID types.UID = "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"

// The newest change that the backup's own cluster has signed is what counts, and whoever
// else can write to the store says nothing.
func TestChangesOfExpirations(t *testing.T) {
	at := func(year int) *metav1.Time {
		return &metav1.Time{Time: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	change := func(number int64, cluster, key string, year int, held bool) format.Expiration {
		c := format.Expiration{Number: number, Expiration: at(year), ClusterUID: cluster, PublicKey: key}
		if held {
			c.Hold = &format.Hold{Requester: "jane"}
		}
		return c
	}
	for name, test := range map[string]struct {
		theirs  bool
		changes []format.Expiration
		year    int
		held    bool
		number  int64
	}{
		"none":                  {year: 2030},
		"one":                   {changes: []format.Expiration{change(1, "cluster", "key", 2031, false)}, year: 2031, number: 1},
		"the newest counts":     {changes: []format.Expiration{change(2, "cluster", "key", 2032, true), change(1, "cluster", "key", 2031, false)}, year: 2032, held: true, number: 2},
		"released":              {changes: []format.Expiration{change(2, "cluster", "key", 2030, true), change(3, "cluster", "key", 2030, false)}, year: 2030, number: 3},
		"another key of ours":   {changes: []format.Expiration{change(1, "cluster", "old-key", 2031, true)}, year: 2031, held: true, number: 1},
		"a stranger's key":      {changes: []format.Expiration{change(1, "cluster", "key", 2031, true), change(7, "cluster", "stolen", 2001, false)}, year: 2031, held: true, number: 1},
		"another cluster":       {changes: []format.Expiration{change(1, "their-cluster", "their-key", 2001, false)}, year: 2030},
		"theirs, by themselves": {theirs: true, changes: []format.Expiration{change(1, "their-cluster", "their-key", 2031, true)}, year: 2031, held: true, number: 1},
		"theirs, by us":         {theirs: true, changes: []format.Expiration{change(1, "cluster", "key", 2001, false)}, year: 2030},
		"theirs, in our name":   {theirs: true, changes: []format.Expiration{change(1, "cluster", "their-key", 2001, false)}, year: 2030},
		"theirs, in their name": {theirs: true, changes: []format.Expiration{change(1, "their-cluster", "key", 2001, false)}, year: 2030},
	} {
		t.Run(name, func(t *testing.T) {
			c := New("holdfast", nil)
			c.SetIdentity(identity.Identity{UID: "cluster", Keys: []string{"key", "old-key"}})
			content := Content{Backup: stored("default", "shop.daily", 5), Changes: test.changes}
			content.Backup.Status.Expiration = at(2030)
			content.Backup.Status.Origin.ClusterUID, content.Backup.Status.Origin.PublicKey = "cluster", "key"
			if test.theirs {
				ofTheirs(content.Backup.Status.Origin)
			}
			c.Put("default", "shop.daily", content, time.Unix(1, 0))
			check := func(when string) {
				backups := c.Backups()
				if len(backups) != 1 {
					t.Fatalf("%s: listed %v", when, backups)
				}
				status := backups[0].Status
				if status.Expiration.UTC().Year() != test.year || (status.Hold != nil) != test.held || status.ExpirationChanges != test.number {
					t.Errorf("%s: it expires in %s, held by %v, after %d changes", when, status.Expiration, status.Hold, status.ExpirationChanges)
				}
			}
			check("at first")
			c.SetTrustedClusters(trusting())
			c.SetNamespaces(map[string]types.UID{"shop": "another"})
			check("placed anew")
		})
	}
}

// A listing that shows another set of changes has the backup read again, and no other does.
func TestChangesAreReadOnce(t *testing.T) {
	c := New("holdfast", nil)
	key := func(number int64) string { return format.ExpirationKey("shop.daily", changedUID, number) }
	put := func(keys []string) {
		content := Content{Backup: stored("default", "shop.daily", 5), ChangesRead: keys}
		content.Backup.UID = changedUID
		c.Put("default", "shop.daily", content, time.Unix(1, 0))
	}
	put(nil)
	others := []string{format.ExpirationKey("shop.daily", "1"+changedUID[1:], 5), format.ExpirationKey("gone", changedUID, 1), "backups/file"}
	if read := c.ObserveChanges("default", nil, others); len(read) > 0 {
		t.Errorf("of others' changes, %q are read", read)
	}
	listed := append(others, key(9), key(10))
	if read := c.ObserveChanges("default", nil, listed); !slices.Equal(read, []string{"shop.daily"}) {
		t.Errorf("read %q", read)
	}
	want := []string{key(10), key(9)}
	if got := c.Changes("default", "shop.daily", changedUID); !slices.Equal(got, want) {
		t.Errorf("its changes are %q", got)
	}
	put(want)
	if read := c.ObserveChanges("default", nil, listed); len(read) > 0 {
		t.Errorf("read again: %q", read)
	}
	if read := c.ObserveChanges("default", nil, nil); len(read) != 1 {
		t.Error("those that are gone are believed for good")
	}
}
