// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"path"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

func TestParsePatternRefuses(t *testing.T) {
	for word, want := range map[string]string{
		"":                        "is empty",
		"**":                      "`**`",
		"a**b":                    "`**`",
		"[":                       "not closed",
		"ns[ab":                   "not closed",
		"ns[a-":                   "without an end",
		"ns[a-]":                  "without an end",
		"ns[-a]":                  "not between two characters",
		"ns[a--]":                 "backwards",
		"ns[c-a]":                 "backwards",
		"ns[0-_]":                 `'_'`,
		"ns[]":                    "empty brackets",
		"ns]":                     "without a `[`",
		"a]*":                     "without a `[`",
		"[^a]":                    `'^'`,
		"[!a]":                    `'!'`,
		"[[a]":                    `'['`,
		`a\*`:                     `'\\'`,
		"{a,b}*":                  `'{'`,
		"Team-*":                  `'T'`,
		"a.b*":                    `'.'`,
		"a b":                     "can't be a namespace",
		"Team":                    "can't be a namespace",
		"-a":                      "can't be a namespace",
		"-*":                      "start and end with a letter or a digit",
		"*-":                      "start and end with a letter or a digit",
		"é*":                      `'é'`,
		strings.Repeat("a", 64):   "no more than 63",
		strings.Repeat("?", 64):   "at most 63 characters",
		strings.Repeat("*a", 100): "at most 63 characters",
	} {
		if _, err := ParsePattern(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParsePattern(%q) = %v, want an error with %q", word, err, want)
		}
	}
}

func TestPatternMatch(t *testing.T) {
	for _, tc := range []struct{ pattern, matches, refuses string }{
		{"*", "a kube-system " + strings.Repeat("a", 63), "A a.b é " + strings.Repeat("a", 64)},
		{"ns1", "ns1", "ns ns10 ns2"},
		{"a*", "a app a-1", "b ba"},
		{"*-prod", "x-prod a-prod-prod", "prod x-prod2"},
		{"ns?", "ns1 nsa", "ns ns10"},
		{"ns[ab]", "nsa nsb", "ns nsc nsab"},
		{"ns[a-c0-9]", "nsa nsc ns0 ns9", "nsd ns-"},
		{"ns[9-b]", "ns9 nsa nsb", "ns8 nsc"},
		{"ns[a-a]", "nsa", "ns nsb"},
		{strings.Repeat("?", 63), strings.Repeat("a", 63), strings.Repeat("a", 62)},
		{"*" + strings.Repeat("z", 63), strings.Repeat("z", 63), strings.Repeat("z", 62)},
		{"*a*b", "ab xaxb aabb", "ba abx"},
		{"a*a", "aa aba", "a ab"},
	} {
		p, err := ParsePattern(tc.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(tc.matches) {
			if !p.Match(name) {
				t.Errorf("%q does not match %q", tc.pattern, name)
			}
		}
		for _, name := range append(strings.Fields(tc.refuses), "") {
			if p.Match(name) {
				t.Errorf("%q matches %q", tc.pattern, name)
			}
		}
	}
}

func TestPatternIntersects(t *testing.T) {
	long := strings.Repeat("a", 40)
	for _, tc := range []struct {
		p, q string
		want bool
	}{
		{"a*", "*b", true},
		{"a*", "b*", false},
		{"*a", "*b", false},
		{"*a*", "*b*", true},
		{"ns?", "ns[1-3]", true},
		{"ns?", "ns??", false},
		{"ns[ab]", "ns[c-e]", false},
		{"a*c", "ab*", true},
		{"a*", "a", true},
		{"a?*", "a", false},
		// Only "-x" would match both, and that is no namespace.
		{"?x", "*-x", false},
		{"??x", "*-x", true},
		// The shortest name that matches both is 80 characters long.
		{long + "*", "*" + strings.Repeat("b", 40), false},
		{long + "*", "*" + strings.Repeat("b", 23), true},
		{long + "*", "*" + strings.Repeat("b", 24), false},
	} {
		p, q := mustPattern(t, tc.p), mustPattern(t, tc.q)
		if got := p.Intersects(q); got != tc.want {
			t.Errorf("%q.Intersects(%q) = %v", tc.p, tc.q, got)
		}
		if got := q.Intersects(p); got != tc.want {
			t.Errorf("%q.Intersects(%q) = %v", tc.q, tc.p, got)
		}
	}
}

func TestPatternCovers(t *testing.T) {
	for _, tc := range []struct {
		p, q string
		want bool
	}{
		{"*", "a*b", true},
		{"a*", "a*b", true},
		{"a*b", "a*", false},
		{"a*", "ab?", true},
		{"ns?", "ns[12]", true},
		{"ns[12]", "ns?", false},
		{"ns[1-3]", "ns[13]", true},
		{"*a*", "b*ab*", true},
		{"a?", "a*", false},
	} {
		if got := mustPattern(t, tc.p).Covers(mustPattern(t, tc.q)); got != tc.want {
			t.Errorf("%q.Covers(%q) = %v", tc.p, tc.q, got)
		}
	}
}

func mustPattern(t interface{ Fatal(...any) }, word string) Pattern {
	p, err := ParsePattern(word)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// smallPatterns are over the alphabet of shortNames, and short enough that two
// of them, if they intersect at all, do so on a name of that list.
var smallPatterns = rapid.Map(
	rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "-", "?", "[b]", "[ab]", "[a-b]", "*"}), 1, 4),
	func(parts []string) string { return strings.ReplaceAll(strings.Join(parts, ""), "**", "*") },
).Filter(func(word string) bool {
	_, err := ParsePattern(word)
	return err == nil
})

