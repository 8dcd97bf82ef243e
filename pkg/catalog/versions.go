// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

// Versions are those of what was read of an entry, as Content.Versions had them. They are not
// to be changed.
func (c *Catalog) Versions(location, name string) map[string]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.locations[location][name]; e != nil {
		return e.versions
	}
	return nil
}

// HasVersions reports whether of any entry of a location it is known in which version it was
// read.
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

// EntryVolumes are a copy of the volumes of one entry, as they were put, with
// those that are deleted.
func (c *Catalog) EntryVolumes(location, name string) []Volume {
	return c.EntryRows(location, name).Volumes()
}

// EntryRows are the same, at rest.
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
