// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"time"
)

const (
	// Fewer than so many backups may go at once without suspicion, or less than one
	// in lossShare of them.
	lossFloor = 10
	lossShare = 20
)

// backoff is how long an entry waits before it is read again: first, and then
// twice as long each time, up to most.
type backoff struct{ first, most time.Duration }

var (
	// A file that can't be read may be repaired by hand.
	unreadableBackoff = backoff{time.Minute, 30 * time.Minute}
	// A backup of another writer may be complete any moment.
	unfinishedBackoff = backoff{20 * time.Second, 10 * time.Minute}
)

func (e *entry) retryLocked(now time.Time, wait backoff) {
	pause := wait.most
	if e.attempts < 20 { // beyond that the shift is long past most
		pause = min(wait.most, wait.first<<e.attempts)
	}
	e.attempts++
	e.retryAt = now.Add(pause)
}

// Findings are what a listing calls for.
type Findings struct {
	// Read are the store names whose content is to be read, in order.
	Read []string
	// Suspicion says why the listing is not believed as far as it lacks backups;
	// empty if it is.
	Suspicion string
}

// Observe takes a complete listing of the store names in a location, which was
// begun at the given instant: it may lack what was written, and recorded, since.
// A backup that the listing lacks for the second time in a row is dropped, unless
// too many are lacking: then all are kept, as a folder may not be mounted.
func (c *Catalog) Observe(location string, storeNames []string, begun, now time.Time) Findings {
	var findings Findings
	c.change(func(changed *recorder) {
		listed := make(map[string]bool, len(storeNames))
		for _, storeName := range storeNames {
			listed[storeName] = true
			e := c.locations[location][storeName]
			if e == nil || !e.retryAt.IsZero() && !now.Before(e.retryAt) {
				findings.Read = append(findings.Read, storeName)
			}
			if e != nil {
				e.missing = false
			}
		}
		slices.Sort(findings.Read)
		findings.Read = slices.Compact(findings.Read)

		known, lacking := 0, 0
		for storeName, e := range c.locations[location] {
			if e.backup == nil {
				continue
			}
			if !e.recordedAt.Before(begun) {
				listed[storeName] = true
			}
			if known++; !listed[storeName] {
				lacking++
			}
		}
		if lacking > 0 && (lacking == known || lacking > max(lossFloor, known/lossShare)) {
			findings.Suspicion = fmt.Sprintf("the store lists %d of %d known backups: the others are kept in the list until they are found again or the API server restarts", known-lacking, known)
		}
		for storeName, e := range c.locations[location] {
			switch {
			case listed[storeName]:
			case e.backup == nil:
				delete(c.locations[location], storeName) // nobody has seen it
			case findings.Suspicion != "":
				e.missing = false
			case e.missing:
				c.setLocked(e, nil, nil, changed)
				delete(c.locations[location], storeName)
			default:
				e.missing = true
			}
		}
	})
	return findings
}
