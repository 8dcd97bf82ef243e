// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"strings"
	"testing"
)

// TestFindings shows that a line names the first errors, or else warnings, of those that its
// readers may see, and counts all.
func TestFindings(t *testing.T) {
	type text struct{ namespace, text string }
	many := []text{{"shop", "a"}, {"bank", "b"}, {"", "c"}, {"shop", "d"}, {"shop", "e"}, {"shop", "f"}}
	for name, test := range map[string]struct {
		namespace        string
		errors, warnings []text
		want             string
	}{
		"nothing":                    {"holdfast", nil, nil, ""},
		"one error":                  {"holdfast", many[:1], nil, "1 error: a"},
		"three errors":               {"holdfast", many[:3], nil, "3 errors: a; b; c"},
		"many errors":                {"holdfast", many, many[:1], "6 errors, 1 warning: a; b; c; and 3 more"},
		"warnings alone":             {"holdfast", nil, many[:2], "2 warnings: a; b"},
		"a tenant's":                 {"shop", many, nil, "6 errors: a; d; e; and 3 more"},
		"a tenant's, of others":      {"shop", many[1:3], many, "2 errors, 6 warnings (see the results)"},
		"a tenant's, of one of them": {"shop", many[1:4], nil, "3 errors: d; and 2 more"},
		"lines":                      {"holdfast", []text{{"", "a\n  b\tc"}}, nil, "1 error: a b c"},
	} {
		t.Run(name, func(t *testing.T) {
			errors, warnings := NewTold(test.namespace, "holdfast"), NewTold(test.namespace, "holdfast")
			for _, e := range test.errors {
				errors.Add(e.namespace, e.text)
			}
			for _, w := range test.warnings {
				warnings.Add(w.namespace, w.text)
			}
			if got := Findings(&errors, &warnings); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestFindingsAreBounded shows that a line fits into an event, whatever the texts are.
func TestFindingsAreBounded(t *testing.T) {
	var errors, warnings Told
	long := strings.Repeat("ä", 1000)
	for i := range 100_000 {
		errors.Add("", fmt.Sprint(i, long))
	}
	for text, want := range map[string]int{"a": 1, strings.Repeat("a", 1024): 1024, strings.Repeat("a", 1025): 1024, strings.Repeat("ä", 1000): 1023} {
		if got := Note(text); len(got) != want {
			t.Errorf("of %d bytes an event has %d, want %d", len(text), len(got), want)
		}
	}
	if got := Findings(&errors, &warnings); len(got) > 900 || !strings.HasSuffix(got, "; and 99997 more") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
