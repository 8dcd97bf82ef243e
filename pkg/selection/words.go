// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of each list. Everything that this package computes, of one selection
// or of two, takes a time that follows the number of names, with a factor that
// these bound: so whoever may write one list can't make the others wait.
const (
	// MaxWords is how many words a list may have.
	MaxWords = 1000
	// MaxPatterns is how many words of a list may have a wildcard. Each is compared
	// with each word of the other list, and if it is one of namespaces, with each word
	// of each other backup in the queue.
	MaxPatterns = 32
	// MaxWordLength is how many bytes a word may have. The longest name of a resource
	// with its group has as many.
	MaxWordLength = 253
)

// CheckList finds what of a list is beyond the limits. Its errors repeat no word.
func CheckList(words []string, at *field.Path) field.ErrorList {
	if len(words) > MaxWords {
		return field.ErrorList{field.TooMany(at, len(words), MaxWords)}
	}
	var errs field.ErrorList
	patterns := 0
	for i, word := range words {
		if len(word) > MaxWordLength {
			errs = append(errs, field.TooLong(at.Index(i), "", MaxWordLength))
		} else if isGlob(word) {
			patterns++
		}
	}
	if patterns > MaxPatterns {
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("must have at most %d words with a wildcard, and has %d: merge some, or use names", MaxPatterns, patterns)))
	}
	return errs
}

// wordSet is a list of namespace words, made for questions: names are looked up,
// and only patterns are compared.
type wordSet struct {
	names []string // sorted
	globs []Pattern
}

func newWordSet(words []Pattern) wordSet {
	var s wordSet
	for _, p := range words {
		if isGlob(p.text) {
			s.globs = append(s.globs, p)
		} else {
			s.names = append(s.names, p.text)
		}
	}
	slices.Sort(s.names)
	return s
}

// match says whether a word matches the name.
func (s *wordSet) match(name string) bool {
	if _, found := slices.BinarySearch(s.names, name); found {
		return true
	}
	return slices.ContainsFunc(s.globs, func(p Pattern) bool { return p.Match(name) })
}

// covers says whether one of the words covers p, which has a wildcard.
func (s *wordSet) covers(p Pattern) bool {
	if _, found := slices.BinarySearch(s.names, p.only()); found {
		return true
	}
	return slices.ContainsFunc(s.globs, func(q Pattern) bool { return q.Covers(p) })
}
