// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import "maps"

// SetPast sets the locations that show an earlier time, before their first entries. Their backups never
// have plain names, and count as no copies.
func (c *Catalog) SetPast(locations map[string]bool) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.past = maps.Clone(locations)
}

func (c *Catalog) comparePast(a, b *entry) int {
	switch {
	case c.past[a.location] == c.past[b.location]:
		return 0
	case c.past[a.location]:
		return 1
	}
	return -1
}
