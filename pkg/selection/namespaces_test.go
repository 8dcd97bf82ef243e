// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

// parse reads "a b* -c": included words, and excluded ones with a hyphen before.
func parse(t interface{ Fatal(...any) }, words string) *Namespaces {
	var included, excluded []string
	for _, word := range strings.Fields(words) {
		if rest, ok := strings.CutPrefix(word, "-"); ok {
			excluded = append(excluded, rest)
		} else {
			included = append(included, word)
		}
	}
	n, errs := ParseNamespaces(included, excluded, nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return n
}

func TestParseNamespacesNamesTheField(t *testing.T) {
	spec := field.NewPath("spec")
	for name, tc := range map[string]struct {
		included, excluded []string
		want               []string
	}{
		"each bad word by its index": {
			included: []string{"ok", "", "ns["},
			excluded: []string{"also-ok", "A*"},
			want:     []string{"spec.includedNamespaces[1]", "spec.includedNamespaces[2]", "spec.excludedNamespaces[1]"},
		},
		"everything excluded": {excluded: []string{"*"}, want: []string{"spec.excludedNamespaces[0]"}},
		"in both lists": {
			included: []string{"a", "b*"},
			excluded: []string{"b*"},
			want:     []string{"spec.excludedNamespaces[0]"},
		},
	} {
		n, errs := ParseNamespaces(tc.included, tc.excluded, spec)
		var got []string
		for _, err := range errs {
			got = append(got, err.Field)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || n != nil {
			t.Errorf("%s: (-want +got)\n%s%v", name, diff, errs)
		}
	}
}

// selected returns those of the existing namespaces that are selected.
func selected(n *Namespaces, existing []string) []string {
	return slices.DeleteFunc(slices.Clone(existing), func(name string) bool { return !n.Match(name) })
}

func overlap(a, b *Namespaces, existing []string) (overlaps bool, shared []string) {
	if !Overlaps(a, b) {
		return false, nil
	}
	return true, slices.Collect(Shared(a, b, existing))
}

func TestNamespaces(t *testing.T) {
	existing := []string{"app-dev", "app-prod", "kube-system", "ns1", "ns2"}
	for words, want := range map[string]struct {
		resolved, explicit, patterns string
		all                          bool
	}{
		"":                     {resolved: strings.Join(existing, " "), patterns: "*", all: true},
		"*":                    {resolved: strings.Join(existing, " "), patterns: "*", all: true},
		"ns1 *":                {resolved: strings.Join(existing, " "), explicit: "ns1", patterns: "*", all: true},
		"-kube-system":         {resolved: "app-dev app-prod ns1 ns2", patterns: "*"},
		"* -app-* -ns?":        {resolved: "kube-system", patterns: "*"},
		"ns2 ns1 ns1 gone":     {resolved: "ns1 ns2", explicit: "gone ns1 ns2"},
		"app-*":                {resolved: "app-dev app-prod", patterns: "app-*"},
		"app-* -app-prod ns1":  {resolved: "app-dev ns1", explicit: "ns1", patterns: "app-*"},
		"app-prod ns1 -app-*":  {resolved: "ns1", explicit: "ns1"},
		"ns[12] ns?":           {resolved: "ns1 ns2", patterns: "ns[12] ns?"},
		"ns[12] -ns?":          {},
		"none-of-these-*":      {patterns: "none-of-these-*"},
		"team-a -team-* ":      {},
		"app-* app-* -app-d??": {resolved: "app-prod", patterns: "app-*"},
	} {
		n := parse(t, words)
		got := struct {
			resolved, explicit, patterns string
			all                          bool
		}{
			strings.Join(selected(n, existing), " "),
			strings.Join(n.Explicit(), " "),
			strings.Join(n.Patterns(), " "),
			n.All(),
		}
		if got != want {
			t.Errorf("%q: got %+v, want %+v", words, got, want)
		}
		if n.Match("") {
			t.Errorf("%q selects the empty name, which cluster-scoped objects carry", words)
		}
	}
}

func TestWord(t *testing.T) {
	n := parse(t, "a* b* abc -ax")
	for name, want := range map[string]string{"abc": "abc", "a1": "a*", "b": "b*", "ax": "", "c": ""} {
		if word, ok := n.Word(name); ok != (want != "") || ok && word != want {
			t.Errorf("Word(%q) = %q, %v, want %q", name, word, ok, want)
		}
	}
}

func TestUnreadableNamespaces(t *testing.T) {
	var n *Namespaces
	if n.All() || n.Match("a") || n.Key() != "" || len(n.Explicit()) > 0 || len(n.Patterns()) > 0 {
		t.Error("lists that can't be read must select nothing")
	}
}

func TestKey(t *testing.T) {
	same := [][2]string{{"a b c* d*", "d* b c* a a"}, {"", "*"}, {"-a -b", "* -b -a"}, {"-b* -a* -c", "-c -a* -b*"}}
	for _, pair := range same {
		if a, b := parse(t, pair[0]).Key(), parse(t, pair[1]).Key(); a != b {
			t.Errorf("keys of %q and %q differ: %q, %q", pair[0], pair[1], a, b)
		}
	}
	for _, pair := range [][2]string{{"a", "b"}, {"a*", "a* -ab"}, {"a b", "ab"}, {"a*", "a"}, {"* -a", "*"}, {"* -a*", "*"}, {"* -a*", "* -b*"}, {"a* -ac", "a* -ab"}} {
		if a, b := parse(t, pair[0]).Key(), parse(t, pair[1]).Key(); a == b {
			t.Errorf("%q and %q have the same key %q", pair[0], pair[1], a)
		}
	}
}

// Pitfalls 16 and 18: words are compared, so that a namespace that does not exist yet
// counts.
func TestOverlap(t *testing.T) {
	existing := []string{"app-1", "app-2", "kube-system", "ns1", "ns2"}
	for _, tc := range []struct {
		a, b   string
		shared string // "" when they don't overlap
	}{
		{"ns1", "ns2", ""},
		{"ns1 ns2", "ns2 ns3", "ns2"},
		{"gone", "gone ns1", "gone"}, // neither exists yet
		{"gone", "gone-*", ""},
		{"gone-1", "gone-*", "gone-1"},
		{"gone-1 z-*", "z-1 gone-*", "gone-1 z-1"},
		{"app-*", "app-1 ns1", "app-1"},
		{"app-*", "app-1 ns1 app-9", "app-1 app-9"},
		{"app-*", "*-1", "app-1"},
		{"app-* -app-1", "*-1", "*-1 app-*"}, // app-x-1 could appear
		{"app-?", "app-1? ns1", ""},
		{"new-*", "*-old", "*-old new-*"},
		{"app-[12]", "app-2 app-3", "app-2"},
		{"app-[12]", "app-[23]", "app-2"},
		{"?", "x ns1", "x"},
		{"?", "n*", "? n*"},
		{"?", "ns*", ""},
		{"", "", "app-1 app-2 kube-system ns1 ns2"},
		{"*", "", "app-1 app-2 kube-system ns1 ns2"},
		{"*", "?", "* ?"},
		{"* -ns1", "ns1", ""},
		{"* -ns1", "ns2", "ns2"},
		{"", "ns1", "ns1"},
		{"", "gone", "gone"},
		{"", "new-*", "* new-*"},
		{"-ns1", "ns1", ""},
		{"-ns1", "ns1 gone", "gone"},
		{"-ns1", "", "app-1 app-2 kube-system ns2"},
		{"-app-*", "app-*", ""},
		{"-app-*", "app-[12]", ""},
		{"-app-*", "app-1 app-9", ""},
		{"-app-*", "a*", "* a*"},
		{"-ns*", "ns1 ns2", ""},
		// A selection of nothing overlaps only what overlaps everything.
		{"ns1 -ns*", "ns1", ""},
		{"ns1 -ns*", "* -kube-system", ""},
		{"ns1 -ns*", "", "*"},
	} {
		a, b := parse(t, tc.a), parse(t, tc.b)
		for range 2 {
			overlaps, shared := overlap(a, b, existing)
			if got := strings.Join(shared, " "); got != tc.shared || overlaps != (tc.shared != "") {
				t.Errorf("Overlap(%q, %q) = %v, %q, want %q", tc.a, tc.b, overlaps, got, tc.shared)
			}
			a, b = b, a
		}
	}
}

// Pitfall 17: what can't be read is in conflict with everything, and not with nothing.
func TestUnreadableOverlapsEverything(t *testing.T) {
	existing := []string{"ns1", "ns2"}
	for words, want := range map[string]string{
		"ns1 gone": "gone ns1", "": "ns1 ns2", "ns*": "ns1 ns2", "new-*": "new-*", "ns1 -ns*": "",
	} {
		n := parse(t, words)
		for _, pair := range [][2]*Namespaces{{n, nil}, {nil, n}} {
			overlaps, shared := overlap(pair[0], pair[1], existing)
			if got := strings.Join(shared, " "); !overlaps || got != want {
				t.Errorf("unreadable and %q: %v, %q, want %q", words, overlaps, got, want)
			}
		}
	}
	if overlaps, shared := overlap(nil, nil, existing); !overlaps || len(shared) > 0 {
		t.Errorf("two unreadable ones: %v, %q", overlaps, shared)
	}
}

func drawSelection(t *rapid.T, label string) *Namespaces {
	words := rapid.SliceOfNDistinct(smallPatterns, 0, 4, rapid.ID).Draw(t, label)
	cut := rapid.IntRange(0, len(words)).Draw(t, label+" included")
	excluded := slices.DeleteFunc(slices.Clone(words[cut:]), func(w string) bool { return w == "*" })
	n, errs := ParseNamespaces(words[:cut], excluded, nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return n
}

// Pitfall 16: what Overlaps promises, against brute force over all short names: it
// never misses a namespace that both select, it is right when one side gives names
// only, and the namespaces that exist are no part of it.
func TestOverlapsAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawSelection(t, "a"), drawSelection(t, "b")
		var common []string
		for _, name := range shortNames {
			if a.Match(name) && b.Match(name) {
				common = append(common, name)
			}
		}
		got := Overlaps(a, b)
		if got != Overlaps(b, a) {
			t.Fatal("not symmetric")
		}
		if len(common) > 0 && !got {
			t.Fatalf("%q and %q: %q is in both, and yet they don't overlap", a.Key(), b.Key(), common[0])
		}
		exact := !a.All() && !b.All() && (len(a.Patterns()) == 0 || len(b.Patterns()) == 0 || !a.Loose() && !b.Loose()) && (len(a.Patterns()) == 0 || len(b.Patterns()) == 0 || reflect.DeepEqual(a.excludes, wordSet{}) && reflect.DeepEqual(b.excludes, wordSet{}))
		if exact && got != (len(common) > 0) {
			t.Fatalf("%q and %q: Overlaps = %v, in both: %q", a.Key(), b.Key(), got, common)
		}
		existing := rapid.SliceOfNDistinct(rapid.SampledFrom(shortNames), 0, 30, rapid.ID).Draw(t, "existing")
		slices.Sort(existing)
		overlaps, shared := overlap(a, b, existing)
		if overlaps != got {
			t.Fatal("the namespaces that exist changed the answer")
		}
		if !slices.IsSorted(shared) || len(slices.Compact(slices.Clone(shared))) != len(shared) {
			t.Fatalf("shared is not a sorted set: %q", shared)
		}
		if overlaps && len(shared) == 0 {
			t.Fatal("an overlap with nothing to show")
		}
		for _, name := range existing {
			if both := a.Match(name) && b.Match(name); both != slices.Contains(shared, name) && overlaps {
				t.Fatalf("%q: in both %v, shown %q", name, both, shared)
			}
		}
	})
}

