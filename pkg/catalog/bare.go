// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// missedVersions differ from all present versions, to cause a read.
var missedVersions = map[string]string{"backups": "missed"}

// keepLocked returns the rows of a bare entry: those read, and missing ones that were not deleted here.
// A row leaves when a second listing lacks it, but none while nothing is read, unless the loss is
// accepted.
func (c *Catalog) keepLocked(e *entry, rows *packedRows, now time.Time) *packedRows {
	there := map[string]bool{}
	for i := range rows.len() {
		there[rows.at(i).backupName()] = true
	}
	for _, d := range c.deletions[BackupID{Location: e.location, StoreName: e.storeName}] {
		there[d.backupName] = true
	}
	lost := slices.DeleteFunc(e.read.unpack(), func(r row) bool { return there[r.backupName()] })
	// A single unfinished row may leave: it has failed.
	emptied := rows.len() == 0 && slices.ContainsFunc(lost, func(r row) bool { return r.stateName() != v1alpha1.VolumeBackupInProgress })
	switch {
	case !emptied:
		e.emptied = time.Time{}
	case e.emptied.IsZero():
		e.emptied = now
	}
	doubted := emptied && !e.lossAccepted
	e.lossAccepted = false

	missed := map[string]time.Time{}
	lost = slices.DeleteFunc(lost, func(r row) bool {
		since, again := e.missed[r.backupName()]
		if !again {
			since = now
		}
		if again && !doubted && e.listedAt.After(since) {
			return true
		}
		missed[r.backupName()] = since
		return false
	})
	if e.missed = missed; len(missed) == 0 {
		e.missed, e.emptied = nil, time.Time{}
	} else if !doubted {
		e.versions = missedVersions
	}
	if len(lost) == 0 {
		return rows
	}
	return pack(slices.Concat(rows.unpack(), lost))
}

func (e *entry) acceptsLoss(listing *Listing, now time.Time) bool {
	return !e.emptied.IsZero() && !e.emptied.After(listing.Accepted) && !listing.Accepted.After(now)
}

// Emptied returns a suspicion if all rows of bare entries are missing.
func (c *Catalog) Emptied(location string) (suspicion string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	emptied, known := 0, 0
	for _, e := range c.locations[location] {
		if e.rows.len() == 0 || !e.bare {
			continue
		}
		if known++; !e.emptied.IsZero() {
			emptied++
		}
	}
	if emptied == 0 {
		return ""
	}
	return fmt.Sprintf("the store lacks all backups of %d of %d known volumes, which stay in the list until some are found again, or their loss is accepted", emptied, known)
}
