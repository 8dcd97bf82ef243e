// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"cmp"
	"iter"
	"slices"
)

// Overlaps says whether two selections may ever both select a namespace. It is
// decided on the words alone, so that an answer holds while both are at work:
// a namespace that appears or disappears never changes it.
//
// They overlap when one of these holds:
//   - one of them can't be read (nil), or selects all namespaces without an
//     exclude;
//   - one names a namespace that the other selects, by name or by pattern;
//   - both have patterns, and one of them is Loose;
//   - a pattern of one and a pattern of the other can match the same name, and
//     neither of the two patterns is wholly excluded by the other selection.
//
// The last two are careful: two patterns overlap even if every name that both match
// is excluded by several words together.
//
// Two selections that both select an existing namespace always overlap: a name
// decides by the second rule, two patterns by the last two.
func Overlaps(a, b *Namespaces) bool {
	if a == nil || b == nil || a.all || b.all {
		return true
	}
	if namesMatch(a, b) || len(a.patterns) > 0 && namesMatch(b, a) {
		return true
	}
	if (a.loose || b.loose) && len(a.patterns) > 0 && len(b.patterns) > 0 {
		return true
	}
	for p, q := range conflictingPatterns(a, b) {
		_, _ = p, q
		return true
	}
	return false
}

// namesMatch says whether b selects a name that a gives. When b has no
// patterns, the answer is the same with a and b changed round.
func namesMatch(a, b *Namespaces) bool {
	if len(b.patterns) == 0 {
		if len(a.names) > len(b.names) {
			a, b = b, a
		}
		return slices.ContainsFunc(a.names, b.named)
	}
	return slices.ContainsFunc(a.names, b.Match)
}

// conflictingPatterns yields the pairs of patterns, of a and of b, for which
// the third rule of Overlaps holds.
func conflictingPatterns(a, b *Namespaces) iter.Seq2[Pattern, Pattern] {
	return func(yield func(Pattern, Pattern) bool) {
		for _, p := range a.patterns {
			for _, q := range b.patterns {
				// Most pairs have no name in common, which is seen at once.
				if p.Intersects(q) && !b.excludes.covers(p) && !a.excludes.covers(q) && !yield(p, q) {
					return
				}
			}
		}
	}
}

// Shared yields what two overlapping selections have in conflict, sorted: the
// namespaces that both select, out of the existing ones, which are sorted, and those
// that one of them names. If there are none, it yields patterns, of either, that can
// match the same name, of which there may be more, and where that gives nothing either, the words of the
// selection that selects all. When one of the two can't be read, all that the
// other selects is in conflict. It is lazy, so that a caller may stop early.
func Shared(a, b *Namespaces, existing []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		found := false
		for name := range bothSelect(a, b, existing) {
			found = true
			if !yield(name) {
				return
			}
		}
		if found {
			return
		}
		for _, word := range sharedWords(a, b) {
			if !yield(word) {
				return
			}
		}
	}
}

// bothSelect yields the names that both select, sorted, each once. A selection
// that can't be read agrees with whatever the other selects.
func bothSelect(a, b *Namespaces, existing []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if a == nil && b == nil {
			return
		}
		// A selection without patterns selects its names and nothing else, so
		// there is no need to look at every namespace.
		var lists [3][]string
		switch {
		case a.Exact():
			lists[0] = a.names
		case b.Exact():
			lists[0] = b.names
		default:
			lists = [3][]string{a.Explicit(), b.Explicit(), existing}
		}
		for name := range mergeSorted(lists) {
			if (a == nil || a.Match(name)) && (b == nil || b.Match(name)) && !yield(name) {
				return
			}
		}
	}
}

// maxSharedWords bounds the patterns that are shown: 32 of one backup may meet 32 of
// the other, pair by pair.
const maxSharedWords = 64

// sharedWords is what to show where no namespace is in conflict by name.
func sharedWords(a, b *Namespaces) []string {
	var words []string
	if a == nil || b == nil {
		words = append(a.Patterns(), b.Patterns()...)
	} else {
		for p, q := range conflictingPatterns(a, b) {
			if words = append(words, p.text, q.text); len(words) >= maxSharedWords {
				break
			}
		}
		if len(words) == 0 {
			words = []string{everything.text}
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// mergeSorted yields the elements of the sorted lists in order, each once.
func mergeSorted(lists [3][]string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			first := -1
			for i, list := range lists {
				if len(list) > 0 && (first < 0 || cmp.Less(list[0], lists[first][0])) {
					first = i
				}
			}
			if first < 0 {
				return
			}
			name := lists[first][0]
			for i := range lists {
				for len(lists[i]) > 0 && lists[i][0] == name {
					lists[i] = lists[i][1:]
				}
			}
			if !yield(name) {
				return
			}
		}
	}
}
