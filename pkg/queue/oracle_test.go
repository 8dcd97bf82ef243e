// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// verdict is what the oracle says of one run, as text so that differences read
// well: key, position, state, reason, blockers, conflicts.
type verdict struct {
	tickets, start, entries []string
}

// naive is the rules of doc.go written down one by one, with no index and no
// thought for cost.
func naive(s Snapshot) verdict {
	var v verdict
	runs := slices.Clone(s.Runs)
	slices.SortFunc(runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Key, b.Key))
	})
	overlap := func(a, b Run) bool {
		return selection.Overlaps(a.Selection, b.Selection) || a.ClusterScoped && b.ClusterScoped
	}
	slot := func(r Run) bool { return r.Phase == "ReadyToStart" || r.Phase == "InProgress" }
	waits := func(r Run) bool { return r.Phase == "Queued" && !r.Cancelled }

	last := s.LastTicket
	for _, r := range runs {
		last = max(last, r.Ticket)
	}
	for {
		oldest := -1
		for i, r := range runs {
			if (r.Phase == "New" || r.Phase == "") && !r.Cancelled &&
				(oldest < 0 || cmp.Or(r.CreatedAt.Compare(runs[oldest].CreatedAt), cmp.Compare(r.Name, runs[oldest].Name),
					cmp.Compare(r.Namespace, runs[oldest].Namespace), cmp.Compare(r.Key, runs[oldest].Key)) < 0) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		last++
		v.tickets = append(v.tickets, fmt.Sprint(runs[oldest].Key, " ", last))
		runs[oldest].Phase = "has a ticket"
	}

	// starts repeats rule 4 until nothing more may start. Started ones are then
	// as if ReadyToStart.
	started := map[string]bool{}
	holds := func(r Run) bool { return slot(r) || started[r.Key] }
	held := func(r Run) bool { return !s.Locations[r.Location].Available }
	for again := true; again; {
		again = false
		inUse := 0
		for _, r := range runs {
			if holds(r) {
				inUse++
			}
		}
		for i, r := range runs {
			if inUse >= s.Limit || again || !waits(r) || holds(r) || held(r) {
				continue
			}
			free := true
			for j, other := range runs {
				if i != j && overlap(r, other) && (holds(other) || j < i && waits(other)) {
					free = false
				}
			}
			if free {
				started[r.Key], again = true, true
				v.start = append(v.start, r.Key)
			}
		}
	}

	for _, phase := range []v1alpha1.BackupPhase{"InProgress", "ReadyToStart"} {
		for _, r := range runs {
			if r.Phase == phase {
				v.entries = append(v.entries, fmt.Sprint(r.Key, " 0 ", map[v1alpha1.BackupPhase]string{"InProgress": "Running", "ReadyToStart": "Ready"}[phase], "  [] []"))
			}
		}
	}
	position := 0
	for i, r := range runs {
		if !waits(r) {
			continue
		}
		position++
		var blockers []Run
		for j, other := range runs {
			// What started in this plan behind r was not there when r was decided.
			if i != j && overlap(r, other) && (slot(other) || started[other.Key] && j < i) {
				blockers = append(blockers, other)
			}
		}
		byNamespace := slices.ContainsFunc(blockers, func(b Run) bool { return selection.Overlaps(r.Selection, b.Selection) })
		reason := ""
		switch {
		case held(r):
			reason, blockers = "StorageUnavailable", nil
		case byNamespace:
			reason = "NamespaceOverlap"
		case len(blockers) > 0:
			reason = "ClusterScopeOverlap"
		case started[r.Key]:
			reason = "NextToStart"
		default:
			reason = "ConcurrencyLimit"
			for j, other := range runs[:i] {
				if waits(other) && overlap(r, runs[j]) {
					reason, blockers = "BehindOverlapping", []Run{other}
					break
				}
			}
		}
		keys, conflicts := []string{}, []string{}
		for _, b := range blockers {
			keys = append(keys, b.Key)
			_, shared := selection.Overlap(r.Selection, b.Selection, s.Namespaces)
			conflicts = append(conflicts, shared...)
		}
		slices.Sort(conflicts)
		conflicts = slices.Compact(conflicts)
		more := ""
		if len(conflicts) > 16 {
			conflicts, more = conflicts[:16], " and more"
		}
		v.entries = append(v.entries, fmt.Sprint(r.Key, " ", position, " Queued ", reason, " ", keys, " ", conflicts, more))
	}
	return v
}

