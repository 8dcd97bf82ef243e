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

// Listing is what a store lists of its entries: all of them, or those of a shard.
type Listing struct {
	// Names of the entries.
	Names []string
	// Holds reports whether an entry of this name would be among them; nil is any name.
	Holds func(name string) bool
	// Begun is when it was begun: it may lack what was written, and recorded, since.
	Begun time.Time
	// Suspicion is why it is not believed as far as it lacks entries, whichever they are;
	// empty if it is.
	Suspicion string
	// Accepted is an instant: what was missing then may go, however much it is. One that is
	// yet to come accepts nothing.
	Accepted time.Time
}

// Findings are what a listing calls for.
type Findings struct {
	// Read are the names whose content is to be read, in order.
	Read []string
	// Gone are the names that have left.
	Gone []string
	// Suspicion says why entries that the store does not list any more are still shown;
	// empty if there are none, or none that are suspect.
	Suspicion string
}

// Observe is ObserveListing of a listing of everything.
func (c *Catalog) Observe(location string, names []string, begun, now time.Time) Findings {
	return c.ObserveListing(location, Listing{Names: names, Begun: begun}, now)
}

// ObserveListing takes a complete listing. What becomes of the entries that it lacks is said
// in promise 3 of the package.
func (c *Catalog) ObserveListing(location string, listing Listing, now time.Time) Findings {
	var findings Findings
	c.change(func(changed *recorder) {
		listed := make(map[string]bool, len(listing.Names))
		for _, name := range listing.Names {
			listed[name] = true
			e := c.entryLocked(location, name)
			e.missingSince, e.suspect, e.listedAt = time.Time{}, false, listing.Begun
		}
		c.readmitLocked(location)
		var l losses
		for name, e := range c.locations[location] {
			lacking := !listed[name] && (listing.Holds == nil || listing.Holds(name))
			if lacking && !e.known() {
				c.dropLocked(e) // it was never shown
				continue
			}
			accepts := e.acceptsLoss(&listing, now)
			e.lossAccepted = e.lossAccepted || accepts
			if !lacking && e.missingSince.IsZero() && (accepts || e.toRead(now)) {
				findings.Read = append(findings.Read, name)
			}
			if e.known() {
				l.add(e, lacking && e.recordedAt.Before(listing.Begun), &listing, now)
			}
		}
		slices.Sort(findings.Read)
		doubted := l.judge(&listing)
		if doubted {
			findings.Suspicion = fmt.Sprintf("the store lacks %d of %d known backups, which stay in the list until they are found again, or their loss is accepted", l.missing, l.known)
			if listing.Suspicion != "" {
				findings.Suspicion += " (" + listing.Suspicion + ")"
			}
		} else if listing.Holds == nil {
			c.listed[location] = listing.Begun
		}
		for _, e := range l.gone(doubted) {
			c.setLocked(e, nil, nil, nil, false, changed)
			c.dropLocked(e)
			findings.Gone = append(findings.Gone, e.storeName)
		}
	})
	return findings
}

// toRead reports whether an entry that is listed is to be read.
func (e *entry) toRead(now time.Time) bool {
	switch {
	case e.again:
		return true
	case e.retryAt.IsZero():
		return !e.known() && !e.leftOut
	}
	return !now.Before(e.retryAt)
}

// losses are the entries of a location that are missing by now, in whichever shard.
type losses struct {
	// known is how many there are, but for those whose loss is explained or accepted, and
	// missing how many of these are missing.
	known, missing int
	// accepted and explained have been missing for two listings, and so have confirmed, of
	// which no more are missing than may.
	accepted, explained, confirmed []*entry
	// fresh have been missing for one, or are suspect.
	fresh []*entry
}

func (l *losses) add(e *entry, lacking bool, listing *Listing, now time.Time) {
	again := lacking && !e.missingSince.IsZero()
	if lacking && !again {
		e.missingSince = listing.Begun
	}
	switch missing := !e.missingSince.IsZero(); {
	case missing && !e.missingSince.After(listing.Accepted) && !listing.Accepted.After(now):
		if again {
			l.accepted = append(l.accepted, e)
		}
	case missing && e.expired(listing.Begun):
		if again {
			l.explained = append(l.explained, e)
		}
	case !missing:
		l.known++
	default:
		l.known++
		l.missing++
		if again && !e.suspect {
			l.confirmed = append(l.confirmed, e)
		} else {
			l.fresh = append(l.fresh, e)
		}
	}
}

// judge reports whether there is a loss to be doubted, and marks whatever is suspect by it.
func (l *losses) judge(listing *Listing) (doubted bool) {
	if l.missing == l.known || listing.Suspicion != "" {
		l.fresh, l.confirmed = append(l.fresh, l.confirmed...), nil
		doubted = len(l.fresh) > 0
	}
	doubted = doubted || isTooMuch(len(l.fresh), l.known)
	for _, e := range l.fresh {
		if e.suspect && !doubted {
			e.missingSince = listing.Begun // as if nobody had missed it before
		}
		e.suspect = doubted
	}
	return doubted
}

// isTooMuch reports whether so many can't go at once without a doubt.
func isTooMuch(lost, known int) bool { return lost > max(lossFloor, known/lossShare) }

// IsSuspicious reports whether there are doubtfully few backups, or none, where so many were
// known.
func IsSuspicious(known, found int) bool {
	return isTooMuch(known-found, known) || found == 0 && known > 0
}

// gone are those that leave. While there is a doubt, only those do whose loss is accepted.
func (l *losses) gone(doubted bool) []*entry {
	if doubted {
		return l.accepted
	}
	return slices.Concat(l.accepted, l.explained, l.confirmed)
}

// expired reports whether a backup was to be removed from its store by then, by whoever made
// it.
func (e *entry) expired(by time.Time) bool {
	if e.backup == nil {
		return false
	}
	status := &e.backup.Status
	return status.Expiration != nil && status.Hold == nil && status.Expiration.Time.Before(by)
}
