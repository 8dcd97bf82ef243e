// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// paged is a store that counts the pages of its listings, of a thousand results each.
type paged struct {
	*storetest.Faulty
	mu    sync.Mutex
	pages int
	third chan struct{} // holds up the third page until it is closed
}

func (p *paged) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		count := 0
		for object, err := range p.Faulty.List(ctx, folder, options) {
			if count++; count%1000 == 1 {
				p.mu.Lock()
				p.pages++
				hold := p.third != nil && p.pages == 3
				p.mu.Unlock()
				if hold {
					<-p.third
				}
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

func (p *paged) Close() error { return nil }

func (p *paged) listed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.pages = 0 }()
	return p.pages
}

// What a poll of many backups costs, and what it sees.
func TestLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backups = 3500
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 100 * interval})
		for i := range backups {
			f.store("default", fmt.Sprintf("b%04d", i))
		}
		pages := &paged{Faulty: f.stores["default"]}
		location := f.location("default")
		location.Open = func(context.Context) (refresh.Store, error) { return pages, nil }
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		if got := f.catalog.Len("default"); got != backups || pages.listed() != 4 {
			t.Fatalf("%d backups at first", got)
		}
		f.reset()
		pass(20 * interval)
		if got := pages.listed(); got < 18 || got > 22 {
			t.Errorf("%d pages in 20 polls in which nothing changed", got)
		}
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: f.stores["default"].Count(storetest.List)})

		// Something changes in every part. A round sees it, and the next one confirms it.
		for i := range 4 {
			f.store("default", fmt.Sprintf("b%04d-new", i*1000+100))
			f.remove("default", fmt.Sprintf("b%04d", i*1000+200))
		}
		pass(6 * interval)
		for i := range 4 {
			if name := fmt.Sprintf("b%04d-new", i*1000+100); f.catalog.Backup(system, name) == nil {
				t.Errorf("%s is not there after a round", name)
			}
		}
		pass(6 * interval)
		if got := f.catalog.Len("default"); got != backups {
			t.Errorf("%d backups after two rounds", got)
		}
		if f.refresher.Warnings() != nil {
			t.Errorf("warnings %q", f.refresher.Warnings())
		}

		// Who asks for it gets all at once.
		f.store("default", "a")
		f.store("default", "z")
		pages.listed()
		location.Asked = refresh.Asked{Generation: 7, Request: "soon"}
		f.refresher.SetLocations([]refresh.Location{location})
		settle()
		if got := pages.listed(); got != 4 || f.catalog.Len("default") != backups+2 {
			t.Errorf("%d pages, %d backups", got, f.catalog.Len("default"))
		}
		if state, _ := f.refresher.State("default"); state.Synced != location.Asked {
			t.Errorf("state %+v", state)
		}

		// What is asked for while all is listed, and what has come behind that, is seen too.
		pages.third = make(chan struct{})
		f.refresher.Nudge("default")
		settle()
		f.store("default", "b0000-late")
		f.refresher.Nudge("default")
		close(pages.third)
		settle()
		if got := pages.listed(); got != 8 || f.catalog.Backup(system, "b0000-late") == nil {
			t.Errorf("%d pages", got)
		}
	})
}

// A location may be polled at another pace than others, or not at all; what is asked for is
// done all the same.
func TestIntervalOfALocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		location := f.location("default")
		set := func(interval time.Duration, asked int64) {
			location.Interval, location.Asked.Generation = &interval, asked
			f.refresher.SetLocations([]refresh.Location{location})
			settle()
		}
		set(0, 1)
		f.run()
		settle()
		f.wantBackups("a")
		f.store("default", "b")
		f.reset()
		pass(100 * time.Hour)
		f.wantRequests("default", map[storetest.Operation]int{})
		if f.refresher.Awaits("default", location.Asked) {
			t.Error("awaits what was done at first")
		}
		set(0, 2)
		f.wantBackups("a b")
		set(time.Hour, 2)
		f.reset()
		pass(100 * time.Hour)
		if listings := f.stores["default"].Count(storetest.List); listings < 90 || listings > 112 {
			t.Errorf("%d listings", listings)
		}
		// One that was asked for while the store is away is done when it is back.
		f.stores["default"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		set(time.Hour, 3)
		if state, _ := f.refresher.State("default"); state.Synced.Generation != 2 || state.LastError == "" {
			t.Errorf("state %+v", state)
		}
		f.stores["default"].Inject()
		pass(time.Minute)
		if state, _ := f.refresher.State("default"); state.Synced.Generation != 3 {
			t.Errorf("state %+v", state)
		}
	})
}

// A loss is shown to nobody until an administrator accepts it, and then at once.
func TestAcceptance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		location := f.location("default")
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		for i := range 15 {
			f.remove("default", fmt.Sprintf("b%02d", i))
		}
		pass(100 * time.Hour)
		if got := f.catalog.Len("default"); got != 20 {
			t.Errorf("%d backups are left", got)
		}
		location.Accepted = time.Now()
		f.refresher.SetLocations([]refresh.Location{location})
		settle()
		if state, _ := f.refresher.State("default"); f.catalog.Len("default") != 5 || state.Suspicion != "" {
			t.Errorf("%d backups are left, state %+v", f.catalog.Len("default"), state)
		}
		f.catalog.Remove("default", "b19") // as when a deletion has ended, which is no loss at all
		if state, _ := f.refresher.State("default"); state.Backups != 4 {
			t.Errorf("state %+v", state)
		}
	})
}

