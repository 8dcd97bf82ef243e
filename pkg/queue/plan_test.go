// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

func selected(t testing.TB, words ...string) *selection.Namespaces {
	t.Helper()
	n, errs := selection.ParseNamespaces(words, nil, nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return n
}

// Pitfall 8: many backups may be created in one second, which is as exact as a
// creation timestamp is.
func TestTicketsFollowVersionsWithinASecond(t *testing.T) {
	at := time.Unix(100, 0)
	plan, err := decide(Snapshot{Limits: Slots{1, 1}, Runs: []Run{
		{UID: "b-10", Name: "b-10", CreatedAt: at, Version: 30},
		{UID: "b-9", Name: "b-9", CreatedAt: at, Version: 20},
		{UID: "a", Name: "a", CreatedAt: at.Add(time.Second), Version: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Assignment{{"b-9", 1}, {"b-10", 2}, {"a", 3}}, plan.Tickets); diff != "" {
		t.Errorf("tickets (-want +got):\n%s", diff)
	}
}

// A forged record may carry the greatest ticket of all.
func TestTicketsDoNotWrap(t *testing.T) {
	at := time.Unix(100, 0)
	plan, err := decide(Snapshot{Limits: Slots{1, 1}, LastTicket: math.MaxInt64 - 1, Runs: []Run{{UID: "b", Name: "b", CreatedAt: at}, {UID: "a", Name: "a", CreatedAt: at}}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Assignment{{"a", math.MaxInt64}, {"b", math.MaxInt64}}, plan.Tickets); diff != "" {
		t.Errorf("tickets (-want +got):\n%s", diff)
	}
}

// What an entry holds and says does not follow the size of the cluster, and it says so
// when it leaves something out, and only then.
func TestConflictsAndBlockersAreBounded(t *testing.T) {
	for each, shown := range map[int]int{1: 6, 2: 12, 3: maxConflicts, 100: maxConflicts} {
		s := Snapshot{Limits: Slots{100, 1}, Locations: map[string]LocationState{"": {Available: true}}}
		for i := range 6 {
			for j := range each {
				s.Namespaces = append(s.Namespaces, fmt.Sprintf("ns-%d%02d", i, j))
			}
			s.Runs = append(s.Runs, Run{
				UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint("b", i), Namespace: systemNamespace, Ticket: int64(i + 1),
				Phase: v1alpha1.BackupPhaseInProgress, Selection: selected(t, fmt.Sprintf("ns-%d*", i)),
			})
		}
		s.Runs = append(s.Runs, Run{
			UID: "all", Name: "all", Namespace: systemNamespace, Ticket: 7, Phase: v1alpha1.BackupPhaseQueued, Selection: selected(t),
		})
		slices.Reverse(s.Namespaces) // they come in any order
		plan, err := decide(s)
		if err != nil {
			t.Fatal(err)
		}
		e := plan.Entries[6]
		if len(e.ConflictNamespaces) != shown || e.MoreConflicts != (6*each > shown) || e.ConflictNamespaces[0] != "ns-000" || len(e.Blockers) != 6 {
			t.Errorf("%d of %d conflicts from %q, more: %v, %d blockers", len(e.ConflictNamespaces), 6*each, e.ConflictNamespaces[0], e.MoreConflicts, len(e.Blockers))
		}
		if want := "overlaps b0 (running), b1 (running), b2 (running) and 3 others in ns-"; !strings.HasPrefix(e.Message, want) || !strings.HasSuffix(e.Message, " and more") {
			t.Errorf("message %q, want %q", e.Message, want)
		}
	}
	// As many as are shown, one less and one more, of a single blocker.
	for shared, more := range map[int]bool{maxConflicts - 1: false, maxConflicts: false, maxConflicts + 1: true} {
		var words []string
		for i := range shared {
			words = append(words, fmt.Sprintf("ns-%03d", i))
		}
		plan, err := decide(Snapshot{Limits: Slots{2, 1}, Locations: map[string]LocationState{"": {Available: true}}, Runs: []Run{
			{UID: "1", Ticket: 1, Phase: v1alpha1.BackupPhaseInProgress, Selection: selected(t, words...)},
			{UID: "2", Ticket: 2, Phase: v1alpha1.BackupPhaseQueued, Selection: selected(t, words...)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if e := plan.Entries[1]; len(e.ConflictNamespaces) != min(shared, maxConflicts) || e.MoreConflicts != more {
			t.Errorf("of %d shared namespaces %d are shown, more: %v", shared, len(e.ConflictNamespaces), e.MoreConflicts)
		}
	}
}
