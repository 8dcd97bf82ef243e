// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Namespaces is a compiled selection: of names that an included word matches and no excluded word. An
// empty included list, or `*` in it, matches every name.
type Namespaces struct {
	names []string
	// patterns are the included globs that are not wholly excluded, in order; only `*` for all names.
	patterns []Pattern
	// excludes is empty without patterns: names is complete then.
	excludes wordSet
	all      bool
	loose    bool
}

var everything = Pattern{text: "*", elems: []element{anyRun}, wildcards: 1}

// maxCompared bounds the patterns, and the excluded ones, that are compared with others.
const maxCompared = 4

// ParseNamespaces compiles the two lists. An error names its field by index below the path `at`, which
// may be nil.
//
// It accepts Velero's lists, and `*` beside other included words. It refuses `*` as an excluded word, a
// word in both lists, and, unlike Velero, the empty word. For only cluster-scoped objects, exclude `*`
// from the namespace-scoped resources.
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
			// It is looked up, and never compared by element.
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

func (n *Namespaces) includesAll() bool {
	return len(n.patterns) > 0 && n.patterns[0].text == "*"
}

// Match reports whether the namespace, existing or not, is selected. The empty name never is.
func (n *Namespaces) Match(namespace string) bool {
	_, ok := n.Word(namespace)
	return ok
}

// Word returns the included word that selects the namespace: its own name, else the first matching
// pattern (`*` for an empty list), or false.
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

// All reports whether every namespace is selected, also future ones: nothing is excluded, and the
// included list is empty or has `*`. Then Velero adds cluster-scoped resources.
func (n *Namespaces) All() bool { return n != nil && n.all }

// Loose reports whether its patterns are too expensive to compare: one has several wildcards, or more
// than four are included or excluded.
func (n *Namespaces) Loose() bool { return n != nil && n.loose }

// Explicit returns the selected names without wildcards, existing or not; sorted, unique. Don't change
// them.
func (n *Namespaces) Explicit() []string {
	if n == nil {
		return nil
	}
	return n.names
}

// Exact reports whether only Explicit can be selected.
func (n *Namespaces) Exact() bool { return n != nil && len(n.patterns) == 0 }

// Patterns returns the included words with a wildcard, `*` for an empty list, unless wholly excluded.
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

// Idle returns the patterns without any of the namespaces.
func (n *Namespaces) Idle(namespaces []string) (idle []string) {
	for _, p := range n.patterns {
		if !slices.ContainsFunc(namespaces, p.Match) {
			idle = append(idle, p.text)
		}
	}
	return idle
}

// Key returns equal texts only for equal selections; "" for nil.
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
	// No word has a comma or a slash.
	return strings.Join(n.names, ",") + "/" + strings.Join(patterns, ",") + "/" + strings.Join(excludes, ",")
}
