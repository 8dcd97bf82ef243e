// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kopia makes a repository in an empty folder and uploads files to it by
// the Kopia library with nothing of ours: what the agent is measured against. The
// settings are Kopia's defaults unless flags say otherwise. It prints the times and
// its peak memory as JSON.
//
// It is a module of its own because only two packages of Holdfast may know Kopia.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/kopia/kopia/fs/localfs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/upload"
)

const password = "benchmark"

type result struct {
	CreateSeconds, UploadSeconds float64
	CPUSeconds                   float64 // of the upload alone
	PeakBytes                    int64
}

// settings are Kopia's defaults where they are zero.
type settings struct {
	files, repository                         string
	hash, keyDerivation, compressor, splitter string
	parallel                                  int
	splitAbove                                int64 // bytes above which a file is uploaded in parts
}

func main() {
	var s settings
	flag.StringVar(&s.files, "files", "", "the folder to upload")
	flag.StringVar(&s.repository, "repository", "", "an empty folder for the repository")
	flag.StringVar(&s.hash, "hash", "", "name of the repository's hash; empty means Kopia's BLAKE2B-256-128")
	flag.StringVar(&s.keyDerivation, "key-derivation", "", "how the key is derived from the password; empty means Kopia's scrypt, which takes 128 MB")
	flag.StringVar(&s.compressor, "compressor", "", "name of the compression; empty means none")
	flag.IntVar(&s.parallel, "parallel", 0, "how many files are uploaded at once; 0 means as many as there are processors")
	flag.StringVar(&s.splitter, "splitter", "", "name of the splitter; empty means the repository's")
	flag.Int64Var(&s.splitAbove, "split-above", 0, "bytes above which a file is uploaded in parts at once; 0 means Kopia's 2 GiB")
	flag.Parse()
	if s.files == "" || s.repository == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), s); err != nil {
		fmt.Fprintln(os.Stderr, "kopia:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	var r result
	begin := time.Now()
	store, err := filesystem.New(ctx, &filesystem.Options{Path: s.repository}, true)
	if err != nil {
		return err
	}
	options := &repo.NewRepositoryOptions{
		BlockFormat:                       format.ContentFormat{Hash: s.hash},
		FormatBlockKeyDerivationAlgorithm: s.keyDerivation,
	}
	if err := repo.Initialize(ctx, store, options, password); err != nil {
		return err
	}
	config := s.repository + ".config"
	defer os.Remove(config)
	if err := repo.Connect(ctx, config, store, password, nil); err != nil {
		return err
	}
	r.CreateSeconds = time.Since(begin).Seconds()

	begin = time.Now()
	before, err := cpuSeconds()
	if err != nil {
		return err
	}
	if err := uploadFiles(ctx, config, s); err != nil {
		return err
	}
	r.UploadSeconds = time.Since(begin).Seconds()
	after, err := cpuSeconds()
	if err != nil {
		return err
	}
	r.CPUSeconds = after - before
	if r.PeakBytes, err = peakMemory(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// uploadFiles opens the repository, uploads, and closes it.
func uploadFiles(ctx context.Context, config string, s settings) (err error) {
	repository, err := repo.Open(ctx, config, password, &repo.Options{DisableRepositoryLog: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, repository.Close(ctx)) }()
	source := snapshot.SourceInfo{Host: "host", UserName: "user", Path: s.files}
	return repo.WriteSession(ctx, repository, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		folder, err := localfs.Directory(s.files)
		if err != nil {
			return err
		}
		tree, err := policy.TreeForSource(ctx, w, source)
		if err != nil {
			return err
		}
		effective := tree.EffectivePolicy()
		effective.CompressionPolicy.CompressorName = compression.Name(s.compressor)
		effective.SplitterPolicy.Algorithm = s.splitter
		if s.splitAbove > 0 {
			above := policy.OptionalInt64(s.splitAbove)
			effective.UploadPolicy.ParallelUploadAboveSize = &above
		}
		tree = policy.BuildTree(nil, effective)
		uploader := upload.NewUploader(w)
		uploader.ParallelUploads = s.parallel
		manifest, err := uploader.Upload(ctx, folder, tree, source)
		if err != nil {
			return err
		}
		if manifest.IncompleteReason != "" || manifest.Stats.ErrorCount > 0 {
			return fmt.Errorf("the upload is incomplete: %q, %d errors", manifest.IncompleteReason, manifest.Stats.ErrorCount)
		}
		_, err = snapshot.SaveSnapshot(ctx, w, manifest)
		return err
	})
}

// cpuSeconds is how long this process has kept a CPU busy.
func cpuSeconds() (float64, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds(), err
}

// peakMemory is VmHWM of proc_pid_status(5), in bytes.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kibibytes int64
			_, err := fmt.Sscanf(value, "%d kB", &kibibytes)
			return kibibytes * 1024, err
		}
	}
	return 0, errors.New("no VmHWM in /proc; this needs Linux")
}
