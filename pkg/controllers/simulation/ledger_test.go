// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

func (r *referee) ledgerWritten(by, part string, settings *corev1.ConfigMap) {
	list, err := records.Ledger(settings)
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
	started := 0
	for uid, start := range r.ledger {
		old, was := before[uid]
		switch {
		case !was:
			started++
			r.started(by, uid, start)
		case old.By != start.By:
			r.counts[takeovers]++
			if r.leases.Has(old.By) {
				r.violation("%s took over the start of %s from %s, which is alive", by, start.Name, old.By)
			}
		}
	}
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

// started judges a start: it overtakes none that overlaps it, of those that its
// process knows to wait.
func (r *referee) started(by string, uid types.UID, start records.Start) {
	t := r.runs[uid]
	if t == nil || t.ticket == 0 {
		r.violation("%s let %s start, which is not queued", by, start.Name)
		return
	}
	if start.By != by {
		r.violation("%s let %s start for %s", by, start.Name, start.By)
	}
	t.accepted = t.returned
	p := r.processes[by]
	p.mu.Lock()
	knew, read := p.knew, p.read
	p.mu.Unlock()
	if !t.begunAt.IsZero() && t.begunAt.Before(read) {
		r.violation("%s let %s start, which it had found %s", by, t.name, t.phase)
	}
	for other, ahead := range r.waiting {
		if _, ready := r.ledger[other]; ready || ahead.ticket >= t.ticket || !ahead.overlaps(t) {
			continue
		}
		if ahead.queuedBy == by || ahead.queuedAt.Before(knew) {
			r.violation("%s let %s start, ticket %d, before %s, ticket %d, which it overlaps", by, t.name, t.ticket, ahead.name, ahead.ticket)
		}
	}
}

// dropped judges what leaves the ledger: what has ended, what was put back, and
// what was removed and is not being read any more.
func (r *referee) dropped(by string, t *tracked, start records.Start) {
	switch {
	case t.phase.Ended():
	case r.reads(t):
		r.violation("%s removed %s from the ledger, which %s still reads", by, t.name, t.executing.name)
	case t.deleted:
		if by != start.By && r.leases.Has(start.By) {
			r.violation("%s removed the deleted %s from the ledger, which is for %s to do", by, t.name, start.By)
		}
	case t.phase == v1alpha1.BackupPhaseInProgress, t.returned == t.accepted:
		r.violation("%s removed %s from the ledger, which is %s", by, t.name, t.phase)
	}
}
