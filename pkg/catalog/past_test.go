// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import "testing"

// TestALocationAsOfATimeHasNoPlainNames: its backups are listed with its name, however it sorts,
// and even if no other location has them. They are no good copies.
func TestALocationAsOfATimeHasNoPlainNames(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		c, _ := newMirror(t)
		c.SetPast(map[string]bool{"a": true})
		for _, location := range order {
			c.Put(location, "daily", Content{Backup: stored(location, "daily", 5), Volumes: []Volume{claim(system, "data", 1, 5)}}, t0)
		}
		want(t, order[0]+" first", names(c.Backups()), "holdfast/daily holdfast/daily@a")
		want(t, order[0]+" first", c.Backup(system, "daily").Spec.StorageLocation, "b")
		if past := c.Backup(system, "daily@a"); c.IsGood(system, "daily@a", past.UID) {
			t.Error("a backup as of a time counts as a good copy")
		}
		c.Forget("b")
		want(t, order[0]+" first, alone", names(c.Backups()), "holdfast/daily@a")
	}
}
