// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// history is a cluster in which things happen in any order, and a planner that is
// told of them.
type history struct {
	snapshot Snapshot
	planner  *Planner
	// What the planner was told last.
	told          map[types.UID]Run
	toldLocations map[string]LocationState
	toldLimits    Slots

	style   *rapid.Generator[*selection.Namespaces]
	now     time.Time
	created int
}

func newHistory(t *rapid.T) *history {
	h := &history{
		style: drawStyle(t),
		now:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	h.snapshot.Limits = drawLimits(t)
	h.snapshot.Locations = map[string]LocationState{"one": {Available: true}, "two": {Available: true}}
	for range rapid.IntRange(0, 12).Draw(t, "waiting") {
		h.create(t, drawClass(t))
	}
	h.restart(t)
	return h
}

func drawClass(t *rapid.T) Class { return Class(rapid.IntRange(0, 3).Draw(t, "class") / 3) }

func drawLimits(t *rapid.T) Slots {
	return Slots{rapid.IntRange(1, 4).Draw(t, "limit"), rapid.IntRange(1, 3).Draw(t, "limit of restores")}
}

func (h *history) create(t *rapid.T, class Class) {
	// Several in the same second, as a schedule or a script makes them.
	h.now = h.now.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "seconds")) * time.Second)
	name := fmt.Sprintf("b%03d", h.created)
	h.created++
	h.snapshot.Runs = append(h.snapshot.Runs, Run{
		Class: class, UID: types.UID(name), Name: rapid.SampledFrom([]string{name, "same"}).Draw(t, "name"),
		Namespace:     rapid.SampledFrom([]string{systemNamespace, "team-a", "team-b"}).Draw(t, "namespace"),
		CreatedAt:     h.now,
		Location:      rapid.SampledFrom([]string{"one", "two"}).Draw(t, "location"),
		Selection:     h.style.Draw(t, "selection"),
		ClusterScoped: rapid.IntRange(0, 4).Draw(t, "cluster") == 0,
	})
}

// restart forgets what is not in the records.
func (h *history) restart(t *rapid.T) {
	planner, err := NewPlanner(h.snapshot.Limits)
	if err != nil {
		t.Fatal(err)
	}
	h.planner, h.snapshot.LastTicket = planner, 0
	h.told, h.toldLocations, h.toldLimits = map[types.UID]Run{}, nil, h.snapshot.Limits
}

// plan is what the planner says once it is told of the changes, in any order. It
// must be what a new one says, and that what the rules say.
func (h *history) plan(t *rapid.T) Plan {
	runs := map[types.UID]Run{}
	for _, r := range h.snapshot.Runs {
		runs[r.UID] = r
	}
	keys := slices.Sorted(maps.Keys(runs))
	for key := range h.told {
		if _, ok := runs[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	again := rapid.Bool().Draw(t, "told twice")
	changed := slices.DeleteFunc(keys, func(key types.UID) bool {
		was, ok := h.told[key]
		return ok && was == runs[key] && !again
	})
	if len(changed) > 1 {
		changed = rapid.Permutation(changed).Draw(t, "order of changes")
	}
	for _, key := range changed {
		if r, ok := runs[key]; ok {
			h.planner.Update(r)
		} else {
			h.planner.Remove(key)
		}
	}
	h.told = runs
	h.planner.SetNamespaces(h.snapshot.Namespaces)
	if again || !maps.Equal(h.toldLocations, h.snapshot.Locations) {
		h.toldLocations = maps.Clone(h.snapshot.Locations)
		h.planner.SetLocations(h.toldLocations)
	}
	if again || h.toldLimits != h.snapshot.Limits {
		h.toldLimits = h.snapshot.Limits
		if err := h.planner.SetLimits(h.toldLimits); err != nil {
			t.Fatal(err)
		}
	}
	plan := checkPlan(t, h.snapshot)
	checkPlanner(t, h.planner, plan)
	for _, r := range h.snapshot.Runs {
		h.snapshot.LastTicket = max(h.snapshot.LastTicket, r.Ticket) // as the planner does
	}
	return plan
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
	return map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			for range rapid.IntRange(1, 4).Draw(t, "runs") {
				h.create(t, drawClass(t))
			}
		},
		"act on the plan": func(t *rapid.T) {
			plan := h.plan(t)
			// A crash between two writes leaves the rest of the plan undone.
			plan.Tickets = plan.Tickets[:rapid.IntRange(0, len(plan.Tickets)).Draw(t, "tickets written")]
			plan.Start = plan.Start[:rapid.IntRange(0, len(plan.Start)).Draw(t, "starts written")]
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
			h.pick(t, func(r Run) bool { return naiveSlot(r) || r.Phase == "WaitingForPluginOperations" }).Phase = v1alpha1.BackupPhaseCompleted
		},
		"cancel": func(t *rapid.T) {
			r := h.pick(t, func(r Run) bool { return rankOf(&r) < ranks })
			r.Cancelled = true
		},
		"remove a record": func(t *rapid.T) {
			key := h.pick(t, func(Run) bool { return true }).UID // somebody may have forced a live one away
			h.snapshot.Runs = slices.DeleteFunc(h.snapshot.Runs, func(r Run) bool { return r.UID == key })
		},
		"namespaces come and go": func(t *rapid.T) {
			before := h.plan(t).Start
			h.snapshot.Namespaces = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "x-1", "x-2", "y-1", "z"}), rapid.ID).Draw(t, "namespaces")
			slices.Sort(h.snapshot.Namespaces)
			if after := h.plan(t).Start; !slices.Equal(before, after) {
				t.Fatalf("namespaces changed what starts: %q, %q", before, after)
			}
		},
		"a store goes or comes back": func(t *rapid.T) {
			name := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "location")
			h.snapshot.Locations[name] = LocationState{Available: rapid.IntRange(0, 2).Draw(t, "up") > 0, NoBackups: rapid.IntRange(0, 3).Draw(t, "closed") == 0, Message: locationSecret}
		},
		"the limit changes": func(t *rapid.T) { h.snapshot.Limits = drawLimits(t) },
		"restart": func(t *rapid.T) {
			h.restart(t)
			for i := range h.snapshot.Runs {
				if r := &h.snapshot.Runs[i]; r.Phase == v1alpha1.BackupPhaseInProgress {
					r.Phase = v1alpha1.BackupPhaseCompleted
				}
			}
		},
		"": func(t *rapid.T) {
			h.plan(t)
			h.checkNoOverlap(t)
		},
	}
}

