// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var promised = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| ([^|]+) \\| ([^|]+) \\|$")

// testsIn returns all functions of test files as "folder name", and the folders.
func testsIn(t *testing.T) (tests, tested map[string]bool) {
	tests, tested = map[string]bool{}, map[string]bool{}
	for path, file := range parsed(t, true) {
		tested[filepath.ToSlash(filepath.Dir(path))] = true
		for _, declaration := range file.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && test.Recv == nil {
				tests[filepath.ToSlash(filepath.Dir(path))+" "+test.Name.Name] = true
			}
		}
	}
	return tests, tested
}

// missing returns the tests that a cell names and that do not exist, and how many it names. A test is in
// the folder that is named behind it, or in the one given.
func missing(tests map[string]bool, folder, cell string) (absent []string, count int) {
	words := quoted.FindAllStringSubmatch(cell, -1)
	for i, word := range words {
		in := folder
		if strings.Contains(word[1], "/") {
			continue
		}
		if i+1 < len(words) && strings.Contains(words[i+1][1], "/") {
			in = words[i+1][1]
		}
		if count++; !tests[in+" "+word[1]] {
			absent = append(absent, word[1]+" in "+in)
		}
	}
	return absent, count
}

var aCase = regexp.MustCompile(`(?m)^\| ([^|]+) \|(?: ([^|]+) \|)? ([^|]*` + "`Test" + `[^|]*) \|$`)

// TestCases compares docs/design/cases.md with the code: each case has a test, and each test exists.
func TestCases(t *testing.T) {
	tests, _ := testsIn(t)
	page, err := os.ReadFile("../../docs/design/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := aCase.FindAllStringSubmatch(string(page), -1)
	for _, row := range rows {
		if absent, count := missing(tests, "test/integration", row[3]); count == 0 || len(absent) > 0 {
			t.Errorf("%s: %d tests are named, and these do not exist: %q", row[1], count, absent)
		}
	}
	// Two tables, with a head and a line each.
	if lines := strings.Count(string(page), "\n| ") - 2; lines != len(rows) {
		t.Errorf("%d of %d rows can be read: a row is | nn | case | `Test`, `Test` |", len(rows), lines)
	}
}

// TestPromises compares docs/design/promises.md with the code: each package below pkg/ that is
// written by hand has a row, each row has a test, and each test exists.
func TestPromises(t *testing.T) {
	tests, tested := testsIn(t)
	packages := map[string]bool{}
	for path := range parsed(t, false) {
		if folder := filepath.ToSlash(filepath.Dir(path)); strings.HasPrefix(folder, "pkg/") {
			packages[folder] = true
		}
	}

	page, err := os.ReadFile("../../docs/design/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, match := range promised.FindAllStringSubmatch(string(page), -1) {
		name, promise, proof := match[1], match[2], match[3]
		folder := "pkg/" + name
		if rows = append(rows, name); !packages[folder] && !tested[folder] {
			t.Errorf("the page has a row of %s, which is no package: move its promises, with their tests, to where they are kept now", folder)
		}
		absent, count := missing(tests, folder, proof)
		for _, test := range absent {
			t.Errorf("%s, %q: there is no %s", name, promise, test)
		}
		if count == 0 {
			t.Errorf("%s, %q: no test defends that", name, promise)
		}
	}
	if lines := strings.Count(string(page), "\n| `"); lines != len(rows) {
		t.Errorf("%d of %d rows can be read: a row is | `package` | promise | `Test`, `Test` |", len(rows), lines)
	}
	if !slices.IsSorted(rows) {
		t.Error("the rows are not sorted by package")
	}
	for folder := range packages {
		if !slices.Contains(rows, strings.TrimPrefix(folder, "pkg/")) {
			t.Errorf("the page says nothing of %s: what does it promise, and which test defends that?", folder)
		}
	}
}
