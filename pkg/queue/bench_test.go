// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const benchSlots = 4

// benchShape says what the backups of a benchmark select. That of each is 50
// neighbouring namespaces, of which it shares 10 with the next one, unless words
// gives another.
type benchShape struct {
	name     string
	distinct int // namespaces
	words    func(i int) []string
}

var benchShapes = []benchShape{
	{"names", 5_000, nil},
	{"names, nearly all distinct", 400_100, nil},
	{"names, all the same", 50, nil},
	// A schedule of a pattern that piles up among the others.
	{"1 in 10 the same pattern", 5_000, func(i int) []string {
		if i%10 != 5 {
			return nil
		}
		return []string{"namespace-0012*"}
	}},
	// One pattern for each of many teams.
	{"1 in 10 a pattern of its own", 5_000, func(i int) []string {
		if i%10 != 5 {
			return nil
		}
		return []string{fmt.Sprintf("namespace-%05d*", i%500)}
	}},
	// The worst: a thousand patterns, each of which overlaps everything.
	{"1 in 10 a wide pattern of its own", 5_000, func(i int) []string {
		if i%10 != 5 {
			return nil
		}
		return []string{"namespace-*", fmt.Sprintf("other-%04d", i/10%1000)}
	}},
	// When it ends, it was all that everyone waited for.
	{"the first selects all", 5_000, func(i int) []string {
		if i > 0 {
			return nil
		}
		return []string{"*"}
	}},
}

func (shape benchShape) included(i int) []string {
	if shape.words != nil {
		if words := shape.words(i); words != nil {
			return words
		}
	}
	var words []string
	for j := range 50 {
		words = append(words, fmt.Sprintf("namespace-%06d", (i*40+j)%shape.distinct))
	}
	return words
}

// run is the i-th that is created, queued.
func (shape benchShape) run(b *testing.B, i int) Run {
	return Run{
		UID: types.UID(fmt.Sprintf("run-%06d", i)), Name: fmt.Sprintf("backup-%06d", i), Namespace: systemNamespace,
		Phase: v1alpha1.BackupPhaseQueued, Ticket: int64(i + 1), CreatedAt: time.Unix(int64(i), 0),
		Location: "default", Selection: selected(b, shape.included(i)...),
	}
}

// snapshot has n queued, and what could start has started.
func (shape benchShape) snapshot(b *testing.B, n int) Snapshot {
	s := Snapshot{Limits: Slots{benchSlots, benchSlots}, Locations: map[string]LocationState{"default": {Available: true}}}
	for i := range shape.distinct {
		s.Namespaces = append(s.Namespaces, fmt.Sprintf("namespace-%06d", i))
	}
	for i := range n + benchSlots {
		s.Runs = append(s.Runs, shape.run(b, i))
	}
	start := shape.planner(b, s).Next().Start
	for i := range s.Runs {
		for _, key := range start {
			if s.Runs[i].UID == key {
				s.Runs[i].Phase = v1alpha1.BackupPhaseInProgress
			}
		}
	}
	return s
}

func (shape benchShape) planner(b *testing.B, s Snapshot) *Planner {
	p, err := NewPlanner(s.Limits)
	if err != nil {
		b.Fatal(err)
	}
	p.SetNamespaces(s.Namespaces)
	p.SetLocations(s.Locations)
	for _, r := range s.Runs {
		p.Update(r)
	}
	return p
}

// benchSizes runs a benchmark for each shape and number of queued backups.
func benchSizes(b *testing.B, run func(b *testing.B, shape benchShape, n int)) {
	for _, shape := range benchShapes {
		for _, n := range []int{2_000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", shape.name, n), func(b *testing.B) { run(b, shape, n) })
		}
	}
}

// From nothing, as after a restart.
func BenchmarkReplan(b *testing.B) {
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		s := shape.snapshot(b, n)
		b.ReportAllocs()
		for b.Loop() {
			shape.planner(b, s).Plan()
		}
	})
}

// The oldest running backup ends, what may start is found and does, and as many
// new ones are queued.
func BenchmarkNextAfterCompletion(b *testing.B) {
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		s := shape.snapshot(b, n)
		p := shape.planner(b, s)
		created := len(s.Runs)
		b.ReportAllocs()
		for b.Loop() {
			done := p.line[0].Run
			done.Phase = v1alpha1.BackupPhaseCompleted
			p.Update(done)
			for _, key := range p.Next().Start {
				r := p.runs[key].Run
				r.Phase = v1alpha1.BackupPhaseInProgress
				p.Update(r)
			}
			b.StopTimer() // reading the words is not the planner's
			r := shape.run(b, created)
			created++
			b.StartTimer()
			p.Update(r)
		}
	})
}

// The same plan and the same decision by the rules alone, on the same input: that of
// BenchmarkReplan, and that on which BenchmarkNextAfterCompletion first decides. For
// each run it looks at all others until one overlaps: where few do, it sees the square
// of the queue.
func BenchmarkOracle(b *testing.B) {
	for _, shape := range benchShapes[:2] {
		for _, n := range []int{2_000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", shape.name, n), func(b *testing.B) { benchOracle(b, shape, n) })
		}
	}
}

func benchOracle(b *testing.B, shape benchShape, n int) {
	s := shape.snapshot(b, n)
	p := shape.planner(b, s)
	b.Run("plan", func(b *testing.B) {
		b.ReportAllocs()
		var v verdict
		for b.Loop() {
			v = naive(s)
		}
		if diff := gocmp.Diff(v, verdictOf(p.Plan()), gocmp.AllowUnexported(verdict{})); diff != "" {
			b.Fatalf("the planner says something else (-rules +planner):\n%s", diff)
		}
	})
	b.Run("decision", func(b *testing.B) {
		oldest := slices.IndexFunc(s.Runs, func(r Run) bool { return r.UID == p.line[0].UID })
		s := s
		s.Runs = slices.Clone(s.Runs)
		s.Runs[oldest].Phase = v1alpha1.BackupPhaseCompleted
		b.ReportAllocs()
		var start []types.UID
		for b.Loop() {
			start, _ = naiveStarts(s, inOrder(s))
		}
		p := shape.planner(b, s)
		if got := p.Next().Start; len(start) == 0 || !slices.Equal(start, got) {
			b.Fatalf("%q start, by the planner %q", start, got)
		}
	})
}

// All that a planner keeps alive: the runs that it was told of, with what their
// words were compiled to, who used each name first, the namespaces; and a plan with all entries.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC() // pools let go of theirs at the second one
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		for b.Loop() {
			before := heap()
			p := shape.planner(b, shape.snapshot(b, n))
			p.Next()
			planner := heap()
			plan := p.Plan()
			all := heap()
			b.ReportMetric((planner-before)/float64(n), "B/queued-run")
			b.ReportMetric((planner-before)/1e6, "planner-MB")
			b.ReportMetric((all-planner)/1e6, "plan-MB")
			runtime.KeepAlive(p)
			runtime.KeepAlive(plan)
		}
	})
}

// One pass over the whole queue after a change.
func BenchmarkPass(b *testing.B) {
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		p := shape.planner(b, shape.snapshot(b, n))
		p.advance(p.Len())
		b.ReportAllocs()
		for b.Loop() {
			p.restart()
			p.advance(p.Len())
		}
	})
}
