// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Snapshot is all that a Planner is told of, and what the oracle needs besides.
type Snapshot struct {
	// Runs in any order and any phase. Finished ones matter only by their tickets.
	Runs []Run
	// Namespaces that exist, in any order.
	Namespaces []string
	// Locations by name. A run whose location is missing here is held.
	Locations map[string]LocationState
	Limits    Slots
	// LastTicket is the greatest ticket that is remembered; 0 for nothing.
	LastTicket int64
}

// decide is what a new Planner says of a snapshot.
func decide(s Snapshot) (Plan, error) {
	p, err := NewPlanner(s.Limits)
	if err != nil {
		return Plan{}, err
	}
	p.SetNamespaces(s.Namespaces)
	p.SetLocations(s.Locations)
	p.Remember(s.LastTicket)
	for _, r := range s.Runs {
		p.Update(r)
	}
	return p.Plan(), nil
}

// verdict is what the oracle says of one run, as text so that differences read
// well: key, position, state, reason, blockers, conflicts.
type verdict struct {
	start            []types.UID
	tickets, entries []string
}

// What follows is the rules of doc.go written down one by one, with no index and
// no thought for cost. What namespaces two selections share is tested, against other
// oracles, where it is decided: in pkg/selection.

func naiveOverlap(a, b Run) bool {
	return !a.Plan && !b.Plan && naiveOverlapOfSpecs(a, b)
}

func naiveOverlapOfSpecs(a, b Run) bool {
	return naiveOverlapByNamespace(a, b) || a.ClusterScoped && b.ClusterScoped
}

func naiveOverlapByNamespace(a, b Run) bool { return selection.Overlaps(a.Selection, b.Selection) }

func naiveSlot(r Run) bool { return r.Phase == "ReadyToStart" || r.Phase == "InProgress" }

func naiveWaits(r Run) bool { return r.Phase == "Queued" && !r.Cancelled }

func naiveHeld(s Snapshot, r Run) bool {
	location := s.Locations[r.Location]
	return !location.Available || location.NoBackups && r.Class == Backup
}

// inOrder puts the restores that wait ahead of all that wait.
func inOrder(s Snapshot) []Run {
	runs := slices.Clone(s.Runs)
	behind := func(r Run) int {
		if r.Class == Restore && naiveWaits(r) {
			return 0
		}
		return 1
	}
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Or(behind(a)-behind(b), naiveByTicket(a, b)) })
	return runs
}

func naiveByTicket(a, b Run) int {
	return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.UID, b.UID))
}

// naiveStarts repeats rule 4 of docs/design/queue.md until nothing more may start. Started ones are then
// as if ReadyToStart.
func naiveStarts(s Snapshot, runs []Run) (start []types.UID, started map[types.UID]bool) {
	started = map[types.UID]bool{}
	holds := func(r Run) bool { return naiveSlot(r) || started[r.UID] }
	for again := true; again; {
		again = false
		inUse := naiveInUse(runs, holds)
		for i, r := range runs {
			full := inUse[r.Class] >= s.Limits[r.Class]
			if r.Plan {
				full = naivePlansInUse(runs, holds) >= 4
			}
			if full || again || !naiveWaits(r) || holds(r) || naiveHeld(s, r) {
				continue
			}
			free := true
			for j, other := range runs {
				if i != j && (holds(other) || j < i && naiveWaits(other) && !naiveHeld(s, other)) && naiveOverlap(r, other) {
					free = false
					break
				}
			}
			if free {
				started[r.UID], again = true, true
				start = append(start, r.UID)
			}
		}
	}
	return start, started
}

func naiveInUse(runs []Run, holds func(Run) bool) (inUse Slots) {
	for _, r := range runs {
		if holds(r) && !r.Plan {
			inUse[r.Class]++
		}
	}
	return inUse
}

func naivePlansInUse(runs []Run, holds func(Run) bool) (inUse int) {
	for _, r := range runs {
		if holds(r) && r.Plan {
			inUse++
		}
	}
	return inUse
}

