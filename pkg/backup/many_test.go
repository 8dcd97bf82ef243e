// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	everyKinds, everyNamespaces, everyEach = 40, 300, 25
	everyObjects                           = everyKinds * everyNamespaces * everyEach
)

// serveMany serves pages of objects that are made as they are asked for, so that a benchmark
// has the memory of the reader alone: of each kind some in each namespace, with an owner and
// labels.
func (f *fixture) serveMany(of, each int) {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "watch"}
	kinds := map[string]int{}
	list := metav1.APIResourceList{GroupVersion: "apps/v1"}
	for i := range of {
		name := fmt.Sprintf("kind%02ds", i)
		kinds[name] = i
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: name, SingularName: strings.TrimSuffix(name, "s"), Kind: fmt.Sprintf("Kind%02d", i), Namespaced: true, Verbs: verbs,
		})
	}
	f.resources = append(f.resources, list)
	f.knowSizes() // else one list more of each kind, once in the controller's life
	for i := range everyNamespaces {
		f.add("namespaces", namespace(fmt.Sprintf("team-%03d", i), ""))
	}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		kind, ok := kinds[path.Base(r.URL.Path)]
		if !ok {
			return false
		}
		// All of a namespace, or of all of them, in the order of etcd.
		from, end := 0, everyNamespaces*each
		if _, rest, ok := strings.Cut(r.URL.Path, "/namespaces/team-"); ok {
			number, _ := strconv.Atoi(rest[:3])
			from, end = number*each, (number+1)*each
		}
		if token := r.URL.Query().Get("continue"); token != "" {
			from, _ = strconv.Atoi(token)
		}
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		to := min(from+limit, end)
		next := ""
		if to < end {
			next = fmt.Sprintf(`,"continue":"%d","remainingItemCount":%d`, to, end-to)
		}
		fmt.Fprintf(w, `{"kind":"List","apiVersion":"apps/v1","metadata":{"resourceVersion":"7"%s},"items":[`, next)
		for i := from; i < to; i++ {
			comma := ","
			if i == from {
				comma = ""
			}
			fmt.Fprintf(w, `%s{"metadata":{"name":"thing-%02d","namespace":"team-%03d","uid":"0f8fad5b-%04d-469f-a165-%012d","resourceVersion":"%d","creationTimestamp":"2026-08-01T12:00:00Z","labels":{"app":"thing-%d"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"Kind00","name":"thing-%02d","uid":"0f8fad5b-0000-469f-a165-%012d"}]},"spec":{"replicas":%d,"text":"what an object says that has little to say"}}`,
				comma, i%each, i/each, kind, i, i+kind, i%7, i%each, i, i%5)
		}
		fmt.Fprintln(w, "]}")
		return true
	}
}

// sampledStore calls sample whenever it is written to: while a tarball is made, and at the end of a
// backup, when nothing is asked of the API server any more.
type sampledStore struct {
	Store
	sample func()
}

func (s *sampledStore) Create(ctx context.Context, key string, content []byte) error {
	s.sample()
	return s.Store.Create(ctx, key, content)
}

func (s *sampledStore) Put(ctx context.Context, key string, content []byte) error {
	s.sample()
	return s.Store.Put(ctx, key, content)
}

func (s *sampledStore) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	s.sample()
	w, err := s.Store.NewWriter(ctx, key)
	return &sampledWriter{w, s.sample}, err
}

type sampledWriter struct {
	store.ObjectWriter
	sample func()
}

func (w *sampledWriter) Write(p []byte) (int, error) {
	w.sample()
	return w.ObjectWriter.Write(p)
}

func (w *sampledWriter) Commit() error {
	w.sample()
	return w.ObjectWriter.Commit()
}

// BenchmarkManyKinds backs up 300,000 small objects of 40 kinds in 300 namespaces, over HTTP.
// The server that makes them is in the same process, and is part of the time and of the memory.
// That is read at each request, and at each write to the store.
func BenchmarkManyKinds(b *testing.B) {
	runtime.GC()
	base := heapInUse()
	var mu sync.Mutex
	var peak uint64
	sample := func() {
		mu.Lock()
		defer mu.Unlock()
		peak = max(peak, heapInUse())
	}
	requests, lists := 0, 0
	for b.Loop() {
		f := newFixture(b, v1alpha1.BackupSpec{})
		f.deps.Store = &sampledStore{storetest.Filesystem(b), sample}
		f.serveMany(everyKinds, everyEach)
		serve := f.intercept
		requests, lists = 0, 0
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			requests++
			if r.URL.Query().Has("limit") {
				lists++
			}
			mu.Unlock()
			sample()
			return serve(w, r)
		}
		outcome := f.run(b)
		if got := outcome.Status.Progress.ItemsBackedUp; got != everyObjects+everyNamespaces {
			b.Fatalf("backed up %d objects", got)
		}
	}
	b.ReportMetric(everyObjects*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
	b.ReportMetric(float64(peak-base)/(1<<20), "peak-MB")
	b.ReportMetric(float64(lists), "lists")
	b.ReportMetric(float64(requests)/everyObjects, "requests/object")
}

// slowly hands volumes over in so much time each, as an API server takes for their records.
type slowly struct {
	testVolumes
	each time.Duration
}

func (s *slowly) Submit(context.Context, *format.Volume) error {
	time.Sleep(s.each)
	return nil
}

// BenchmarkManyPods backs up 2,000 pods with two claims each, whose data is moved in no time, with
// one worker and with eight.
func BenchmarkManyPods(b *testing.B) {
	const pods = 2000
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			requests := 0
			for b.Loop() {
				b.StopTimer()
				f := newFixture(b, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: new(true)})
				f.deps.BlockWorkers, f.deps.Volumes = workers, &slowly{each: 2 * time.Millisecond}
				f.addPods(pods)
				b.StartTimer()
				outcome := f.run(b)
				if got := outcome.Status.Volumes; got == nil || got.Completed != 2*pods {
					b.Fatalf("volumes %+v", got)
				}
				requests = f.requested("")
			}
			b.ReportMetric(float64(requests)/pods, "requests/pod")
		})
	}
}
