// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
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
	limit      int
	namespaces []string // sorted
	locations  map[string]LocationState
	lastTicket int64

	runs  map[types.UID]*member // by uid: those in line, and the fresh ones
	fresh []*member             // the New runs, in order of creation; they are in no lane
	line  []*member             // those that use a slot and then the queued ones, in order
	// slotsInUse counts those in line that use a slot.
	slotsInUse int

	names        map[string]*lane // by name
	patterns     map[string]*lane // by keyOf the selection
	clusterScope lane
	passes       int

	// starts are the members that may start, in order, unless changed is set.
	starts  []*member
	changed bool
}

// NewPlanner returns a Planner with no runs and no locations. Its error wraps
// ErrLimit.
func NewPlanner(limit int) (*Planner, error) {
	p := &Planner{
		runs:     map[types.UID]*member{},
		names:    map[string]*lane{},
		patterns: map[string]*lane{},
	}
	if err := p.SetLimit(limit); err != nil {
		return nil, err
	}
	return p, nil
}

// SetLimit sets the number of slots. On an error, which wraps ErrLimit, the limit
// stays what it was.
func (p *Planner) SetLimit(limit int) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	p.limit, p.changed = limit, true
	return nil
}

// SetLocations sets what is known of the storage locations, by name. The Planner
// keeps the map: the caller must not change it.
func (p *Planner) SetLocations(locations map[string]LocationState) {
	p.locations, p.changed = locations, true
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

// Update takes note of a run, in whatever phase, in place of what was known by
// its uid.
func (p *Planner) Update(run Run) {
	p.Remember(run.Ticket)
	m, known := newMember(run), p.runs[run.UID]
	if known != nil && known.inLine() && m.inLine() && m.Selection == known.Selection && m.ClusterScoped == known.ClusterScoped {
		p.replace(known, m)
		p.runs[run.UID], p.changed = m, true
		return
	}
	p.Remove(run.UID)
	switch {
	case m.inLine():
		p.enter(m)
	case run.isNew():
		at, _ := slices.BinarySearchFunc(p.fresh, m, byAge)
		p.fresh = slices.Insert(p.fresh, at, m)
	default:
		return
	}
	p.runs[run.UID], p.changed = m, true
}

// Remove takes note that a run's record is gone. Its ticket is not given again.
func (p *Planner) Remove(uid types.UID) {
	m := p.runs[uid]
	if m == nil {
		return
	}
	if !m.inLine() {
		at, _ := slices.BinarySearchFunc(p.fresh, m, byAge)
		p.fresh = slices.Delete(p.fresh, at, at+1)
	} else {
		p.leave(m)
	}
	delete(p.runs, uid)
	p.changed = true
}

func byAge(a, b *member) int { return byArrival(&a.Run, &b.Run) }

// Next is what to do now.
func (p *Planner) Next() Decision {
	d := Decision{Tickets: p.tickets(), SlotsInUse: p.slotsInUse, Limit: p.limit}
	for _, m := range p.starting() {
		d.Start = append(d.Start, m.UID)
	}
	return d
}

func (p *Planner) tickets() []Assignment {
	last := p.lastTicket
	var tickets []Assignment
	for _, m := range p.fresh {
		// A forged record may carry the greatest ticket of all. Equal tickets are
		// then still ordered by creation; wrapped ones would jump the queue.
		if last < math.MaxInt64 {
			last++
		}
		tickets = append(tickets, Assignment{UID: m.UID, Ticket: last})
	}
	return tickets
}

// starting returns the members that may start now. One that starts blocks the
// same others as it did in the queue, so all may that overlap none before them,
// as far as there are slots.
func (p *Planner) starting() []*member {
	if !p.changed {
		return p.starts
	}
	p.changed = false
	for _, m := range p.starts {
		m.starts = false
	}
	p.starts = p.starts[:0]
	for _, m := range p.line[p.slotsInUse:] {
		if p.slotsInUse+len(p.starts) >= p.limit {
			break
		}
		if m.waits == 0 && p.locations[m.Location].Available {
			m.starts = true
			p.starts = append(p.starts, m)
		}
	}
	return p.starts
}

// Plan is Next with all entries.
func (p *Planner) Plan() Plan {
	plan := Plan{Decision: p.Next(), Entries: make([]Entry, 0, p.Len())}
	for i := range p.Len() {
		plan.Entries = append(plan.Entries, p.EntryAt(i))
	}
	return plan
}

// Len is the number of entries.
func (p *Planner) Len() int { return len(p.line) }

// NewRuns are the runs that have no ticket yet, in the order in which they get one.
func (p *Planner) NewRuns() []Run {
	runs := make([]Run, 0, len(p.fresh))
	for _, m := range p.fresh {
		runs = append(runs, m.Run)
	}
	return runs
}

// RunAt is the run of EntryAt(i).
func (p *Planner) RunAt(i int) Run { return p.line[i].Run }

// ReasonAt is the Reason of EntryAt(i), for less.
func (p *Planner) ReasonAt(i int) v1alpha1.QueueReason {
	if i < p.slotsInUse {
		return ""
	}
	reason, _ := p.reason(p.line[i])
	return reason
}

// EntryAt is Entries[i] of the Plan, for i from 0 to Len()-1.
func (p *Planner) EntryAt(i int) Entry {
	m := p.line[i]
	e := newEntry(&m.Run)
	if i < p.slotsInUse {
		return e
	}
	e.Position = i - p.slotsInUse + 1
	var blockers []*Run
	switch e.Reason, blockers = p.reason(m); e.Reason {
	case v1alpha1.QueueReasonStorageUnavailable:
		e.blameLocation(m.Location, p.locations)
	case v1alpha1.QueueReasonNextToStart:
	case v1alpha1.QueueReasonConcurrencyLimit:
		e.inUse, e.limit = p.slotsInUse+len(p.starting()), p.limit
	default:
		e.blame(blockers, p.namespaces)
	}
	e.Message = e.message()
	return e
}

// Entry is that of the run with this uid; false if it has none.
func (p *Planner) Entry(uid types.UID) (Entry, bool) {
	m := p.runs[uid]
	if m == nil || !m.inLine() {
		return Entry{}, false
	}
	return p.EntryAt(find(p.line, m)), true
}

// reason is why a queued member waits, and for whom.
func (p *Planner) reason(m *member) (v1alpha1.QueueReason, []*Run) {
	p.starting()
	switch {
	case !p.locations[m.Location].Available:
		return v1alpha1.QueueReasonStorageUnavailable, nil
	case m.starts:
		return v1alpha1.QueueReasonNextToStart, nil
	case m.waits == 0:
		return v1alpha1.QueueReasonConcurrencyLimit, nil
	}
	blockers := p.holding(m)
	if len(blockers) == 0 {
		return v1alpha1.QueueReasonBehindOverlapping, []*Run{&p.ahead(m).Run}
	}
	for _, b := range blockers {
		if selection.Overlaps(m.Selection, b.Selection) {
			return v1alpha1.QueueReasonNamespaceOverlap, blockers
		}
	}
	return v1alpha1.QueueReasonClusterScopeOverlap, blockers
}

// holding returns the members that use a slot, or start now, and that a queued
// one overlaps, in order of tickets.
func (p *Planner) holding(m *member) []*Run {
	var found []*Run
	if m.Selection.Exact() {
		// They are the first in their lanes: one that starts has none before it.
		for l := range p.lanes(m) {
			for _, other := range l.exclusive {
				if !other.usesSlot() && !other.starts {
					break
				}
				found = append(found, &other.Run)
			}
		}
	} else {
		for _, members := range [][]*member{p.line[:p.slotsInUse], p.starting()} {
			for _, other := range members {
				if m.overlaps(&other.Run) {
					found = append(found, &other.Run)
				}
			}
		}
	}
	slices.SortFunc(found, byTicket)
	return slices.Compact(found)
}

// ahead is the first member that m overlaps, of those before it, or nil.
func (p *Planner) ahead(m *member) *member {
	var first *member
	for l, shared := range p.lanes(m) {
		if other := l.ahead(m, shared); other != nil && (first == nil || other.before(first)) {
			first = other
		}
	}
	return first
}
