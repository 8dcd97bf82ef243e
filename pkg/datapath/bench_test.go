// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/fs/localfs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/restore"
	"github.com/kopia/kopia/snapshot/snapshotfs"
	"github.com/kopia/kopia/snapshot/upload"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// BenchmarkFiles uploads files, uploads them again when none has changed, and restores them,
// each time by us and then by Kopia alone with its defaults, from and to folders in memory.
// Both open their new repository before. What it reports is CPU seconds, the least of all
// rounds, as time says more about what else the machine does.
func BenchmarkFiles(b *testing.B) {
	for _, files := range []struct {
		name        string
		count, size int
		extension   string
	}{
		{"images=4x200MiB", 4, 200 << 20, ".img"},
		{"big=4x200MiB", 4, 200 << 20, ""},
		{"small=20000x8KiB", 20_000, 8 << 10, ""},
		{"tiny=300000x100B", 300_000, 100, ""},
	} {
		b.Run(files.name, func(b *testing.B) {
			dir := filepath.Join(benchDir(b), "volume")
			random := rand.NewChaCha8([32]byte{})
			content := make([]byte, files.size)
			for i := range files.count {
				_, _ = random.Read(content)
				folder := filepath.Join(dir, fmt.Sprint(i/100))
				if i%100 == 0 {
					must(b, os.MkdirAll(folder, 0o755))
				}
				must(b, os.WriteFile(filepath.Join(folder, fmt.Sprint(i)+files.extension), content, 0o644))
			}
			least := map[string]time.Duration{}
			busy := func(what string, do func()) {
				runtime.GC() // of what was left by the one before
				before := cpuTime(b)
				do()
				took := cpuTime(b) - before
				if known, again := least[what]; !again || took < known {
					least[what] = took
				}
				b.ReportMetric(least[what].Seconds(), what)
			}
			for b.Loop() {
				ours := newStoreAt(b, inFolder(benchDir(b)), repository.NewKey())
				ours.create(b)
				r, req := ours.open(b), UploadRequest{Path: dir, Source: web}
				var result UploadResult
				var err error
				for _, what := range []string{"first", "second"} {
					busy(what, func() { result, err = Upload(b.Context(), r, req, new(Progress)) })
					must(b, err)
				}
				if result.IncrementalBytes != 0 {
					b.Errorf("the second upload read %d bytes", result.IncrementalBytes)
				}
				target := benchDir(b)
				busy("restore", func() {
					_, err = Restore(b.Context(), r, RestoreRequest{SnapshotID: result.SnapshotID, Path: target}, new(Progress))
				})
				must(b, err)
				must(b, os.RemoveAll(target))

				bare, target := openBare(b), benchDir(b)
				var man *snapshot.Manifest
				busy("kopia-first", func() { man = uploadBare(b, bare, dir) })
				busy("kopia-second", func() { man = uploadBare(b, bare, dir) })
				busy("kopia-restore", func() { restoreBare(b, bare, man, target) })
				must(b, os.RemoveAll(target))
			}
			b.ReportMetric(0, "ns/op") // it would be the sum of all
		})
	}
}

