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

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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
func oneOf(t testing.TB, store *counting, namespace string) (opening, restoring uint64) {
	t.Helper()
	s := newFakeServer(t)
	defer s.server.Close()
	var before, opened, after runtime.MemStats
	runtime.ReadMemStats(&before)
	backup, err := source.Open(t.Context(), store, format.Place{StoreName: "b", Location: "default", SystemNamespace: "holdfast", Now: time.Now()}, "")
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&opened)
	spec := holdfast.RestoreSpec{Objects: []holdfast.RestoreObject{{Resource: "secrets", Namespace: namespace, Name: "wanted"}}}
	ended := s.run(t.Context(), backup, request("r", spec))
	runtime.ReadMemStats(&after)
	want(t, ended, holdfast.RestorePhaseCompleted)
	if s.writes != 2 || s.get("secrets", namespace, "wanted") == nil {
		t.Fatalf("%d writes: %v", s.writes, s.created)
	}
	return opened.Mallocs - before.Mallocs, after.Mallocs - opened.Mallocs
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
// tarball for each object that is restored, and of the others little is made.
func TestOneOfMany(t *testing.T) {
	const n = 20_000
	store, in := many(t, n)
	opening, restoring := oneOf(t, store, in)
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
}

// BenchmarkOneOfMany restores one object of 300,000.
func BenchmarkOneOfMany(b *testing.B) {
	store, in := many(b, 300_000)
	for b.Loop() {
		oneOf(b, store, in)
	}
}