// checkNoOverlap is the first promise: what uses slots never overlaps.
func (h *history) checkNoOverlap(t *rapid.T) {
	for _, a := range h.snapshot.Runs {
		for _, b := range h.snapshot.Runs {
			if a.UID != b.UID && naiveSlot(a) && naiveSlot(b) && naiveOverlap(a, b) {
				t.Fatalf("%s and %s overlap, and both use a slot", a.UID, b.UID)
			}
		}
	}
}

// checkNotOvertaking is the second: none starts ahead of a queued one that it
// overlaps and that was queued before it, and no backup ahead of such a restore,
// whenever that was queued. Runs that wait for their storage location may be passed.
func (h *history) checkNotOvertaking(t *rapid.T, start []types.UID) {
	for _, r := range h.snapshot.Runs {
		if !slices.Contains(start, r.UID) {
			continue
		}
		for _, other := range h.snapshot.Runs {
			ahead := other.Class == r.Class && other.Ticket < r.Ticket || other.Class == Restore && r.Class == Backup
			if ahead && naiveWaits(other) && !naiveHeld(h.snapshot, other) && naiveOverlap(r, other) {
				t.Fatalf("%s overtakes %s", r.UID, other.UID)
			}
		}
	}
}

// drain lets everything end, oldest first, while others arrive. It is the third
// promise: whatever comes behind them, none of the restores that wait now does so for
// ever, nor does any of the backups once no restores arrive any more.
func (h *history) drain(t *rapid.T) {
	for name := range h.snapshot.Locations {
		h.snapshot.Locations[name] = LocationState{Available: true}
	}
	h.drainWhile(t, func(r Run) bool { return r.Class == Restore }, drawClass)
	h.drainWhile(t, func(Run) bool { return true }, func(*rapid.T) Class { return Backup })
}

// drainWhile goes on until none is left of those of now that are meant, while others
// arrive.
func (h *history) drainWhile(t *rapid.T, meant func(Run) bool, arriving func(*rapid.T) Class) {
	now := len(h.snapshot.Runs)
	for range 2*now + h.snapshot.Limits.Sum() + 2 {
		h.checkNoOverlap(t)
		plan := h.plan(t)
		h.checkNotOvertaking(t, plan.Start)
		apply(&h.snapshot, plan, h.now)
		if i := slices.IndexFunc(h.snapshot.Runs, naiveSlot); i >= 0 {
			h.snapshot.Runs[i].Phase = v1alpha1.BackupPhaseCompleted
		}
		if !slices.ContainsFunc(h.snapshot.Runs[:now], func(r Run) bool { return meant(r) && rankOf(&r) < ranks }) {
			return
		}
		h.create(t, arriving(t))
	}
	t.Fatalf("the queue does not drain:\n%s", formatPlan(h.plan(t)))
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
