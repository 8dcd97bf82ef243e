// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"strings"
)

const (
	// An event has 1024 bytes for all texts.
	maxNamed      = 3
	maxNamedBytes = 240
)

// Told collects texts about a run for one line in its object. Each reader sees the line, so a tenant's
// names only objects of its own namespace, and counts the others. The zero value names all. The fields
// are for JSON.
type Told struct {
	Only  string   `json:"only,omitempty"`
	First []string `json:"first,omitempty"`
	Count int      `json:"count,omitempty"`
}

// NewTold returns a Told for a namespace; the system namespace names all.
func NewTold(namespace, systemNamespace string) Told {
	if namespace == systemNamespace {
		return Told{}
	}
	return Told{Only: namespace}
}

// Add adds a text about an object of a namespace; empty if cluster-scoped.
func (t *Told) Add(namespace, text string) {
	t.AddAny(text, t.Only == "" || namespace == t.Only)
}

// AddAny adds a text, named or only counted.
func (t *Told) AddAny(text string, named bool) {
	if t.Count++; !named || len(t.First) >= maxNamed {
		return
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxNamedBytes {
		text = strings.ToValidUTF8(text[:maxNamedBytes], "") + "..."
	}
	t.First = append(t.First, text)
}

// Len returns the number of texts.
func (t *Told) Len() int { return t.Count }

// String returns the first three texts in one line, and the number of others.
func (t *Told) String() string {
	line := strings.Join(t.First, "; ")
	switch more := t.Count - len(t.First); {
	case more == 0:
		return line
	case len(t.First) == 0:
		return fmt.Sprintf("%d not named here", more)
	default:
		return fmt.Sprintf("%s; and %d more", line, more)
	}
}

const maxNoteBytes = 1024

// Note shortens a text to an event's limit.
func Note(text string) string {
	if len(text) <= maxNoteBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxNoteBytes-len("...")], "") + "..."
}

// Counted returns a number of things, such as "1 error" or "2 errors".
func Counted[N ~int | ~int32](count N, thing string) string {
	if count == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", count, thing)
}

// Findings returns the counts of errors and warnings, and the first errors, or else warnings, or "".
func Findings(errors, warnings *Told) string {
	named := warnings
	if errors.Count > 0 {
		named = errors
	}
	if len(named.First) == 0 {
		return Unnamed(errors.Count, warnings.Count)
	}
	return counts(errors.Count, warnings.Count) + ": " + named.String()
}

// Unnamed is Findings without texts, as for Velero's backups.
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
