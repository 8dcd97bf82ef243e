// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

// naive is what two lists select, by the words of the documentation: each word
// compared with each other one.
type naive struct{ included, excluded []Pattern }

func readNaively(t interface{ Fatal(...any) }, included, excluded []string) *naive {
	if len(included) == 0 {
		included = []string{"*"}
	}
	n := &naive{}
	for _, word := range included {
		n.included = append(n.included, mustPattern(t, word))
	}
	for _, word := range excluded {
		n.excluded = append(n.excluded, mustPattern(t, word))
	}
	return n
}

func (n *naive) match(name string) bool {
	matches := func(p Pattern) bool { return p.Match(name) }
	return slices.ContainsFunc(n.included, matches) && !slices.ContainsFunc(n.excluded, matches)
}

// kept are the included words that no excluded word covers, of those that keep says.
func (n *naive) kept(keep func(word string) bool) []string {
	words := []string{}
	for _, p := range n.included {
		covers := func(e Pattern) bool { return e.Covers(p) }
		if keep(p.text) && !slices.ContainsFunc(n.excluded, covers) && !slices.Contains(words, p.text) {
			words = append(words, p.text)
		}
	}
	return words
}

func (n *naive) names() []string {
	names := n.kept(func(word string) bool { return !isGlob(word) })
	slices.Sort(names)
	return names
}

func (n *naive) patterns() []string {
	all := func(p Pattern) bool { return p.text == "*" }
	if slices.ContainsFunc(n.included, all) {
		return []string{"*"}
	}
	return n.kept(isGlob)
}

// isLoose is Loose, by the words.
func (n *naive) isLoose() bool {
	excluded := 0
	for _, p := range n.excluded {
		if isGlob(p.text) {
			excluded++
		}
	}
	several := func(word string) bool { // wildcards
		return strings.Count(word, "*")+strings.Count(word, "?")+strings.Count(word, "[") > 1
	}
	patterns := n.patterns()
	return len(patterns) > 0 && (len(patterns) > 4 || excluded > 4 || slices.ContainsFunc(patterns, several))
}

// overlaps is the rules of Overlaps.
func (n *naive) overlaps(other *naive, n1, other1 *Namespaces) bool {
	if n1.All() || other1.All() {
		return true
	}
	for _, pair := range [][2]*naive{{n, other}, {other, n}} {
		if slices.ContainsFunc(pair[0].names(), pair[1].match) {
			return true
		}
	}
	if len(n.patterns()) > 0 && len(other.patterns()) > 0 && (n.isLoose() || other.isLoose()) {
		return true
	}
	free := func(word string, by *naive) bool {
		p := everything
		if word != "*" {
			p = Pattern{text: word, elems: mustElems(word)}
		}
		return !slices.ContainsFunc(by.excluded, func(e Pattern) bool { return e.Covers(p) })
	}
	for _, p := range n.patterns() {
		for _, q := range other.patterns() {
			if free(p, other) && free(q, n) && intersect(mustElems(p), mustElems(q)) {
				return true
			}
		}
	}
	return false
}

func mustElems(word string) []element {
	p, err := ParsePattern(word)
	if err != nil {
		panic(err)
	}
	return p.elems
}

func drawLists(t *rapid.T, label string) (included, excluded []string) {
	words := rapid.SliceOfNDistinct(smallPatterns, 0, 12, rapid.ID).Draw(t, label)
	cut := rapid.IntRange(0, len(words)).Draw(t, label+" included")
	included = rapid.Permutation(slices.Concat(words[:cut], words[:cut/2])).Draw(t, label+" twice")
	return included, slices.DeleteFunc(slices.Clone(words[cut:]), func(w string) bool { return w == "*" })
}

// What is looked up is what a comparison of each word with each other one finds.
func TestNamespacesAgainstTheWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parsed [2]*Namespaces
		var want [2]*naive
		for i, label := range []string{"a", "b"} {
			included, excluded := drawLists(t, label)
			n, errs := ParseNamespaces(included, excluded, nil)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			parsed[i], want[i] = n, readNaively(t, included, excluded)
			if diff := cmp.Diff(want[i].names(), append([]string{}, n.Explicit()...)); diff != "" {
				t.Fatalf("%q without %q: names (-want +got)\n%s", included, excluded, diff)
			}
			if diff := cmp.Diff(want[i].patterns(), n.Patterns()); diff != "" {
				t.Fatalf("%q without %q: patterns (-want +got)\n%s", included, excluded, diff)
			}
			if n.Exact() != (len(want[i].patterns()) == 0) {
				t.Fatalf("%q without %q: Exact is %v", included, excluded, n.Exact())
			}
			for _, name := range shortNames {
				if got := n.Match(name); got != want[i].match(name) {
					t.Fatalf("%q without %q: Match(%q) = %v", included, excluded, name, got)
				}
			}
		}
		if got := Overlaps(parsed[0], parsed[1]); got != want[0].overlaps(want[1], parsed[0], parsed[1]) {
			t.Fatalf("Overlaps(%q, %q) = %v", parsed[0].Key(), parsed[1].Key(), got)
		}
	})
}

func numbered(format string, n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf(format, i)
	}
	return words
}

