// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Plan is what to do now, and the explanation of what is not done yet. It
// depends on nothing but the Snapshot, not even on the order of its runs.
//
// Guarantees:
//  1. No two runs of Start overlap, and none overlaps a run that uses a slot or
//     a queued run ahead of it.
//  2. SlotsInUse + len(Start) <= Limit, unless SlotsInUse alone is greater; then
//     Start is empty.
//  3. The positions of the queued entries are 1..n, in the order of Entries.
//  4. Each queued entry has a reason; NextToStart exactly if it is in Start.
type Plan struct {
	// Tickets are for the New runs to become Queued with, in increasing order.
	Tickets []Assignment
	// Start holds the keys of the queued runs that may become ReadyToStart now,
	// in order. All may, together.
	Start []string
	// Entries has one entry for each run that uses a slot or is queued: running
	// ones first, then ready ones, then the queue, each in order of tickets.
	Entries []Entry
	// SlotsInUse counts the runs that use a slot, as the Snapshot has it.
	SlotsInUse int
	// Limit is that of the Snapshot.
	Limit int
}

// maxConflicts bounds ConflictNamespaces, so that the size of a queue entry
// does not follow that of the cluster.
const maxConflicts = 16

// Decide computes the plan for a snapshot. It fails only as Snapshot.Validate
// does.
func Decide(s Snapshot) (Plan, error) {
	if err := s.Validate(); err != nil {
		return Plan{}, err
	}
	var holding, queued []*Run
	for i := range s.Runs {
		switch r := &s.Runs[i]; {
		case r.usesSlot():
			holding = append(holding, r)
		case r.Phase == v1alpha1.BackupPhaseQueued && !r.Cancelled:
			queued = append(queued, r)
		}
	}
	slices.SortFunc(holding, byTicket)
	slices.SortFunc(queued, byTicket)

	d := decider{
		snapshot:   &s,
		namespaces: s.Namespaces,
		ahead:      newAhead(),
		plan: Plan{
			Tickets:    assignTickets(&s),
			Entries:    make([]Entry, 0, len(holding)+len(queued)),
			SlotsInUse: len(holding),
			Limit:      s.Limit,
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
		e.Reason = v1alpha1.QueueReasonStorageUnavailable
		e.location, e.locationMessage = r.Location, location.Message
		if !known {
			e.locationMessage = "it does not exist"
		}
		d.ahead.add(r)
		return
	}
	if blockers := d.holders.overlapping(r); len(blockers) > 0 {
		e.Reason = v1alpha1.QueueReasonClusterScopeOverlap
		d.explain(r, e, blockers)
		if e.byNamespace {
			e.Reason = v1alpha1.QueueReasonNamespaceOverlap
		}
		d.ahead.add(r)
		return
	}
	if blocker := d.ahead.first(r); blocker != nil {
		e.Reason = v1alpha1.QueueReasonBehindOverlapping
		d.explain(r, e, []*Run{blocker})
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

// explain fills in who blocks the run, and where.
func (d *decider) explain(r *Run, e *Entry, blockers []*Run) {
	slices.SortFunc(blockers, byTicket) // those of this plan come last otherwise
	var conflicts []string
	e.Blockers = make([]Blocker, 0, len(blockers))
	for _, b := range blockers {
		e.Blockers = append(e.Blockers, Blocker{Key: b.Key, Namespace: b.Namespace, Name: b.Name, State: stateOf(b)})
		if !selection.Overlaps(r.Selection, b.Selection) {
			continue
		}
		e.byNamespace = true
		n := 0
		for name := range selection.Shared(r.Selection, b.Selection, d.namespaces) {
			conflicts = append(conflicts, name)
			if n++; n > maxConflicts {
				break
			}
		}
	}
	slices.Sort(conflicts)
	conflicts = slices.Compact(conflicts)
	if len(conflicts) > maxConflicts {
		conflicts, e.MoreConflicts = conflicts[:maxConflicts], true
	}
	e.ConflictNamespaces = conflicts
}
