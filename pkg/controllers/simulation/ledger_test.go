// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

func (r *referee) ledgerWritten(by, part string, ledger *corev1.ConfigMap) {
	list, err := records.Ledger(ledger)
	if errors.Is(err, records.ErrNoLedger) && len(r.ledger) == 0 {
		return // the ConfigMap is made first, and then the ledger of what runs since
	}
	if err != nil {
		r.violation("%s wrote a ledger that can't be read: %v", by, err)
		return
	}
	before := r.ledger
	r.ledger = map[types.UID]records.Start{}
	for _, start := range list {
		if _, twice := r.ledger[start.UID]; twice {
			r.violation("%s is in the ledger twice", start.Name)
		}
		r.ledger[start.UID] = start
	}
	if part == queuePart {
		r.leaderWritten(by, records.Leader(ledger))
	}
	started := 0
	for uid, start := range r.ledger {
		if _, was := before[uid]; was {
			continue
		}
		if r.ledgerLost && r.runs[uid] != nil && !r.runs[uid].begunAt.IsZero() {
			continue // it is made anew of what is in progress, or was a moment ago
		}
		started++
		r.started(by, start, r.runs[uid])
	}
	r.ledgerLost = false
	for uid, start := range before {
		if _, is := r.ledger[uid]; !is {
			r.dropped(by, r.runs[uid], start)
		}
	}
	r.counts[starts] += started
	switch {
	case part != queuePart:
	case started > 0:
		r.counts[startWrites]++
	default:
		r.counts[otherWrites]++
	}
	r.checkActive()
}

// leaderWritten judges who leads by the ledger: one after the other, and who writes it.
func (r *referee) leaderWritten(by, leader string) {
	if by != leader {
		r.violation("%s wrote the ledger of %s", by, leader)
	}
	if r.leader == leader {
		return
	}
	r.counts[takeovers]++
	if r.led.Has(leader) {
		r.violation("%s leads again, after %s", leader, r.leader)
	}
	r.led.Insert(leader)
	r.leader = leader
}

// ledgerDeleted is what people are told to do when it can't be read. What was let start,
// and is not in progress, goes back to its place.
func (r *referee) ledgerDeleted() {
	r.counts[ledgersLost]++
	r.ledger = map[types.UID]records.Start{}
	r.ledgerLost = true
}

// started judges a start: it overtakes none that overlaps it, of those that its
// process knows to wait, and not for their location.
func (r *referee) started(by string, start records.Start, t *tracked) {
	if t == nil || t.ticket == 0 {
		r.violation("%s let %s start, which is not queued", by, start.Name)
		return
	}
	if start.Restore != t.restore {
		r.violation("%s let %s start as what it is not", by, start.Name)
	}
	p := r.processes[by]
	p.mu.Lock()
	knew, read := p.knew, p.read
	p.mu.Unlock()
	if !t.begunAt.IsZero() && t.begunAt.Before(read) || t.cancelled && t.cancelledAt.Before(read) {
		r.violation("%s let %s start, which it had found %s, cancelled: %t", by, t.name, t.phase, t.cancelled)
	}
	for other, ahead := range r.waiting {
		if _, ready := r.ledger[other]; ready || !ahead.precedes(t) || !ahead.overlaps(t) || r.mayBeHeld(ahead, knew) {
			continue
		}
		if ahead.queuedBy == by || ahead.queuedAt.Before(knew) {
			r.violation("%s let %s start, ticket %d, before %s, ticket %d, which it overlaps", by, t.name, t.ticket, ahead.name, ahead.ticket)
		}
	}
}

// dropped judges what leaves the ledger: what has ended, what was not executed, and
// what was removed and is not being read any more.
func (r *referee) dropped(by string, t *tracked, start records.Start) {
	switch {
	case t.phase.Ended():
	case r.reads(t):
		r.violation("%s removed %s from the ledger, which %s still reads", by, t.name, t.executing.name)
	case t.deleted:
	case t.executions > 0:
		r.violation("%s removed %s from the ledger, which is %s", by, t.name, t.phase)
	default:
		r.counts[unclaimed]++
	}
}
