// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Planner is told of changes and answers at any time for the records as they are
// then. A change costs what it touches, and an entry is explained when it is asked
// for.
//
// It remembers what it was last told of each run, and the greatest ticket of all.
// So what it answers does not depend on the order in which it was told, and a new
// one that is told the same records goes on where another one stopped.
//
// It is not safe for concurrent use, not even to read. Its owner has the lock.
type Planner struct {
	limits     Slots
	namespaces []string // sorted
	locations  map[string]LocationState
	lastTicket int64

	runs map[types.UID]*member
	// line are those that use a slot, then the queued ones, and then the New ones.
	line   []*member
	counts [ranks]Slots
	// plans are those of counts that are plans.
	plans [ranks]int

	names    map[string]*name
	patterns map[string]*pattern // by their selection's Key
	// slots are the patterns by their places, and free are the unused places.
	slots []*pattern
	free  []int
	// Those that touch cluster-scoped resources, those that overlap everything, those with
	// patterns, and those with loose patterns.
	clusterScope, everything, patterned, loose user

	// The pass is over so many of the line, and starts are those of them that may start,
	// so many of each class.
	pass, passed int
	first        *member // the first in the line that is not held
	starts       []*member
	starting     Slots
	plansStart   int
}

// NewPlanner returns a Planner with no runs and no locations. Its error wraps
// ErrLimit.
func NewPlanner(limits Slots) (*Planner, error) {
	p := &Planner{
		runs:     map[types.UID]*member{},
		names:    map[string]*name{},
		patterns: map[string]*pattern{},
	}
	if err := p.SetLimits(limits); err != nil {
		return nil, err
	}
	return p, nil
}

// SetLimits sets the numbers of slots. On an error, which wraps ErrLimit, they stay
// what they were.
func (p *Planner) SetLimits(limits Slots) error {
	if slices.Min(limits[:]) < 1 {
		return fmt.Errorf("%w, not %d and %d", ErrLimit, limits[Backup], limits[Restore])
	}
	p.limits = limits
	p.restart()
	return nil
}

// SetLocations sets what is known of the storage locations, by name. The Planner
// keeps the map: the caller must not change it.
func (p *Planner) SetLocations(locations map[string]LocationState) {
	p.locations = locations
	p.restart()
}

// SetNamespaces sets the namespaces that exist, in any order. If they are sorted,
// the Planner keeps the slice: the caller must not change it.
func (p *Planner) SetNamespaces(namespaces []string) {
	if !slices.IsSorted(namespaces) {
		namespaces = slices.Sorted(slices.Values(namespaces))
	}
	p.namespaces = namespaces
}

// Remember makes all tickets given from now on greater than this one. Those of
// the runs that the Planner is told of need not be told. Call it before a ticket
// is written, in case the write is done and its answer lost.
func (p *Planner) Remember(ticket int64) { p.lastTicket = max(p.lastTicket, ticket) }

// Update takes note of a run, in whatever phase, in place of what was known by its uid,
// and reports whether the queue may be another one by that.
func (p *Planner) Update(run Run) bool {
	p.Remember(run.Ticket)
	rank := rankOf(&run)
	m := p.runs[run.UID]
	switch {
	case rank == ranks:
		return p.Remove(run.UID)
	case m != nil && m.Run == run:
		return false
	case m != nil && m.Selection == run.Selection:
		p.leaveLine(m)
	default:
		p.Remove(run.UID)
		m = &member{}
		m.Run = run
		p.enter(m)
		p.runs[run.UID] = m
	}
	m.Run, m.rank = run, rank
	at, _ := slices.BinarySearchFunc(p.line, m, compare)
	p.line = slices.Insert(p.line, at, m)
	p.counts[rank][run.Class]++
	if run.Plan {
		p.plans[rank]++
	}
	p.restart()
	return true
}

// Remove takes note that a run's record is gone, and reports whether the queue may be
// another one by that. Its ticket is not given again.
func (p *Planner) Remove(uid types.UID) bool {
	m := p.runs[uid]
	if m == nil {
		return false
	}
	p.leaveLine(m)
	p.leave(m)
	delete(p.runs, uid)
	p.restart()
	return true
}

func (p *Planner) leaveLine(m *member) {
	at, _ := slices.BinarySearchFunc(p.line, m, compare)
	p.line = slices.Delete(p.line, at, at+1)
	p.counts[m.rank][m.Class]--
	if m.Plan {
		p.plans[m.rank]--
	}
}

// inUse counts the runs of a class that use a slot, and those that start as far as the
// pass is. Plans use none of its.
func (p *Planner) inUse(c Class) int {
	used := p.counts[rankRunning][c] + p.counts[rankReady][c] + p.starting[c]
	if c == Restore {
		used -= p.plans[rankRunning] + p.plans[rankReady]
	}
	return used
}