// shortNames are all valid names of up to 8 characters over a, b and hyphen. The
// other characters add nothing: no pattern above tells them from a and b.
var shortNames = func() []string {
	layer, names := []string{""}, []string(nil)
	for range 8 {
		var next []string
		for _, prefix := range layer {
			for _, c := range "ab-" {
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

func TestIntersectsAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := mustPattern(t, smallPatterns.Draw(t, "p"))
		q := mustPattern(t, smallPatterns.Draw(t, "q"))
		witness := ""
		for _, name := range shortNames {
			inP, _ := path.Match(p.String(), name)
			inQ, _ := path.Match(q.String(), name)
			if p.Match(name) != inP {
				t.Fatalf("%q.Match(%q) = %v, path.Match disagrees", p, name, !inP)
			}
			if inP && inQ {
				witness = name
			}
			if p.Covers(q) && inQ && !inP {
				t.Fatalf("%q covers %q, but does not match %q", p, q, name)
			}
		}
		if got := p.Intersects(q); got != (witness != "") {
			t.Fatalf("%q.Intersects(%q) = %v, brute force found %q", p, q, got, witness)
		}
	})
}

func FuzzParsePattern(f *testing.F) {
	for _, seed := range []string{"*", "ns1", "a*b?", "[a-c]x", "ns[", "**", "[]", "-*", "[a-", "a--*", strings.Repeat("?*", 63)} {
		f.Add(seed, "ns1")
	}
	f.Fuzz(func(t *testing.T, word, name string) {
		p, err := ParsePattern(word)
		if err != nil {
			return
		}
		if !p.Intersects(p) || !p.Covers(p) {
			t.Errorf("%q is accepted, but matches no namespace", word)
		}
		valid := len(validation.IsDNS1123Label(name)) == 0
		want, err := path.Match(word, name)
		if err != nil {
			t.Fatalf("%q is accepted, but path.Match says %v", word, err)
		}
		if got := p.Match(name); valid && got != want {
			t.Errorf("%q.Match(%q) = %v, path.Match says %v", word, name, got, want)
		}
		if !valid {
			return
		}
		if exact := mustPattern(t, name); p.Intersects(exact) != want || p.Covers(exact) != want {
			t.Errorf("%q and the name %q: Intersects %v, Covers %v, path.Match %v",
				word, name, p.Intersects(exact), p.Covers(exact), want)
		}
	})
}