func naive(s Snapshot) verdict {
	var v verdict
	runs := inOrder(s)
	last := s.LastTicket
	for _, r := range runs {
		last = max(last, r.Ticket)
	}
	for {
		oldest := -1
		for i, r := range runs {
			if (r.Phase == "New" || r.Phase == "") && !r.Cancelled &&
				(oldest < 0 || cmp.Or(r.CreatedAt.Compare(runs[oldest].CreatedAt), cmp.Compare(r.Version, runs[oldest].Version), cmp.Compare(r.Name, runs[oldest].Name),
					cmp.Compare(r.Namespace, runs[oldest].Namespace), cmp.Compare(r.UID, runs[oldest].UID)) < 0) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		last++
		v.tickets = append(v.tickets, fmt.Sprint(runs[oldest].UID, " ", last))
		runs[oldest].Phase = "has a ticket"
	}

	var started map[types.UID]bool
	v.start, started = naiveStarts(s, runs)
	for _, phase := range []v1alpha1.BackupPhase{"InProgress", "ReadyToStart"} {
		for _, r := range runs {
			if r.Phase == phase {
				v.entries = append(v.entries, fmt.Sprint(r.UID, " 0 ", map[v1alpha1.BackupPhase]string{"InProgress": "Running", "ReadyToStart": "Ready"}[phase], "  [] []"))
			}
		}
	}
	position := 0
	for i, r := range runs {
		if !naiveWaits(r) {
			continue
		}
		position++
		var blockers []Run
		for j, other := range runs {
			// What started in this plan behind r was not there when r was decided.
			if i != j && (naiveSlot(other) || started[other.UID] && j < i) && naiveOverlap(r, other) {
				blockers = append(blockers, other)
			}
		}
		byNamespace := slices.ContainsFunc(blockers, func(b Run) bool { return naiveOverlapByNamespace(r, b) })
		reason := ""
		switch {
		case naiveHeld(s, r):
			reason, blockers = "StorageUnavailable", nil
		case byNamespace:
			reason = "NamespaceOverlap"
		case len(blockers) > 0:
			reason = "ClusterScopeOverlap"
		case started[r.UID]:
			reason = "NextToStart"
		default:
			reason = "ConcurrencyLimit"
			for j, other := range runs[:i] {
				if naiveWaits(other) && !naiveHeld(s, other) && naiveOverlap(r, runs[j]) {
					reason, blockers = "BehindOverlapping", []Run{other}
					break
				}
			}
		}
		slices.SortFunc(blockers, naiveByTicket)
		keys, conflicts := []types.UID{}, []string{}
		for _, b := range blockers {
			keys = append(keys, b.UID)
			if naiveOverlapByNamespace(r, b) {
				conflicts = slices.AppendSeq(conflicts, selection.Shared(r.Selection, b.Selection, slices.Sorted(slices.Values(s.Namespaces))))
			}
		}
		slices.Sort(conflicts)
		conflicts = slices.Compact(conflicts)
		more := ""
		if len(conflicts) > 16 {
			conflicts, more = conflicts[:16], " and more"
		}
		v.entries = append(v.entries, fmt.Sprint(r.UID, " ", position, " Queued ", reason, " ", keys, " ", conflicts, more))
	}
	return v
}

func verdictOf(p Plan) verdict {
	v := verdict{start: p.Start}
	for _, a := range p.Tickets {
		v.tickets = append(v.tickets, fmt.Sprint(a.UID, " ", a.Ticket))
	}
	for _, e := range p.Entries {
		keys := []types.UID{}
		for _, b := range e.Blockers {
			keys = append(keys, b.UID)
		}
		more := ""
		if e.MoreConflicts {
			more = " and more"
		}
		v.entries = append(v.entries, fmt.Sprint(e.UID, " ", e.Position, " ", e.State, " ", e.Reason, " ", keys, " ", e.ConflictNamespaces, more))
	}
	return v
}

// checkPlan compares a plan with the oracle's, and checks the guarantees of
// Plan and that the order of the input does not matter.
func checkPlan(t *rapid.T, s Snapshot) Plan {
	plan, err := decide(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(naive(s), verdictOf(plan), gocmp.AllowUnexported(verdict{})); diff != "" {
		t.Fatalf("not what the rules say (-rules +plan):\n%s", diff)
	}
	shuffled := s
	shuffled.Runs = rapid.Permutation(s.Runs).Draw(t, "order of the runs")
	again, err := decide(shuffled)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(formatPlan(plan), formatPlan(again)); diff != "" {
		t.Fatalf("the order of the input matters:\n%s", diff)
	}

	position := 0
	for _, e := range plan.Entries {
		r := s.Runs[slices.IndexFunc(s.Runs, func(r Run) bool { return r.UID == e.UID })]
		if !e.WaitingSince.Equal(r.WaitingSince) {
			t.Fatalf("%s is said to wait since %v, want %v", e.UID, e.WaitingSince, r.WaitingSince)
		}
		starts := slices.Contains(plan.Start, e.UID)
		if e.State != v1alpha1.QueueStateQueued {
			if e.Position != 0 || e.Reason != "" || starts {
				t.Fatalf("not queued, and yet: %+v", e)
			}
			continue
		}
		if e.Class == Restore && slices.ContainsFunc(e.Blockers, func(b Blocker) bool { return b.Class == Backup && b.State == v1alpha1.QueueStateQueued }) {
			t.Fatalf("a restore waits for a backup that waits: %+v", e)
		}
		position++
		if e.Position != position || (e.Reason == v1alpha1.QueueReasonNextToStart) != starts || e.Message == "" {
			t.Fatalf("at position %d, starts %v: %+v", position, starts, e)
		}
		checkRedacted(t, s, e)
	}
	before := naiveInUse(s.Runs, naiveSlot)
	after := naiveInUse(s.Runs, func(r Run) bool { return naiveSlot(r) || slices.Contains(plan.Start, r.UID) })
	for c, inUse := range plan.InUse {
		if inUse != after[c] || inUse > max(s.Limits[c], before[c]) {
			t.Fatalf("of class %d %d are said to be in use, and %d are, %d of them before, of %d", c, inUse, after[c], before[c], s.Limits[c])
		}
	}
	return plan
}

// checkRedacted checks that a tenant's entry tells nothing of the others.
func checkRedacted(t *rapid.T, s Snapshot, e Entry) {
	seen := Redact(e, systemNamespace)
	if len(seen.Blockers)+seen.OtherBlockers.Sum() != len(e.Blockers) {
		t.Fatalf("blockers got lost: %+v", seen)
	}
	if e.Namespace == systemNamespace {
		if formatEntry(seen) != formatEntry(e) {
			t.Fatalf("an entry of the system namespace was changed: %+v", seen)
		}
		return
	}
	if again := Redact(seen, systemNamespace); formatEntry(again) != formatEntry(seen) {
		t.Fatalf("redacting twice: %+v", again)
	}
	for _, b := range seen.Blockers {
		if b.Namespace != e.Namespace {
			t.Fatalf("shows %+v", b)
		}
	}
	for _, b := range e.Blockers {
		named := slices.ContainsFunc(seen.Blockers, func(own Blocker) bool { return own.Name == b.Name })
		if !named && strings.Contains(seen.Message, b.Name) || strings.Contains(seen.Message, locationSecret) {
			t.Fatalf("says %q", seen.Message)
		}
	}
	own := append(e.selection.Patterns(), e.selection.Explicit()...)
	for _, word := range seen.ConflictNamespaces {
		if !slices.Contains(own, word) {
			t.Fatalf("shows %q, own words are %q", word, own)
		}
	}
}

func formatEntry(e Entry) string {
	return fmt.Sprint(e.Message, e.Blockers, e.OtherBlockers, e.ConflictNamespaces, e.MoreConflicts)
}

// locationSecret is what a location's message tells administrators.
const locationSecret = "secret"

// drawStyle draws what kind of selections a test case is about. A case in which
// some select everything has little else to show.
func drawStyle(t *rapid.T) *rapid.Generator[*selection.Namespaces] {
	include := []string{"a", "b", "c", "d", "e", "f", "x-1", "x-2", "y-1", "y-2"}
	exclude, odd := []string{"a", "x-1"}, 0
	switch rapid.IntRange(0, 2).Draw(t, "style") {
	case 1:
		include = append(include, "x-*", "*-1", "x-?", "[a-c]")
		exclude = append(exclude, "x-*", "?")
	case 2:
		include = append(include, "x-*", "*-1", "*")
		exclude = append(exclude, "x-*") // x-1 without x-* selects nothing, and all overlaps even that
		odd = 10                         // percent
	}
	return rapid.Custom(func(t *rapid.T) *selection.Namespaces {
		included := rapid.SliceOfNDistinct(rapid.SampledFrom(include), 1, 3, rapid.ID).Draw(t, "included")
		excluded := rapid.SliceOfNDistinct(rapid.SampledFrom(exclude), 0, 2, rapid.ID).Draw(t, "excluded")
		if rapid.IntRange(1, 100).Draw(t, "an empty list") <= odd {
			included = nil
		}
		if rapid.IntRange(1, 100).Draw(t, "unreadable") <= odd {
			return nil
		}
		excluded = slices.DeleteFunc(excluded, func(word string) bool { return slices.Contains(included, word) })
		n, err := parseSelection(included, excluded)
		if err != nil {
			t.Fatal(err)
		}
		return n
	})
}

// drawRun draws a run in any phase, with any ticket, as nobody writes it.
func drawRun(t *rapid.T, uid types.UID, style *rapid.Generator[*selection.Namespaces], clusterScoped int) Run {
	r := Run{
		Class: drawClass(t), UID: uid, Name: rapid.StringMatching("[ab]").Draw(t, "name"), Namespace: "team-a",
		Phase: rapid.SampledFrom([]v1alpha1.BackupPhase{
			"", "New", "Queued", "Queued", "Queued", "Queued", "Queued", "Queued", "Queued", "ReadyToStart", "InProgress", "Deleting",
		}).Draw(t, "phase"),
		Cancelled:     rapid.IntRange(0, 9).Draw(t, "cancelled") == 0,
		Ticket:        rapid.Int64Range(0, 60).Draw(t, "ticket"),
		CreatedAt:     time.Unix(rapid.Int64Range(1, 3).Draw(t, "created"), 0),
		Version:       rapid.Uint64Range(0, 9).Draw(t, "version"),
		Location:      rapid.SampledFrom([]string{"up", "up", "up", "down", "unknown"}).Draw(t, "location"),
		Selection:     style.Draw(t, "selection"),
		ClusterScoped: rapid.IntRange(0, 9).Draw(t, "cluster") <= clusterScoped,
	}
	r.Plan = r.Class == Restore && rapid.IntRange(0, 2).Draw(t, "plan") == 0
	if rapid.Bool().Draw(t, "waits") {
		r.WaitingSince = r.CreatedAt.Add(time.Minute)
	}
	return r
}

// Longer queues than histories reach, with every mix of phases and tickets,
// duplicates included, that change at random.
func TestAnyRunsAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{style: drawStyle(t)}
		h.snapshot = Snapshot{
			Limits:     Slots{rapid.IntRange(1, 12).Draw(t, "limit"), rapid.IntRange(1, 6).Draw(t, "limit of restores")},
			Locations:  map[string]LocationState{"up": {Available: true}, "down": {Message: locationSecret}, "closed": {Available: true, NoBackups: true, Message: locationSecret}},
			Namespaces: []string{"x-3", "b", "x-1", "a"}, // in any order
		}
		h.restart(t)
		clusterScoped := rapid.SampledFrom([]int{-1, 0, 1}).Draw(t, "at most so many in 10 touch cluster scope")
		for range rapid.IntRange(0, 40).Draw(t, "runs") {
			uid := types.UID(fmt.Sprint(len(h.snapshot.Runs)))
			h.snapshot.Runs = append(h.snapshot.Runs, drawRun(t, uid, h.style, clusterScoped))
		}
		for range 8 {
			h.plan(t)
			for i, r := range h.snapshot.Runs {
				if rapid.IntRange(0, 5).Draw(t, "changes") == 0 {
					h.snapshot.Runs[i] = drawRun(t, r.UID, h.style, clusterScoped)
				}
			}
			h.snapshot.Runs = slices.DeleteFunc(h.snapshot.Runs, func(Run) bool { return rapid.IntRange(0, 9).Draw(t, "goes") == 0 })
		}
		if h.snapshot.Namespaces[0] != "x-3" {
			t.Fatalf("the caller's namespaces were changed: %q", h.snapshot.Namespaces)
		}
	})
}