// Patterns that are not compared overlap all patterns, and names only if they match them. What a
// backup is compared by follows from its own words.
func TestLoosePatterns(t *testing.T) {
	many := []string{"a-*", "b-*", "c-*", "d-*", "e-*"}
	for _, test := range []struct {
		a, b     []string
		overlaps bool
	}{
		{[]string{"*-x-*"}, []string{"prod-*"}, true},
		{[]string{"*-x-*"}, []string{"*-y-*"}, true},
		{[]string{"p*-x-*"}, []string{"q-*"}, true},
		{[]string{"p??"}, []string{"q-*"}, true},
		{many, []string{"q-*"}, true},
		{many[:4], []string{"q-*"}, false},
		{[]string{"*-prod"}, []string{"*-dev"}, false},
		{[]string{"team-*"}, []string{"shop-*"}, false},
		{[]string{"team-[ab]"}, []string{"team-c", "team-[cd]"}, false},
		{[]string{"*-x-*"}, []string{"shop", "prod-y-1"}, false},
		{[]string{"*-x-*"}, []string{"prod-x-1"}, true},
		{many, []string{"f-1"}, false},
	} {
		a, errs := ParseNamespaces(test.a, nil, nil)
		b, more := ParseNamespaces(test.b, nil, nil)
		if len(errs)+len(more) > 0 {
			t.Fatal(errs, more)
		}
		if Overlaps(a, b) != test.overlaps || Overlaps(b, a) != test.overlaps {
			t.Errorf("%q and %q: Overlaps = %v, want %v", test.a, test.b, Overlaps(a, b), test.overlaps)
		}
	}
	excluded, errs := ParseNamespaces([]string{"*"}, []string{"a-*", "b-*", "c-*", "d-*", "e-*"}, nil)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	only, _ := ParseNamespaces([]string{"a-*"}, nil, nil)
	if !excluded.Loose() || !Overlaps(excluded, only) {
		t.Error("a selection that excludes five patterns is compared with others")
	}
}
