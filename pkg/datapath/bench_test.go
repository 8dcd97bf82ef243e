// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// BenchmarkFiles uploads files, uploads them again when none has changed, and restores them,
// each time by us and then by Kopia's own command with its defaults, from and to folders in
// memory. Both have their new repository before; we have also opened it, and the command does so
// each time, which takes kopia-start. What it reports is CPU seconds, the least of all rounds,
// as time says more about what else the machine does.
func BenchmarkFiles(b *testing.B) {
	settled(b)
	program := kopiaProgram(b)
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
			note := func(what string, took time.Duration) {
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
					note(what, busy(b, func() { result, err = Upload(b.Context(), r, req, new(Progress)) }))
					must(b, err)
				}
				if result.IncrementalBytes != 0 {
					b.Errorf("the second upload read %d bytes", result.IncrementalBytes)
				}
				target := benchDir(b)
				note("restore", busy(b, func() {
					_, err = Restore(b.Context(), r, RestoreRequest{SnapshotID: result.SnapshotID, Path: target}, new(Progress))
				}))
				must(b, err)
				expectFiles(b, target, files.count, files.size)
				must(b, os.RemoveAll(target))

				kopia, target := kopiaCommand{b, program, benchDir(b), "password"}, benchDir(b)
				kopia.run("repository", "create", "filesystem", "--path="+benchDir(b))
				_, took := kopia.run("snapshot", "list")
				note("kopia-start", took)
				var man snapshot.Manifest
				for _, what := range []string{"first", "second"} {
					man, took = kopia.upload(dir)
					note("kopia-"+what, took)
				}
				note("kopia-restore", kopia.restore(man, target))
				expectFiles(b, target, files.count, files.size)
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
		b.ReportMetric(gaps[len(gaps)/2].Seconds()*1e6, "median-us")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFarStore moves files to and from an emulated store that takes 20 ms for each
// request, and 80 MB a second over each connection; and does so by Kopia's own command with
// its defaults. CPU seconds are those of the process: ours has the emulation in it, and the
// command's has not.
func BenchmarkFarStore(b *testing.B) {
	program := kopiaProgram(b)
	for _, files := range []struct {
		name        string
		count, size int
		file        string
		kopia       bool // to which images of disks are files as all others
	}{
		{"small=20000x8KiB", 20_000, 8 << 10, "", true},
		{"big=1x800MiB", 1, 800 << 20, "big", true},
		{"image=1x800MiB", 1, 800 << 20, "big.img", false},
	} {
		b.Run(files.name, func(b *testing.B) {
			s, dir := newFarStore(b), filepath.Join(benchDir(b), "volume")
			if files.count > 1 {
				smallFiles(b, dir, files.count)
			} else {
				content := make([]byte, files.size)
				_, _ = rand.NewChaCha8([32]byte{}).Read(content)
				write(b, filepath.Join(dir, files.file), string(content))
			}
			s.latency, s.bandwidth = 20*time.Millisecond, 80_000_000
			timed := func(what string, do func() (busy time.Duration)) {
				s.gets.Store(0)
				s.mostPuts.Store(0)
				begin := time.Now()
				took := do()
				b.ReportMetric(time.Since(begin).Seconds(), what+"-s")
				b.ReportMetric(took.Seconds(), what+"-CPU-s")
			}
			for b.Loop() {
				var id string
				timed("upload", func() time.Duration { return busy(b, func() { id = s.upload(b, dir, web).SnapshotID }) })
				b.ReportMetric(float64(s.mostPuts.Load()), "PUTs-at-once")
				restored := benchDir(b)
				timed("restore", func() time.Duration { return busy(b, func() { s.restore(b, id, restored) }) })
				b.ReportMetric(float64(s.gets.Load()), "GETs")
				expectFiles(b, restored, files.count, files.size)
				if !files.kopia {
					continue
				}
				kopia, target := kopiaCommand{b, program, benchDir(b), "password"}, benchDir(b)
				bucket, endpoint := s.location.Spec.S3, strings.TrimPrefix(s.location.Spec.S3.Endpoint, "http://")
				kopia.run("repository", "create", "s3", "--bucket="+bucket.Bucket, "--prefix="+filepath.Base(kopia.home)+"/",
					"--endpoint="+endpoint, "--disable-tls", "--access-key=id", "--secret-access-key=key")
				var man snapshot.Manifest
				timed("kopia-upload", func() (took time.Duration) { man, took = kopia.upload(dir); return took })
				timed("kopia-restore", func() time.Duration { return kopia.restore(man, target) })
				b.ReportMetric(float64(s.gets.Load()), "kopia-GETs")
				expectFiles(b, target, files.count, files.size)
			}
			b.ReportMetric(0, "ns/op") // it would be the sum of all
		})
	}
}

// kopiaProgram is Kopia's own command, which is needed.
func kopiaProgram(b *testing.B) string {
	b.Helper()
	program := os.Getenv("HOLDFAST_KOPIA")
	if program == "" {
		b.Fatal("there is no HOLDFAST_KOPIA, which must be Kopia's command: run `hack/bench.sh files far`, which builds it")
	}
	return program
}

// busy is how long this process keeps CPUs busy to do something.
func busy(b *testing.B, do func()) time.Duration {
	runtime.GC() // of what was left by the one before
	before := cpuTime(b)
	do()
	return cpuTime(b) - before
}

func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// expectFiles checks that a folder holds so many files of one size, and no others.
func expectFiles(b *testing.B, dir string, count, size int) {
	found := 0
	must(b, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() != int64(size) {
			err = fmt.Errorf("%s has %d bytes, not %d", path, info.Size(), size)
		}
		found++
		return err
	}))
	if found != count {
		b.Fatalf("%s has %d files, not %d", dir, found, count)
	}
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
