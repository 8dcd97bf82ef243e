// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// counting counts what is asked of a store, and the bytes of tarballs.
type counting struct {
	memory
	requests, ranged atomic.Int64
}

func (c *counting) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	c.requests.Add(1)
	return c.memory.Get(ctx, key)
}

func (c *counting) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	c.requests.Add(1)
	c.ranged.Add(length)
	return c.memory.GetRange(ctx, key, offset, length)
}

// oneOf restores one Secret, which needs nothing but its namespace, of a backup, and returns how
// many allocations that took: to open the backup, and then.
func oneOf(t testing.TB, store *counting, namespace string) (backup *source.Backup, opening, restoring uint64) {
	t.Helper()
	s := newFakeServer(t)
	defer s.server.Close()
	var before, opened, after runtime.MemStats
	runtime.ReadMemStats(&before)
	backup, err := source.Open(t.Context(), store, format.Place{StoreName: "b", Location: "default", SystemNamespace: "holdfast", Now: time.Now()}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&opened)
	ended := s.run(t.Context(), backup, request("r", wanted(namespace)))
	runtime.ReadMemStats(&after)
	want(t, ended, v1alpha1.RestorePhaseCompleted)
	if s.writes != 2 || s.get("secrets", namespace, "wanted") == nil {
		t.Fatalf("%d writes: %v", s.writes, s.created)
	}
	return backup, opened.Mallocs - before.Mallocs, after.Mallocs - opened.Mallocs
}

func wanted(namespace string) v1alpha1.RestoreSpec {
	return v1alpha1.RestoreSpec{Objects: []v1alpha1.RestoreObject{{Resource: "secrets", Namespace: namespace, Name: "wanted"}}}
}

// many is a backup of very many objects, of which one is wanted.
func many(t testing.TB, n int) (*counting, string) {
	t.Helper()
	var objects []map[string]any
	for i := range n / 1000 {
		objects = append(objects, configMaps(fmt.Sprintf("n-%03d", i), 999)...)
	}
	in := fmt.Sprintf("n-%03d", n/2000)
	return &counting{memory: stored(t, append(objects, obj("v1", "Secret", in, "wanted"))...)}, in
}

// TestOneOfMany: to restore one object of many, the manifest is read once and a part of the
// tarball for each object that is restored, and of the others little is made, and no index.
func TestOneOfMany(t *testing.T) {
	const n = 20_000
	store, in := many(t, n)
	backup, opening, restoring := oneOf(t, store, in)
	t.Logf("%d requests, %d bytes of %d; %.2f and then %.3f allocations for each object", store.requests.Load(), store.ranged.Load(), len(store.memory[format.TarballKey("b")]), float64(opening)/n, float64(restoring)/n)
	// The metadata, the volumes by three names, the manifest, and two objects.
	if requests := store.requests.Load(); requests > 8 {
		t.Errorf("%d requests were made of the store", requests)
	}
	if opening > 12*n {
		t.Errorf("opening the backup took %d allocations for %d objects", opening, n)
	}
	if restoring > n/2 {
		t.Errorf("restoring one object took %d allocations in a backup of %d", restoring, n)
	}

	// Indexes of all objects take few allocations, and some 300 bytes for each; a list of them
	// takes some 40, as it grows.
	e := newExecution(t.Context(), request("r", wanted(in)), Dependencies{Backup: backup, Clock: clock.RealClock{}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	items, others, err := e.choose(t.Context())
	runtime.ReadMemStats(&after)
	if err != nil || len(items) != 2 || len(items)+len(others) < n {
		t.Fatalf("%d objects are chosen, %d are not: %v", len(items), len(others), err)
	}
	bytes := float64(after.TotalAlloc-before.TotalAlloc) / n
	t.Logf("choosing takes %.0f bytes for each object", bytes)
	if bytes > 100 {
		t.Errorf("choosing takes %.0f bytes for each object", bytes)
	}
}

// BenchmarkOneOfMany restores one object of 300,000.
func BenchmarkOneOfMany(b *testing.B) {
	store, in := many(b, 300_000)
	for b.Loop() {
		oneOf(b, store, in)
	}
}
