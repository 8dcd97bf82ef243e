// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// checkPlanner compares all that a planner answers with the plan of a new one.
func checkPlanner(t *rapid.T, p *Planner, want Plan) {
	diff := func(what string, want, got any) {
		if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Entry{})); d != "" {
			t.Fatalf("%s: the planner does not say what a new one says (-new +planner):\n%s", what, d)
		}
	}
	// One entry alone, then what to do, then all: what was asked before must not matter.
	if n := len(want.Entries); n > 0 {
		at := rapid.IntRange(0, n-1).Draw(t, "at")
		diff("EntryAt", want.Entries[at], p.EntryAt(at))
	}
	diff("Next", want.Decision, p.Next())
	diff("Plan", want, p.Plan())
	diff("Len", len(want.Entries), p.Len())
	at := 0
	for run, reason := range p.Line() {
		if at < len(want.Entries) {
			diff("Line", [2]any{want.Entries[at].UID, want.Entries[at].Reason}, [2]any{run.UID, reason})
		} else {
			diff("Line, New", want.Tickets[at-len(want.Entries)].UID, run.UID)
		}
		at++
	}
	for _, e := range want.Entries {
		got, ok := p.Entry(e.UID)
		diff("Entry", e, got)
		diff("has an entry", true, ok)
	}
}

// What runs leave behind is nothing.
func TestPlannerForgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPlanner(Slots{1, 1})
		if err != nil {
			t.Fatal(err)
		}
		style := drawStyle(t)
		n := rapid.IntRange(1, 20).Draw(t, "runs")
		for i := range n {
			p.Update(drawRun(t, types.UID(fmt.Sprint(i)), style, 2))
		}
		for i := range n {
			if key := types.UID(fmt.Sprint(i)); rapid.Bool().Draw(t, "ends") {
				p.Update(Run{UID: types.UID(key), Phase: v1alpha1.BackupPhaseCompleted})
			} else {
				p.Remove(key)
			}
		}
		if left := len(p.runs) + len(p.line) + len(p.names) + len(p.patterns); left > 0 || p.counts != [ranks]Slots{} {
			t.Fatalf("%d things are left: %+v", left, p)
		}
	})
}

// A limit that is refused changes nothing.
func TestPlannerLimit(t *testing.T) {
	for _, limits := range []Slots{{0, 1}, {1, 0}} {
		if p, err := NewPlanner(limits); p != nil || !errors.Is(err, ErrLimit) {
			t.Errorf("%v, %v", p, err)
		}
	}
	p, err := NewPlanner(Slots{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetLimits(Slots{2, 0}); !errors.Is(err, ErrLimit) || p.Next().Limits != (Slots{2, 3}) {
		t.Errorf("%v, limits %d", err, p.Next().Limits)
	}
}
