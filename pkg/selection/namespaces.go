// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Namespaces is a compiled selection of namespaces. A name is selected when a
// word of the included list matches it and no word of the excluded list does.
// An included list that is empty or holds `*` matches every name.
//
// A nil *Namespaces stands for lists that can't be read: it selects nothing
// and overlaps everything.
type Namespaces struct {
	// names are the included words that are names and not excluded; sorted,
	// each once.
	names []string
	// patterns are the included globs that the excluded list does not cover, in
	// the order given; `*` alone when every name is included.
	patterns []Pattern
	// excludes is empty when there are no patterns: names has been told already.
	excludes wordSet
	all      bool
	// loose is Loose.
	loose bool
}

var everything = Pattern{text: "*", elems: []element{anyRun}, wildcards: 1}

// maxCompared is how many patterns, and excluded patterns, of a selection are compared with
// other patterns.
const maxCompared = 4

// ParseNamespaces compiles the two lists. An error names its field by index,
// below the path `at` (which may be nil): `spec.includedNamespaces[2]`.
//
// It accepts what Velero accepts, and `*` beside other included words (Velero's
// documentation: the wildcard takes precedence). Like Velero it refuses `*` as
// an excluded word and a word that stands in both lists. Unlike Velero it
// refuses the empty word; to back up cluster-scoped objects alone, exclude `*`
// from the namespace-scoped resources. Lists beyond the limits of this package
// are refused before their words are looked at.
func ParseNamespaces(included, excluded []string, at *field.Path) (*Namespaces, field.ErrorList) {
	includedAt, excludedAt := at.Child("includedNamespaces"), at.Child("excludedNamespaces")
	if errs := append(CheckList(included, includedAt), CheckList(excluded, excludedAt)...); len(errs) > 0 {
		return nil, errs
	}
	includes, errs := parsePatterns(included, includedAt)
	excludes, more := parsePatterns(excluded, excludedAt)
	errs = append(errs, more...)
	given := sets.New(included...)
	for i, word := range excluded {
		switch {
		case word == "*":
			errs = append(errs, field.Invalid(excludedAt.Index(i), word, "excludes every namespace: name the namespaces to leave out"))
		case given.Has(word):
			errs = append(errs, field.Invalid(excludedAt.Index(i), word, "is included as well: remove it from one of the two lists"))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}

	n := &Namespaces{excludes: newWordSet(excludes)}
	if len(included) == 0 || given.Has("*") {
		n.patterns = []Pattern{everything}
		n.all = len(excluded) == 0
	}
	for _, p := range includes {
		switch {
		case !isGlob(p.text):
			if !n.excludes.match(p.text) {
				n.names = append(n.names, p.text)
			}
		case !n.excludes.covers(p) && !n.includesAll() && !slices.ContainsFunc(n.patterns, func(q Pattern) bool { return q.text == p.text }):
			n.patterns = append(n.patterns, p)
		}
	}
	slices.Sort(n.names)
	n.names = slices.Clip(slices.Compact(n.names))
	if n.Exact() {
		n.excludes = wordSet{}
	}
	n.loose = len(n.patterns) > maxCompared || len(n.excludes.globs) > maxCompared ||
		slices.ContainsFunc(n.patterns, func(p Pattern) bool { return p.wildcards > 1 })
	return n, nil
}

func parsePatterns(words []string, at *field.Path) ([]Pattern, field.ErrorList) {
	var errs field.ErrorList
	patterns := make([]Pattern, 0, len(words))
	for i, word := range words {
		if isName(word) {
			// It is looked up, and never compared element by element.
			patterns = append(patterns, Pattern{text: word})
			continue
		}
		p, err := ParsePattern(word)
		if err != nil {
			errs = append(errs, field.Invalid(at.Index(i), word, err.Error()))
		}
		patterns = append(patterns, p)
	}
	return patterns, errs
}

// isName says whether the word is a valid name of a namespace.
func isName(word string) bool {
	if word == "" || len(word) > maxName || char(word[0])&alnum == 0 || char(word[len(word)-1])&alnum == 0 {
		return false
	}
	for i := range len(word) {
		if char(word[i]) == 0 {
			return false
		}
	}
	return true
}

// includesAll says whether `*` is included, whatever is excluded.
func (n *Namespaces) includesAll() bool {
	return len(n.patterns) > 0 && n.patterns[0].text == "*"
}

// Match says whether the namespace is selected. It need not exist. The empty
// name, which cluster-scoped objects carry, is never selected.
func (n *Namespaces) Match(namespace string) bool {
	_, ok := n.Word(namespace)
	return ok
}

// Word is the included word that selects the namespace: its own name if that is
// included, else the first pattern that matches it (`*` for an empty list). It
// is false when the namespace is not selected.
func (n *Namespaces) Word(namespace string) (string, bool) {
	if n == nil {
		return "", false
	}
	if n.named(namespace) {
		return namespace, true
	}
	for _, p := range n.patterns {
		if p.Match(namespace) {
			return p.text, !n.excludes.match(namespace)
		}
	}
	return "", false
}

func (n *Namespaces) named(namespace string) bool {
	_, ok := slices.BinarySearch(n.names, namespace)
	return ok
}

// All says whether every namespace is selected, those to come included: nothing
// is excluded, and the included list is empty or holds `*`. This is the
// condition on which Velero adds cluster-scoped resources by itself.
func (n *Namespaces) All() bool { return n != nil && n.all }

// Loose says whether its patterns are not compared with other patterns, since many such
// comparisons would take long: one of them has several wildcards, or there are more than four,
// or more than four excluded ones. It follows from the words alone.
func (n *Namespaces) Loose() bool { return n != nil && n.loose }

// Explicit returns the selected names that were given without a wildcard,
// whether they exist or not; sorted, each once. The caller must not change it.
func (n *Namespaces) Explicit() []string {
	if n == nil {
		return nil
	}
	return n.names
}

// Exact says whether Explicit is all that is selected, so that no other
// namespace, not even one to come, can be.
func (n *Namespaces) Exact() bool { return n != nil && len(n.patterns) == 0 }

// Patterns returns the included words with a wildcard, `*` for an empty list,
// without those that are wholly excluded. A selection with patterns may reach
// namespaces that its words don't name.
func (n *Namespaces) Patterns() []string {
	if n == nil {
		return nil
	}
	words := make([]string, 0, len(n.patterns))
	for _, p := range n.patterns {
		words = append(words, p.text)
	}
	return words
}

// Idle returns those of the patterns that match none of the namespaces.
func (n *Namespaces) Idle(namespaces []string) (idle []string) {
	for _, p := range n.patterns {
		if !slices.ContainsFunc(namespaces, p.Match) {
			idle = append(idle, p.text)
		}
	}
	return idle
}

// Key is a text that two selections share only if they select the same
// namespaces, whatever the order of their words. That of a nil selection is "".
func (n *Namespaces) Key() string {
	if n == nil {
		return ""
	}
	excludes := slices.Clone(n.excludes.names)
	for _, p := range n.excludes.globs {
		excludes = append(excludes, p.text)
	}
	patterns := n.Patterns()
	slices.Sort(patterns)
	slices.Sort(excludes)
	// No word holds a comma or a slash.
	return strings.Join(n.names, ",") + "/" + strings.Join(patterns, ",") + "/" + strings.Join(excludes, ",")
}
