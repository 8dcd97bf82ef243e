// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"reflect"
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
	plan, err := decide(Snapshot{Limit: 1, Runs: []Run{
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

func TestTicketsAreGreaterThanWhatIsRemembered(t *testing.T) {
	at := time.Unix(100, 0)
	s := Snapshot{
		Limit: 1,
		Runs: []Run{
			{UID: "b", Name: "b", CreatedAt: at},
			{UID: "a", Name: "a", CreatedAt: at, Phase: v1alpha1.BackupPhaseNew},
			{UID: "done", Phase: v1alpha1.BackupPhaseCompleted, Ticket: 7},
		},
	}
	for _, tc := range []struct {
		last int64
		want []Assignment
	}{
		{0, []Assignment{{"a", 8}, {"b", 9}}},
		{41, []Assignment{{"a", 42}, {"b", 43}}},
		{math.MaxInt64 - 1, []Assignment{{"a", math.MaxInt64}, {"b", math.MaxInt64}}},
	} {
		s.LastTicket = tc.last
		plan, err := decide(s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, plan.Tickets); diff != "" || len(plan.Entries) > 0 {
			t.Errorf("last ticket %d: entries %v (-want +got)\n%s", tc.last, plan.Entries, diff)
		}
	}
}

func TestSnapshotIsNotChanged(t *testing.T) {
	at := time.Unix(100, 0)
	make := func() Snapshot {
		return Snapshot{
			Limit:      2,
			Namespaces: []string{"z", "b", "a"},
			Locations:  map[string]LocationState{"l": {Available: true}},
			Runs: []Run{
				{UID: "3", Phase: v1alpha1.BackupPhaseQueued, Ticket: 3, CreatedAt: at, Location: "l", Selection: selected(t, "*")},
				{UID: "1", Phase: v1alpha1.BackupPhaseQueued, Ticket: 1, CreatedAt: at, Location: "l", Selection: selected(t, "a*")},
				{UID: "2", Phase: v1alpha1.BackupPhaseInProgress, Ticket: 2, CreatedAt: at, Location: "l", Selection: selected(t, "z")},
			},
		}
	}
	s := make()
	plan, err := decide(s)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, make()) {
		t.Errorf("the snapshot was changed: %+v", s)
	}
	// Namespaces in any order, conflicts in order.
	last := plan.Entries[len(plan.Entries)-1]
	if diff := cmp.Diff([]string{"a", "z"}, last.ConflictNamespaces); diff != "" {
		t.Error(diff)
	}
}

func TestWaitingSince(t *testing.T) {
	created, queued := time.Unix(100, 0), time.Unix(200, 0)
	for _, tc := range []struct {
		phase  v1alpha1.BackupPhase
		queued time.Time
		want   time.Time
	}{
		{v1alpha1.BackupPhaseQueued, queued, queued},
		{v1alpha1.BackupPhaseQueued, time.Time{}, created},
		{v1alpha1.BackupPhaseReadyToStart, queued, queued},
		{v1alpha1.BackupPhaseInProgress, queued, time.Time{}},
	} {
		plan, err := decide(Snapshot{Limit: 1, Runs: []Run{{UID: "a", Phase: tc.phase, CreatedAt: created, QueuedAt: tc.queued}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Entries[0].WaitingSince; !got.Equal(tc.want) {
			t.Errorf("%s, queued at %v: waiting since %v", tc.phase, tc.queued, got)
		}
	}
}

// What an entry holds and says is bounded, whatever the size of the cluster.
func TestConflictsAndBlockersAreBounded(t *testing.T) {
	s := Snapshot{Limit: 100, Locations: map[string]LocationState{"": {Available: true}}}
	for i := range 1000 {
		s.Namespaces = append(s.Namespaces, fmt.Sprintf("ns-%03d", i))
	}
	for i := range 6 {
		s.Runs = append(s.Runs, Run{
			UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint("b", i), Namespace: systemNamespace, Ticket: int64(i + 1),
			Phase: v1alpha1.BackupPhaseInProgress, Selection: selected(t, fmt.Sprintf("ns-%d*", i)),
		})
	}
	s.Runs = append(s.Runs, Run{
		UID: "all", Name: "all", Namespace: systemNamespace, Ticket: 7, Phase: v1alpha1.BackupPhaseQueued, Selection: selected(t),
	})
	plan, err := decide(s)
	if err != nil {
		t.Fatal(err)
	}
	e := plan.Entries[6]
	if len(e.ConflictNamespaces) != maxConflicts || !e.MoreConflicts || e.ConflictNamespaces[0] != "ns-000" || len(e.Blockers) != 6 {
		t.Errorf("%d conflicts from %q, more: %v, %d blockers", len(e.ConflictNamespaces), e.ConflictNamespaces[0], e.MoreConflicts, len(e.Blockers))
	}
	if want := "overlaps b0 (running), b1 (running), b2 (running) and 3 others in ns-000, ns-001, ns-002 and more"; e.Message != want {
		t.Errorf("message %q, want %q", e.Message, want)
	}
}

func TestBehindOverlappingClusterScope(t *testing.T) {
	s := Snapshot{Limit: 1, Locations: map[string]LocationState{"": {Available: true}}}
	for i, name := range []string{"running", "first", "second"} {
		s.Runs = append(s.Runs, Run{
			UID: types.UID(name), Name: name, Namespace: "team-" + name, Ticket: int64(i + 1),
			Phase: v1alpha1.BackupPhaseQueued, Selection: selected(t, name), ClusterScoped: i > 0,
		})
	}
	s.Runs[0].Phase = v1alpha1.BackupPhaseInProgress
	plan, err := decide(s)
	if err != nil {
		t.Fatal(err)
	}
	e := plan.Entries[2]
	if want := "is behind team-first/first (queued): both touch cluster-scoped resources"; e.Message != want || e.Reason != v1alpha1.QueueReasonBehindOverlapping {
		t.Errorf("%s: %q, want %q", e.Reason, e.Message, want)
	}
	if want, got := "is behind another backup: both touch cluster-scoped resources", Redact(e, systemNamespace).Message; got != want {
		t.Errorf("redacted %q, want %q", got, want)
	}
}

// No text of a redacted entry may hold a word of another namespace's backup.
func TestRedactLeaksNothing(t *testing.T) {
	s := Snapshot{
		Limit:      9,
		Namespaces: []string{"own-1", "own-2", "secret-ns"},
		Locations:  map[string]LocationState{"up": {Available: true}, "down": {Message: "secret-host refused"}},
		Runs: []Run{
			{UID: "secret-1", Name: "secret-a", Namespace: "secret", Ticket: 1, Phase: v1alpha1.BackupPhaseInProgress,
				Location: "up", Selection: selected(t, "own-1", "own-hidden", "secret-*"), ClusterScoped: true},
			{UID: "secret-2", Name: "secret-b", Namespace: "secret", Ticket: 2, Phase: v1alpha1.BackupPhaseReadyToStart,
				Location: "up", Selection: selected(t, "own-2", "*-secret"), ClusterScoped: false},
		},
	}
	for i, words := range [][]string{{"own-1", "own-2"}, {"own-*"}, {"*"}, {"s*"}, {"other"}, {"own-h*"}} {
		for _, location := range []string{"up", "down"} {
			s.Runs = append(s.Runs, Run{
				UID: types.UID(fmt.Sprint("mine.", location, i)), Name: fmt.Sprint(location, i), Namespace: "mine", Ticket: int64(i + 10),
				Phase: v1alpha1.BackupPhaseQueued, Location: location, Selection: selected(t, words...), ClusterScoped: true,
			})
		}
	}
	plan, err := decide(s)
	if err != nil {
		t.Fatal(err)
	}
	waiting := 0
	for _, e := range plan.Entries {
		if e.Namespace != "mine" {
			continue
		}
		seen := Redact(e, systemNamespace)
		if seen.Reason != v1alpha1.QueueReasonStorageUnavailable && seen.OtherBlockers > 0 {
			waiting++
		}
		public := fmt.Sprint(seen.UID, seen.Namespace, seen.Name, seen.Message, seen.Blockers, seen.ConflictNamespaces)
		if strings.Contains(public, "secret") || strings.Contains(public, "hidden") {
			t.Errorf("%s shows %q", e.UID, public)
		}
	}
	if waiting != 6 {
		t.Errorf("%d entries wait for another's backup, want 6", waiting)
	}
}

// The size of an entry does not follow that of the cluster, and it says so when it
// leaves something out, and only then.
func TestConflictsAreBounded(t *testing.T) {
	for shared, shown := range map[int]int{maxConflicts - 1: maxConflicts - 1, maxConflicts: maxConflicts, maxConflicts + 1: maxConflicts, 100: maxConflicts} {
		var words []string
		for i := range shared {
			words = append(words, fmt.Sprintf("ns-%03d", i))
		}
		p, err := NewPlanner(2)
		if err != nil {
			t.Fatal(err)
		}
		p.SetLocations(map[string]LocationState{"default": {Available: true}})
		for i, phase := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseQueued} {
			p.Update(Run{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint(i), Namespace: systemNamespace, Phase: phase, Ticket: int64(i + 1), Location: "default", Selection: selected(t, words...)})
		}
		e, _ := p.Entry("1")
		if e.Reason != v1alpha1.QueueReasonNamespaceOverlap || len(e.ConflictNamespaces) != shown || e.MoreConflicts != (shared > shown) {
			t.Errorf("of %d shared namespaces %d are shown, more: %v", shared, len(e.ConflictNamespaces), e.MoreConflicts)
		}
	}
}
