// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// bench is a manager whose work runs until it is released or cancelled.
type bench struct {
	*Manager
	t        *testing.T
	started  []string
	ended    []string
	released map[string]chan struct{}
}

func newBench(t *testing.T, limit int) *bench {
	return &bench{Manager: NewManager(t.Context(), limit), t: t, released: map[string]chan struct{}{}}
}

// submit submits work whose key begins with its run, and is its name, asked for at the zero time.
func (b *bench) submit(key string, class Class) bool {
	return b.submitAsked(key, key, class, time.Time{})
}

func (b *bench) submitAsked(key, name string, class Class, asked time.Time) bool {
	release := make(chan struct{})
	taken := b.Submit(Work{Key: key, Class: class, Run: key[:1], Asked: asked, Name: name, Do: func(ctx context.Context) {
		b.mu.Lock()
		b.started = append(b.started, key)
		b.mu.Unlock()
		select {
		case <-release:
		case <-ctx.Done():
		}
		b.mu.Lock()
		b.ended = append(b.ended, key)
		b.mu.Unlock()
	}})
	if taken {
		b.released[key] = release
	}
	// One at a time, so that started is in the order of starting.
	synctest.Wait()
	return taken
}

// nameOf is the name of the record of a key, in an order that is not that of the keys.
func nameOf(key string) string {
	return fmt.Sprint("record-", '9'-key[len(key)-1])
}

func (b *bench) release(key string) {
	close(b.released[key])
	synctest.Wait()
}

func (b *bench) expectStarted(want ...string) {
	b.t.Helper()
	if !slices.Equal(b.started, want) {
		b.t.Errorf("started %v, want %v", b.started, want)
	}
}

func TestManagerOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		for _, key := range []string{"b1", "b2", "b3"} {
			b.submit(key, ClassBackup)
		}
		for _, key := range []string{"r1", "r2", "r3", "r4", "r5"} {
			b.submit(key, ClassRestore)
		}
		order := []string{"b1", "r1", "r2", "r3", "b2", "r4", "r5", "b3"}
		for i, key := range order {
			b.expectStarted(order[:i+1]...)
			b.release(key)
		}
		if load := b.Load(); load.Running != [classes]int{} || load.Waiting != [classes]int{} {
			t.Errorf("in the end there is %+v", load)
		}
		b.Stop()
	})
}

// TestManagerTurns: a run of many volumes does not hold up one of few, and its own go in
// the order in which they were asked for, whenever they were submitted.
func TestManagerTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		for i, key := range []string{"a5", "a4", "a3", "a2", "b1", "b2", "a1", "c1"} {
			asked := time.Unix(int64(100-i), 0)
			if key == "b1" || key == "b2" {
				asked = time.Unix(50, 0) // the name decides
			}
			b.submitAsked(key, nameOf(key), ClassBackup, asked)
		}
		b.SetLimit(1)
		synctest.Wait()
		order := []string{"a1", "b2", "c1", "a2", "b1", "a3", "a4", "a5"}
		for i, key := range order {
			b.expectStarted(order[:i+1]...)
			b.release(key)
		}
		b.Stop()
	})
}

// TestManagerLoad: what an agent says of its work.
func TestManagerLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		at := func(second int64) time.Time { return time.Unix(second, 0) }
		b.submitAsked("a1", "a1", ClassBackup, at(1))
		b.submitAsked("b3", "b3", ClassRestore, at(3))
		b.submitAsked("c4", "c4", ClassBackup, at(4))
		b.submitAsked("c2", "c2", ClassBackup, at(2))
		b.Progress().Add(5)
		b.Progress().Add(7)
		for _, step := range []struct {
			ended            string
			running, waiting [classes]int
			since            time.Time
		}{
			{"", [classes]int{ClassBackup: 1}, [classes]int{ClassRestore: 1, ClassBackup: 2}, at(2)},
			{"a1", [classes]int{ClassRestore: 1}, [classes]int{ClassBackup: 2}, at(2)},
			{"b3", [classes]int{ClassBackup: 1}, [classes]int{ClassBackup: 1}, at(4)},
			{"c2", [classes]int{ClassBackup: 1}, [classes]int{}, time.Time{}},
		} {
			if step.ended != "" {
				b.release(step.ended)
			}
			want := Load{Limit: 1, Running: step.running, Waiting: step.waiting, WaitingSince: step.since, Moved: 12}
			if got := b.Load(); got != want {
				t.Errorf("after %q there is %+v, want %+v", step.ended, got, want)
			}
		}
		b.Stop()
	})
}

func TestManagerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		for _, key := range []string{"1", "2", "3", "4"} {
			b.submit(key, ClassBackup)
		}
		b.expectStarted()
		b.SetLimit(2)
		synctest.Wait()
		if load := b.Load(); load.Running[ClassBackup] != 2 || load.Waiting[ClassBackup] != 2 {
			t.Errorf("with a limit of 2 there is %+v", load)
		}
		b.SetLimit(1)
		b.release(b.started[0])
		if len(b.started) != 2 {
			t.Errorf("a lower limit lets %v start", b.started)
		}
		b.release(b.started[1])
		b.expectStarted(b.started[0], b.started[1], "3")
		if load := b.Load(); load.Limit != 1 {
			t.Errorf("the limit is %+v", load)
		}
		b.Stop()
	})
}

// TestManagerCancelOfWhatIsDue: the turn of a backup that is cancelled holds up no restore.
func TestManagerCancelOfWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		order := []string{"r1", "r2", "r3", "r4", "r5"}
		for _, key := range order {
			b.submit(key, ClassRestore)
		}
		b.submit("b1", ClassBackup)
		for _, key := range order[:3] {
			b.release(key)
		}
		b.Cancel("b1")
		b.release("r4")
		b.expectStarted(order...)
		b.Stop()
	})
}

func TestManagerCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.submit("running", ClassBackup)
		b.submit("waiting", ClassBackup)
		b.submit("next", ClassBackup)
		if b.submit("running", ClassBackup) || b.submit("waiting", ClassRestore) {
			t.Error("a key is taken twice")
		}
		if b.Cancel("waiting") || b.Cancel("unknown") {
			t.Error("work that doesn't run is said to run")
		}
		if !b.Cancel("running") {
			t.Error("work that runs is said not to")
		}
		synctest.Wait()
		b.expectStarted("running", "next")
		if !b.submit("running", ClassBackup) {
			t.Error("a key that ended is not taken again")
		}

		b.Stop()
		if !slices.Equal(b.ended, []string{"running", "next"}) {
			t.Errorf("after Stop %v had ended", b.ended)
		}
		if b.submit("late", ClassBackup) {
			t.Error("a stopped manager takes work")
		}
	})
}

// TestManagerProperties compares a manager with a naive model of it, step by step.
func TestManagerProperties(t *testing.T) {
	type step struct {
		op    string
		key   string
		asked int64
		class Class
		limit int
	}
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			op:    rapid.SampledFrom([]string{"submit", "submit", "submit", "submit", "release", "release", "release", "cancel", "limit"}).Draw(t, "op"),
			key:   fmt.Sprintf("%c%d", 'a'+rapid.IntRange(0, 3).Draw(t, "run"), rapid.IntRange(0, 4).Draw(t, "key")),
			asked: rapid.Int64Range(0, 5).Draw(t, "asked"),
			class: Class(rapid.IntRange(0, classes-1).Draw(t, "class")),
			limit: rapid.SampledFrom([]int{1, 1, 1, 0, 2, 3}).Draw(t, "limit"),
		}
	}), 40, 120)

	rapid.Check(t, func(rt *rapid.T) {
		history := steps.Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) {
			b, model := newBench(t, 1), &naiveManager{limit: 1}
			for i, s := range history {
				switch s.op {
				case "submit":
					if b.submitAsked(s.key, nameOf(s.key), s.class, time.Unix(s.asked, 0)) != model.submit(naiveWork{s.key, s.class, s.asked}) {
						failure = fmt.Sprintf("step %d: they differ on taking %s", i, s.key)
					}
				case "release":
					if len(model.running) > 0 {
						key := model.running[0]
						b.release(key)
						model.end(key)
					}
				case "cancel":
					b.Cancel(s.key)
					synctest.Wait()
					model.end(s.key)
				case "limit":
					b.SetLimit(s.limit)
					synctest.Wait()
					model.limit = s.limit
				}
				before := len(model.started)
				model.start()
				// What starts at the same moment starts in any order.
				if len(b.started) == len(model.started) {
					slices.Sort(b.started[before:])
					slices.Sort(model.started[before:])
				}
				if !slices.Equal(b.started, model.started) {
					failure = fmt.Sprintf("step %d: started %v, want %v", i, b.started, model.started)
				}
				if load := b.Load(); total(load.Running) != len(model.running) || total(load.Waiting) != len(model.waiting) {
					failure = fmt.Sprintf("step %d: %+v, want %d running and %d waiting", i, load, len(model.running), len(model.waiting))
				}
				if failure != "" {
					break
				}
			}
			b.Stop()
			if len(b.ended) != len(b.started) {
				failure = fmt.Sprintf("after Stop %d of %d have ended", len(b.ended), len(b.started))
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// TestOrderWithinARun: work of a run that waits goes in one order, in whichever it came, and so
// also after a restart, when it comes again, without what has begun.
func TestOrderWithinARun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*job
		for i, asked := range rapid.SliceOfN(rapid.Int64Range(0, 2), 1, 8).Draw(t, "asked") {
			key := fmt.Sprint("a", i)
			all = append(all, &job{Work: Work{Key: key, Class: ClassBackup, Run: "a", Asked: time.Unix(asked, 0), Name: nameOf(key)}})
		}
		order := func(all []*job, began int) (order []string) {
			var b backlog
			for _, j := range rapid.Permutation(all).Draw(t, "they come") {
				b.push(j)
			}
			for range began {
				b.pop()
			}
			for j := b.pop(); j != nil; j = b.pop() {
				order = append(order, j.Name)
			}
			return order
		}
		began := rapid.IntRange(0, len(all)).Draw(t, "have begun")
		before := order(all, began)
		left := slices.DeleteFunc(slices.Clone(all), func(j *job) bool { return !slices.Contains(before, j.Name) })
		if after := order(left, 0); !slices.Equal(after, before) {
			t.Errorf("%v, and after a restart %v", before, after)
		}
		slices.SortFunc(left, func(a, b *job) int {
			return cmp.Or(a.Asked.Compare(b.Asked), strings.Compare(a.Name, b.Name))
		})
		for i, j := range left {
			if before[i] != j.Name {
				t.Errorf("%v, the next by time and name is %s", before, j.Name)
			}
		}
	})
}

