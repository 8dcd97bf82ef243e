// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// Metadata that somebody replaces is read again, and nothing else is; the list of volumes only
// if it is another one.
func TestReplacedIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 100 * interval})
		f.stores["default"] = storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{})
		for _, name := range []string{"a", "b", "c"} {
			f.store("default", name)
		}
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a b c")
		quiet := func() {
			t.Helper()
			f.reset()
			pass(nextRefresh)
			lists := f.stores["default"].Count(storetest.List)
			if lists > 4 { // two a poll
				t.Errorf("%d listings in two polls", lists)
			}
			f.wantRequests("default", map[storetest.Operation]int{storetest.List: lists})
		}
		quiet()

		rows := len(f.catalog.VolumeBackups())
		same := f.content("default", format.MetadataKey("a"))
		f.write("default", format.MetadataKey("a"), same)
		f.reset()
		pass(nextRefresh)
		if gets := f.stores["default"].Count(storetest.Get); gets != 1 {
			t.Errorf("the same metadata, written again, took %d readings", gets)
		}
		f.wantBackups("a b c")
		if got := len(f.catalog.VolumeBackups()); got != rows || rows != 3 {
			t.Errorf("%d volume backups, after %d", got, rows)
		}
		quiet()

		theirs := []byte(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"b","uid":"of-velero"},"status":{"phase":"Completed"}}`)
		f.write("default", format.MetadataKey("b"), theirs)
		pass(nextRefresh)
		if b := f.catalog.Backup(system, "b"); b == nil || b.UID != "of-velero" {
			t.Errorf("after it was replaced the backup is %+v", b)
		}
		quiet()
	})
}

// A folder that can't be read fails no poll, and keeps nothing before it from being watched.
func TestReplacedBesideADeniedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 100 * interval})
		f.stores["default"] = storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{})
		for _, name := range []string{"a", "b"} {
			f.store("default", name)
		}
		location := f.location("default")
		location.Open = func(context.Context) (refresh.Store, error) {
			return opened{relisted{f.stores["default"], func(object store.Object) (store.Object, error) {
				if object.Key >= format.BackupPrefix("b") && !object.IsFolder {
					return store.Object{}, store.ErrDenied
				}
				return object, nil
			}}, func() {}}, nil
		}
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		f.write("default", format.MetadataKey("a"), f.content("default", format.MetadataKey("a")))
		f.reset()
		pass(nextRefresh)
		if state, _ := f.refresher.State("default"); state.LastError != "" || f.stores["default"].Count(storetest.Get) != 1 {
			t.Errorf("%d readings, state %+v", f.stores["default"].Count(storetest.Get), state)
		}
		f.wantBackups("a b")
	})
}

// A store that lists other versions than it gives with what is read is asked once for each.
func TestVersionsThatNeverAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 100 * interval})
		f.stores["default"] = storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{})
		f.store("default", "a")
		location := f.location("default")
		location.Open = func(context.Context) (refresh.Store, error) {
			return opened{relisted{f.stores["default"], func(object store.Object) (store.Object, error) {
				object.Version += " as listed"
				return object, nil
			}}, func() {}}, nil
		}
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		gets := func(when string, polls, want int) {
			t.Helper()
			f.reset()
			pass(time.Duration(polls) * nextRefresh)
			if got := f.stores["default"].Count(storetest.Get); got != want {
				t.Errorf("%s: %d readings, want %d", when, got, want)
			}
		}
		gets("at first", 4, 1)
		same := f.content("default", format.MetadataKey("a"))
		f.write("default", format.MetadataKey("a"), same)
		gets("written again", 4, 1)
		f.write("default", format.MetadataKey("a"), same)
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
		pass(nextRefresh)
		f.stores["default"].Inject()
		gets("after it could not be read", 4, 1)
	})
}

// relisted is a store that lists otherwise.
type relisted struct {
	store.Reader
	change func(store.Object) (store.Object, error)
}

func (r relisted) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range r.Reader.List(ctx, folder, options) {
			if err == nil {
				object, err = r.change(object)
			}
			if !yield(object, err) || err != nil {
				return
			}
		}
	}
}

// What was taken from an index is confirmed by two readings of each backup.
func TestConfirmingTakesTwoReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.stores["default"] = storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{})
		f.run()
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			f.store("default", name)
		}
		f.index(madeBy(t, "here"), names...)
		next := f.restart()
		next.wantBackups("a b c d")
		next.reset()
		pass(time.Minute)
		if gets := next.stores["default"].Count(storetest.Get); gets != 2*len(names) {
			t.Errorf("%d readings", gets)
		}
		next.wantBackups("a b c d")
		if got := len(next.catalog.VolumeBackups()); got != len(names) {
			t.Errorf("%d volume backups", got)
		}
	})
}
