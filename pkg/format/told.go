// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"strings"
)

const (
	// maxNamed is how many texts a line names, and maxNamedBytes how much of each: an event has
	// 1024 bytes for all.
	maxNamed      = 3
	maxNamedBytes = 240
)

// Told are the first of several texts about a run, for one line in its object. All who may see the
// object may read that line. So that of a tenant names nothing of other namespaces than its own,
// nor of the cluster's scope, and counts it. The zero value names everything.
type Told struct {
	// only is the namespace of which texts are named; empty for all.
	only string
	// first are the texts that are named.
	first []string
	count int
}

// NewTold returns Told for an object in a namespace: the system namespace is the administrator's.
func NewTold(namespace, systemNamespace string) Told {
	if namespace == systemNamespace {
		return Told{}
	}
	return Told{only: namespace}
}

// Add takes a text about an object of a namespace; empty is the scope of the cluster.
func (t *Told) Add(namespace, text string) {
	t.AddAny(text, t.only == "" || namespace == t.only)
}

// AddAny takes a text, which is named or only counted.
func (t *Told) AddAny(text string, named bool) {
	if t.count++; !named || len(t.first) >= maxNamed {
		return
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxNamedBytes {
		text = strings.ToValidUTF8(text[:maxNamedBytes], "") + "..."
	}
	t.first = append(t.first, text)
}

// Len is how many texts there are.
func (t *Told) Len() int { return t.count }

// String is the texts in one line: the first three, and how many more there are.
func (t *Told) String() string {
	line := strings.Join(t.first, "; ")
	switch more := t.count - len(t.first); {
	case more == 0:
		return line
	case len(t.first) == 0:
		return fmt.Sprintf("%d not named here", more)
	default:
		return fmt.Sprintf("%s; and %d more", line, more)
	}
}

// maxNoteBytes is how much of a note an event has.
const maxNoteBytes = 1024

// Note is a text as an event can have it: the API server refuses a longer one, and nobody would be
// told anything.
func Note(text string) string {
	if len(text) <= maxNoteBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxNoteBytes-len("...")], "") + "..."
}

// Counted is a number of things, such as "1 error" and "2 errors".
func Counted[N ~int | ~int32](count N, thing string) string {
	if count == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", count, thing)
}

// Findings says in one line what came of a run: how many errors and warnings it has, and the first
// of the errors, or of the warnings if it has no error. It is empty if there is neither.
func Findings(errors, warnings *Told) string {
	named := warnings
	if errors.count > 0 {
		named = errors
	}
	if len(named.first) == 0 {
		return Unnamed(errors.count, warnings.count)
	}
	return counts(errors.count, warnings.count) + ": " + named.String()
}

// Unnamed is Findings where no text is known, as of a backup of Velero's.
func Unnamed[N ~int | ~int32](errors, warnings N) string {
	if errors <= 0 && warnings <= 0 {
		return ""
	}
	return counts(errors, warnings) + " (see the results)"
}

func counts[N ~int | ~int32](errors, warnings N) string {
	var counts []string
	if errors > 0 {
		counts = append(counts, Counted(errors, "error"))
	}
	if warnings > 0 {
		counts = append(counts, Counted(warnings, "warning"))
	}
	return strings.Join(counts, ", ")
}
