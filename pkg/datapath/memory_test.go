// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// Whatever the limit, something can be moved, and all that may be kept is within it.
func TestMemoryIsDivided(t *testing.T) {
	for _, limit := range []int64{0, 64 << 20, 256 << 20, 512 << 20, 1 << 30, 10 << 30} {
		m := NewMemory(limit)
		if m.Volumes < 1 || m.files < 1 || m.kept() < 0 {
			t.Errorf("%d MiB: %+v", limit>>20, m)
		}
		sum := int64(m.Volumes)*(volumeMemory+m.kept()) + m.files*fileMemory + processMemory
		if limit >= 256<<20 && sum > limit {
			t.Errorf("%d MiB: %d MiB may be taken by %+v", limit>>20, sum>>20, m)
		}
	}
	if got := MemoryOf(t.Context()); got.kept() != packMemory || got.readers(7) != 7 {
		t.Error("without a limit there is one")
	}
}

// Indexes beyond what each repository has take the turns of files, save one, and one
// repository after the other does. All of that is given back.
func TestIndexesTakeMemory(t *testing.T) {
	m := NewMemory(1 << 30)
	if done, err := m.Indexes(t.Context(), indexMemory); done != nil || err != nil {
		t.Fatalf("small indexes wait: %v", err)
	}
	free := func() (files int) {
		for m.atOnce.TryAcquire(1) {
			files++
		}
		m.atOnce.Release(int64(files))
		return files
	}
	for _, test := range []struct{ bytes, files int64 }{{indexMemory + 1, 1}, {indexMemory + 3*fileMemory, 3}, {1 << 40, m.files - 1}} {
		done, err := m.Indexes(t.Context(), test.bytes)
		must(t, err)
		if got := m.files - int64(free()); got != test.files {
			t.Errorf("indexes of %d MiB take %d files, want %d", test.bytes>>20, got, test.files)
		}
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := m.Indexes(short, indexMemory+(m.files-test.files)*fileMemory); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second repository beside it that takes all other files: %v", err)
		}
		if test.files < m.files-1 {
			second, err := m.Indexes(t.Context(), indexMemory+1)
			must(t, err)
			second()
		}
		stop()
		done()
		if int64(free()) != m.files {
			t.Error("they are not given back")
		}
	}
	_, err := m.file(t.Context())
	must(t, err)
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	for range m.files - 1 {
		must(t, m.atOnce.Acquire(t.Context(), 1))
	}
	if _, err := m.Indexes(short, 1<<40); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with all files at work: %v", err)
	}
	m.atOnce.Release(m.files - 1)
	done, err := m.Indexes(t.Context(), 1<<40)
	must(t, err)
	done()
}

// A file waits for its turn, uploaded or restored. A turn ends with the work, also where
// a read hangs.
func TestFilesWaitForMemory(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	id, r := s.upload(t, dir, web).SnapshotID, s.open(t)
	m := NewMemory(0)
	hung, cancel := context.WithCancel(t.Context())
	_, err := m.file(hung)
	must(t, err)
	both := func(ctx context.Context) error {
		_, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress))
		_, restoreErr := Restore(ctx, r, RestoreRequest{SnapshotID: id, Path: t.TempDir()}, new(Progress))
		if (err == nil) != (restoreErr == nil) {
			t.Errorf("Upload = %v, Restore = %v", err, restoreErr)
		}
		return errors.Join(err, restoreErr)
	}
	write(t, filepath.Join(dir, "file"), "other content")
	short, stop := context.WithTimeout(WithMemory(t.Context(), m), 300*time.Millisecond)
	defer stop()
	if err := both(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without their turn: %v", err)
	}
	cancel()
	for range 2 { // it is given back
		must(t, both(WithMemory(t.Context(), m)))
	}
}
