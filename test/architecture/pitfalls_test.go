// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const pitfalls = 31

// parsed gives each Go file of this module that was written by hand, by its path.
func parsed(t *testing.T, isTest bool) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	roots := []string{"cmd", "pkg", "test"}
	if isTest {
		roots = append(roots, "hack/stores")
	}
	for _, root := range roots {
		err := filepath.WalkDir("../../"+root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && strings.HasSuffix(path, "pkg/generated"):
				return fs.SkipDir
			case entry.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go") != isTest:
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			files[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = file
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Pitfall 10: a patch changes the newest version, unread. Each change of a record is an update of the
// version that it was decided on. The exceptions are in cmd, which patches events; in
// a restore, which patches the objects that it restores; in a SyncRequest, which may write one field of a
// location; and in snapshots, which know a few fields of Kubernetes's objects only. Each of their
// patches has the version that was read.
func TestNobodyPatches(t *testing.T) {
	for path, file := range parsed(t, false) {
		if !strings.HasPrefix(path, "pkg/") || slices.Contains([]string{"pkg/restore/cluster.go", "pkg/registry/requests/sync.go", "pkg/snapshots/mover.go", "pkg/snapshots/snapshots.go"}, path) {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				if method, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Patch", "ApplyStatus"}, method.Sel.Name) {
					t.Errorf("%s calls %s: update the version that was read instead", path, method.Sel.Name)
				}
			}
			return true
		})
	}
}

var (
	// carried is how the doc comment of a test gives the numbers of what it proves.
	carried = regexp.MustCompile(`Pitfalls? ([0-9]+(?:(?:, | and )[0-9]+)*):`)
	number  = regexp.MustCompile(`[0-9]+`)
	row     = regexp.MustCompile(`(?m)^\| ([0-9]+) \|(.+)\|(.+)\|(.+)\|$`)
	quoted  = regexp.MustCompile("`([^`]+)`")
)

// In docs/queue-pitfalls.md, each pitfall has one row, with the tests that carry its
// number, all of them and no others, or else with the reason why it can't occur.
func TestPitfalls(t *testing.T) {
	inTests := map[string]bool{}
	for path, file := range parsed(t, true) {
		mentions := 0
		for _, group := range file.Comments {
			mentions += strings.Count(group.Text(), "Pitfall")
		}
		for _, declaration := range file.Decls {
			test, ok := declaration.(*ast.FuncDecl)
			if !ok || test.Recv != nil || !strings.HasPrefix(test.Name.Name, "Test") {
				continue
			}
			for _, match := range carried.FindAllStringSubmatch(strings.ReplaceAll(test.Doc.Text(), "\n", " "), -1) {
				mentions--
				for _, n := range number.FindAllString(match[1], -1) {
					inTests[fmt.Sprintf("%s: %s in %s", n, test.Name.Name, filepath.ToSlash(filepath.Dir(path)))] = true
				}
			}
		}
		if mentions != 0 && path != "test/architecture/pitfalls_test.go" {
			t.Errorf("%s has a number that is not in the doc comment of a test, as \"Pitfall 3:\" or \"Pitfalls 3 and 4:\"", path)
		}
	}

	page, err := os.ReadFile("../../docs/queue-pitfalls.md")
	if err != nil {
		t.Fatal(err)
	}
	var numbers []string
	onPage := map[string]bool{}
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		n, proof := match[1], strings.TrimSpace(match[4])
		numbers = append(numbers, n)
		var tests []string
		found := false
		for _, word := range quoted.FindAllStringSubmatch(proof, -1) {
			if strings.HasPrefix(word[1], "Test") {
				tests = append(tests, word[1])
				continue
			}
			for _, test := range tests {
				found = true
				onPage[fmt.Sprintf("%s: %s in %s", n, test, word[1])] = true
			}
			tests = nil
		}
		if len(tests) > 0 {
			t.Errorf("row %s says of %q in no folder", n, tests)
		}
		if reason := strings.HasPrefix(proof, "It can't occur: "); reason == found {
			t.Errorf("row %s needs either tests, or a reason that begins with \"It can't occur: \"", n)
		}
	}
	var want []string
	for n := range pitfalls {
		want = append(want, fmt.Sprint(n+1))
	}
	if !slices.Equal(numbers, want) {
		t.Errorf("the rows of the page are %q, want 1 to %d", numbers, pitfalls)
	}
	for proof := range onPage {
		if !inTests[proof] {
			t.Errorf("the page has %s, but there is no such test, or it does not carry that number", proof)
		}
	}
	for proof := range inTests {
		if !onPage[proof] {
			t.Errorf("the page lacks %s", proof)
		}
	}
}
