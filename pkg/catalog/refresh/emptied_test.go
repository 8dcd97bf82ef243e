// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// A volume of Longhorn's that has no backup any more is shown as it was, and said to be, until
// one is found or the loss is accepted. It costs nothing to say so.
func TestAnEmptiedVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, FullInterval: interval / 2})
		location := f.location("lh")
		location.Layout = &longhorn.Layout{Clock: clock.RealClock{}}
		longhorntest.Generate(t, f.stores["lh"], longhorntest.Shape{Volumes: 4, Backups: 3, Blocks: 1})
		f.run()
		shows := func(when string, rows int, suspicious bool) {
			t.Helper()
			state, _ := f.refresher.State("lh")
			if got := len(f.catalog.VolumeBackups()); got != rows || (state.Suspicion != "") != suspicious || state.LastError != "" {
				t.Errorf("%s: %d are listed, and it is %+v", when, got, state)
			}
		}
		f.refresher.SetLocations([]refresh.Location{location})
		pass(3 * time.Hour) // the volumes have settled
		shows("at first", 12, false)

		hidden := storetest.Fault{Operation: storetest.List, Key: format.BackupsPrefix(longhorntest.VolumeName(2)), Truncate: true}
		f.stores["lh"].Inject(hidden)
		pass(nextRefresh)
		shows("emptied", 12, true)
		f.reset()
		pass(4 * nextRefresh)
		shows("for long", 12, true)
		if got := f.stores["lh"].Count(storetest.Get); got > 0 {
			t.Errorf("%d files were read", got)
		}
		f.stores["lh"].Inject()
		pass(nextRefresh)
		shows("found", 12, false)

		f.stores["lh"].Inject(hidden)
		pass(nextRefresh)
		shows("emptied again", 12, true)
		location.Accepted = time.Now()
		f.refresher.SetLocations([]refresh.Location{location})
		settle()
		shows("accepted", 9, false)
		f.stores["lh"].Inject()
		pass(nextRefresh)
		shows("found after that", 12, false)
	})
}
