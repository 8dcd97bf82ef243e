// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rows of the pages of errors: their number, and the tests that show them.
var numbered = regexp.MustCompile(`(?m)^\| ([0-9]+) \|.*\| ([^|]+) \|$`)

// TestPagesOfErrors: on the pages of errors of restores and snapshots each row has its number, in order,
// and the tests that it names exist in its folders.
func TestPagesOfErrors(t *testing.T) {
	tests, _ := testsIn(t)
	for name, tables := range map[string][]int{"restore-pitfalls.md": {25, 20}, "snapshot-pitfalls.md": {46, 12}} {
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile("../../docs/" + name)
			if err != nil {
				t.Fatal(err)
			}
			rows, wrong := judged(string(page), tests)
			for _, words := range wrong {
				t.Error(words)
			}
			var want []string
			for _, count := range tables {
				for n := range count {
					want = append(want, fmt.Sprint(n+1))
				}
			}
			if !slices.Equal(rows, want) {
				t.Errorf("the rows are %q", rows)
			}
		})
	}
}

// judged returns the numbers of a page's rows, and the errors of the tests that the rows name. A row without
// a test says "none".
func judged(page string, tests map[string]bool) (rows, wrong []string) {
	for _, match := range numbered.FindAllStringSubmatch(page, -1) {
		rows = append(rows, match[1])
		var named []string
		count := 0
		for _, word := range quoted.FindAllStringSubmatch(match[2], -1) {
			if strings.HasPrefix(word[1], "Test") || strings.HasPrefix(word[1], "Benchmark") {
				named = append(named, word[1])
				continue
			}
			for _, test := range named {
				if count++; !tests[word[1]+" "+test] {
					wrong = append(wrong, fmt.Sprintf("row %s names %s in %s, which is not there", match[1], test, word[1]))
				}
			}
			named = nil
		}
		switch {
		case len(named) > 0:
			wrong = append(wrong, fmt.Sprintf("row %s says of %q in no folder", match[1], named))
		case count == 0 && !strings.HasPrefix(match[2], "none"):
			wrong = append(wrong, fmt.Sprintf("row %s names no test, and does not say so", match[1]))
		}
	}
	return rows, wrong
}

// TestJudgedRows: each error of a row is told.
func TestJudgedRows(t *testing.T) {
	tests := map[string]bool{"pkg/a TestA": true, "pkg/b BenchmarkB": true}
	for cell, want := range map[string]string{
		"`TestA` in `pkg/a`; `BenchmarkB` in `pkg/b`": "",
		"none, since no lab has such a driver":        "",
		"for the words `TestA` in `pkg/a`; none else": "",
		"`TestA`, `TestGone` in `pkg/a`":              "TestGone in pkg/a",
		"`TestA` in `pkg/b`":                          "TestA in pkg/b",
		"`BenchmarkA` in `pkg/a`":                     "BenchmarkA in pkg/a",
		"`TestA`":                                     "in no folder",
		"the words of the page":                       "names no test",
	} {
		rows, wrong := judged("| 7 | elsewhere | here | "+cell+" |\n", tests)
		if got := strings.Join(wrong, ", "); !slices.Equal(rows, []string{"7"}) || !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: rows %q, %q, want %q", cell, rows, got, want)
		}
	}
}
