// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"
	"slices"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Assignment is a ticket for a run.
type Assignment struct {
	Key    string
	Ticket int64
}

// Decision is what to do now.
//
// Guarantees:
//  1. No two runs of Start overlap, and none overlaps a run that uses a slot or
//     a queued run ahead of it.
//  2. SlotsInUse + len(Start) <= Limit, unless SlotsInUse alone is greater; then
//     Start is empty.
type Decision struct {
	// Tickets are for the New runs to become Queued with, in increasing order.
	Tickets []Assignment
	// Start holds the keys of the queued runs that may become ReadyToStart now,
	// in order. All may, together.
	Start []string
	// SlotsInUse counts the runs that use a slot, without those that start now.
	SlotsInUse int
	// Limit is the number of slots.
	Limit int
}

// Plan is what to do now, and the explanation of what is not done yet. It
// depends on nothing but the records, not even on their order.
//
// Guarantees, besides those of Decision:
//  1. The positions of the queued entries are 1..n, in the order of Entries.
//  2. Each queued entry has a reason; NextToStart exactly if it is in Start.
type Plan struct {
	Decision
	// Entries has one entry for each run that uses a slot or is queued: running
	// ones first, then ready ones, then the queue, each in order of tickets.
	Entries []Entry
}

// Decide computes the plan for a snapshot: once, for who keeps no Planner. Its
// error wraps ErrLimit.
func Decide(s Snapshot) (Plan, error) {
	if err := checkLimit(s.Limit); err != nil {
		return Plan{}, err
	}
	last := s.LastTicket
	var fresh, holding, queued []*Run
	for i := range s.Runs {
		r := &s.Runs[i]
		last = max(last, r.Ticket)
		switch {
		case r.isNew():
			fresh = append(fresh, r)
		case r.usesSlot():
			holding = append(holding, r)
		case r.isQueued():
			queued = append(queued, r)
		}
	}
	slices.SortFunc(fresh, byArrival)
	slices.SortFunc(holding, byTicket)
	slices.SortFunc(queued, byTicket)

	d := decider{
		snapshot:   &s,
		namespaces: s.Namespaces,
		ahead:      newAhead(),
		plan: Plan{
			Decision: Decision{Tickets: assignTickets(fresh, last), SlotsInUse: len(holding), Limit: s.Limit},
			Entries:  make([]Entry, 0, len(holding)+len(queued)),
		},
	}
	if !slices.IsSorted(d.namespaces) {
		d.namespaces = slices.Sorted(slices.Values(d.namespaces))
	}
	for _, r := range holding {
		d.holders.add(r)
	}
	for _, state := range []v1alpha1.QueueState{v1alpha1.QueueStateRunning, v1alpha1.QueueStateReady} {
		for _, r := range holding {
			if stateOf(r) == state {
				d.plan.Entries = append(d.plan.Entries, newEntry(r))
			}
		}
	}
	for i, r := range queued {
		e := newEntry(r)
		e.Position = i + 1
		d.decide(r, &e)
		e.Message = e.message()
		d.plan.Entries = append(d.plan.Entries, e)
	}
	return d.plan, nil
}

// decider walks the queue from its head. One pass is enough: a run that starts
// can't unblock one ahead of it, which was refused while more slots were free.
type decider struct {
	snapshot   *Snapshot
	namespaces []string // sorted
	holders    holders
	ahead      ahead
	plan       Plan
}

// decide settles one queued run, all those ahead of it being settled.
func (d *decider) decide(r *Run, e *Entry) {
	if location, known := d.snapshot.Locations[r.Location]; !location.Available {
		e.blameLocation(r.Location, location, known)
		d.ahead.add(r)
		return
	}
	if blockers := d.holders.overlapping(r); len(blockers) > 0 {
		e.blame(blockers, d.namespaces)
		e.Reason = e.overlapReason()
		d.ahead.add(r)
		return
	}
	if blocker := d.ahead.first(r); blocker != nil {
		e.Reason = v1alpha1.QueueReasonBehindOverlapping
		e.blame([]*Run{blocker}, d.namespaces)
		d.ahead.add(r)
		return
	}
	if inUse := len(d.holders.runs); inUse >= d.snapshot.Limit {
		e.Reason = v1alpha1.QueueReasonConcurrencyLimit
		e.inUse, e.limit = inUse, d.snapshot.Limit
		d.ahead.add(r)
		return
	}
	e.Reason = v1alpha1.QueueReasonNextToStart
	d.plan.Start = append(d.plan.Start, r.Key)
	d.holders.add(r)
}

// assignTickets gives each of the New runs, which are in order, a ticket that is
// greater than the last one given.
func assignTickets(fresh []*Run, last int64) []Assignment {
	var tickets []Assignment
	for _, r := range fresh {
		// A forged record may carry the greatest ticket of all. Equal tickets are
		// then still ordered by creation; wrapped ones would jump the queue.
		if last < math.MaxInt64 {
			last++
		}
		tickets = append(tickets, Assignment{Key: r.Key, Ticket: last})
	}
	return tickets
}
