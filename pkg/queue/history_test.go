// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// history is a cluster in which things happen in any order.
type history struct {
	snapshot   Snapshot
	selections *rapid.Generator[*selection.Namespaces]
	now        time.Time
	created    int
	ended      map[string]bool
}

func newHistory(t *rapid.T) *history {
	h := &history{
		selections: drawStyle(t),
		now:        time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		ended:      map[string]bool{},
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
				Selection:     h.selections.Draw(t, "selection"),
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

// Pitfalls 13, 19 and 23: positions have no gaps, namespaces that come and go change no
// decision, and each backup gets its turn.
func TestHistoriesAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		t.Repeat(h.actions())
		h.drain(t)
	})
}
