// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// distantIndexed is a distant store with an index.
type distantIndexed struct {
	*distant
	index *store.Bucket
}

func (s distantIndexed) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	if folder != format.IndexesPrefix {
		return s.distant.List(ctx, folder, options)
	}
	s.request()
	return s.index.List(ctx, folder, options)
}

func (s distantIndexed) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if !strings.HasPrefix(key, format.IndexesPrefix) {
		return s.distant.Get(ctx, key)
	}
	s.request()
	return s.index.Get(ctx, key)
}

// newDistantIndexed is a store without latency yet.
func newDistantIndexed(b *testing.B, backups, volumes int) (distantIndexed, format.Cluster) {
	own := madeBy(b, "here")
	s := distantIndexed{&distant{backups: backups, volumes: volumeList(b, volumes), cluster: own}, storetest.Memory(b)}
	w := index.NewWriter(s.index, own, nil, clock.RealClock{})
	s.each(b, func(name string, content catalog.Content) error {
		return w.Add(b.Context(), index.Entry{StoreName: name, Content: content})
	})
	if err := w.Commit(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s, own
}

// each gives what is read of each backup, with snapshots of its own.
func (s distantIndexed) each(b *testing.B, do func(name string, content catalog.Content) error) {
	first, err := (&refresh.VeleroLayout{Location: "far", SystemNamespace: system, Clock: clock.RealClock{}}).Read(b.Context(), ranged{s}, "b00000", refresh.KnownEntry{Beside: noneBeside})
	if err != nil {
		b.Fatal(err)
	}
	for i := range s.backups {
		content := catalog.Content{Backup: first.Backup.DeepCopy(), Volumes: slices.Clone(first.Volumes)}
		content.Backup.Name = fmt.Sprintf("b%05d", i)
		content.Backup.UID = types.UID(content.Backup.Name)
		for j := range content.Volumes {
			content.Volumes[j].SnapshotID = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
		}
		if err := do(content.Backup.Name, content); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWarmRestart begins with what a former process has left on its disk, and a store
// 750 ms away.
func BenchmarkWarmRestart(b *testing.B) {
	s, own := newDistantIndexed(b, 1000, 1000)
	folder := b.TempDir()
	cache := func() *index.LocalCache { return index.NewLocalCache(folder, "far", own.UID, clock.RealClock{}) }
	all := func(string) bool { return true }
	former := cache()
	if _, err := former.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	s.each(b, func(name string, content catalog.Content) error { return former.Add(b.Context(), name, content) })
	if err := former.Close(b.Context(), all); err != nil {
		b.Fatal(err)
	}
	s.latency = 750 * time.Millisecond
	for b.Loop() {
		c := catalog.New(system, nil)
		c.SetIdentity(identity.Identity{UID: own.UID, Keys: []string{own.Key.PublicKey()}})
		r := refresh.New(c, refresh.Options{SystemNamespace: system})
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx)
		}()
		begin, before := time.Now(), cpuTime(b)
		r.SetLocations([]refresh.Location{{Name: "far", Store: "far", Indexed: true, Cache: cache(), Open: func(context.Context) (refresh.Store, error) { return s, nil }}})
		for {
			if c.Snapshot().Count("", catalog.Position{}, 500) == 500 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(time.Since(begin).Seconds(), "first-s")
		for {
			if state, ok := r.State("far"); ok && state.Loaded {
				if !state.Cached || state.Backups != s.backups {
					b.Fatalf("%+v", state)
				}
				break
			}
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(time.Since(begin).Seconds(), "s")
		b.ReportMetric((cpuTime(b) - before).Seconds(), "CPU-s")
		stop()
		<-done
	}
}

// BenchmarkColdStart begins with a store 750 ms away that has an index.
func BenchmarkColdStart(b *testing.B) {
	for _, size := range []struct{ backups, volumes int }{{1_000, 1_000}, {10_000, 100}} {
		b.Run(fmt.Sprintf("%dx%d", size.backups, size.volumes), func(b *testing.B) {
			s, own := newDistantIndexed(b, size.backups, size.volumes)
			s.latency = 750 * time.Millisecond
			for b.Loop() {
				c := catalog.New(system, nil)
				c.SetIdentity(identity.Identity{UID: own.UID, Keys: []string{own.Key.PublicKey()}})
				r := refresh.New(c, refresh.Options{SystemNamespace: system})
				ctx, stop := context.WithCancel(b.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.Run(ctx)
				}()
				s.requests.Store(0)
				begin, before := time.Now(), cpuTime(b)
				r.SetLocations([]refresh.Location{{Name: "far", Store: "far", Indexed: true, Open: func(context.Context) (refresh.Store, error) { return s, nil }}})
				for {
					if state, ok := r.State("far"); ok && state.Loaded {
						if state.LastError != "" || state.Backups != size.backups {
							b.Fatalf("%+v", state)
						}
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				b.ReportMetric(time.Since(begin).Seconds(), "s")
				b.ReportMetric((cpuTime(b) - before).Seconds(), "CPU-s")
				b.ReportMetric(float64(s.requests.Load()), "requests")
				stop()
				<-done
			}
		})
	}
}
