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

// Planner is told of changes, and plans for the present records. A change costs what it touches;
// entries are explained on request. It keeps each run's last state, and the greatest ticket: so a new
// Planner with the same records continues.
//
// It is not safe for concurrent use, not even to read.
type Planner struct {
	limits     Slots
	namespaces []string
	locations  map[string]LocationState
	lastTicket int64

	runs map[types.UID]*member
	// line has members with slots, then queued, then New ones.
	line   []*member
	counts [ranks]Slots
	// plans counts the plans within counts.
	plans [ranks]int

	names    map[string]*name
	patterns map[string]*pattern // by Key of the selection
	// slots are the patterns by place, free the unused places.
	slots                                      []*pattern
	free                                       []int
	clusterScope, everything, patterned, loose user

	// The pass covers passed members; starts may start, counted by class.
	pass, passed int
	first        *member // the first that is not held
	starts       []*member
	starting     Slots
	plansStart   int
}

// NewPlanner returns an empty Planner. Its error wraps ErrLimit.
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

// SetLimits sets the numbers of slots. An error, which wraps ErrLimit, keeps them.
func (p *Planner) SetLimits(limits Slots) error {
	if slices.Min(limits[:]) < 1 {
		return fmt.Errorf("%w, not %d and %d", ErrLimit, limits[Backup], limits[Restore])
	}
	p.limits = limits
	p.restart()
	return nil
}

// SetLocations sets the states of storage locations by name. Don't change the map.
func (p *Planner) SetLocations(locations map[string]LocationState) {
	p.locations = locations
	p.restart()
}

// SetNamespaces sets the existing namespaces. Don't change a sorted slice.
func (p *Planner) SetNamespaces(namespaces []string) {
	if !slices.IsSorted(namespaces) {
		namespaces = slices.Sorted(slices.Values(namespaces))
	}
	p.namespaces = namespaces
}

// Remember makes new tickets greater than this one. Call it before a ticket is written, since the
// answer may be lost. Known runs' tickets are included.
func (p *Planner) Remember(ticket int64) { p.lastTicket = max(p.lastTicket, ticket) }

// Update records a run's state in any phase, and reports a possible change of the queue.
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

// Remove forgets a deleted run, and reports a possible change of the queue. Its ticket is not given
// again.
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

func (p *Planner) inUse(c Class) int {
	used := p.counts[rankRunning][c] + p.counts[rankReady][c] + p.starting[c]
	if c == Restore {
		used -= p.plans[rankRunning] + p.plans[rankReady]
	}
	return used
}

func (p *Planner) isFull(c Class) bool { return p.inUse(c) >= p.limits[c] }

func (p *Planner) plansInUse() int {
	return p.plans[rankRunning] + p.plans[rankReady] + p.plansStart
}

func (p *Planner) slotsFor(m *member) (inUse, limit int) {
	if m.Plan {
		return p.plansInUse(), PlanSlots
	}
	return p.inUse(m.Class), p.limits[m.Class]
}

func (p *Planner) slotted() int { return p.counts[rankRunning].Sum() + p.counts[rankReady].Sum() }

// Len returns the number of entries.
func (p *Planner) Len() int { return p.slotted() + p.counts[rankQueued].Sum() }

func (p *Planner) end() int {
	switch {
	case !p.isFull(Backup):
		return p.Len()
	case !p.isFull(Restore), p.plans[rankQueued] > 0 && p.plansInUse() < PlanSlots:
		return p.Len() - p.counts[rankQueued][Backup]
	}
	return 0
}

// Next returns what to do now.
func (p *Planner) Next() Decision {
	// A starting member blocks the same others as in the queue. So while slots are left, all members
	// start that overlap none before them.
	for p.passed < p.end() {
		p.advance(p.passed + 1)
	}
	d := Decision{InUse: Slots{p.inUse(Backup), p.inUse(Restore)}, Limits: p.limits}
	for _, m := range p.starts {
		d.Start = append(d.Start, m.UID)
	}
	last := p.lastTicket
	for _, m := range p.line[p.Len():] {
		// A forged record may have the greatest ticket. Equal tickets are ordered by creation; wrapped
		// ones would jump the queue.
		if last < math.MaxInt64 {
			last++
		}
		d.Tickets = append(d.Tickets, Assignment{UID: m.UID, Ticket: last})
	}
	return d
}

// Plan returns Next with all entries.
func (p *Planner) Plan() Plan {
	plan := Plan{Decision: p.Next(), Entries: make([]Entry, 0, p.Len())}
	for i := range p.Len() {
		plan.Entries = append(plan.Entries, p.EntryAt(i))
	}
	return plan
}

// Line yields runs with slots, queued ones with their reason, and New ones.
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

// EntryAt returns Entries[i] of the Plan, for i below Len().
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

// Entry returns a run's entry, or false.
func (p *Planner) Entry(uid types.UID) (Entry, bool) {
	m := p.runs[uid]
	if m == nil || m.rank == rankNew {
		return Entry{}, false
	}
	at, _ := slices.BinarySearchFunc(p.line, m, compare)
	return p.EntryAt(at), true
}
