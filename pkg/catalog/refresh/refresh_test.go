// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func TestFirstRefreshIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "one")
		f.store("default", "two")
		f.reset()
		f.run()
		settle()
		if f.refresher.Loaded() {
			t.Error("loaded before the locations are known")
		}
		f.setLocations("default")
		settle()
		if !f.refresher.Loaded() {
			t.Error("not loaded")
		}
		f.wantBackups("one two")
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 4})
		state := f.refresher.States()["default"]
		if !state.Loaded || state.LastSuccess != time.Now() || state.LastError != "" || state.Suspicion != "" {
			t.Errorf("state %+v", state)
		}
	})
}

// By construction, the catalogue can't be the reason why a backup is lost.
func TestStoreCannotBeChanged(t *testing.T) {
	methods := map[string]bool{}
	for method := range reflect.TypeFor[refresh.Store]().Methods() {
		methods[method.Name] = true
	}
	if diff := cmp.Diff(map[string]bool{"List": true, "Get": true, "Attributes": true, "Close": true}, methods); diff != "" {
		t.Errorf("a store that is refreshed from has other methods (-want +got):\n%s", diff)
	}
}

func TestNoLocationsIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		f.refresher.SetLocations(nil)
		settle()
		if !f.refresher.Loaded() {
			t.Error("not loaded")
		}
	})
}

// What a refresh costs.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		f.setLocations("default")
		f.run()
		settle()

		f.reset()
		pass(nextRefresh)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1})
		if changes := f.changes(); changes != "" || f.opens != 1 { // nothing runs now
			t.Errorf("%d openings, and changes without a change: %s", f.opens, changes)
		}

		for i := range 3 {
			f.store("default", fmt.Sprintf("c%d", i))
		}
		f.reset()
		pass(interval)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 2 * 3})
	})
}

func TestThousandBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backups, reads = 1_000, 8
		f := newFixture(t, refresh.Options{Interval: interval, Reads: reads})
		for i := range backups {
			f.store("default", fmt.Sprintf("b%04d", i))
		}
		// With time to pass in each request, as many as may be are under way at once.
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: 10 * time.Millisecond})
		f.reset()
		f.setLocations("default")
		begin := time.Now()
		f.run()
		for !f.refresher.Loaded() {
			pass(time.Millisecond)
		}
		if took, floor := time.Since(begin), 2*backups/reads*10*time.Millisecond; took < floor || took > floor*11/10 {
			t.Errorf("took %v, of which requests need %v", took, floor)
		}
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 2 * backups})
		if peak := f.stores["default"].Peak(); peak != reads {
			t.Errorf("%d reads at once, want %d", peak, reads)
		}
		if got := len(f.catalog.Backups()); got != backups {
			t.Errorf("%d backups", got)
		}
		if volume := f.catalog.Volumes()[0]; volume.Status.Backups != backups {
			t.Errorf("volume %+v", volume)
		}
		f.reset()
		pass(nextRefresh)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1})
	})
}

// A slow location delays no other.
func TestLocationsAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("fast", "a")
		f.store("slow", "b")
		f.stores["slow"].Inject(storetest.Fault{Delay: 20 * time.Second})
		f.setLocations("slow", "fast")
		f.run()
		settle()
		f.wantBackups("a")
		if f.refresher.Loaded() {
			t.Error("loaded before the slow location was tried")
		}
		pass(2 * time.Minute)
		f.wantBackups("a b")
	})
}

func TestNoInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.store("default", "a")
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		f.store("default", "b")
		f.reset()
		pass(1000 * time.Hour)
		f.wantRequests("default", map[storetest.Operation]int{})
		// The first listing ends after all five have asked, however the two take turns.
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Delay: time.Second})
		for range 5 {
			f.refresher.Nudge("default")
		}
		pass(time.Minute)
		f.wantBackups("a b")
		if listings := f.stores["default"].Count(storetest.List); listings > 2 {
			t.Errorf("%d listings for nudges at once", listings)
		}
		f.refresher.Nudge("no such location")

		// What has failed is tried again all the same, until it is done.
		f.store("default", "c")
		f.stores["default"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		f.reset()
		f.refresher.Nudge("default")
		pass(10 * time.Hour)
		if listings := f.stores["default"].Count(storetest.List); listings < 120 || listings > 135 {
			t.Errorf("%d listings of a store that is down for ten hours", listings)
		}
		f.stores["default"].Inject()
		pass(5 * time.Minute)
		f.wantBackups("a b c")
		f.reset()
		pass(1000 * time.Hour)
		f.wantRequests("default", map[storetest.Operation]int{})
	})
}

func TestReadOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.setLocations("default")
		f.run()
		settle()
		f.store("default", "a")
		f.reset()
		if err := f.refresher.ReadOne(t.Context(), "default", "a"); err != nil {
			t.Fatal(err)
		}
		f.wantBackups("a")
		f.wantRequests("default", map[storetest.Operation]int{storetest.Get: 2})
		if err := f.refresher.ReadOne(t.Context(), "default", "absent"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("absent: %v", err)
		}
		if err := f.refresher.ReadOne(t.Context(), "elsewhere", "a"); err == nil {
			t.Error("read from a location that is none")
		}
	})
}

func TestReadSoonTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		f := newFixture(t, refresh.Options{Asked: func(string) { asked.Add(1) }})
		f.setLocations("default")
		f.run()
		settle()
		f.reset()
		f.refresher.ReadSoon("default", "a")
		settle()
		if reads := f.stores["default"].Count(storetest.Get); reads != 1 {
			t.Errorf("%d reads", reads)
		}
		f.store("default", "a")
		pass(time.Second)
		f.wantBackups("a")

		f.reset()
		f.refresher.ReadSoon("default", "never")
		pass(time.Hour)
		if reads := f.stores["default"].Count(storetest.Get); reads < 3 || reads > 20 {
			t.Errorf("%d reads of what never comes", reads)
		}
		if asked := asked.Load(); asked != 3 { // by the refresh, too
			t.Errorf("told %d times that the store was asked", asked)
		}
		// However many never come, others do.
		for i := range 8 {
			f.refresher.ReadSoon("default", fmt.Sprintf("never-%d", i))
		}
		pass(time.Hour)
		f.store("default", "b")
		f.refresher.ReadSoon("default", "b")
		pass(time.Second)
		f.wantBackups("a b")
		// What did not come has its tries again.
		f.refresher.ReadSoon("default", "never")
		settle()
		f.store("default", "never")
		pass(time.Second)
		f.wantBackups("a b never")
	})
}

func TestLocationsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("one", "a")
		f.store("two", "b")
		f.setLocations("one")
		f.run()
		settle()
		f.wantBackups("a")
		f.setLocations("one", "two")
		settle()
		f.wantBackups("a b")
		if f.opens != 2 { // nothing runs now
			t.Errorf("stores were opened %d times", f.opens)
		}

		f.setLocations("two")
		settle()
		f.wantBackups("b")
		if !f.isClosed("one") || f.isClosed("two") {
			t.Error("the removed location's store is open, or the other's closed")
		}
		if states := f.refresher.States(); len(states) != 1 {
			t.Errorf("states %+v", states)
		}
		f.reset()
		f.refresher.Nudge("one")
		pass(nextRefresh)
		f.wantRequests("one", map[storetest.Operation]int{})

		// New credentials: the same store, opened anew, and all that was read is kept.
		changed := f.location("two")
		changed.Settings = "new credentials"
		f.failOpen(store.ErrDenied)
		f.refresher.SetLocations([]refresh.Location{changed})
		settle()
		f.wantBackups("b")
		if !f.refresher.Loaded() || !f.isClosed("two") || f.refresher.States()["two"].LastSuccess.IsZero() {
			t.Errorf("not opened anew, or forgotten: %+v", f.refresher.States())
		}
		f.failOpen(nil)

		// Another store under the name: what was read is no longer true.
		changed.Store = "another bucket"
		f.stores["two"] = storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
		f.store("two", "c")
		f.refresher.SetLocations([]refresh.Location{changed})
		settle()
		f.wantBackups("c")
	})
}

// A location that goes while it is read leaves nothing behind.
func TestLocationGoesWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 40 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Second})
		f.setLocations("default")
		f.run()
		pass(2500 * time.Millisecond)
		if got := len(f.catalog.Backups()); got == 0 || got == 40 {
			t.Fatalf("%d backups, want some", got)
		}
		f.refresher.SetLocations(nil)
		pass(time.Minute)
		f.wantBackups("")
		if !f.isClosed("default") {
			t.Error("the store is open")
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.closing = 500 * time.Millisecond
		f.store("default", "a")
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Delay: time.Hour})
		f.setLocations("default")
		f.run()
		settle()
		begin := time.Now()
		f.stop()
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("stopped after %v", waited)
		}
		if !f.isClosed("default") {
			t.Error("the store is open")
		}
	})
}
