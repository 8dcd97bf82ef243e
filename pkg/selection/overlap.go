// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"cmp"
	"iter"
	"slices"
)

// Overlaps reports whether two selections may ever select one namespace, existing or not. Only the
// words decide, so a new namespace never changes the answer. They overlap if
//
//   - one is unreadable (nil), or selects all namespaces without an exclude;
//   - one names a namespace that the other selects;
//   - both have patterns, and one is Loose;
//   - two of their patterns can match one name, and the other selection excludes neither of them
//     wholly.
//
// The last two may say yes for names that several excludes cover together.
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

// namesMatch reports whether b selects a name of a. It is symmetric if b has no patterns.
func namesMatch(a, b *Namespaces) bool {
	if len(b.patterns) == 0 {
		if len(a.names) > len(b.names) {
			a, b = b, a
		}
		return slices.ContainsFunc(a.names, b.named)
	}
	return slices.ContainsFunc(a.names, b.Match)
}

func conflictingPatterns(a, b *Namespaces) iter.Seq2[Pattern, Pattern] {
	return func(yield func(Pattern, Pattern) bool) {
		for _, p := range a.patterns {
			for _, q := range b.patterns {
				if p.Intersects(q) && !b.excludes.covers(p) && !a.excludes.covers(q) && !yield(p, q) {
					return
				}
			}
		}
	}
}

// Shared yields the conflict of two overlapping selections, sorted and lazily: the existing (sorted)
// and named namespaces that both select. Without any it yields patterns that can match one name, else
// the words of the selection of all. If one is unreadable, everything in the other is in conflict.
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

// bothSelect yields the names that both select, sorted, unique. An unreadable selection agrees with
// everything.
func bothSelect(a, b *Namespaces, existing []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if a == nil && b == nil {
			return
		}
		// Without patterns, a selection selects only its names.
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

// maxSharedWords bounds the shown patterns: 32 may meet 32.
const maxSharedWords = 64

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
