// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

// Versions returns an entry's Content.Versions. Don't modify them.
func (c *Catalog) Versions(location, name string) map[string]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.locations[location][name]; e != nil {
		return e.versions
	}
	return nil
}

// HasVersions reports whether any entry's version in a location is known.
func (c *Catalog) HasVersions(location string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, e := range c.locations[location] {
		if len(e.versions) > 0 {
			return true
		}
	}
	return false
}

// EntryVolumes returns copies of an entry's volumes, also deleted ones.
func (c *Catalog) EntryVolumes(location, name string) []Volume {
	return c.EntryRows(location, name).Volumes()
}

// EntryRows is EntryVolumes, packed.
func (c *Catalog) EntryRows(location, name string) Rows {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.locations[location][name]; e != nil {
		if e.bare {
			return Rows{e.read}
		}
		return Rows{e.rows}
	}
	return Rows{}
}
