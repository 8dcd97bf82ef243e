// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// What was read of a store of Longhorn's is shown by the next process at once, and not read
// again. What was missed or doubted still is, and what was deleted or accepted is not shown.
func TestAWarmRestartOfLonghorns(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		stores := map[string]*storetest.Faulty{}
		var location refresh.Location
		begin := func() *fixture {
			f := newFixture(t, refresh.Options{Interval: 24 * time.Hour})
			f.stores = stores
			location = f.location("lh")
			location.Layout = &longhorn.Layout{TrustNamespaces: true, Clock: clock.RealClock{}}
			location.Cache = index.NewLocalCache(folder, "lh", "here", clock.RealClock{})
			f.refresher.SetLocations([]refresh.Location{location})
			f.run()
			settle()
			return f
		}
		shows := func(f *fixture, when string, rows int, warning string, read int) {
			t.Helper()
			listed, warnings := f.catalog.VolumeBackups(), strings.Join(f.refresher.Warnings(), "; ")
			if len(listed) != rows || (warnings == "") != (warning == "") || !strings.Contains(warnings, warning) {
				t.Errorf("%s: %d are listed, with the warning %q", when, len(listed), warnings)
			}
			for _, row := range listed {
				if !strings.HasPrefix(row.Namespace, "team-") {
					t.Errorf("%s: %s is listed in %s", when, row.Name, row.Namespace)
				}
			}
			if got := stores["lh"].Count(storetest.Get); got != read {
				t.Errorf("%s: %d files were read, not %d", when, got, read)
			}
			f.reset()
		}
		stores["lh"] = storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
		longhorntest.Generate(t, stores["lh"], longhorntest.Shape{Volumes: 4, Backups: 3, Blocks: 1, Namespaces: 2})
		time.Sleep(2 * time.Hour) // the volumes have settled
		f := begin()
		shows(f, "at first", 12, "", 4+12)
		f.stop()

		stores["lh"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		f = begin()
		shows(f, "while the store is down", 12, "on its disk", 0)
		f.stop()
		stores["lh"].Inject()
		f = begin()
		shows(f, "unchanged", 12, "", 0)

		// One backup goes, and all of another volume do: the one is missed once, the other doubted.
		f.removeObject("lh", format.BackupKey(longhorntest.VolumeName(1), longhorntest.BackupName(1, 0)))
		emptied := storetest.Fault{Operation: storetest.List, Key: format.BackupsPrefix(longhorntest.VolumeName(2)), Truncate: true}
		stores["lh"].Inject(emptied)
		list := func() {
			time.Sleep(time.Second)
			f.refresher.Nudge("lh")
			settle()
		}
		list()
		shows(f, "missed", 12, "lacks all backups of 1 of 4", 2)
		f.stop()
		f = begin()
		// Whether it is missing the second time the next process does not know.
		shows(f, "missed, and begun anew", 12, "lacks all backups of 1 of 4", 2+2)
		list()
		shows(f, "missed twice", 11, "lacks all backups of 1 of 4", 1)
		f.stop()
		f = begin()
		shows(f, "doubted still", 11, "lacks all backups of 1 of 4", 1)
		time.Sleep(time.Second)
		location.Accepted = time.Now()
		f.refresher.SetLocations([]refresh.Location{location})
		settle()
		shows(f, "accepted", 8, "", 1)
		f.stop()
		f = begin()
		shows(f, "accepted before", 8, "", 0)

		f.refresher.Removed("lh", longhorntest.VolumeName(3))
		f.stop()
		stores["lh"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		f = begin()
		shows(f, "deleted", 5, "on its disk", 0)
	})
}

// starts takes note of where each refresh begins to list, and whether it goes on to list all.
type starts struct {
	*storetest.Faulty
	mu    sync.Mutex
	after []string // guarded by mu
	full  []bool   // guarded by mu
}

func (s *starts) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case options.Recursive:
		s.after, s.full = append(s.after, options.StartAfter), append(s.full, false)
	case folder == format.VolumesPrefix:
		s.full[len(s.full)-1] = true
	}
	return s.Faulty.List(ctx, folder, options)
}

func (s *starts) Close() error { return nil }

// Polls go from volume to volume, whatever full listings come between, so that each has its turn.
func TestPollsGoOnAfterAFullListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: 5 * interval / 2})
		location := f.location("lh")
		location.Layout = &longhorn.Layout{Clock: clock.RealClock{}}
		const volumes = 6
		longhorntest.Generate(t, f.stores["lh"], longhorntest.Shape{Volumes: volumes, Backups: 1, Blocks: 1})
		of := &starts{Faulty: f.stores["lh"]}
		location.Open = func(context.Context) (refresh.Store, error) { return of, nil }
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		pass(60 * interval)
		f.stop()
		// A round begins with the first volume, and ends with a poll that finds no more.
		round := []string{""}
		for i := range volumes {
			round = append(round, strings.TrimSuffix(format.VolumePrefix(longhorntest.VolumeName(i)), "/")+"0")
		}
		slices.Sort(round)
		polls, full := 0, 0
		for i, after := range of.after {
			if of.full[i] {
				full++
				continue
			}
			if want := round[polls%len(round)]; after != want {
				t.Fatalf("the poll %d has begun after %q, not %q", polls, after, want)
			}
			polls++
		}
		if polls < 2*len(round) || full < 5 {
			t.Errorf("there were %d polls and %d full listings", polls, full)
		}
	})
}