func verdictOf(p Plan) verdict {
	v := verdict{start: p.Start}
	for _, a := range p.Tickets {
		v.tickets = append(v.tickets, fmt.Sprint(a.Key, " ", a.Ticket))
	}
	for _, e := range p.Entries {
		keys := []string{}
		for _, b := range e.Blockers {
			keys = append(keys, b.Key)
		}
		more := ""
		if e.MoreConflicts {
			more = " and more"
		}
		v.entries = append(v.entries, fmt.Sprint(e.Key, " ", e.Position, " ", e.State, " ", e.Reason, " ", keys, " ", e.ConflictNamespaces, more))
	}
	return v
}

// checkPlan compares a plan with the oracle's, and checks the guarantees of
// Plan and that the order of the input does not matter.
func checkPlan(t *rapid.T, s Snapshot) Plan {
	plan, err := Decide(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(naive(s), verdictOf(plan), gocmp.AllowUnexported(verdict{})); diff != "" {
		t.Fatalf("not what the rules say (-rules +plan):\n%s", diff)
	}
	shuffled := s
	shuffled.Runs = rapid.Permutation(s.Runs).Draw(t, "order of the runs")
	again, err := Decide(shuffled)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(formatPlan(plan), formatPlan(again)); diff != "" {
		t.Fatalf("the order of the input matters:\n%s", diff)
	}

	position := 0
	for _, e := range plan.Entries {
		starts := slices.Contains(plan.Start, e.Key)
		if e.State != v1alpha1.QueueStateQueued {
			if e.Position != 0 || e.Reason != "" || starts {
				t.Fatalf("not queued, and yet: %+v", e)
			}
			continue
		}
		position++
		if e.Position != position || (e.Reason == v1alpha1.QueueReasonNextToStart) != starts || e.Message == "" || e.WaitingSince.IsZero() {
			t.Fatalf("at position %d, starts %v: %+v", position, starts, e)
		}
		checkRedacted(t, s, e)
	}
	if plan.SlotsInUse+len(plan.Start) > max(plan.Limit, plan.SlotsInUse) {
		t.Fatalf("%d start with %d of %d in use", len(plan.Start), plan.SlotsInUse, plan.Limit)
	}
	return plan
}

// checkRedacted checks that a tenant's entry tells nothing of the others.
func checkRedacted(t *rapid.T, s Snapshot, e Entry) {
	seen := Redact(e, systemNamespace)
	if len(seen.Blockers)+seen.OtherBlockers != len(e.Blockers) {
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

var drawWords = rapid.Custom(func(t *rapid.T) *selection.Namespaces {
	if rapid.IntRange(0, 19).Draw(t, "unreadable") == 0 {
		return nil
	}
	words := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "x-1", "x-2", "y-1", "x-*", "*-1", "x-?", "[a-c]", "*"})
	included := rapid.SliceOfN(words, 0, 3).Draw(t, "included")
	excluded := rapid.SliceOfN(words, 0, 1).Draw(t, "excluded")
	// Most backups name a few namespaces; an empty list stays now and then.
	if len(included) == 0 && rapid.Bool().Draw(t, "names") {
		included = []string{rapid.StringMatching("[a-z]").Draw(t, "name")}
	}
	n, errs := selection.ParseNamespaces(included, excluded, nil)
	if len(errs) > 0 {
		n, _ = selection.ParseNamespaces(slices.DeleteFunc(included, func(w string) bool { return w == "*" }), nil, nil)
	}
	return n
})

// history is a cluster in which things happen in any order.
type history struct {
	snapshot Snapshot
	now      time.Time
	created  int
	ended    map[string]bool
}

func newHistory(t *rapid.T) *history {
	h := &history{
		now:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		ended: map[string]bool{},
	}
	h.snapshot.Limit = rapid.IntRange(1, 4).Draw(t, "limit")
	h.snapshot.Locations = map[string]LocationState{"one": {Available: true}, "two": {Available: true}}
	return h
}

func (h *history) pick(t *rapid.T, keep func(Run) bool) *Run {
	var found []*Run
	for i := range h.snapshot.Runs {
		if keep(h.snapshot.Runs[i]) {
			found = append(found, &h.snapshot.Runs[i])
		}
	}
	if len(found) == 0 {
		t.Skip("no such run")
	}
	return rapid.SampledFrom(found).Draw(t, "run")
}

func (h *history) actions() map[string]func(*rapid.T) {
	queuedOrNew := func(r Run) bool { return !r.Phase.Ended() && !r.usesSlot() && !r.Cancelled }
	return map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			// Several in the same second, as a schedule or a script makes them.
			h.now = h.now.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "seconds")) * time.Second)
			name := fmt.Sprintf("b%02d", h.created)
			h.created++
			h.snapshot.Runs = append(h.snapshot.Runs, Run{
				Key: name, Name: rapid.SampledFrom([]string{name, "same"}).Draw(t, "name"),
				Namespace:     rapid.SampledFrom([]string{systemNamespace, "team-a", "team-b"}).Draw(t, "namespace"),
				CreatedAt:     h.now,
				Location:      rapid.SampledFrom([]string{"one", "two"}).Draw(t, "location"),
				Selection:     drawWords.Draw(t, "selection"),
				ClusterScoped: rapid.IntRange(0, 4).Draw(t, "cluster") == 0,
			})
		},
		"act on the plan": func(t *rapid.T) {
			plan := checkPlan(t, h.snapshot)
			// A crash between two writes leaves the rest of the plan undone.
			plan.Tickets = plan.Tickets[:rapid.IntRange(0, len(plan.Tickets)).Draw(t, "tickets written")]
			plan.Start = plan.Start[:rapid.IntRange(0, len(plan.Start)).Draw(t, "starts written")]
			for _, a := range plan.Tickets {
				h.snapshot.LastTicket = max(h.snapshot.LastTicket, a.Ticket)
			}
			h.checkNotOvertaking(t, plan.Start)
			apply(&h.snapshot, plan, h.now)
		},
		"begin": func(t *rapid.T) {
			h.pick(t, func(r Run) bool { return r.Phase == v1alpha1.BackupPhaseReadyToStart }).Phase = v1alpha1.BackupPhaseInProgress
		},
		"move data": func(t *rapid.T) {
			h.pick(t, func(r Run) bool { return r.Phase == v1alpha1.BackupPhaseInProgress }).Phase = "WaitingForPluginOperations"
		},
		"finish": func(t *rapid.T) {
			h.end(h.pick(t, func(r Run) bool { return r.usesSlot() || r.Phase == "WaitingForPluginOperations" }))
		},
		"cancel": func(t *rapid.T) {
			r := h.pick(t, func(r Run) bool { return queuedOrNew(r) || r.usesSlot() })
			r.Cancelled = true
			h.ended[r.Key] = true
		},
		"remove a record": func(t *rapid.T) {
			r := h.pick(t, func(r Run) bool { return h.ended[r.Key] })
			h.snapshot.Runs = slices.DeleteFunc(h.snapshot.Runs, func(other Run) bool { return other.Key == r.Key })
		},
		"namespaces come and go": func(t *rapid.T) {
			before := checkPlan(t, h.snapshot).Start
			h.snapshot.Namespaces = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "x-1", "x-2", "y-1", "z"}), rapid.ID).Draw(t, "namespaces")
			slices.Sort(h.snapshot.Namespaces)
			if after := checkPlan(t, h.snapshot).Start; !slices.Equal(before, after) {
				t.Fatalf("namespaces changed what starts: %q, %q", before, after)
			}
		},
		"a store goes or comes back": func(t *rapid.T) {
			name := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "location")
			h.snapshot.Locations[name] = LocationState{Available: !h.snapshot.Locations[name].Available}
		},
		"the limit changes": func(t *rapid.T) { h.snapshot.Limit = rapid.IntRange(1, 4).Draw(t, "limit") },
		"restart": func(t *rapid.T) {
			h.snapshot.LastTicket = 0
			for i := range h.snapshot.Runs {
				if r := &h.snapshot.Runs[i]; r.Phase == v1alpha1.BackupPhaseInProgress {
					h.end(r)
				}
			}
		},
		"": func(t *rapid.T) {
			checkPlan(t, h.snapshot)
			h.checkNoOverlap(t)
		},
	}
}

