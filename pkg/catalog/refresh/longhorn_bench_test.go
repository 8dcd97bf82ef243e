// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"flag"
	"io"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// atOnce is how many requests of a Longhorn store are made at once here.
const atOnce = 64

// distantBucket takes its time for each request, and knows how many different ones there were,
// and how many were under way at once.
type distantBucket struct {
	*store.Bucket
	latency time.Duration

	mu               sync.Mutex
	asked            map[string]bool // guarded by mu
	requests         int             // guarded by mu
	underway, atOnce int             // guarded by mu
}

func (s *distantBucket) request(key string) {
	s.mu.Lock()
	s.asked[key] = true
	s.requests++
	s.underway++
	s.atOnce = max(s.atOnce, s.underway)
	s.mu.Unlock()
	time.Sleep(s.latency)
	s.mu.Lock()
	s.underway--
	s.mu.Unlock()
}

func (s *distantBucket) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	s.request("list " + folder)
	return s.Bucket.List(ctx, folder, options)
}

func (s *distantBucket) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	s.request(key)
	return s.Bucket.Get(ctx, key)
}

func (s *distantBucket) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	s.request(key)
	return s.Bucket.GetRange(ctx, key, offset, length)
}

func (s *distantBucket) Close() error { return nil }

// loaded is what the first load of a store of Longhorn's took.
type loaded struct {
	took               time.Duration
	requests, distinct int
	atOnce             int
	// bound is what the requests take that nobody can do without, so many at once.
	bound time.Duration
}

func loadLonghorn(tb testing.TB, ctx context.Context, s *distantBucket, volumes, backups int) loaded {
	s.asked, s.requests, s.atOnce = map[string]bool{}, 0, 0
	c := catalog.New(system, nil)
	r := refresh.New(c, refresh.Options{SystemNamespace: system, Reads: atOnce, MostReads: atOnce})
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	begin := time.Now()
	r.SetLocations([]refresh.Location{{
		Name: "lh", Store: "lh", Layout: &longhorn.Layout{Clock: clock.RealClock{}},
		Open: func(context.Context) (refresh.Store, error) { return s, nil },
	}})
	for {
		if state, ok := r.State("lh"); ok && state.Loaded {
			if state.LastError != "" || state.Backups != volumes {
				tb.Fatalf("%+v", state)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	l := loaded{took: time.Since(begin)}
	stop()
	<-done
	if got := c.Snapshot().Count("", catalog.Position{}, volumes*backups+1); got != volumes*backups {
		tb.Fatalf("%d volume backups are listed, not %d", got, volumes*backups)
	}
	l.requests, l.distinct, l.atOnce = s.requests, len(s.asked), s.atOnce
	l.bound = time.Duration((l.distinct+atOnce-1)/atOnce) * s.latency
	return l
}

func longhornStore(tb testing.TB, volumes, backups int) *distantBucket {
	s := &distantBucket{Bucket: storetest.Filesystem(tb), latency: 750 * time.Millisecond}
	longhorntest.Generate(tb, s.Bucket, longhorntest.Shape{Volumes: volumes, Backups: backups, Blocks: 1})
	return s
}

// BenchmarkLonghorn reads a store of Longhorn's 750 ms away, 64 requests at once.
func BenchmarkLonghorn(b *testing.B) {
	const volumes, backups = 1000, 20
	s := longhornStore(b, volumes, backups)
	for b.Loop() {
		before := cpuTime(b)
		l := loadLonghorn(b, b.Context(), s, volumes, backups)
		b.ReportMetric((cpuTime(b) - before).Seconds(), "CPU-s")
		b.ReportMetric(l.took.Seconds(), "s")
		b.ReportMetric(l.bound.Seconds(), "bound-s")
		b.ReportMetric(float64(l.requests), "requests")
		b.ReportMetric(float64(l.distinct), "distinct")
	}
}

var longhornVolumes = flag.Int("longhorn.volumes", 150, "how many volumes of 20 backups TestLonghornTakesWhatItsRequestsTake reads")

// By the time of a bubble, in which nothing but the store takes any.
func TestLonghornTakesWhatItsRequestsTake(t *testing.T) {
	const backups = 20
	volumes := *longhornVolumes
	s := longhornStore(t, volumes, backups)
	synctest.Test(t, func(t *testing.T) {
		l := loadLonghorn(t, t.Context(), s, volumes, backups)
		t.Logf("%v, of which %d different requests take %v, %d at once; %d were made, up to %d at once", l.took, l.distinct, l.bound, atOnce, l.requests, l.atOnce)
		if l.atOnce > atOnce {
			t.Errorf("%d requests at once", l.atOnce)
		}
		if l.took > l.bound*13/10 {
			t.Errorf("it took %v, more than 1.3 of %v", l.took, l.bound)
		}
	})
}
