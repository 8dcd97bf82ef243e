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
	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// BenchmarkUpload uploads the same files by Upload and by the bare Kopia library
// with its defaults, in turn, each time into a new repository. Its ratio is our
// time by Kopia's: below 1 we are faster. Times include creating the repository
// and opening it.
func BenchmarkUpload(b *testing.B) {
	for _, files := range []struct {
		name        string
		count, size int
	}{
		{"small=5000x8KiB", 5000, 8 << 10},
		{"big=4x64MiB", 4, 64 << 20},
	} {
		b.Run(files.name, func(b *testing.B) {
			dir := filepath.Join(benchDir(b), "volume")
			random := rand.NewChaCha8([32]byte{})
			content := make([]byte, files.size)
			for i := range files.count {
				random.Read(content)
				write(b, filepath.Join(dir, fmt.Sprint(i%100), fmt.Sprint(i)), string(content))
			}
			var ours, kopias time.Duration
			for b.Loop() {
				ours += measure(b, func(repoDir string) { uploadOurs(b, repoDir, dir) })
				kopias += measure(b, func(repoDir string) { uploadByKopia(b, repoDir, dir) })
			}
			bytes := files.count * files.size
			perSecond := func(d time.Duration) float64 { return float64(bytes) * float64(b.N) / d.Seconds() / 1e6 }
			b.ReportMetric(0, "ns/op") // it would be the sum of both
			b.ReportMetric(float64(bytes), "bytes")
			b.ReportMetric(perSecond(ours), "holdfast-MB/s")
			b.ReportMetric(perSecond(kopias), "kopia-MB/s")
			b.ReportMetric(ours.Seconds()/kopias.Seconds(), "ratio")
		})
	}
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
				timed("kopia-upload", func() { id = uploadBare(b, bare.open(b).Kopia(), few) })
				timed("kopia-restore", func() { bare.restoreBare(b, id, benchDir(b)) })
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

// restoreBare restores by Kopia alone.
func (s store) restoreBare(b *testing.B, id, dir string) {
	r := s.open(b).Kopia()
	root, err := snapshotfs.FilesystemEntryFromIDWithPath(b.Context(), r, id, false)
	must(b, err)
	out := &restore.FilesystemOutput{TargetPath: dir, OverwriteDirectories: true, OverwriteFiles: true, IgnorePermissionErrors: true}
	must(b, out.Init(b.Context()))
	_, err = restore.Entry(b.Context(), r, out, root, restore.Options{RestoreDirEntryAtDepth: math.MaxInt32})
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

// measure times an upload into an empty folder.
func measure(b *testing.B, upload func(repoDir string)) time.Duration {
	dir := benchDir(b)
	defer os.RemoveAll(dir)
	begin := time.Now()
	upload(dir)
	return time.Since(begin)
}

func uploadOurs(b *testing.B, repoDir, dir string) {
	s := store{location: inFolder(repoDir), key: repository.NewKey()}
	s.create(b)
	_, err := Upload(b.Context(), s.open(b), UploadRequest{Path: dir, Source: web}, new(Progress))
	must(b, err)
}

// uploadByKopia does all by Kopia alone.
func uploadByKopia(b *testing.B, repoDir, dir string) {
	ctx := b.Context()
	st, err := filesystem.New(ctx, &filesystem.Options{Path: repoDir}, true)
	must(b, err)
	must(b, repo.Initialize(ctx, st, &repo.NewRepositoryOptions{}, "password"))
	config := filepath.Join(repoDir, "repo.config")
	must(b, repo.Connect(ctx, config, st, "password", nil))
	r, err := repo.Open(ctx, config, "password", &repo.Options{DisableRepositoryLog: true})
	must(b, err)
	defer r.Close(ctx)
	uploadBare(b, r, dir)
}

// uploadBare uploads by Kopia alone to an open repository.
func uploadBare(b *testing.B, r repo.Repository, dir string) (id string) {
	source := snapshot.SourceInfo{Host: "h", UserName: "u", Path: dir}
	must(b, repo.WriteSession(b.Context(), r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		folder, err := localfs.Directory(dir)
		if err != nil {
			return err
		}
		// Not those of the repository, which may be ours.
		man, err := upload.NewUploader(w).Upload(ctx, folder, policy.BuildTree(nil, policy.DefaultPolicy), source)
		if err != nil {
			return err
		}
		saved, err := snapshot.SaveSnapshot(ctx, w, man)
		id = string(saved)
		return err
	}))
	return id
}
