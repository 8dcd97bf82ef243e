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
				kopias += measure(b, func(repoDir string) { uploadBare(b, repoDir, dir) })
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
// request, and sends 80 MB a second over each connection; and restores some of them by
// Kopia's own restore with its defaults.
func BenchmarkFarStore(b *testing.B) {
	for _, files := range []struct {
		name         string
		count, kopia int // files, and how many of them Kopia restores
		size         int
	}{
		{"small=20000x8KiB", 20_000, 1_000, 8 << 10},
		{"big=1x800MiB", 1, 1, 800 << 20},
	} {
		b.Run(files.name, func(b *testing.B) {
			s, dir, few := newFarStore(b), filepath.Join(benchDir(b), "volume"), filepath.Join(benchDir(b), "few")
			if files.count > 1 {
				smallFiles(b, dir, files.count)
				smallFiles(b, few, files.kopia)
			} else {
				content := make([]byte, files.size)
				_, _ = rand.NewChaCha8([32]byte{}).Read(content)
				write(b, filepath.Join(dir, "big"), string(content))
				few = dir
			}
			s.latency, s.bandwidth = 20*time.Millisecond, 80_000_000
			timed := func(do func()) (seconds, gets float64) {
				s.gets.Store(0)
				begin := time.Now()
				do()
				return time.Since(begin).Seconds(), float64(s.gets.Load())
			}
			var result UploadResult
			for b.Loop() {
				uploading, _ := timed(func() { result = s.upload(b, dir, web) })
				restoring, gets := timed(func() { s.restore(b, result.SnapshotID, benchDir(b)) })
				result = s.upload(b, few, Source{Namespace: namespace, Pod: "few", Volume: "data"})
				kopias, kopiasGets := timed(func() { s.restoreBare(b, result.SnapshotID, benchDir(b)) })
				b.ReportMetric(uploading, "upload-s")
				b.ReportMetric(restoring, "restore-s")
				b.ReportMetric(gets, "GETs")
				b.ReportMetric(kopias, "kopia-s")
				b.ReportMetric(kopiasGets, "kopia-GETs")
			}
			b.ReportMetric(0, "ns/op") // it would be the sum of all
		})
	}
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

func uploadBare(b *testing.B, repoDir, dir string) {
	ctx := b.Context()
	st, err := filesystem.New(ctx, &filesystem.Options{Path: repoDir}, true)
	must(b, err)
	must(b, repo.Initialize(ctx, st, &repo.NewRepositoryOptions{}, "password"))
	config := filepath.Join(repoDir, "repo.config")
	must(b, repo.Connect(ctx, config, st, "password", nil))
	r, err := repo.Open(ctx, config, "password", &repo.Options{DisableRepositoryLog: true})
	must(b, err)
	defer r.Close(ctx)
	source := snapshot.SourceInfo{Host: "h", UserName: "u", Path: dir}
	must(b, repo.WriteSession(ctx, r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		folder, err := localfs.Directory(dir)
		if err != nil {
			return err
		}
		tree, err := policy.TreeForSource(ctx, w, source)
		if err != nil {
			return err
		}
		man, err := upload.NewUploader(w).Upload(ctx, folder, tree, source)
		if err != nil {
			return err
		}
		_, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
}
