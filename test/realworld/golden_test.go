// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// golden is what one file holds of a restore.
type golden struct {
	// Backup and Restore are in the file of all operators only.
	Backup  *ending `json:"backup,omitempty"`
	Restore *ending `json:"restore,omitempty"`
	// Warnings are of the restore. They say what differs, and why, and need no explanation.
	Warnings    []string     `json:"warnings,omitempty"`
	Differences []difference `json:"differences,omitempty"`
}

// ending is how a backup or a restore has ended, with the texts that are of no operator.
type ending struct {
	Phase    string   `json:"phase"`
	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// rule explains the same difference of many objects.
type rule struct {
	// Objects and Field are what is meant: a star stands for anything.
	Objects string `json:"objects"`
	Field   string `json:"field"`
	// Change is how the change begins.
	Change string `json:"change,omitempty"`
	// Only is the restore that it is about, if it is not about all.
	Only string `json:"only,omitempty"`
	Why  string `json:"why"`

	met bool
}

// explanations are the rules.
type explanations struct {
	Rules []*rule `json:"rules"`
}

const explainedFile = "testdata/explained.yaml"

func readExplanations(t *testing.T) *explanations {
	t.Helper()
	found := &explanations{}
	readYAML(t, explainedFile, found)
	for _, r := range found.Rules {
		if r.Objects == "" || r.Field == "" || r.Why == "" {
			t.Errorf("%s: a rule lacks its objects, its field or its why: %+v", explainedFile, *r)
		}
	}
	return found
}

// explain reports whether a rule explains a difference.
func (e *explanations) explain(mode string, d difference) bool {
	explained := false
	for _, r := range e.Rules {
		if (r.Only == "" || r.Only == mode) && matches(r.Objects, d.Object) && matches(r.Field, d.Field) && strings.HasPrefix(d.Change, r.Change) {
			r.met, explained = true, true
		}
	}
	return explained
}

// matches reports whether a text is as a pattern says, or as one of several with a bar between them.
func matches(pattern, text string) bool {
	for one := range strings.SplitSeq(pattern, "|") {
		if regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(one), `\*`, `.*`) + "$").MatchString(text) {
			return true
		}
	}
	return false
}

func goldenPath(operator, mode string) string {
	return filepath.Join("testdata", operator, mode+".yaml")
}

// readYAML reads a file. One that is not there holds nothing.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// madeHash is the hash of a pod's template at the end of a name, before that of a pod. Releases of
// Kubernetes make different ones.
var madeHash = regexp.MustCompile(`^((?:ReplicaSet|Pod|ControllerRevision) .*-)[bcdf-hj-np-tv-xz2456789]{8,10}(-\*)?$`)

// check compares what was found with the golden file, or writes it. Explanations that are in the file
// stay with their object and field.
func check(t *testing.T, operator, mode string, found golden) {
	t.Helper()
	path := goldenPath(operator, mode)
	var old golden
	readYAML(t, path, &old)
	for i := range found.Differences {
		d := &found.Differences[i]
		d.Object = madeHash.ReplaceAllString(d.Object, "${1}HASH$2")
		if n := slices.IndexFunc(old.Differences, func(o difference) bool { return o.Object == d.Object && o.Field == d.Field }); n >= 0 {
			d.Why = old.Differences[n].Why
		}
		if d.Why == "" {
			t.Errorf("%s: %s %s: %s: nobody has explained it. Mend the restore, or write why into the file", path, d.Object, d.Field, d.Change)
		}
	}
	slices.Sort(found.Warnings)
	is, err := yaml.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if string(is) == "{}\n" {
			err = os.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		} else {
			err = os.WriteFile(path, is, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	was, err := yaml.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(was, is) {
		t.Errorf("%s is not what the restore did: run this test with -update, and read what it changes.\n%s", path, lineDifferences(string(was), string(is)))
	}
}

// lineDifferences are the lines that only one of two texts has.
func lineDifferences(was, is string) string {
	var text strings.Builder
	list := func(sign, these, others string) {
		known := map[string]bool{}
		for line := range strings.SplitSeq(others, "\n") {
			known[line] = true
		}
		for line := range strings.SplitSeq(these, "\n") {
			if !known[line] {
				fmt.Fprintf(&text, "%s %s\n", sign, line)
			}
		}
	}
	list("-", was, is)
	list("+", is, was)
	return text.String()
}

// The table in the page is between these lines.
const (
	page       = root + "/docs/what-does-not-come-back.md"
	tableBegin = "<!-- The table is written by: go test ./test/realworld -update -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

var restores = []struct{ mode, words string }{{inPlace, "any"}, {mapped, "into another namespace"}, {newer, "into a newer Kubernetes"}}

// table lists what differs, of all golden files and rules.
func table(t *testing.T, all []operator, rules *explanations) string {
	t.Helper()
	type row struct{ of, field, change, why string }
	var rows []row
	add := func(r row) {
		if !slices.ContainsFunc(rows, func(other row) bool { return other.of == r.of && other.field == r.field && other.why == r.why }) {
			rows = append(rows, r)
		}
	}
	when := map[string]string{"": "any"}
	for _, r := range restores {
		when[r.mode] = r.words
	}
	for _, r := range rules.Rules {
		of := strings.ReplaceAll(strings.ReplaceAll(r.Objects, " *", ""), "|", ", ")
		if of == "*" {
			of = "every object"
		}
		add(row{of, strings.ReplaceAll(r.Field, "|", ", "), when[r.Only], r.Why})
	}
	var own []row
	for _, o := range append([]operator{{}}, all...) {
		for _, r := range restores {
			var found golden
			readYAML(t, goldenPath(o.name, r.mode), &found)
			for _, d := range found.Differences {
				kind, _, _ := strings.Cut(d.Object, " ")
				field := d.Field
				if field == "" {
					field = "itself"
				}
				if at := slices.IndexFunc(own, func(other row) bool { return other.of == kind && other.field == field && other.why == d.Why }); at < 0 {
					own = append(own, row{kind, field, r.words, d.Why})
				}
			}
		}
	}
	slices.SortStableFunc(own, func(a, b row) int { return cmp.Or(strings.Compare(a.of, b.of), strings.Compare(a.field, b.field)) })
	rows = append(rows, own...)
	var text strings.Builder
	text.WriteString("| of | field | restore | why |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&text, "| %s | `%s` | %s | %s |\n", r.of, r.field, r.change, strings.ReplaceAll(r.why, "|", "\\|"))
	}
	return text.String()
}

// checkPage compares the table in the page with the golden files, or writes it.
func checkPage(t *testing.T, table string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	if !found || !ends {
		t.Fatalf("%s has no place for the table: it is between the lines\n%s%s", page, tableBegin, tableEnd)
	}
	is := before + tableBegin + table + tableEnd + after
	if is == string(text) {
		return
	}
	if !*update {
		t.Errorf("the table in %s is not what the golden files say: run this test with -update", page)
		return
	}
	if err := os.WriteFile(page, []byte(is), 0o644); err != nil {
		t.Fatal(err)
	}
}
