// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"time"
)

const (
	// A loss of more than lossFloor backups and one in lossShare is suspicious.
	lossFloor = 10
	lossShare = 20
)

// backoff is the wait before a read: first, doubled each time, up to most.
type backoff struct{ first, most time.Duration }

var (
	// An unreadable file may be repaired by hand.
	unreadableBackoff = backoff{time.Minute, 30 * time.Minute}
	// Another writer's backup may complete any moment.
	unfinishedBackoff = backoff{20 * time.Second, 10 * time.Minute}
)

func (e *entry) retryLocked(now time.Time, wait backoff) {
	pause := wait.most
	if e.attempts < 20 { // later shifts exceed most anyway
		pause = min(wait.most, wait.first<<e.attempts)
	}
	e.attempts++
	e.retryAt = now.Add(pause)
}

// Listing has the names that a store, or one shard, lists.
type Listing struct {
	Names []string
	// Holds reports whether the listing covers a name; nil covers all.
	Holds func(name string) bool
	// Begun is its start. It may lack later writes.
	Begun time.Time
	// Suspicion says why missing entries are doubted.
	Suspicion string
	// Accepted lets all entries leave that are missing at that instant, not before.
	Accepted time.Time
}

// Findings are the consequences of a listing.
type Findings struct {
	Read []string
	Gone []string
	// Suspicion says why missing entries are still shown.
	Suspicion string
}

// Observe is ObserveListing of everything.
func (c *Catalog) Observe(location string, names []string, begun, now time.Time) Findings {
	return c.ObserveListing(location, Listing{Names: names, Begun: begun}, now)
}

// ObserveListing takes a complete listing. docs/catalogue.md ("When backups are missing") says when
// missing entries leave.
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

func (e *entry) toRead(now time.Time) bool {
	switch {
	case e.again:
		return true
	case e.retryAt.IsZero():
		return !e.known() && !e.leftOut
	}
	return !now.Before(e.retryAt)
}

type losses struct {
	// known counts entries without accepted and explained losses; missing is the missing part.
	known, missing int
	// accepted, explained and confirmed are missing twice; confirmed are not too many.
	accepted, explained, confirmed []*entry
	fresh                          []*entry
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

func (l *losses) judge(listing *Listing) (doubted bool) {
	if l.missing == l.known || listing.Suspicion != "" {
		l.fresh, l.confirmed = append(l.fresh, l.confirmed...), nil
		doubted = len(l.fresh) > 0
	}
	doubted = doubted || isTooMuch(len(l.fresh), l.known)
	for _, e := range l.fresh {
		if e.suspect && !doubted {
			e.missingSince = listing.Begun // as if it were missing for the first time
		}
		e.suspect = doubted
	}
	return doubted
}

func isTooMuch(lost, known int) bool { return lost > max(lossFloor, known/lossShare) }

// IsSuspicious reports whether doubtfully few known backups were found.
func IsSuspicious(known, found int) bool {
	return isTooMuch(known-found, known) || found == 0 && known > 0
}

// gone returns the entries that leave: in doubt, only accepted losses.
func (l *losses) gone(doubted bool) []*entry {
	if doubted {
		return l.accepted
	}
	return slices.Concat(l.accepted, l.explained, l.confirmed)
}

func (e *entry) expired(by time.Time) bool {
	if e.backup == nil {
		return false
	}
	status := &e.backup.Status
	return status.Expiration != nil && status.Hold == nil && status.Expiration.Time.Before(by)
}
