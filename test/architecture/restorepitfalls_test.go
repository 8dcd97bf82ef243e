// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rows of docs/restore-pitfalls.md: their number, and what shows them.
var numbered = regexp.MustCompile(`(?m)^\| ([0-9]+) \|.*\| ([^|]+) \|$`)

// In docs/restore-pitfalls.md, each pitfall and each proof has one row, in order, and the tests
// that it names exist where it says.
func TestRestorePitfalls(t *testing.T) {
	tests := map[string]bool{}
	for path, file := range parsed(t, true) {
		for _, declaration := range file.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && test.Recv == nil {
				tests[test.Name.Name+" in "+filepath.ToSlash(filepath.Dir(path))] = true
			}
		}
	}
	page, err := os.ReadFile("../../docs/restore-pitfalls.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, match := range numbered.FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, match[1])
		var named []string
		for _, word := range quoted.FindAllStringSubmatch(match[2], -1) {
			if strings.HasPrefix(word[1], "Test") {
				named = append(named, word[1])
				continue
			}
			for _, test := range named {
				if !tests[test+" in "+word[1]] {
					t.Errorf("row %s names %s in %s, which is not there", match[1], test, word[1])
				}
			}
			named = nil
		}
		if len(named) > 0 {
			t.Errorf("row %s says of %q in no folder", match[1], named)
		}
	}
	var want []string
	for _, count := range []int{25, 20} {
		for n := range count {
			want = append(want, fmt.Sprint(n+1))
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the rows are %q", rows)
	}
}