// isFull says whether no slot is left for another start.
func (p *Planner) isFull(c Class) bool { return p.inUse(c) >= p.limits[c] }

// plansInUse counts the plans as inUse does the others.
func (p *Planner) plansInUse() int {
	return p.plans[rankRunning] + p.plans[rankReady] + p.plansStart
}

// slotsFor are the slots that a member may have: those in use, and all.
func (p *Planner) slotsFor(m *member) (inUse, limit int) {
	if m.Plan {
		return p.plansInUse(), PlanSlots
	}
	return p.inUse(m.Class), p.limits[m.Class]
}

// slotted counts the runs that use a slot: so many are the first in the line.
func (p *Planner) slotted() int { return p.counts[rankRunning].Sum() + p.counts[rankReady].Sum() }

// Len is the number of entries.
func (p *Planner) Len() int { return p.slotted() + p.counts[rankQueued].Sum() }

// end is the place in the line from which on nothing may start for lack of slots.
func (p *Planner) end() int {
	switch {
	case !p.isFull(Backup):
		return p.Len()
	case !p.isFull(Restore), p.plans[rankQueued] > 0 && p.plansInUse() < PlanSlots:
		return p.Len() - p.counts[rankQueued][Backup]
	}
	return 0
}

// Next is what to do now.
func (p *Planner) Next() Decision {
	// One that starts blocks the same others as it did in the queue, so all may that
	// overlap none before them, as far as there are slots.
	for p.passed < p.end() {
		p.advance(p.passed + 1)
	}
	d := Decision{InUse: Slots{p.inUse(Backup), p.inUse(Restore)}, Limits: p.limits}
	for _, m := range p.starts {
		d.Start = append(d.Start, m.UID)
	}
	last := p.lastTicket
	for _, m := range p.line[p.Len():] {
		// A forged record may carry the greatest ticket of all. Equal tickets are
		// then still ordered by creation; wrapped ones would jump the queue.
		if last < math.MaxInt64 {
			last++
		}
		d.Tickets = append(d.Tickets, Assignment{UID: m.UID, Ticket: last})
	}
	return d
}

// Plan is Next with all entries.
func (p *Planner) Plan() Plan {
	plan := Plan{Decision: p.Next(), Entries: make([]Entry, 0, p.Len())}
	for i := range p.Len() {
		plan.Entries = append(plan.Entries, p.EntryAt(i))
	}
	return plan
}

// Line are the runs that use a slot, the queued ones, each with the reason why it waits,
// and the New ones.
func (p *Planner) Line() iter.Seq2[Run, v1alpha1.QueueReason] {
	return func(yield func(Run, v1alpha1.QueueReason) bool) {
		p.advance(p.Len())
		for _, m := range p.line {
			if !yield(m.Run, m.reason) {
				return
			}
		}
	}
}

// EntryAt is Entries[i] of the Plan, for i from 0 to Len()-1.
func (p *Planner) EntryAt(i int) Entry {
	p.advance(i + 1)
	m := p.line[i]
	e := Entry{
		Class: m.Class, UID: m.UID, Namespace: m.Namespace, Name: m.Name,
		State: m.State(), WaitingSince: m.WaitingSince, selection: m.Selection,
	}
	if m.rank < rankQueued {
		return e
	}
	e.Position, e.Reason = i-p.slotted()+1, m.reason
	switch m.reason {
	case v1alpha1.QueueReasonStorageUnavailable:
		state, known := p.locations[m.Location]
		e.location, e.locationMessage = m.Location, state.Message
		if !known {
			e.locationMessage = "it does not exist"
		}
	case v1alpha1.QueueReasonConcurrencyLimit:
		e.inUse, e.limit = p.slotsFor(m)
	case v1alpha1.QueueReasonBehindOverlapping:
		e.blame([]*Run{&m.ahead.Run}, p.namespaces)
	case v1alpha1.QueueReasonNamespaceOverlap, v1alpha1.QueueReasonClusterScopeOverlap:
		var blockers []*Run
		for _, holding := range [][]*member{p.line[:p.slotted()], p.starts} {
			for _, other := range holding {
				if m.overlaps(&other.Run) {
					blockers = append(blockers, &other.Run)
				}
			}
		}
		e.blame(blockers, p.namespaces)
	}
	e.Message = e.message()
	return e
}

// Entry is that of the run with this uid; false if it has none.
func (p *Planner) Entry(uid types.UID) (Entry, bool) {
	m := p.runs[uid]
	if m == nil || m.rank == rankNew {
		return Entry{}, false
	}
	at, _ := slices.BinarySearchFunc(p.line, m, compare)
	return p.EntryAt(at), true
}
