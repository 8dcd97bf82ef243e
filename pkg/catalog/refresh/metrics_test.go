// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func TestMetrics(t *testing.T) {
	registerMetrics()
	catalogBackups.Reset()
	catalogReplaced.Reset()
	catalogLeftOut.Reset()
	catalogUnfinished.Reset()
	catalogSuspicious.Reset()
	catalogRequests.Reset()
	catalogRefresh.Reset()
	catalogSuccess.Reset()

	countRequest("default", "list")
	countRequest("default", "get")
	countRequest("default", "get")
	observeRefresh("default", 200*time.Millisecond, 2, 5, 9, State{Backups: 7, LastSuccess: time.Unix(1_800_000_000, 0), Suspicion: "few"})
	observeRefresh("down", time.Minute, 0, 0, 0, State{})
	observeRefresh("gone", time.Second, 1, 1, 1, State{Backups: 3, LastSuccess: time.Unix(1_800_000_000, 0)})
	countRequest("gone", "list")
	forgetMetrics("gone")

	names := []string{"holdfast_catalog_backups", "holdfast_catalog_replaced_backups", "holdfast_catalog_left_out_backups", "holdfast_catalog_unfinished_folders", "holdfast_catalog_suspicious", "holdfast_catalog_requests_total", "holdfast_catalog_refresh_duration_seconds", "holdfast_catalog_last_success_timestamp_seconds"}
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(`
# HELP holdfast_catalog_backups [ALPHA] Backups that the catalogue knows.
# TYPE holdfast_catalog_backups gauge
holdfast_catalog_backups{location="default"} 7
holdfast_catalog_backups{location="down"} 0
# HELP holdfast_catalog_last_success_timestamp_seconds [ALPHA] When the last refresh that succeeded began, in seconds since 1970.
# TYPE holdfast_catalog_last_success_timestamp_seconds gauge
holdfast_catalog_last_success_timestamp_seconds{location="default"} 1.8e+09
# HELP holdfast_catalog_left_out_backups [ALPHA] Backups that are not listed, since nobody vouches for them and there are too many of such.
# TYPE holdfast_catalog_left_out_backups gauge
holdfast_catalog_left_out_backups{location="default"} 5
holdfast_catalog_left_out_backups{location="down"} 0
# HELP holdfast_catalog_refresh_duration_seconds [ALPHA] How long refreshes took, failed ones included.
# TYPE holdfast_catalog_refresh_duration_seconds histogram
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="0.01"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="0.05"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="0.25"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="1"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="5"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="30"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="120"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="600"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="default",le="+Inf"} 1
holdfast_catalog_refresh_duration_seconds_sum{location="default"} 0.2
holdfast_catalog_refresh_duration_seconds_count{location="default"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="0.01"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="0.05"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="0.25"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="1"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="5"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="30"} 0
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="120"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="600"} 1
holdfast_catalog_refresh_duration_seconds_bucket{location="down",le="+Inf"} 1
holdfast_catalog_refresh_duration_seconds_sum{location="down"} 60
holdfast_catalog_refresh_duration_seconds_count{location="down"} 1
# HELP holdfast_catalog_replaced_backups [ALPHA] Backups whose metadata another writer, such as Velero, has replaced.
# TYPE holdfast_catalog_replaced_backups gauge
holdfast_catalog_replaced_backups{location="default"} 2
holdfast_catalog_replaced_backups{location="down"} 0
# HELP holdfast_catalog_requests_total [ALPHA] Requests to the store to refresh the catalogue: each page of a listing, and each attempt.
# TYPE holdfast_catalog_requests_total counter
holdfast_catalog_requests_total{location="default",operation="get"} 2
holdfast_catalog_requests_total{location="default",operation="list"} 1
# HELP holdfast_catalog_suspicious [ALPHA] Whether the location has the condition BackupsMissing: so many backups are missing in the store that none leaves the lists.
# TYPE holdfast_catalog_suspicious gauge
holdfast_catalog_suspicious{location="default"} 1
holdfast_catalog_suspicious{location="down"} 0
# HELP holdfast_catalog_unfinished_folders [ALPHA] Folders of the store without a finished backup. Each takes memory.
# TYPE holdfast_catalog_unfinished_folders gauge
holdfast_catalog_unfinished_folders{location="default"} 9
holdfast_catalog_unfinished_folders{location="down"} 0
`), names...); err != nil {
		t.Error(err)
	}
}

// closing is a store that counts how often it is closed.
type closing struct {
	store.Reader
	closed *int
}

func (c closing) Close() error {
	*c.closed++
	return nil
}

// A store is opened until that succeeds, closed once, and not opened after that, whoever
// still reads one backup of it. What was done is counted.
func TestAWorkerOpensAndCloses(t *testing.T) {
	opens, closed, failure := 0, 0, errors.New("not yet")
	bucket := storetest.Memory(t)
	if err := bucket.Put(t.Context(), format.MetadataKey("a"), []byte("bad")); err != nil {
		t.Fatal(err)
	}
	w := &worker{
		catalog: catalog.New("holdfast", func(catalog.Changes) {}),
		options: &Options{Clock: clock.RealClock{}, RequestTimeout: time.Minute, Reads: 1, Asked: func(string) {}},
		cancel:  func() {},
		limiter: newLimiter(1, 1, clock.RealClock{}),
		location: Location{Name: "measured", Layout: &VeleroLayout{Location: "measured", SystemNamespace: "holdfast", Clock: clock.RealClock{}}, Open: func(context.Context) (Store, error) {
			opens++
			return closing{bucket, &closed}, failure
		}},
	}
	registerMetrics()
	for _, want := range []error{failure, nil, nil} {
		failure = want
		if err := w.refresh(t.Context()); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	for _, metric := range []struct {
		name string
		want float64
	}{{"backups", 1}, {"requests_total", 3}} { // two listings and one reading
		if got := measured(t, "holdfast_catalog_"+metric.name, "measured"); got != metric.want {
			t.Errorf("%s is %v, want %v", metric.name, got, metric.want)
		}
	}
	// One that is to end while it waits for its turn to read has nothing to say of the store.
	ended, end := context.WithCancel(t.Context())
	end()
	if err := w.readAll(ended, bucket, []string{"a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	for range 2 {
		w.close(t.Context())
		if _, _, err := w.use(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("use = %v", err)
		}
	}
	if opens != 2 || closed != 1 {
		t.Errorf("opened %d times, closed %d times", opens, closed)
	}
	forgetMetrics("measured")
}

// measured sums up a metric of a location.
func measured(t *testing.T, name, location string) (sum float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if family.GetName() == name && label.GetName() == "location" && label.GetValue() == location {
					sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
