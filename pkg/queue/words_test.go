// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/selection"
)

// words are what a spec says of namespaces. It is all that the oracle reads: what
// became of them in pkg/selection is what is tested.
type words struct {
	included, excluded []string // as written

	names, globs []string // of the included ones; names are sorted
	unreadable   bool
}

func readWords(included, excluded []string) *words {
	w := &words{included: included, excluded: excluded}
	for _, word := range slices.Concat(included, excluded) {
		if _, err := path.Match(word, ""); err != nil {
			return &words{included: included, excluded: excluded, unreadable: true}
		}
	}
	for _, word := range included {
		if isGlob(word) {
			w.globs = append(w.globs, word)
		} else {
			w.names = append(w.names, word)
		}
	}
	if len(included) == 0 || slices.Contains(included, "*") {
		w.globs = []string{"*"}
	}
	slices.Sort(w.names)
	return w
}

// compiled is what the planner gets, as package records makes it.
func (w *words) compiled(t interface{ Fatal(...any) }) *selection.Namespaces {
	n, errs := selection.ParseNamespaces(w.included, w.excluded, nil)
	if w.unreadable != (len(errs) > 0) {
		t.Fatal(w.included, w.excluded, errs.ToAggregate())
	}
	return n
}

func (w *words) all() bool { return slices.Contains(w.globs, "*") && len(w.excluded) == 0 }

func (w *words) exact() bool { return !w.unreadable && len(w.globs) == 0 }

// selects says whether the backup may include a namespace of this name. One that
// can't be read may include any.
func (w *words) selects(name string) bool {
	if w.unreadable {
		return true
	}
	meant := func(word string) bool { return matches(word, name) }
	_, named := slices.BinarySearch(w.names, name)
	return (named || slices.ContainsFunc(w.globs, meant)) && !slices.ContainsFunc(w.excluded, meant)
}

// overlap is the rule of docs/queue.md.
func (w *words) overlap(other *words) bool {
	if w.unreadable || other.unreadable || w.all() || other.all() {
		return true
	}
	for word := range inBoth(w.names, other.names) {
		if !leftOut(word, w, other) {
			return true
		}
	}
	for range w.pairs(w.globs, other, other.globs) {
		return true
	}
	for range other.pairs(other.globs, w, w.names) {
		return true
	}
	for range w.pairs(w.globs, other, other.names) {
		return true
	}
	return false
}

// pairs are a word of one and a word of the other that some name could match both.
// What is excluded does not count, whoever excludes it: a word as a whole, by one
// word.
func (w *words) pairs(own []string, other *words, others []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, a := range own {
			for _, b := range others {
				if couldMatchSame(a, b) && !leftOut(a, w, other) && !leftOut(b, w, other) && !yield(a, b) {
					return
				}
			}
		}
	}
}

func leftOut(word string, by ...*words) bool {
	for _, w := range by {
		if !w.unreadable && slices.ContainsFunc(w.excluded, func(excluded string) bool { return matchesAllOf(excluded, word) }) {
			return true
		}
	}
	return false
}

// inBoth yields what is in both of two sorted lists. Without it, exact names would
// cost the product of their numbers.
func inBoth(a, b []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(a) > 0 && len(b) > 0 {
			switch c := strings.Compare(a[0], b[0]); {
			case c < 0:
				a = a[1:]
			case c > 0:
				b = b[1:]
			default:
				if !yield(a[0]) {
					return
				}
				a, b = a[1:], b[1:]
			}
		}
	}
}

// shared is what two that overlap have in conflict: the names that both select, of
// those that exist and those that one of them gives; or else the patterns that could
// match the same name; or else what stands for all.
func (w *words) shared(other *words, existing []string) []string {
	var found []string
	if w.unreadable && other.unreadable {
		return nil
	}
	if w.exact() || other.exact() {
		existing = nil // it selects none but its own
	}
	for _, names := range [][]string{existing, w.names, other.names} {
		for _, name := range names {
			if w.selects(name) && other.selects(name) {
				found = append(found, name)
			}
		}
	}
	switch {
	case len(found) > 0:
	case w.unreadable || other.unreadable:
		for _, glob := range slices.Concat(w.globs, other.globs) {
			if !leftOut(glob, w, other) {
				found = append(found, glob)
			}
		}
	default:
		for a, b := range w.pairs(w.globs, other, other.globs) {
			found = append(found, a, b)
		}
		if len(found) == 0 {
			found = []string{"*"}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func isGlob(word string) bool { return strings.ContainsAny(word, "*?[") }

// matches says whether a namespace of this name, which need not exist, is meant by
// the word.
func matches(word, name string) bool {
	ok, _ := path.Match(word, name)
	return ok
}

// couldMatchSame and matchesAllOf say what they do of two patterns by trying all
// names there are, which are many, so each answer is kept. The second word may be a
// name.
var (
	couldMatchSame = tried(func(a, b string) bool {
		return slices.ContainsFunc(allNames, func(name string) bool { return matches(a, name) && matches(b, name) })
	})
	matchesAllOf = tried(func(a, b string) bool {
		return !slices.ContainsFunc(allNames, func(name string) bool { return matches(b, name) && !matches(a, name) })
	})
)

func tried(try func(a, b string) bool) func(a, b string) bool {
	known := map[[2]string]bool{}
	return func(a, b string) bool {
		if !isGlob(b) {
			return matches(a, b)
		}
		answer, ok := known[[2]string{a, b}]
		if !ok {
			for _, word := range []string{a, b} {
				if !slices.ContainsFunc(allNames, func(name string) bool { return matches(word, name) }) {
					panic(fmt.Sprintf("allNames has none that %q matches: give it the characters, and names that are long enough", word))
				}
			}
			answer = try(a, b)
			known[[2]string{a, b}] = answer
		}
		return answer
	}
}

// allNames are those of up to 4 characters of the words that drawStyle draws, and
// one that is in none of them. What two of those patterns tell apart, a longer name
// does not tell better.
var allNames = func() []string {
	layer, names := []string{""}, []string(nil)
	for range 4 {
		var next []string
		for _, prefix := range layer {
			for _, c := range "abcdefxy12z-" {
				next = append(next, prefix+string(c))
			}
		}
		for _, name := range next {
			if len(validation.IsDNS1123Label(name)) == 0 {
				names = append(names, name)
			}
		}
		layer = next
	}
	return names
}()

// The oracle itself, against the meaning of the words: it misses no name that two
// select, and where nothing is excluded, it sees no other.
func TestOracleAgainstAllNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		style := drawStyle(t)
		a, b := style.Draw(t, "a"), style.Draw(t, "b")
		i := slices.IndexFunc(allNames, func(name string) bool { return a.selects(name) && b.selects(name) })
		got := a.overlap(b)
		if got != b.overlap(a) {
			t.Fatal("not symmetric")
		}
		if i >= 0 && !got {
			t.Fatalf("%q is in both", allNames[i])
		}
		if got && i < 0 && len(a.excluded)+len(b.excluded) == 0 {
			t.Fatal("no name is in both")
		}
	})
}