// What a former process knew is missed by the next one, which has nothing to show for it.
func TestARestartForgetsNoLoss(t *testing.T) {
	for _, test := range []struct {
		known, found int
		suspicious   bool
	}{{0, 0, false}, {0, 5, false}, {15, 5, false}, {16, 5, true}, {1, 0, true}, {5, 20, false}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{Interval: interval})
			for i := range test.found {
				f.store("default", fmt.Sprintf("b%02d", i))
			}
			location := f.location("default")
			location.Known = refresh.Known{Backups: test.known}
			f.refresher.SetLocations([]refresh.Location{location})
			f.run()
			pass(5 * interval)
			state, _ := f.refresher.State("default")
			if suspicious := state.Suspicion != ""; suspicious != test.suspicious {
				t.Errorf("%+v: state %+v", test, state)
			}
			if !test.suspicious {
				return
			}
			if warnings := f.refresher.Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], state.Suspicion) {
				t.Errorf("warnings %q", warnings)
			}
			if test.known == 1 { // it comes back
				f.store("default", "back")
			} else {
				location.Accepted = time.Now()
			}
			f.refresher.SetLocations([]refresh.Location{location})
			pass(2 * interval)
			if state, _ := f.refresher.State("default"); state.Suspicion != "" {
				t.Errorf("%+v: state %+v", test, state)
			}
		})
	}
}

// overloaded is a store that answers so many requests at once, and refuses all above.
type overloaded struct {
	*storetest.Faulty
	most int

	mu                  sync.Mutex
	busy, peak, refused int
}

func (s *overloaded) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	s.mu.Lock()
	s.busy++
	s.peak = max(s.peak, s.busy)
	refuse := s.busy > s.most
	if refuse {
		s.refused++
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy--
	}()
	time.Sleep(750 * time.Millisecond) // in a bubble
	if refuse {
		return nil, store.ErrUnavailable
	}
	return s.Faulty.Get(ctx, key)
}

func (s *overloaded) Close() error { return nil }

// As much is asked of a store at once as it bears: all of it is read in the time that this
// needs, and little is refused.
func TestAsMuchAsTheStoreBears(t *testing.T) {
	for _, test := range []struct {
		bears, peak int
		within      time.Duration
		refused     int
	}{
		{bears: 1000, peak: 128, within: 12 * time.Second},
		{bears: 40, peak: 104, within: 40 * time.Second, refused: 100},
		{bears: 5, peak: 21, within: 250 * time.Second, refused: 250},
	} {
		synctest.Test(t, func(t *testing.T) {
			const backups = 400
			f := newFixture(t, refresh.Options{Interval: interval})
			for i := range backups {
				f.store("default", fmt.Sprintf("b%04d", i))
			}
			s := &overloaded{Faulty: f.stores["default"], most: test.bears}
			location := f.location("default")
			location.Open = func(context.Context) (refresh.Store, error) { return s, nil }
			f.refresher.SetLocations([]refresh.Location{location})
			begin := time.Now()
			f.run()
			for state, _ := f.refresher.State("default"); state.LastFull.IsZero() && time.Since(begin) < time.Hour; state, _ = f.refresher.State("default") {
				pass(time.Second)
			}
			took := time.Since(begin)
			state, _ := f.refresher.State("default")
			if got := f.catalog.Len("default"); got != backups || state.LastError != "" || took > test.within || s.peak > test.peak || s.refused > test.refused {
				t.Errorf("a store that bears %d: %d backups in %v, %d at once, %d refused, state %+v", test.bears, got, took, s.peak, s.refused, state)
			}
		})
	}
}

// TestBeside: what lies beside the backups is read when all was listed, not with each poll, and
// again where that failed; nobody who waits for the backups waits for it.
func TestBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 10 * interval})
		f.store("default", "b")
		location := f.location("default")
		var calls atomic.Int32
		location.Beside = func(ctx context.Context, from store.Reader) error {
			call := calls.Add(1)
			if call == 1 {
				return store.ErrUnavailable
			}
			if call == 2 {
				<-time.After(interval / 2)
				if state, _ := f.refresher.State("default"); !state.Loaded || f.catalog.Len("default") != 1 {
					t.Errorf("the backups wait: %+v", state)
				}
			}
			for _, err := range from.List(ctx, "restores/", store.ListOptions{}) {
				return err
			}
			return nil
		}
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		pass(interval)
		if calls := calls.Load(); calls != 2 {
			t.Errorf("it was read %d times at first", calls)
		}
		pass(7 * interval)
		if calls := calls.Load(); calls != 2 {
			t.Errorf("polls have read it %d times", calls-2)
		}
		pass(4 * interval)
		if calls := calls.Load(); calls != 3 {
			t.Errorf("it was read %d times after a listing of all", calls-2)
		}
		f.refresher.Nudge("default")
		settle()
		if calls := calls.Load(); calls != 4 {
			t.Error("it was not read when all was asked for")
		}

		f.remove("default", "b")
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		pass(2 * interval)
		for i := range 20 {
			f.remove("default", fmt.Sprintf("b%02d", i))
		}
		before := calls.Load()
		f.refresher.Nudge("default")
		pass(25 * interval)
		if state, _ := f.refresher.State("default"); state.Suspicion == "" || calls.Load() != before {
			t.Errorf("it was read %d times with a listing that is not believed: %q", calls.Load()-before, state.Suspicion)
		}
	})
}