// A list that is too long costs nothing but its refusal, however long it is; one that
// is as long as may be is taken.
func TestLimits(t *testing.T) {
	spec := field.NewPath("spec")
	for name, tc := range map[string]struct {
		included, excluded []string
		want               []string // field and type, for namespaces
		resources          []string // the same for resources, if it differs
	}{
		"as much as may be": {
			included: append(numbered("a%d", MaxWords-MaxPatterns), numbered("b%d*", MaxPatterns)...),
			excluded: append(numbered("c%d", MaxWords-MaxPatterns), numbered("d%d*", MaxPatterns)...),
		},
		"too many words": {
			included: numbered("a%d", MaxWords+1),
			excluded: numbered("A%d?!", MaxWords+1), // and none of them readable
			want:     []string{"spec.includedNamespaces: Too many", "spec.excludedNamespaces: Too many"},
		},
		"a million words, compared with a million": {
			included: slices.Repeat([]string{"a"}, 1e6),
			excluded: numbered("b%d", 1e6),
			want:     []string{"spec.includedNamespaces: Too many", "spec.excludedNamespaces: Too many"},
		},
		"too many patterns": {
			included: numbered("a%d*", MaxPatterns+1),
			excluded: append(numbered("b%d?", MaxPatterns), "[c]"),
			want:     []string{"spec.includedNamespaces: Forbidden", "spec.excludedNamespaces: Forbidden"},
		},
		"a long word": {
			included: []string{"ok", "[" + strings.Repeat("a", MaxWordLength-1) + "]"},
			excluded: []string{strings.Repeat("*", 3e6)},
			want:     []string{"spec.includedNamespaces[1]: Too long", "spec.excludedNamespaces[0]: Too long"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(errs field.ErrorList, want []string) {
				t.Helper()
				got := []string{}
				for _, err := range errs {
					got = append(got, err.Field+": "+err.Type.String())
					if len(err.Error()) > 200 {
						t.Errorf("an error of %d bytes", len(err.Error()))
					}
				}
				if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
			n, errs := ParseNamespaces(tc.included, tc.excluded, spec)
			check(errs, tc.want)
			if (n == nil) != (len(tc.want) > 0) {
				t.Errorf("parsed as %v", n)
			}
			var want []string
			for _, w := range tc.want {
				want = append(want, strings.ReplaceAll(w, "Namespaces", "ClusterScopedResources"))
			}
			_, errs = ParseResources(ResourceLists{IncludedClusterScopedResources: tc.included, ExcludedClusterScopedResources: tc.excluded}, n, spec)
			check(errs, want)
		})
	}
}

// What is kept of two lists, and what is made meanwhile, follows the number of words.
func TestParsingGrowsWithTheWords(t *testing.T) {
	count := func(words int) float64 {
		included, excluded := numbered("a%d", words), append(numbered("b%d", words), numbered("c%d*", MaxPatterns)...)
		return testing.AllocsPerRun(5, func() {
			n, errs := ParseNamespaces(included, excluded, nil)
			if len(errs) > 0 || len(n.names) != words {
				t.Fatal(errs.ToAggregate())
			}
			if len(n.excludes.names)+len(n.excludes.globs) > 0 {
				t.Error("names that are all told need no excludes any more")
			}
			_, errs = ParseResources(ResourceLists{IncludedResources: included, ExcludedResources: excluded}, n, nil)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
		})
	}
	few, many := count(90), count(900)
	if many > 10*few {
		t.Errorf("%v allocations for 90 words, %v for 900", few, many)
	}
}

// Of patterns that all meet each other, as many are shown as it takes to see why, and
// not each pair is looked at.
func TestSharedPatternsAreBounded(t *testing.T) {
	words := func(format string) *Namespaces {
		n, errs := ParseNamespaces(numbered(format, MaxPatterns), nil, nil)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		return n
	}
	shared := slices.Collect(Shared(words("*a%d*"), words("*b%d*"), nil))
	if len(shared) != MaxPatterns+1 || !slices.IsSorted(shared) {
		t.Errorf("%d are shown: %q", len(shared), shared)
	}
}

func TestTheLongestWord(t *testing.T) {
	if errs := CheckList([]string{strings.Repeat("a", MaxWordLength)}, nil); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

// A pattern that matches one name only is covered by that name.
func TestANameCoversAPatternOfItself(t *testing.T) {
	for words, exact := range map[string]bool{
		"a[b] -ab": true, "[a][b] -ab": true, "a[b] -a": false, "a[bc] -ab": false, "a[b]? -ab": false, "a[b]* -ab": false,
	} {
		if n := parse(t, words); n.Exact() != exact {
			t.Errorf("%q: exact %v", words, n.Exact())
		}
	}
}

func TestTheEndsOfTheAlphabet(t *testing.T) {
	for _, word := range []string{"azAZ09", "z.a", "Z-9", "a*.z?"} {
		if problem := resourceWordProblem(word); problem != "" {
			t.Errorf("%q %s", word, problem)
		}
	}
	for _, word := range []string{"`", "{", "@", "[[", "/", ":"} {
		if resourceWordProblem(word) == "" {
			t.Errorf("%q is taken for a resource", word)
		}
	}
}

func TestIsName(t *testing.T) {
	words := []string{"", "a", "0", "z9", "-", "a-", "-a", "a-b", "A", "a.b", "é", "a*", "[a]", strings.Repeat("a", 63), strings.Repeat("a", 64)}
	for _, word := range append(words, shortNames...) {
		if got, want := isName(word), len(validation.IsDNS1123Label(word)) == 0; got != want {
			t.Errorf("isName(%q) = %v", word, got)
		}
	}
}

// The names of a list are looked up: only its patterns are compared, of which there
// are MaxPatterns at most.
func TestNamesAreNotCompared(t *testing.T) {
	n, errs := ParseNamespaces([]string{"*"}, append(numbered("b%d", 900), numbered("c%d*", MaxPatterns)...), nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if len(n.excludes.globs) != MaxPatterns || len(n.excludes.names) != 900 || !slices.IsSorted(n.excludes.names) {
		t.Errorf("%d patterns, %d names", len(n.excludes.globs), len(n.excludes.names))
	}
}
