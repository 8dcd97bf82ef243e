// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// In docs/format.md, each sentence's "must" names the tests that defend it, and
// those exist.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, root := range []string{"..", "../../test"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") && filepath.Base(filepath.Dir(path)) != "storetest" || entry.IsDir() {
				return err
			}
			source, err := os.ReadFile(path)
			tests.Write(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")
	quoted := regexp.MustCompile(`suite ("[a-z ]+"(?:, "[a-z ]+")*)`)
	musts := 0
	for line := range strings.Lines(string(page)) {
		defended := false
		for _, match := range named.FindAllStringSubmatch(line, -1) {
			defended = true
			if !strings.Contains(tests.String(), "func "+match[1]+"(") {
				t.Errorf("there is no %s", match[1])
			}
		}
		for _, match := range quoted.FindAllStringSubmatch(line, -1) {
			defended = true
			for _, name := range strings.Split(match[1], ", ") {
				if !strings.Contains(tests.String(), name+":") {
					t.Errorf("the suite has no %s", name)
				}
			}
		}
		if strings.Contains(line, "**must") && !strings.Contains(line, "A sentence with **must**") {
			musts++
			if !defended {
				t.Errorf("nothing defends: %s", line)
			}
		}
	}
	if musts < 20 {
		t.Errorf("only %d lines with must were found", musts)
	}
}
