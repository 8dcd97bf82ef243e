// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever the limit, something can be moved, and all that may be kept is within it.
func TestMemoryIsDivided(t *testing.T) {
	for _, limit := range []int64{0, 64 << 20, 256 << 20, 512 << 20, 1 << 30, 10 << 30} {
		m := NewMemory(limit)
		if m.Volumes < 1 || m.files < 1 || m.kept() < 0 || m.keptExtras() < leastExtras {
			t.Errorf("%d MiB: %+v", limit>>20, m)
		}
		sum := int64(m.Volumes)*(volumeMemory+m.kept()) + m.files*fileMemory + processMemory
		if limit >= 256<<20 && sum > limit {
			t.Errorf("%d MiB: %d MiB may be taken by %+v", limit>>20, sum>>20, m)
		}
		if extras := m.keptExtras() + looseExtras; limit >= 256<<20 && (extras > volumeMemory || extras > m.packs) {
			t.Errorf("%d MiB: %d MiB of extras do not fit in the place of packs: %+v", limit>>20, extras>>20, m)
		}
	}
	if got := MemoryOf(t.Context()); got.kept() != packMemory || got.readers(7) != 7 || got.keptExtras() != unboundedExtras {
		t.Error("without a limit there is one")
	}
}

// Indexes beyond what each repository has take the turns of files, save one, and one
// repository after the other does. All of that is given back.
func TestIndexesTakeMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1 << 30)
		if done, err := m.Indexes(t.Context(), indexMemory); done != nil || err != nil {
			t.Fatalf("small indexes wait: %v", err)
		}
		waits := func(bytes int64) {
			t.Helper()
			short, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			if _, err := m.Indexes(short, bytes); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("indexes of %d MiB: %v", bytes>>20, err)
			}
		}
		for _, test := range []struct{ bytes, files int64 }{{indexMemory + 1, 1}, {indexMemory + 3*fileMemory, 3}, {1 << 40, m.files - 1}} {
			done, err := m.Indexes(t.Context(), test.bytes)
			must(t, err)
			if m.taken != test.files {
				t.Errorf("indexes of %d MiB take %d files, want %d", test.bytes>>20, m.taken, test.files)
			}
			waits(indexMemory + (m.files-test.files)*fileMemory)
			if test.files < m.files-1 {
				second, err := m.Indexes(t.Context(), indexMemory+1)
				must(t, err)
				second()
			}
			done()
			if m.taken != 0 || m.indexed != 0 {
				t.Error("they are not given back")
			}
		}
		var files []func()
		for range m.files {
			done, err := m.file(t.Context())
			must(t, err)
			files = append(files, done)
		}
		waits(1 << 40) // with all files at work
		for _, done := range files[1:] {
			done()
		}
		done, err := m.Indexes(t.Context(), 1<<40)
		must(t, err)
		done()
	})
}

// A file waits for its turn, uploaded or restored. A turn ends with the work, also where
// a read hangs.
func TestFilesWaitForMemory(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	id, r := s.upload(t, dir, web).SnapshotID, s.open(t)
	m := NewMemory(0)
	hung, cancel := context.WithCancel(t.Context())
	_, err := m.file(hung)
	must(t, err)
	both := func(ctx context.Context) error {
		_, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress))
		_, restoreErr := Restore(ctx, r, RestoreRequest{SnapshotID: id, Path: t.TempDir()}, new(Progress))
		if (err == nil) != (restoreErr == nil) {
			t.Errorf("Upload = %v, Restore = %v", err, restoreErr)
		}
		return errors.Join(err, restoreErr)
	}
	write(t, filepath.Join(dir, "file"), "other content")
	short, stop := context.WithTimeout(WithMemory(t.Context(), m), 300*time.Millisecond)
	defer stop()
	if err := both(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without their turn: %v", err)
	}
	cancel()
	for range 2 { // it is given back
		must(t, both(WithMemory(t.Context(), m)))
	}
}

// TestVolumeThatHangs: a volume all of whose files hang, since its store says nothing, holds up
// no other one.
func TestVolumeThatHangs(t *testing.T) {
	var silent atomic.Bool
	store := newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if silent.Load() && r.Method == http.MethodGet && path.Base(r.URL.Path)[0] == 'p' { // what files hold
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	smallFiles(t, dir, 64)
	id, hanging := store.upload(t, dir, web).SnapshotID, store.open(t)
	other := newStore(t)
	r := other.open(t)

	silent.Store(true)
	m := NewMemory(512 << 20)
	manager := NewManager(WithMemory(t.Context(), m), m.Volumes)
	defer manager.Stop()
	manager.Submit(Work{Key: "hangs", Class: ClassRestore, Do: func(ctx context.Context) {
		_, err := Restore(ctx, hanging, RestoreRequest{SnapshotID: id, Path: t.TempDir()}, new(Progress))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the one that hangs: %v", err)
		}
	}})
	all := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.taken == m.files-m.reserved
	}
	for !all() {
		time.Sleep(time.Millisecond)
	}
	done := make(chan error, 1)
	manager.Submit(Work{Key: "goes on", Class: ClassBackup, Do: func(ctx context.Context) {
		result, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress))
		if err == nil {
			_, err = Restore(ctx, r, RestoreRequest{SnapshotID: result.SnapshotID, Path: t.TempDir()}, new(Progress))
		}
		done <- err
	}})
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the other volume waits for the one that hangs")
	}
}

// asked are turns that somebody has asked for.
type asked struct {
	volume  int   // whose file it is, by number; 0 for indexes
	indexes int64 // how many they want
	turns   int64 // that it has
	state   askedState

	// What came of it.
	cancel   func()
	answered bool
	done     func()
	err      error
}