// BenchmarkVolumes uploads and restores many small volumes of one namespace, several at
// once, by one opening of its repository far away.
func BenchmarkVolumes(b *testing.B) {
	const volumes, atOnce = 500, 4
	s, dir := newFarStore(b), benchDir(b)
	random, content := rand.NewChaCha8([32]byte{}), make([]byte, 1<<20)
	for i := range volumes {
		_, _ = random.Read(content)
		write(b, filepath.Join(dir, fmt.Sprint(i), "file"), string(content))
	}
	s.latency, s.bandwidth = 20*time.Millisecond, 80_000_000
	for b.Loop() {
		cache, err := repository.NewCache(b.TempDir(), 1<<30) // as an agent does
		must(b, err)
		r, err := repository.Open(b.Context(), s.location, namespace, s.key, repository.Options{Cache: cache})
		must(b, err)
		each := func(what string, do func(i int) error) {
			s.requests.Store(0)
			begin := time.Now()
			var group errgroup.Group
			group.SetLimit(atOnce)
			for i := range volumes {
				group.Go(func() error { return do(i) })
			}
			must(b, group.Wait())
			b.ReportMetric(volumes/time.Since(begin).Seconds(), what+"/s")
			b.ReportMetric(float64(s.requests.Load())/volumes, what+"-requests")
		}
		var snapshots [volumes]string
		each("uploads", func(i int) error {
			result, err := Upload(b.Context(), r, UploadRequest{
				Path:   filepath.Join(dir, fmt.Sprint(i)),
				Source: Source{Namespace: namespace, Pod: fmt.Sprint("pod-", i), Volume: "data"},
			}, new(Progress))
			snapshots[i] = result.SnapshotID
			return err
		})
		targets := benchDir(b)
		each("restores", func(i int) error {
			target := filepath.Join(targets, fmt.Sprint(i))
			if err := os.Mkdir(target, 0o755); err != nil {
				return err
			}
			_, err := Restore(b.Context(), r, RestoreRequest{SnapshotID: snapshots[i], Path: target}, new(Progress))
			return err
		})
		must(b, r.Close(b.Context()))
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFreedSlot is the time from the end of one work to the start of the next, in the
// median.
func BenchmarkFreedSlot(b *testing.B) {
	m := NewManager(b.Context(), 1)
	defer m.Stop()
	const works = 1_000
	var ended time.Time
	var done sync.WaitGroup
	gaps := make([]time.Duration, 0, works)
	for b.Loop() {
		gaps = gaps[:0]
		ended = time.Time{}
		done.Add(works)
		for i := range works {
			m.Submit(Work{Key: fmt.Sprint(i), Do: func(context.Context) {
				if !ended.IsZero() {
					gaps = append(gaps, time.Since(ended))
				}
				time.Sleep(time.Millisecond)
				ended = time.Now()
				done.Done()
			}})
		}
		done.Wait()
		slices.Sort(gaps)
		b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds()), "median-us")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFarStore moves files to and from an emulated store that takes 20 ms for each
// request, and 80 MB a second over each connection; and does so by Kopia alone with its
// defaults, though through our client of the store, for small files with some of them. CPU
// seconds are those of the process, the emulation's among them.
func BenchmarkFarStore(b *testing.B) {
	for _, files := range []struct {
		name         string
		count, kopia int // files, and how many of them Kopia moves
		size         int
		file         string
	}{
		{"small=20000x8KiB", 20_000, 1_000, 8 << 10, ""},
		{"big=1x800MiB", 1, 1, 800 << 20, "big"},
		{"image=1x800MiB", 1, 0, 800 << 20, "big.img"},
	} {
		b.Run(files.name, func(b *testing.B) {
			s, dir, few := newFarStore(b), filepath.Join(benchDir(b), "volume"), filepath.Join(benchDir(b), "few")
			if files.count > 1 {
				smallFiles(b, dir, files.count)
				smallFiles(b, few, files.kopia)
			} else {
				content := make([]byte, files.size)
				_, _ = rand.NewChaCha8([32]byte{}).Read(content)
				write(b, filepath.Join(dir, files.file), string(content))
				few = dir
			}
			s.latency, s.bandwidth = 20*time.Millisecond, 80_000_000
			timed := func(what string, do func()) {
				s.gets.Store(0)
				s.mostPuts.Store(0)
				begin, busy := time.Now(), cpuTime(b)
				do()
				b.ReportMetric(time.Since(begin).Seconds(), what+"-s")
				b.ReportMetric((cpuTime(b) - busy).Seconds(), what+"-CPU-s")
			}
			for b.Loop() {
				var id string
				timed("upload", func() { id = s.upload(b, dir, web).SnapshotID })
				b.ReportMetric(float64(s.mostPuts.Load()), "PUTs-at-once")
				timed("restore", func() { s.restore(b, id, benchDir(b)) })
				b.ReportMetric(float64(s.gets.Load()), "GETs")
				if files.kopia == 0 {
					continue
				}
				bare := newFarStore(b)
				bare.latency, bare.bandwidth = s.latency, s.bandwidth
				var man *snapshot.Manifest
				timed("kopia-upload", func() { man = uploadBare(b, bare.open(b).Kopia(), few) })
				timed("kopia-restore", func() { restoreBare(b, bare.open(b).Kopia(), man, benchDir(b)) })
				b.ReportMetric(float64(bare.gets.Load()), "kopia-GETs")
			}
			b.ReportMetric(0, "ns/op") // it would be the sum of all
		})
	}
}

// cpuTime is how long this process has kept CPUs busy.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// restoreBare restores by Kopia alone, with as many workers as its command has.
func restoreBare(b *testing.B, r repo.Repository, man *snapshot.Manifest, dir string) {
	root, err := snapshotfs.SnapshotRoot(r, man)
	must(b, err)
	out := &restore.FilesystemOutput{TargetPath: dir, OverwriteDirectories: true, OverwriteFiles: true, IgnorePermissionErrors: true}
	must(b, out.Init(b.Context()))
	_, err = restore.Entry(b.Context(), r, out, root, restore.Options{RestoreDirEntryAtDepth: math.MaxInt32, Parallel: 8})
	must(b, err)
}

// benchDir is in memory where that is possible: what a disk takes to write a
// small file varies more than what is compared here.
func benchDir(b *testing.B) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-bench-")
	if err != nil {
		return b.TempDir()
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// openBare makes a repository with Kopia's defaults, and opens it.
func openBare(b *testing.B) repo.Repository {
	ctx, dir := b.Context(), benchDir(b)
	st, err := filesystem.New(ctx, &filesystem.Options{Path: dir}, true)
	must(b, err)
	must(b, repo.Initialize(ctx, st, &repo.NewRepositoryOptions{}, "password"))
	config := filepath.Join(b.TempDir(), "repo.config")
	must(b, repo.Connect(ctx, config, st, "password", nil))
	r, err := repo.Open(ctx, config, "password", &repo.Options{DisableRepositoryLog: true})
	must(b, err)
	b.Cleanup(func() { r.Close(context.WithoutCancel(ctx)) })
	return r
}

// uploadBare uploads by Kopia alone.
func uploadBare(b *testing.B, r repo.Repository, dir string) (man *snapshot.Manifest) {
	source := snapshot.SourceInfo{Host: "h", UserName: "u", Path: dir}
	must(b, repo.WriteSession(b.Context(), r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		folder, err := localfs.Directory(dir)
		if err != nil {
			return err
		}
		previous, err := snapshot.FindPreviousManifests(ctx, w, source, nil)
		if err != nil {
			return err
		}
		// Not those of the repository, which may be ours.
		man, err = upload.NewUploader(w).Upload(ctx, folder, policy.BuildTree(nil, policy.DefaultPolicy), source, previous...)
		if err != nil {
			return err
		}
		_, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
	return man
}
