// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// The race detector's own memory is no agent's: hack/test.sh runs this without it.

//go:build !race

package datapath

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// peakMemory is how much of its limit the process has taken at most while do runs.
func peakMemory(do func()) int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	peak, ended := int64(0), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			metrics.Read(samples)
			peak = max(peak, int64(samples[0].Value.Uint64()-samples[1].Value.Uint64()))
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	do()
	close(ended)
	watching.Wait()
	return peak
}

// As many volumes as the limit allows, with files of many chunks, are uploaded at once
// and restored at once within it.
func TestPeakMemory(t *testing.T) {
	const limit = 512 << 20
	volumes, peak := moveWithin(t, limit)
	t.Logf("%d volumes took %d MiB of %d", volumes, peak>>20, limit>>20)
	if peak > limit {
		t.Errorf("%d MiB were taken", peak>>20)
	}
}

// BenchmarkPeakMemory is the most that a process takes that moves as many volumes at once as
// its limit allows.
func BenchmarkPeakMemory(b *testing.B) {
	const limit = 512 << 20
	for b.Loop() {
		volumes, peak := moveWithin(b, limit)
		b.ReportMetric(float64(volumes), "volumes")
		b.ReportMetric(float64(peak), "peak-bytes")
		b.ReportMetric(limit, "limit-bytes")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPeakMemoryOfManyFiles is the most that a process takes that uploads as many volumes of
// 400,000 tiny files each at once as its limit allows: each new file is in an index until that is
// written.
func BenchmarkPeakMemoryOfManyFiles(b *testing.B) {
	const limit, count = 512 << 20, 400_000
	for b.Loop() {
		s, m := newStoreAt(b, inFolder(benchDir(b)), repository.NewKey()), NewMemory(limit)
		s.create(b)
		dirs := make([]string, m.Volumes)
		for i := range dirs {
			dirs[i] = benchDir(b)
			for j := range count {
				folder := filepath.Join(dirs[i], fmt.Sprint(j/1000))
				if j%1000 == 0 {
					must(b, os.Mkdir(folder, 0o755))
				}
				must(b, os.WriteFile(filepath.Join(folder, fmt.Sprint(j)), fmt.Append(nil, i, j), 0o644))
			}
		}
		debug.FreeOSMemory()
		previous := debug.SetMemoryLimit(limit)
		ctx := WithMemory(b.Context(), m)
		peak := peakMemory(func() {
			r := s.open(b)
			var moving sync.WaitGroup
			for i, dir := range dirs {
				moving.Go(func() {
					result, err := Upload(ctx, r, UploadRequest{Path: dir, Source: Source{Namespace: namespace, Pod: fmt.Sprint(i), Volume: "data"}}, new(Progress))
					if err != nil || result.Files != count {
						b.Errorf("%d files: %v", result.Files, err)
					}
				})
			}
			moving.Wait()
		})
		debug.SetMemoryLimit(previous)
		b.ReportMetric(float64(len(dirs)*count), "files")
		b.ReportMetric(float64(peak), "peak-bytes")
		b.ReportMetric(limit, "limit-bytes")
	}
	b.ReportMetric(0, "ns/op")
}

// moveWithin moves as many volumes at once as a limit of memory allows, and returns how many
// they were, and the most that the process has taken.
func moveWithin(t testing.TB, limit int64) (volumes int, peak int64) {
	s, m := newStore(t), NewMemory(limit)
	dirs := make([]string, m.Volumes)
	random := make([]byte, 48<<20)
	for i := range dirs {
		dirs[i] = t.TempDir()
		for j := range 3 {
			rand.NewChaCha8([32]byte{byte(i), byte(j)}).Read(random)
			write(t, filepath.Join(dirs[i], fmt.Sprint(j)), string(random))
		}
	}
	random = nil
	debug.FreeOSMemory()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	ctx := WithMemory(t.Context(), m)
	peak = peakMemory(func() {
		r := s.open(t) // its key is derived
		var moving sync.WaitGroup
		for i, dir := range dirs {
			moving.Go(func() {
				result, err := Upload(ctx, r, UploadRequest{Path: dir, Source: Source{Namespace: namespace, Pod: fmt.Sprint(i), Volume: "data"}}, new(Progress))
				if err == nil {
					_, err = Restore(ctx, r, RestoreRequest{SnapshotID: result.SnapshotID, Path: t.TempDir()}, new(Progress))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		moving.Wait()
	})
	return len(dirs), peak
}