type naiveWork struct {
	key   string
	class Class
	asked int64
}

// naiveManager keeps the whole history and looks at it for every decision.
type naiveManager struct {
	limit            int
	waiting          []naiveWork
	running, started []string
	history          []string // "backup", "restore past a backup", "restore"
	// since is, for each class and run with waiting work, the step in which it had its
	// turn, or in which its first work came.
	since [classes]map[string]int
	steps int
}

func (m *naiveManager) submit(work naiveWork) bool {
	if slices.Contains(m.running, work.key) || slices.ContainsFunc(m.waiting, func(w naiveWork) bool { return w.key == work.key }) {
		return false
	}
	if m.since[work.class] == nil {
		m.since[work.class] = map[string]int{}
	}
	if !slices.ContainsFunc(m.waiting, func(w naiveWork) bool { return w.class == work.class && w.run() == work.run() }) {
		m.steps++
		m.since[work.class][work.run()] = m.steps
	}
	m.waiting = append(m.waiting, work)
	return true
}

func (w naiveWork) run() string { return w.key[:1] }

func (m *naiveManager) end(key string) {
	m.running = slices.DeleteFunc(m.running, func(k string) bool { return k == key })
	m.waiting = slices.DeleteFunc(m.waiting, func(w naiveWork) bool { return w.key == key })
}

func (m *naiveManager) start() {
	for len(m.running) < m.limit && len(m.waiting) > 0 {
		next := m.next()
		m.steps++
		m.since[next.class][next.run()] = m.steps
		m.end(next.key)
		m.running = append(m.running, next.key)
		m.started = append(m.started, next.key)
	}
	if len(m.running) < m.limit {
		m.history = append(m.history, "nothing waited")
	}
}

// next is a restore, unless the latest starts were all of restores that passed a
// backup: of the run whose turn is the longest ago, what was asked for first, and of what was
// in the same second the first by name.
func (m *naiveManager) next() naiveWork {
	first := func(class Class) (naiveWork, bool) {
		var first []naiveWork
		for _, w := range m.waiting {
			if w.class == class {
				first = append(first, w)
			}
		}
		slices.SortFunc(first, func(a, b naiveWork) int {
			return cmp.Or(m.since[class][a.run()]-m.since[class][b.run()], int(a.asked-b.asked), strings.Compare(nameOf(a.key), nameOf(b.key)))
		})
		if len(first) == 0 {
			return naiveWork{}, false
		}
		return first[0], true
	}
	restore, restores := first(ClassRestore)
	backup, backups := first(ClassBackup)
	latest := m.history[max(0, len(m.history)-restoresInRow):]
	passed := len(latest) == restoresInRow && !slices.ContainsFunc(latest, func(s string) bool { return s != "restore past a backup" })
	switch {
	case !restores || backups && passed:
		m.history = append(m.history, "backup")
		return backup
	case backups:
		m.history = append(m.history, "restore past a backup")
	default:
		m.history = append(m.history, "restore")
	}
	return restore
}
