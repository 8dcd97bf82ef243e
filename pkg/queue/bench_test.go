// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	benchSlots = 4
	pageSize   = 500
)

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

// run is the i-th that is created, queued.
func (shape benchShape) run(b *testing.B, i int) Run {
	var words []string
	if shape.words != nil {
		words = shape.words(i)
	}
	if words == nil {
		for j := range 50 {
			words = append(words, fmt.Sprintf("namespace-%06d", (i*40+j)%shape.distinct))
		}
	}
	return Run{
		Key: fmt.Sprintf("run-%06d", i), Name: fmt.Sprintf("backup-%06d", i), Namespace: systemNamespace,
		Phase: v1alpha1.BackupPhaseQueued, Ticket: int64(i + 1), CreatedAt: time.Unix(int64(i), 0),
		Location: "default", Selection: selected(b, words...),
	}
}

// snapshot has n queued, and what could start has started.
func (shape benchShape) snapshot(b *testing.B, n int) Snapshot {
	s := Snapshot{Limit: benchSlots, Locations: map[string]LocationState{"default": {Available: true}}}
	for i := range shape.distinct {
		s.Namespaces = append(s.Namespaces, fmt.Sprintf("namespace-%06d", i))
	}
	for i := range n + benchSlots {
		s.Runs = append(s.Runs, shape.run(b, i))
	}
	start := shape.planner(b, s).Next().Start
	for i := range s.Runs {
		for _, key := range start {
			if s.Runs[i].Key == key {
				s.Runs[i].Phase = v1alpha1.BackupPhaseInProgress
			}
		}
	}
	return s
}

func (shape benchShape) planner(b *testing.B, s Snapshot) *Planner {
	p, err := NewPlanner(s.Limit)
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

// All entries anew, of a planner that knows the runs.
func BenchmarkPlan(b *testing.B) {
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		p := shape.planner(b, shape.snapshot(b, n))
		b.ReportAllocs()
		for b.Loop() {
			p.Plan()
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

// The one that everyone waited for ends.
func BenchmarkNextAfterCompletionOfAll(b *testing.B) {
	shape := benchShapes[len(benchShapes)-1]
	for _, n := range []int{2_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := shape.snapshot(b, n)
			p := shape.planner(b, s)
			running := p.line[0].Run
			done := running
			done.Phase = v1alpha1.BackupPhaseCompleted
			for b.Loop() {
				p.Update(done)
				if len(p.Next().Start) == 0 {
					b.Fatal("nothing starts")
				}
				b.StopTimer()
				p.Update(running)
				b.StartTimer()
			}
		})
	}
}

// The same decision and the same plan by the rules alone, on the same input. Its
// cost grows with the square of the queue: at 10,000 it takes minutes.
func BenchmarkOracle(b *testing.B) {
	shape := benchShapes[0]
	for _, n := range []int{200, 2_000} {
		s := shape.snapshot(b, n)
		b.Run(fmt.Sprintf("decision/%d", n), func(b *testing.B) {
			for b.Loop() {
				naiveStarts(s, inOrder(s))
			}
		})
		b.Run(fmt.Sprintf("plan/%d", n), func(b *testing.B) {
			for b.Loop() {
				naive(s)
			}
		})
	}
}

// 500 entries from the middle of the queue, after a change.
func BenchmarkPage(b *testing.B) {
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		p := shape.planner(b, shape.snapshot(b, n))
		b.ReportAllocs()
		for b.Loop() {
			p.SetLocations(p.locations)
			for i := range pageSize {
				p.EntryAt(n/2 + i)
			}
		}
	})
}

// What a planner keeps, without the selections, which are the caller's.
func BenchmarkMemory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	benchSizes(b, func(b *testing.B, shape benchShape, n int) {
		s := shape.snapshot(b, n)
		for b.Loop() {
			before := heap()
			p := shape.planner(b, s)
			p.Next()
			kept := heap() - before
			b.ReportMetric(float64(kept)/float64(n), "B/queued-run")
			b.ReportMetric(float64(kept)/1e6, "MB")
			runtime.KeepAlive(p)
		}
	})
}