func (h *history) end(r *Run) {
	r.Phase = v1alpha1.BackupPhaseCompleted
	h.ended[r.Key] = true
}

func overlapping(a, b Run) bool {
	return a.Key != b.Key && (selection.Overlaps(a.Selection, b.Selection) || a.ClusterScoped && b.ClusterScoped)
}

// checkNoOverlap is the first promise: what uses slots never overlaps.
func (h *history) checkNoOverlap(t *rapid.T) {
	for _, a := range h.snapshot.Runs {
		for _, b := range h.snapshot.Runs {
			if a.usesSlot() && b.usesSlot() && overlapping(a, b) {
				t.Fatalf("%s and %s overlap, and both use a slot", a.Key, b.Key)
			}
		}
	}
}

// checkNotOvertaking is the second: none starts ahead of a queued one that it
// overlaps and that was queued before it.
func (h *history) checkNotOvertaking(t *rapid.T, start []string) {
	for _, r := range h.snapshot.Runs {
		if !slices.Contains(start, r.Key) {
			continue
		}
		for _, other := range h.snapshot.Runs {
			if other.Phase == v1alpha1.BackupPhaseQueued && !other.Cancelled && other.Ticket < r.Ticket && overlapping(r, other) {
				t.Fatalf("%s overtakes %s", r.Key, other.Key)
			}
		}
	}
}

