// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the offences of each package into testdata/ratchet.txt, where there are fewer than before")

// mostWords is how many words a sentence of a comment has at most.
const mostWords = 25

// The rules of CONTRIBUTING.md, "The words of a comment".
var (
	vague     = regexp.MustCompile(`(?i)(?:^|[ (])(?:whoever|whatever|whichever|somebody|nobody|who) [a-z]+`)
	beginning = regexp.MustCompile(`^(?:What|Who|Whoever|Whatever|Somebody|Nobody)\b`)
	crooked   = regexp.MustCompile(`(?i)\b(?:that of|those of|of which|of whom|be it|be they)\b`)
	sentence  = regexp.MustCompile(`[.?!:;](?:\s+|$)`)
	person    = regexp.MustCompile(`(?i)\b(?:user|person|people|administrator|one|those|anybody|everybody|anyone|tenant|somebody|nobody)s? who\b`)
)

// offences counts the sentences of a comment that break a rule, by the rule.
func offences(comment string) map[string]int {
	found := map[string]int{}
	for _, paragraph := range paragraphs(comment) {
		for _, s := range sentence.Split(paragraph, -1) {
			s = strings.TrimSpace(s)
			if s == "" {
				continue
			}
			if len(strings.Fields(s)) > mostWords {
				found["long"]++
			}
			if beginning.MatchString(s) || vague.MatchString(person.ReplaceAllString(s, "user that")) {
				found["subject"]++
			}
			if crooked.MatchString(s) {
				found["crooked"]++
			}
		}
	}
	return found
}

// paragraphs joins the lines of prose; indented lines are code, and items of lists begin anew.
func paragraphs(comment string) []string {
	var result []string
	current := ""
	end := func() {
		if current != "" {
			result = append(result, current)
		}
		current = ""
	}
	item := regexp.MustCompile(`^\s*(?:-|[0-9]+\.) +`)
	for _, line := range strings.Split(comment, "\n") {
		switch start := item.FindString(line); {
		case strings.TrimSpace(line) == "":
			end()
		case start != "":
			end()
			current = line[len(start):]
		case strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "#"), strings.HasPrefix(line, "+"): // code, or a marker
			end()
		default:
			current = strings.TrimSpace(current + " " + strings.TrimSpace(line))
		}
	}
	end()
	return result
}

func TestOffences(t *testing.T) {
	for comment, want := range map[string]map[string]int{
		"Wake enqueues every listed object for which waits is true.": {},
		"What is replaced is read again.":                            {"subject": 1},
		"A client that asks whoever leads gets an answer.":           {"subject": 1},
		"An administrator who has accepted a loss ends the doubt.":   {},
		"Its name is that of the backup, be it live or not.":         {"crooked": 1},
		"Two things:\n  - What is there.\n  - Those of others.":      {"subject": 1, "crooked": 1},
		"\tWhat is code is no sentence":                              {},
		strings.Repeat("word ", mostWords):                           {},
		strings.Repeat("word ", mostWords+1):                         {"long": 1},
	} {
		if got := offences(comment); !maps.Equal(got, want) {
			t.Errorf("%q has %v, want %v", comment, got, want)
		}
	}
}

// TestWords keeps the comments plain: the offences of each package may only become fewer. testdata/ratchet.txt has how many there are, by package and rule.
func TestWords(t *testing.T) {
	rules := []string{"long", "subject", "crooked"}
	counted := map[string]map[string]int{}
	for path, file := range parsed(t, false) {
		if strings.Contains(path, "zz_generated") {
			continue
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		if counted[folder] == nil {
			counted[folder] = map[string]int{}
		}
		for _, group := range file.Comments {
			for rule, count := range offences(group.Text()) {
				counted[folder][rule] += count
			}
		}
	}

	const table = "testdata/ratchet.txt"
	recorded := map[string]map[string]int{}
	f, err := os.Open(table)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if err == nil {
		defer func() { _ = f.Close() }()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "#") {
				continue
			}
			var folder string
			var count [3]int
			if _, err := fmt.Sscan(lines.Text(), &folder, &count[0], &count[1], &count[2]); err != nil {
				t.Fatalf("%s: %q: %v", table, lines.Text(), err)
			}
			recorded[folder] = map[string]int{}
			for i, rule := range rules {
				recorded[folder][rule] = count[i]
			}
		}
	}
	_, first := os.Stat(table)
	sunk := false
	for folder, found := range counted {
		for _, rule := range rules {
			most := recorded[folder][rule]
			if found[rule] > most && first == nil {
				t.Errorf("%s breaks the rule %q %d times, and may %d times: see CONTRIBUTING.md, \"The words of a comment\"", folder, rule, found[rule], most)
				found[rule] = most
			}
			sunk = sunk || found[rule] < most
		}
	}
	for folder := range recorded {
		sunk = sunk || counted[folder] == nil
	}
	if sunk && !*update {
		t.Logf("there are fewer than %s has: run go test ./test/architecture -run TestWords -update", table)
	}
	if !*update {
		return
	}
	var b strings.Builder
	b.WriteString("# How often a package breaks a rule of CONTRIBUTING.md: too long, subject, crooked.\n# go test ./test/architecture -run TestWords -update writes lower numbers.\n")
	for _, folder := range slices.Sorted(maps.Keys(counted)) {
		found := counted[folder]
		if found["long"]+found["subject"]+found["crooked"] > 0 {
			fmt.Fprintf(&b, "%s %d %d %d\n", folder, found["long"], found["subject"], found["crooked"])
		}
	}
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(table, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
