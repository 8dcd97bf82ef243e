// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Blocker is a run for which another waits.
type Blocker struct {
	Class           Class
	UID             types.UID
	Namespace, Name string
	State           v1alpha1.QueueState
}

// Entry is a line of the shown queue.
type Entry struct {
	Class           Class
	UID             types.UID
	Namespace, Name string

	State v1alpha1.QueueState
	// Position is the rank among the queued, from 1, or 0.
	Position int
	// Reason and Message say why a queued run waits. The first applies of StorageUnavailable,
	// NamespaceOverlap, ClusterScopeOverlap, BehindOverlapping and ConcurrencyLimit: causes to mend
	// come first.
	Reason  v1alpha1.QueueReason
	Message string
	// Blockers are, for overlap, the runs with slots, in order of tickets, or else the first run ahead
	// in the queue. A run that this plan starts counts as one with a slot.
	Blockers []Blocker
	// OtherBlockers counts the blockers that Redact removed.
	OtherBlockers Slots
	// ConflictNamespaces are shared with the blockers, sorted; see selection.Shared. MoreConflicts
	// means that there are more.
	ConflictNamespaces []string
	MoreConflicts      bool
	WaitingSince       time.Time

	selection       *selection.Namespaces
	byNamespace     bool
	location        string
	locationMessage string
	inUse, limit    int
}

const maxConflicts = 16

func (e *Entry) blame(blockers []*Run, namespaces []string) {
	slices.SortFunc(blockers, byTicket)
	var conflicts []string
	e.Blockers = make([]Blocker, 0, len(blockers))
	for _, b := range blockers {
		e.Blockers = append(e.Blockers, Blocker{Class: b.Class, UID: b.UID, Namespace: b.Namespace, Name: b.Name, State: b.State()})
		if !selection.Overlaps(e.selection, b.Selection) {
			continue
		}
		e.byNamespace = true
		n := 0
		for name := range selection.Shared(e.selection, b.Selection, namespaces) {
			conflicts = append(conflicts, name)
			if n++; n > maxConflicts {
				break
			}
		}
	}
	slices.Sort(conflicts)
	conflicts = slices.Compact(conflicts)
	if len(conflicts) > maxConflicts {
		conflicts, e.MoreConflicts = conflicts[:maxConflicts], true
	}
	e.ConflictNamespaces = conflicts
}

// Redact returns the entry for readers of its namespace; requests over all namespaces get the entry
// itself. An entry of the system namespace is unchanged. Others name their own namespace's blockers and
// count the rest. They show conflicting words of their own selection, and of a storage location only
// the name.
func Redact(e Entry, systemNamespace string) Entry {
	if e.Namespace == systemNamespace {
		return e
	}
	e.Blockers = slices.DeleteFunc(slices.Clone(e.Blockers), func(b Blocker) bool {
		if b.Namespace == e.Namespace {
			return false
		}
		e.OtherBlockers[b.Class]++
		return true
	})
	e.ConflictNamespaces = ownWords(e.selection, e.ConflictNamespaces)
	e.locationMessage = ""
	e.Message = e.message()
	return e
}

// ownWords replaces each conflict by the selection's own word. A name that a pattern matches would
// reveal another backup's selection.
func ownWords(s *selection.Namespaces, conflicts []string) []string {
	patterns := s.Patterns()
	var words []string
	for _, c := range conflicts {
		if word, ok := s.Word(c); ok {
			words = append(words, word)
		} else if slices.Contains(patterns, c) {
			words = append(words, c)
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

func (e *Entry) message() string {
	switch e.Reason {
	case v1alpha1.QueueReasonStorageUnavailable:
		if e.locationMessage == "" {
			return fmt.Sprintf("storage location %q is unavailable", e.location)
		}
		return fmt.Sprintf("storage location %q is unavailable: %s", e.location, e.locationMessage)
	case v1alpha1.QueueReasonNamespaceOverlap:
		return "overlaps " + e.blockerList() + e.conflictList()
	case v1alpha1.QueueReasonClusterScopeOverlap:
		verb := "do "
		if len(e.Blockers)+e.OtherBlockers.Sum() == 1 {
			verb = "does "
		}
		return "touches cluster-scoped resources, as " + verb + e.blockerList()
	case v1alpha1.QueueReasonBehindOverlapping:
		if e.byNamespace {
			return "is behind " + e.blockerList() + ", which it overlaps" + e.conflictList()
		}
		return "is behind " + e.blockerList() + ": both touch cluster-scoped resources"
	case v1alpha1.QueueReasonConcurrencyLimit:
		return fmt.Sprintf("waits for a slot: %d in use, the limit is %d", e.inUse, e.limit)
	case v1alpha1.QueueReasonNextToStart:
		return "starts next"
	}
	return ""
}

const maxInMessage = 3

func (e *Entry) blockerList() string {
	var items []string
	others := e.OtherBlockers
	for i, b := range e.Blockers {
		if i >= maxInMessage {
			others[b.Class]++
			continue
		}
		name := b.Name
		if b.Namespace != e.Namespace {
			name = b.Namespace + "/" + b.Name
		}
		if b.Class == Restore {
			name = "restore " + name
		}
		items = append(items, fmt.Sprintf("%s (%s)", name, strings.ToLower(string(b.State))))
	}
	switch n := others.Sum(); {
	case n == 0:
	case n == 1:
		items = append(items, "another "+others.noun())
	case len(items) == 0:
		items = append(items, fmt.Sprintf("%d other %ss", n, others.noun()))
	default:
		items = append(items, fmt.Sprintf("%d others", n))
	}
	return sentenceList(items)
}

func (e *Entry) conflictList() string {
	if len(e.ConflictNamespaces) == 0 {
		return ""
	}
	shown := slices.Clone(e.ConflictNamespaces[:min(len(e.ConflictNamespaces), maxInMessage)])
	if e.MoreConflicts || len(shown) < len(e.ConflictNamespaces) {
		shown = append(shown, "more")
	}
	return " in " + sentenceList(shown)
}

func sentenceList(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	last := len(items) - 1
	return strings.Join(items[:last], ", ") + " and " + items[last]
}