// drain lets everything end, and is the third promise: nothing waits for ever.
func (h *history) drain(t *rapid.T) {
	for name := range h.snapshot.Locations {
		h.snapshot.Locations[name] = LocationState{Available: true}
	}
	for range 3*len(h.snapshot.Runs) + 3 {
		h.checkNoOverlap(t)
		plan := checkPlan(t, h.snapshot)
		apply(&h.snapshot, plan, h.now)
		left := 0
		for i := range h.snapshot.Runs {
			r := &h.snapshot.Runs[i]
			if r.usesSlot() {
				h.end(r)
				break
			}
			if !r.Cancelled && (r.Phase == "" || r.Phase == v1alpha1.BackupPhaseQueued) {
				left++
			}
		}
		if left == 0 && len(plan.Entries)+len(plan.Tickets) == 0 {
			return
		}
	}
	t.Fatalf("the queue does not drain:\n%s", formatPlan(checkPlan(t, h.snapshot)))
}

func TestHistoriesAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		t.Repeat(h.actions())
		h.drain(t)
	})
}

// Longer queues than histories reach, with every mix of phases and tickets,
// duplicates included.
func TestSnapshotsAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Snapshot{
			Limit:      rapid.IntRange(1, 12).Draw(t, "limit"),
			Locations:  map[string]LocationState{"up": {Available: true}, "down": {}},
			Namespaces: []string{"a", "b", "x-1", "x-3"},
		}
		for i := range rapid.IntRange(0, 40).Draw(t, "runs") {
			s.Runs = append(s.Runs, Run{
				Key: fmt.Sprint(i), Name: rapid.StringMatching("[ab]").Draw(t, "name"), Namespace: "team-a",
				Phase: rapid.SampledFrom([]v1alpha1.BackupPhase{
					"", "New", "Queued", "Queued", "Queued", "Queued", "Queued", "ReadyToStart", "InProgress", "Completed", "Deleting",
				}).Draw(t, "phase"),
				Cancelled: rapid.IntRange(0, 9).Draw(t, "cancelled") == 0,
				Ticket:    rapid.Int64Range(0, 60).Draw(t, "ticket"),
				CreatedAt: time.Unix(rapid.Int64Range(1, 3).Draw(t, "created"), 0),
				Location:  rapid.SampledFrom([]string{"up", "up", "up", "down", "unknown"}).Draw(t, "location"),
				Selection: rapid.OneOf(drawWords, rapid.Map(rapid.SliceOfN(rapid.StringMatching("[a-z][a-z]"), 1, 3), func(names []string) *selection.Namespaces {
					n, _ := selection.ParseNamespaces(names, nil, nil)
					return n
				})).Draw(t, "selection"),
				ClusterScoped: rapid.IntRange(0, 9).Draw(t, "cluster") == 0,
			})
		}
		checkPlan(t, s)
	})
}
