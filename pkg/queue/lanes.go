// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"iter"
	"slices"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// member is a run that uses a slot or is queued, in its lanes.
type member struct {
	Run
	rank int // before the ticket, in the order of members
	// waits counts the lanes in which it waits for a member before it. It overlaps
	// none before it exactly if this is 0.
	waits int
	// starts: it is one of Planner.starts.
	starts bool
	// seen is the last of Planner.passes that came upon it.
	seen int
}

func newMember(run Run) *member {
	m := &member{Run: run}
	switch run.State() {
	case v1alpha1.QueueStateReady:
		m.rank = 1
	case v1alpha1.QueueStateQueued:
		m.rank = 2
	}
	return m
}

// inLine says whether the run is one of Planner.line.
func (m *member) inLine() bool { return m.usesSlot() || m.isQueued() }

// before is the order of members: running, ready, queued; each by tickets.
func (m *member) before(other *member) bool {
	if m.rank != other.rank {
		return m.rank < other.rank
	}
	return byTicket(&m.Run, &other.Run) < 0
}

// find is the place of a member among others in order, whether it is there or not.
func find(list []*member, m *member) int {
	low, high := 0, len(list)
	if high > 0 && list[high-1].before(m) {
		return high // most come last
	}
	for low < high {
		if middle := (low + high) / 2; list[middle].before(m) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// replace puts new in old's place, or where it belongs now.
func replace(list []*member, old, new *member) {
	from, to := find(list, old), find(list, new)
	if to > from {
		to-- // old goes
	}
	// Only what lies between the two places moves.
	if from < to {
		copy(list[from:], list[from+1:to+1])
	} else {
		copy(list[to+1:], list[to:from])
	}
	list[to] = new
}

func insert(list []*member, m *member) []*member {
	return slices.Insert(list, find(list, m), m)
}

func remove(list []*member, m *member) []*member {
	if at := find(list, m); at > 0 {
		return slices.Delete(list, at, at+1)
	}
	list[0] = nil // most leave from the front, where nothing need move
	return list[1:]
}

// lane is a line of members before something that they may not use together, in
// their order: a namespace that they name, or a selection with patterns. It is to
// them as a lock is: an exclusive member overlaps all others in the lane, a
// shared one only the exclusive ones. Two members overlap if and only if they do
// in one of their lanes.
//
// The lane of a name has those that name it, as exclusive. The lane of a
// selection with patterns has the members with that selection as exclusive, and
// as shared all others that overlap it.
//
// Who waits follows from the two fronts: a shared member that is behind the first
// exclusive one, and each exclusive one but the first of all. So a change at one
// place needs to be told to few others.
type lane struct {
	exclusive []*member
	// patterns are the lanes of selections with patterns that the name, or this
	// selection, overlaps. A selection that overlaps everything is left out in the
	// lanes of names.
	patterns []*lane
	*patterned
	seen int // as in member
}

// patterned is what only the lane of a selection with patterns has.
type patterned struct {
	selection *selection.Namespaces
	shared    []*member
}

// first is the first exclusive member, or nil; waits says whether it waits for a
// shared one.
func (l *lane) first() (first *member, waits bool) {
	if len(l.exclusive) == 0 {
		return nil, false
	}
	first = l.exclusive[0]
	return first, l.patterned != nil && len(l.shared) > 0 && l.shared[0].before(first)
}

// ahead is the first member of the lane that m, who stands in it, overlaps and
// that is before m, or nil.
func (l *lane) ahead(m *member, shared bool) *member {
	first, waits := l.first()
	if !shared && waits {
		first = l.shared[0]
	}
	if first == nil || !first.before(m) {
		return nil
	}
	return first
}

func (l *lane) add(m *member, shared bool) {
	l.change(func() {
		if shared {
			l.shared = insert(l.shared, m)
		} else {
			l.exclusive = insert(l.exclusive, m)
		}
		l.admit(m, shared)
	})
}

// replace lets new, who stands in the same lanes, take the place of old.
func (l *lane) replace(old, new *member, shared bool) {
	l.change(func() {
		if shared {
			replace(l.shared, old, new)
		} else {
			replace(l.exclusive, old, new)
		}
		l.admit(new, shared)
	})
}

// admit counts whether one that just came waits.
func (l *lane) admit(m *member, shared bool) {
	if !shared || l.ahead(m, shared) != nil {
		m.waits++
	}
}

func (l *lane) remove(m *member, shared bool) {
	l.change(func() {
		if shared {
			l.shared = remove(l.shared, m)
		} else {
			l.exclusive = remove(l.exclusive, m)
		}
	})
}

// change makes a change and brings the others' waits up to date with it. While
// it is made, all exclusive members count as waiting.
func (l *lane) change(edit func()) {
	before, waits := l.first()
	if before != nil && !waits {
		before.waits++
	}
	edit()
	after, waits := l.first()
	if after != nil && !waits {
		after.waits--
	}
	if before == after || l.patterned == nil {
		return
	}
	end := func(first *member) int { // of those that don't wait for it
		if first == nil {
			return len(l.shared)
		}
		return find(l.shared, first)
	}
	from, to := end(before), end(after)
	for _, m := range l.shared[min(from, to):max(from, to)] {
		if from < to {
			m.waits--
		} else {
			m.waits++
		}
	}
}

// overlapsAny says whether selection.Overlaps is true whatever the other is.
func overlapsAny(s *selection.Namespaces) bool { return s == nil || s.All() }

// keyOf is the key in Planner.patterns; "" for all that overlap everything.
func keyOf(s *selection.Namespaces) string {
	if overlapsAny(s) {
		return ""
	}
	return s.Key()
}

// enter lets a member into its lanes, and makes those that are missing.
func (p *Planner) enter(m *member) {
	if m.Selection.Exact() {
		for _, name := range m.Selection.Explicit() {
			if p.names[name] == nil {
				p.names[name] = p.newNameLane(name)
			}
		}
	} else if key := keyOf(m.Selection); p.patterns[key] == nil {
		p.patterns[key] = p.newPatternLane(m.Selection)
	}
	for l, shared := range p.lanes(m) {
		l.add(m, shared)
	}
	p.line = insert(p.line, m)
	if m.usesSlot() {
		p.slotsInUse++
	}
}

// replace lets new take the place of old, which has the same selection.
func (p *Planner) replace(old, new *member) {
	for l, shared := range p.lanes(old) {
		l.replace(old, new, shared)
	}
	replace(p.line, old, new)
	if old.usesSlot() {
		p.slotsInUse--
	}
	if new.usesSlot() {
		p.slotsInUse++
	}
}

// leave takes a member out of its lanes, and removes those that nobody needs.
func (p *Planner) leave(m *member) {
	for l, shared := range p.lanes(m) {
		l.remove(m, shared)
	}
	p.line = remove(p.line, m)
	if m.usesSlot() {
		p.slotsInUse--
	}
	if m.Selection.Exact() {
		for _, name := range m.Selection.Explicit() {
			if len(p.names[name].exclusive) == 0 {
				delete(p.names, name)
			}
		}
	} else if key := keyOf(m.Selection); len(p.patterns[key].exclusive) == 0 {
		p.dropPatternLane(key)
	}
}

// lanes yields the lanes of a member, and whether it is a shared one there.
func (p *Planner) lanes(m *member) iter.Seq2[*lane, bool] {
	return func(yield func(*lane, bool) bool) {
		if m.ClusterScoped && !yield(&p.clusterScope, false) {
			return
		}
		if !m.Selection.Exact() {
			own := p.patterns[keyOf(m.Selection)]
			if !yield(own, false) {
				return
			}
			for _, l := range own.patterns {
				if !yield(l, true) {
					return
				}
			}
			return
		}
		p.passes++
		pass := p.passes
		if l := p.patterns[""]; l != nil && !yield(l, true) {
			return
		}
		for _, name := range m.Selection.Explicit() {
			own := p.names[name]
			if !yield(own, false) {
				return
			}
			for _, l := range own.patterns {
				if l.seen == pass {
					continue
				}
				l.seen = pass
				if !yield(l, true) {
					return
				}
			}
		}
	}
}

func (p *Planner) newNameLane(name string) *lane {
	l := &lane{}
	for _, other := range p.patterns {
		if !overlapsAny(other.selection) && other.selection.Match(name) {
			l.patterns = append(l.patterns, other)
		}
	}
	return l
}

// newPatternLane makes a lane that all members but its own already stand in.
func (p *Planner) newPatternLane(s *selection.Namespaces) *lane {
	l := &lane{patterned: &patterned{selection: s}}
	for _, other := range p.patterns {
		if selection.Overlaps(s, other.selection) {
			l.patterns = append(l.patterns, other)
			other.patterns = append(other.patterns, l)
		}
	}
	if overlapsAny(s) {
		l.shared = slices.Clone(p.line)
		return l
	}
	p.passes++
	share := func(members []*member) {
		for _, m := range members {
			if m.seen != p.passes {
				m.seen = p.passes
				l.shared = append(l.shared, m)
			}
		}
	}
	for _, other := range l.patterns {
		share(other.exclusive)
	}
	for name, other := range p.names {
		if s.Match(name) {
			other.patterns = append(other.patterns, l)
			share(other.exclusive)
		}
	}
	slices.SortFunc(l.shared, func(a, b *member) int {
		if a.before(b) {
			return -1
		}
		return 1 // no two are the same
	})
	return l
}

func (p *Planner) dropPatternLane(key string) {
	l := p.patterns[key]
	delete(p.patterns, key)
	is := func(other *lane) bool { return other == l }
	for _, other := range l.patterns {
		other.patterns = slices.DeleteFunc(other.patterns, is)
	}
	if overlapsAny(l.selection) {
		return
	}
	for _, other := range p.names {
		other.patterns = slices.DeleteFunc(other.patterns, is)
	}
}
