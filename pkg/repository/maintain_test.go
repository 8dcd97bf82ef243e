// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Clients come and go in these tests, and each derives a key, which takes the race detector
// a second: hack/test.sh runs them without it.

//go:build !race

package repository_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// world is a repository under a clock that the test moves, with the volumes that are
// uploaded to it.
type world struct {
	*repository.Moved
	t   testing.TB
	loc repository.Location
	key repository.Key
}

func newWorld(t testing.TB) *world {
	w := &world{Moved: repository.NewMoved(), t: t, key: repository.NewKey(), loc: repository.Location{Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
	}}}
	if err := repository.Create(t.Context(), w.loc, "app", w.key); err != nil {
		t.Fatal(err)
	}
	return w
}

// open is a client of its own, which has no cache.
func (w *world) open() *repository.Repository {
	w.t.Helper()
	r, err := w.Open(w.t.Context(), w.loc, "app", w.key, w.t.TempDir())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = r.Close(context.WithoutCancel(w.t.Context())) })
	return r
}

func (w *world) upload(r *repository.Repository, volume, dir string) string {
	w.t.Helper()
	result, err := datapath.Upload(w.t.Context(), r, datapath.UploadRequest{
		Path: dir, Source: datapath.Source{Namespace: "app", Pod: "pod", Volume: volume},
	}, new(datapath.Progress))
	if err != nil {
		w.t.Fatal(err)
	}
	return result.SnapshotID
}

// expectRestored restores snapshots with a new client and compares them.
func (w *world) expectRestored(listed map[string]map[string]string) {
	w.t.Helper()
	r := w.open()
	for id, want := range listed {
		target := w.t.TempDir()
		if _, err := datapath.Restore(w.t.Context(), r, datapath.RestoreRequest{SnapshotID: id, Path: target}, new(datapath.Progress)); err != nil {
			w.t.Fatalf("restoring %s: %v", id, err)
		}
		if !maps.Equal(want, contents(w.t, target)) {
			w.t.Fatalf("snapshot %s is not what it was", id)
		}
	}
}

