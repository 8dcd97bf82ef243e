// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"

	"github.com/holdfast-io/holdfast/pkg/selection"
)

// holders are the runs that use a slot, found by what they hold. The zero value
// is empty.
type holders struct {
	runs    []*Run
	byName  map[string][]int // to positions in runs, for the names that a selection gives
	inexact []int            // selections that reach beyond their names
}

func (h *holders) add(r *Run) {
	at := len(h.runs)
	h.runs = append(h.runs, r)
	if h.byName == nil {
		h.byName = map[string][]int{}
	}
	for _, name := range r.Selection.Explicit() {
		h.byName[name] = append(h.byName[name], at)
	}
	if !r.Selection.Exact() {
		h.inexact = append(h.inexact, at)
	}
}

// overlapping returns all holders that the run overlaps, in the order in which
// they were added.
func (h *holders) overlapping(r *Run) []*Run {
	hit := map[int]bool{}
	if r.Selection.Exact() {
		for _, name := range r.Selection.Explicit() {
			for _, at := range h.byName[name] {
				hit[at] = true
			}
		}
		for _, at := range h.inexact {
			if selection.Overlaps(r.Selection, h.runs[at].Selection) {
				hit[at] = true
			}
		}
	} else {
		for at, holder := range h.runs {
			if selection.Overlaps(r.Selection, holder.Selection) {
				hit[at] = true
			}
		}
	}
	var found []*Run
	for at, holder := range h.runs {
		if hit[at] || r.ClusterScoped && holder.ClusterScoped {
			found = append(found, holder)
		}
	}
	return found
}

// ahead are the queued runs ahead of the one being decided, of which only the
// first that overlaps it matters. So a name is kept with its first holder, and
// a selection with patterns once, whatever the number of runs that share it.
type ahead struct {
	runs          []*Run
	byName        map[string]int // to the first of runs that names it
	inexact       []int          // the first of runs with each distinct selection
	clusterScoped int            // the first of runs that touches cluster scope
	// firstOf is, by the key of a selection in inexact, the first of runs that
	// overlaps that selection by namespace, itself included.
	firstOf map[string]int
}

// none is greater than every position in runs.
const none = math.MaxInt

func newAhead() ahead {
	return ahead{byName: map[string]int{}, clusterScoped: none, firstOf: map[string]int{}}
}

func (a *ahead) add(r *Run) {
	at := len(a.runs)
	if !r.Selection.Exact() {
		if key := r.Selection.Key(); a.firstOf[key] == 0 {
			// Stored from 1, so that absent is 0.
			a.firstOf[key] = min(a.firstByNamespace(r.Selection), at) + 1
			a.inexact = append(a.inexact, at)
		}
	}
	a.runs = append(a.runs, r)
	for _, name := range r.Selection.Explicit() {
		if _, held := a.byName[name]; !held {
			a.byName[name] = at
		}
	}
	if r.ClusterScoped {
		a.clusterScoped = min(a.clusterScoped, at)
	}
}

// overlapsAny says whether selection.Overlaps is true whatever the other is.
func overlapsAny(s *selection.Namespaces) bool { return s == nil || s.All() }

// first is the first run ahead that the given one overlaps, or nil.
func (a *ahead) first(r *Run) *Run {
	at := a.firstByNamespace(r.Selection)
	if r.ClusterScoped {
		at = min(at, a.clusterScoped)
	}
	if at == none {
		return nil
	}
	return a.runs[at]
}

func (a *ahead) firstByNamespace(s *selection.Namespaces) int {
	first := none
	switch {
	case len(a.runs) == 0:
		return none
	case overlapsAny(s):
		return 0
	case s.Exact():
		for _, name := range s.Explicit() {
			if at, held := a.byName[name]; held {
				first = min(first, at)
			}
		}
	default:
		if at := a.firstOf[s.Key()]; at > 0 {
			return at - 1
		}
		for name, at := range a.byName {
			if at < first && s.Match(name) {
				first = at
			}
		}
	}
	for _, at := range a.inexact {
		if at >= first {
			break
		}
		if selection.Overlaps(s, a.runs[at].Selection) {
			return at
		}
	}
	return first
}