type askedState string

const (
	waits askedState = "waits"
	holds askedState = "holds"
	gone  askedState = "gone"
)

// seen is the state that came of it.
func (a *asked) seen() askedState {
	switch {
	case !a.answered:
		return waits
	case a.err != nil || a.state == gone:
		return gone
	}
	return holds
}

// naiveTurns looks at all that was ever asked for, in that order, for every decision.
type naiveTurns struct {
	files, reserved int64
	asked           []*asked
}

// held are the turns of a volume, and with 0 those of indexes.
func (n *naiveTurns) held(volume int) (turns int64) {
	for _, a := range n.asked {
		if a.state == holds && a.volume == volume {
			turns += a.turns
		}
	}
	return turns
}

// shared are the turns that are in use, but for the first of each volume.
func (n *naiveTurns) shared() int64 {
	turns := n.held(0)
	for volume := range someVolumes {
		turns += max(0, n.held(volume+1)-1)
	}
	return turns
}

// settle gives what there is. A volume without a turn has one, whatever comes before it. Indexes
// wait for those of others, one after the other; apart from that nothing passes what waits.
func (n *naiveTurns) settle() {
	there := max(0, n.files-n.reserved)
	indexesWait, filesWait := false, false
	for _, a := range n.asked {
		wanted := int64(1)
		if a.indexes > 0 {
			wanted = min(a.indexes, there)
		}
		switch {
		case a.state != waits:
			continue
		case a.volume > 0 && n.held(a.volume) == 0:
		case a.indexes > 0 && (indexesWait || wanted > 0 && n.held(0)+wanted > there):
			indexesWait = true
			continue
		case filesWait || wanted > 0 && n.shared()+wanted > there:
			filesWait, indexesWait = true, true
			continue
		}
		a.state, a.turns = holds, wanted
	}
}

const someVolumes = 4

// TestTurnsProperties compares how turns are given with a naive model of it, step by step.
func TestTurnsProperties(t *testing.T) {
	type step struct {
		op     string
		number int
	}
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			op:     rapid.SampledFrom([]string{"file", "file", "file", "file", "file", "indexes", "end", "end", "end", "cancel", "stop", "reserve"}).Draw(t, "op"),
			number: rapid.IntRange(0, 60).Draw(t, "number"),
		}
	}), 20, 80)

	rapid.Check(t, func(rt *rapid.T) {
		files, history := rapid.Int64Range(1, 6).Draw(rt, "files"), steps.Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) {
			m, model := &Memory{files: files, reserved: 1}, &naiveTurns{files: files, reserved: 1}
			least := model.reserved // so far
			var volumes [someVolumes]context.Context
			var stops [someVolumes]func()
			begin := func(volume int) {
				volumes[volume], stops[volume] = context.WithCancel(withShare(t.Context()))
			}
			for volume := range volumes {
				begin(volume)
			}
			ask := func(ctx context.Context, a *asked, take func(context.Context) (func(), error)) {
				ctx, a.cancel = context.WithCancel(ctx)
				a.state = waits
				model.asked = append(model.asked, a)
				go func() {
					a.done, a.err = take(ctx)
					a.answered = true
				}()
			}
			some := func(number int, states ...askedState) *asked {
				var found []*asked
				for _, a := range model.asked {
					if slices.Contains(states, a.state) {
						found = append(found, a)
					}
				}
				if len(found) == 0 {
					return nil
				}
				return found[number%len(found)]
			}
			for i, s := range history {
				volume := s.number % someVolumes
				switch s.op {
				case "file":
					ask(volumes[volume], &asked{volume: volume + 1}, m.file)
				case "indexes":
					wanted := int64(s.number%7 + 1)
					ask(t.Context(), &asked{indexes: wanted}, func(ctx context.Context) (func(), error) {
						return m.Indexes(ctx, indexMemory+wanted*fileMemory)
					})
				case "end":
					if a := some(s.number, holds); a != nil {
						a.done()
						if a.volume > 0 {
							a.cancel() // which is late
						}
						a.state = gone
					}
				case "cancel":
					if a := some(s.number, waits, holds); a != nil {
						a.cancel()
						if a.state == waits || a.volume > 0 {
							a.state = gone
						}
					}
				case "stop":
					stops[volume]()
					for _, a := range model.asked {
						if a.volume == volume+1 {
							a.state = gone
						}
					}
					begin(volume)
				case "reserve":
					m.reserve(s.number % 7)
					model.reserved = int64(max(1, s.number%7))
					least = min(least, model.reserved)
				}
				synctest.Wait()
				model.settle()
				total, holding := model.held(0), int64(0)
				for volume := range someVolumes {
					total, holding = total+model.held(volume+1), holding+min(1, model.held(volume+1))
				}
				if total > holding+max(0, files-least) {
					failure = fmt.Sprintf("step %d: %d turns of %d are in use", i, total, files)
				}
				for j, a := range model.asked {
					if a.seen() != a.state {
						failure = fmt.Sprintf("step %d, %v: %d, of volume %d, %s and should be: %s", i, s, j, a.volume, a.seen(), a.state)
					}
				}
				if failure != "" {
					break
				}
			}
			for _, a := range model.asked {
				a.cancel()
			}
			synctest.Wait()
			for _, a := range model.asked {
				if a.indexes > 0 && a.state != gone && a.done != nil { // perhaps only now
					a.done()
				}
			}
			if failure == "" && (m.taken != 0 || m.indexed != 0 || m.waiting.Len() != 0) {
				failure = fmt.Sprintf("in the end %d turns are lost, and %d of indexes, and %d wait", m.taken, m.indexed, m.waiting.Len())
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}
