// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/bits"
	"slices"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// A pass walks the line from the running members to the last queued one, once. For each thing by which
// runs overlap it keeps the first user. If any user overlaps a member that has a slot or starts now,
// the first one does. Members with slots come first, and a member that starts overlaps none before it.
// A queued member whose storage is unavailable uses nothing.

type user struct {
	pass  int
	first *member
}

type name struct {
	user
	members int // members without patterns
}

// pattern is a selection with patterns, for all its members.
type pattern struct {
	user
	selection *selection.Namespaces
	members   int
	at        int
	// overlapping are overlapping patterns' places, as bits: there may be ten thousand. A loose one has
	// none, since it overlaps all.
	overlapping bitset
	// matched are selected named namespaces, perhaps without a member now.
	matched []*name
}

type bitset []uint64

func (b *bitset) set(n int) {
	if grow := n/64 + 1 - len(*b); grow > 0 {
		*b = append(*b, make([]uint64, grow)...)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

func (b bitset) clear(n int) {
	if n/64 < len(b) {
		b[n/64] &^= 1 << (n % 64)
	}
}

func (b bitset) all(yield func(int) bool) {
	for i, word := range b {
		for ; word != 0; word &= word - 1 {
			if !yield(i*64 + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}

// member is a run in the line: with a slot, queued, or New.
type member struct {
	Run
	rank rank
	// The selection is one of these, or overlaps everything.
	names   []*name
	pattern *pattern

	// The pass's results: its place, the first earlier overlapping member, or nil, and why it waits.
	at     int
	ahead  *member
	reason v1alpha1.QueueReason
}

// compare orders members: running, ready, queued, New, each by tickets; queued restores come first, New
// ones by their tickets to come.
func compare(a, b *member) int {
	switch {
	case a.rank != b.rank:
		return int(a.rank - b.rank)
	case a.rank == rankNew:
		return byArrival(&a.Run, &b.Run)
	case a.rank == rankQueued && a.Class != b.Class:
		return int(b.Class - a.Class)
	}
	return byTicket(&a.Run, &b.Run)
}

func (m *member) holds() bool {
	return m.rank < rankQueued || m.reason == v1alpha1.QueueReasonNextToStart
}

func (m *member) meet(other *member, reason v1alpha1.QueueReason) {
	if other == m.ahead {
		return
	}
	if m.ahead == nil || other.at < m.ahead.at {
		m.ahead = other
	}
	if m.reason == "" && other.holds() {
		m.reason = reason
	}
}

func (u *user) by(p *Planner) *member {
	if u.pass != p.pass {
		return nil
	}
	return u.first
}

func (p *Planner) use(u *user, m *member, reason v1alpha1.QueueReason) {
	if first := u.by(p); first != nil {
		m.meet(first, reason)
		return
	}
	u.pass, u.first = p.pass, m
}

func (p *Planner) restart() {
	p.pass++
	p.passed, p.starts, p.starting, p.plansStart, p.first = 0, p.starts[:0], Slots{}, 0, nil
}

func (p *Planner) advance(to int) {
	for ; p.passed < to; p.passed++ {
		m := p.line[p.passed]
		m.at, m.ahead, m.reason = p.passed, nil, ""
		if p.isHeld(m) {
			m.reason = v1alpha1.QueueReasonStorageUnavailable
			continue
		}
		p.look(m)
		inUse, limit := p.slotsFor(m)
		switch {
		case m.rank < rankQueued:
			m.reason = ""
		case m.reason != "":
		case m.ahead != nil:
			m.reason = v1alpha1.QueueReasonBehindOverlapping
		case inUse >= limit:
			m.reason = v1alpha1.QueueReasonConcurrencyLimit
		default:
			m.reason = v1alpha1.QueueReasonNextToStart
			p.starts = append(p.starts, m)
			if m.Plan {
				p.plansStart++
			} else {
				p.starting[m.Class]++
			}
		}
	}
}

// isHeld reports whether the member waits for its storage location, with its place, but reserving
// nothing.
func (p *Planner) isHeld(m *member) bool {
	state := p.locations[m.Location]
	return m.rank == rankQueued && (!state.Available || state.NoBackups && m.Class == Backup)
}

// look finds earlier overlapping members, first by namespaces, then by cluster scope.
func (p *Planner) look(m *member) {
	const reason = v1alpha1.QueueReasonNamespaceOverlap
	if m.Plan {
		return
	}
	names := m.names
	if p.first == nil {
		p.first = m
	}
	switch {
	case overlapsAny(m.Selection):
		if p.first != m {
			m.meet(p.first, reason)
		}
		if i := slices.IndexFunc(p.starts, func(other *member) bool { return !other.Plan }); i >= 0 {
			m.meet(p.starts[i], reason)
		}
		p.use(&p.everything, m, reason)
	case m.pattern != nil:
		p.lookByPattern(m, reason)
		names = m.pattern.matched
		fallthrough
	default:
		if first := p.everything.by(p); first != nil {
			m.meet(first, reason)
		}
		for _, n := range names {
			p.use(&n.user, m, reason)
		}
	}
	if m.ClusterScoped {
		p.use(&p.clusterScope, m, v1alpha1.QueueReasonClusterScopeOverlap)
	}
}

// lookByPattern finds overlapping patterns. A loose one overlaps all: the first and starting ones stand
// for them.
func (p *Planner) lookByPattern(m *member, reason v1alpha1.QueueReason) {
	p.use(&m.pattern.user, m, reason)
	if m.pattern.selection.Loose() {
		if first := p.patterned.by(p); first != nil {
			m.meet(first, reason)
		}
		for _, starting := range p.starts {
			if starting.pattern != nil {
				m.meet(starting, reason)
			}
		}
		p.use(&p.loose, m, reason)
	} else {
		if first := p.loose.by(p); first != nil {
			m.meet(first, reason)
		}
		for at := range m.pattern.overlapping.all {
			if first := p.slots[at].by(p); first != nil {
				m.meet(first, reason)
			}
		}
	}
	if p.patterned.by(p) == nil {
		p.patterned.pass, p.patterned.first = p.pass, m
	}
}

func overlapsAny(s *selection.Namespaces) bool { return s == nil || s.All() }

func (p *Planner) enter(m *member) {
	switch {
	case m.Plan, overlapsAny(m.Selection):
	case m.Selection.Exact():
		for _, text := range m.Selection.Explicit() {
			n := p.names[text]
			if n == nil {
				n = p.newName(text)
			}
			n.members++
			m.names = append(m.names, n)
		}
	default:
		key := m.Selection.Key()
		if m.pattern = p.patterns[key]; m.pattern == nil {
			m.pattern = p.newPattern(key, m.Selection)
		}
		m.pattern.members++
	}
}

func (p *Planner) leave(m *member) {
	for i, n := range m.names {
		if n.members--; n.members == 0 {
			delete(p.names, m.Selection.Explicit()[i])
		}
	}
	if l := m.pattern; l != nil {
		if l.members--; l.members == 0 {
			delete(p.patterns, l.selection.Key())
			for at := range l.overlapping.all {
				p.slots[at].overlapping.clear(l.at)
			}
			p.slots[l.at] = nil
			p.free = append(p.free, l.at)
		}
	}
}

func (p *Planner) newName(text string) *name {
	n := &name{}
	for _, l := range p.patterns {
		if l.selection.Match(text) {
			if len(l.matched) > 2*len(p.names) {
				l.matched = slices.DeleteFunc(l.matched, func(n *name) bool { return n.members == 0 })
			}
			l.matched = append(l.matched, n)
		}
	}
	p.names[text] = n
	return n
}

func (p *Planner) newPattern(key string, s *selection.Namespaces) *pattern {
	l := &pattern{selection: s, at: len(p.slots)}
	if last := len(p.free) - 1; last >= 0 {
		l.at, p.free = p.free[last], p.free[:last]
		p.slots[l.at] = l
	} else {
		p.slots = append(p.slots, l)
	}
	if !s.Loose() {
		for _, other := range p.patterns {
			if !other.selection.Loose() && selection.Overlaps(s, other.selection) {
				l.overlapping.set(other.at)
				other.overlapping.set(l.at)
			}
		}
	}
	for text, n := range p.names {
		if s.Match(text) {
			l.matched = append(l.matched, n)
		}
	}
	p.patterns[key] = l
	return l
}