func (w *world) remove(ids ...string) {
	w.t.Helper()
	if err := datapath.DeleteSnapshots(w.t.Context(), w.open(), ids); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) maintain() repository.Maintenance {
	w.t.Helper()
	done, err := w.open().Maintain(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

// size is how many bytes the store holds.
func (w *world) size() (bytes int64) {
	w.t.Helper()
	err := filepath.WalkDir(w.loc.Spec.Filesystem.Path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return bytes
}

func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// random writes files that don't compress.
func random(t testing.TB, dir string, files, size int) {
	t.Helper()
	for i := range files {
		data := make([]byte, size)
		rand.Read(data)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The space of what is deleted comes back with the fourth full maintenance at the latest,
// save for a pack, and nothing of what is listed goes.
func TestMaintenanceReclaims(t *testing.T) {
	w := newWorld(t)
	gone, kept := t.TempDir(), t.TempDir()
	random(t, gone, 50, 1<<20)
	random(t, kept, 4, 1<<20)
	goes, stays := w.upload(w.open(), "gone", gone), w.upload(w.open(), "kept", kept)
	before := w.size()
	if done := w.maintain(); done.Kind != repository.MaintenanceFull {
		t.Errorf("the first maintenance was a %s one", done.Kind)
	}
	if done := w.maintain(); done.Kind != repository.MaintenanceQuick {
		t.Errorf("the second maintenance, right after, was a %s one", done.Kind)
	}
	w.remove(goes)
	// Kopia leaves one pack of 20 MB as it is, however little of it is needed.
	for run := 1; before-w.size() < 30<<20; run++ {
		if run > 4 {
			t.Fatalf("the store has %d bytes after 4 full maintenances, and had %d", w.size(), before)
		}
		w.Advance(25 * time.Hour)
		had := w.size()
		done := w.maintain()
		t.Logf("full maintenance %d: %d bytes removed, %d rewritten, %d left", run, done.Reclaimed, done.Rewritten, w.size())
		if done.Kind != repository.MaintenanceFull {
			t.Errorf("the maintenance of the next day was a %s one", done.Kind)
		}
		if done.Skew.Abs() > 30*time.Second {
			t.Errorf("the clocks are the same, but differ by %s", done.Skew)
		}
		if run <= 2 && done.Reclaimed > 1<<20 {
			t.Errorf("%d bytes went %d days after the deletion, so that a running restore would have failed", done.Reclaimed, run)
		}
		if missing := had - w.size() - (done.Reclaimed - done.Rewritten); missing < -1<<20 || missing > 1<<20 {
			t.Errorf("the store went from %d to %d bytes, which it does not say", had, w.size())
		}
		w.expectRestored(map[string]map[string]string{stays: contents(t, kept)})
	}
}

// An upload that began before, during or between maintenances, and relies on contents that
// only a deleted snapshot had, loses nothing, however often the repository is maintained
// while it runs.
func TestMaintenanceBesideAnUpload(t *testing.T) {
	for name, maintenances := range map[string][]time.Duration{
		"one":             {0},
		"a day later":     {25 * time.Hour},
		"two within 4 h":  {0, 3 * time.Hour},
		"one on each day": {0, 25 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := t.TempDir()
			random(t, dir, 3, 1<<16)
			old := w.upload(w.open(), "data", dir)
			w.Advance(25 * time.Hour)

			// The agent opens the repository and knows the contents, and then they lose the
			// only snapshot that has them.
			agent := w.open()
			w.remove(old)
			for _, later := range maintenances {
				w.Advance(later)
				w.maintain()
			}
			id := w.upload(agent, "data", dir)
			for range 4 {
				w.expectRestored(map[string]map[string]string{id: contents(t, dir)})
				w.Advance(25 * time.Hour)
				w.maintain()
			}
		})
	}
}

// With 60 uploads a day an opening reads few indexes, at any time between the full maintenances
// too: those of two to three epochs, and one for each epoch before.
func TestMaintenanceKeepsIndexesFew(t *testing.T) {
	const perDay, days = 60, 3
	w := newWorld(t)
	agent, maintainer := w.open(), w.open()
	dir := t.TempDir()
	id := ""
	mostRead, mostStored := 0, 0
	for hour := range days * 24 {
		uploads := perDay*(hour+1)/24 - perDay*hour/24
		for range uploads {
			random(t, dir, 1, 100)
			id = w.upload(agent, "data", dir)
			w.Advance(time.Hour / time.Duration(uploads))
		}
		if _, err := maintainer.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		read, stored := repository.IndexBlobs(t, maintainer)
		mostRead, mostStored = max(mostRead, read), max(mostStored, stored)
	}
	t.Logf("of %d uploads: an opening reads %d indexes at most, and the store holds %d", perDay*days, mostRead, mostStored)
	if mostRead > perDay*4/3 {
		t.Errorf("of %d uploads a day an opening reads up to %d indexes", perDay, mostRead)
	}
	if mostStored > perDay*3 {
		t.Errorf("of %d uploads a day the store holds up to %d indexes", perDay, mostStored)
	}
	w.expectRestored(map[string]map[string]string{id: contents(t, dir)})
}

func TestMaintenanceRefuses(t *testing.T) {
	t.Run("another owner", func(t *testing.T) {
		w := newWorld(t)
		r := w.open()
		repository.SetMaintenance(t, r, "somebody@else", 24*time.Hour)
		if _, err := r.Maintain(t.Context()); !errors.Is(err, repository.ErrOtherOwner) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("full ones too often", func(t *testing.T) {
		w := newWorld(t)
		repository.SetMaintenance(t, w.open(), "default@default", time.Hour)
		for _, step := range []struct {
			after time.Duration
			want  repository.MaintenanceKind
		}{{0, repository.MaintenanceFull}, {22 * time.Hour, repository.MaintenanceQuick}, {2 * time.Hour, repository.MaintenanceFull}} {
			w.Advance(step.after)
			if done := w.maintain(); done.Kind != step.want {
				t.Errorf("%s later it was a %s one", step.after, done.Kind)
			}
		}
	})
	t.Run("clock skew", func(t *testing.T) {
		w := newWorld(t)
		w.Skew = 6 * time.Minute
		if _, err := w.open().Maintain(t.Context()); !errors.Is(err, repository.ErrClockSkew) {
			t.Errorf("it ended with %v", err)
		}
		w.Skew = time.Minute
		if done := w.maintain(); (done.Skew - time.Minute).Abs() > 30*time.Second {
			t.Errorf("the store's clock is ahead by %s, not by a minute", done.Skew)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		w := newWorld(t)
		r := w.open()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Maintain(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		w.maintain()
	})
}
