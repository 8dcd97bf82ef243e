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

// TestPromises compares docs/design/promises.md with the code: each package below pkg/ that is
// written by hand has a row, each row has a test, and each test exists.
func TestPromises(t *testing.T) {
	tests, tested := map[string]bool{}, map[string]bool{}
	for path, file := range parsed(t, true) {
		tested[filepath.ToSlash(filepath.Dir(path))] = true
		for _, declaration := range file.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && test.Recv == nil {
				tests[filepath.ToSlash(filepath.Dir(path))+" "+test.Name.Name] = true
			}
		}
	}
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
		var named []string
		check := func(folder string) {
			for _, test := range named {
				if !tests[folder+" "+test] {
					t.Errorf("%s, %q: there is no %s in %s", name, promise, test, folder)
				}
			}
			named = nil
		}
		count := 0
		for _, word := range quoted.FindAllStringSubmatch(proof, -1) {
			if strings.Contains(word[1], "/") {
				// The folder of the test before it, and of none further ahead.
				last := named[len(named)-1]
				named = named[:len(named)-1]
				check(folder)
				named = []string{last}
				check(word[1])
				continue
			}
			named = append(named, word[1])
			count++
		}
		check(folder)
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
