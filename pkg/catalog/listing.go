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
	// So long a loss is held in doubt. It is time enough to mount a folder again.
	doubt = time.Hour
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
// What becomes of the backups that it lacks is said in promise 3 of the package.
func (c *Catalog) Observe(location string, storeNames []string, begun, now time.Time) Findings {
	var findings Findings
	c.change(func(changed *recorder) {
		listed := make(map[string]bool, len(storeNames))
		for _, storeName := range storeNames {
			listed[storeName] = true
			e := c.entryLocked(location, storeName)
			if unread := e.backup == nil && e.retryAt.IsZero(); unread || !e.retryAt.IsZero() && !now.Before(e.retryAt) {
				findings.Read = append(findings.Read, storeName)
			}
			e.missingSince, e.suspect = time.Time{}, false
		}
		slices.Sort(findings.Read)
		findings.Read = slices.Compact(findings.Read)

		known := 0
		var lacking, dubious []*entry
		for storeName, e := range c.locations[location] {
			switch {
			case e.backup == nil && !listed[storeName]:
				delete(c.locations[location], storeName) // nobody has seen it
			case e.backup == nil:
			case listed[storeName] || !e.recordedAt.Before(begun):
				known++
			default:
				known++
				lacking = append(lacking, e)
			}
		}
		empty := len(lacking) == known
		for _, e := range lacking {
			if e.missingSince.IsZero() {
				e.missingSince = begun
			}
			if fresh := e.missingSince.Equal(begun); (fresh || e.suspect || empty) && !e.overdue(begun) {
				dubious = append(dubious, e)
			}
		}
		doubted := len(dubious) > max(lossFloor, known/lossShare) || empty && len(dubious) > 0
		for _, e := range dubious {
			if e.suspect && !doubted {
				e.missingSince = begun // as if nobody had missed it before
			}
			e.suspect = doubted
		}
		for _, e := range lacking {
			if e.overdue(begun) || !doubted && e.missingSince.Before(begun) {
				c.setLocked(e, nil, nil, changed)
				delete(c.locations[location], e.storeName)
			}
		}
		if !doubted {
			c.listed[location] = begun
		} else {
			findings.Suspicion = fmt.Sprintf("the store lists %d of %d known backups: the others stay in the list until they are found again, or have been missing for an hour", known-len(lacking), known)
		}
	})
	return findings
}

// overdue reports whether every listing of so long a time has lacked an entry that
// there is no doubt left.
func (e *entry) overdue(begun time.Time) bool { return !begun.Before(e.missingSince.Add(doubt)) }
