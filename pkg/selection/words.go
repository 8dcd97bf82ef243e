// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of each list bound all computations here, so that no list makes others wait.
const (
	// MaxWords bounds the words of a list.
	MaxWords = 1000
	// MaxPatterns bounds words with a wildcard. Each is compared with the other list's words, and one
	// of namespaces with the words of all queued backups.
	MaxPatterns = 32
	// MaxWordLength is the longest resource with its group.
	MaxWordLength = 253
)

// CheckList checks a list against the limits. Its errors repeat no word.
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

// wordSet is a list of namespace words: names are looked up, only patterns are compared.
type wordSet struct {
	names []string
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

func (s *wordSet) match(name string) bool {
	if _, found := slices.BinarySearch(s.names, name); found {
		return true
	}
	return slices.ContainsFunc(s.globs, func(p Pattern) bool { return p.Match(name) })
}

func (s *wordSet) covers(p Pattern) bool {
	if _, found := slices.BinarySearch(s.names, p.only()); found {
		return true
	}
	return slices.ContainsFunc(s.globs, func(q Pattern) bool { return q.Covers(p) })
}
