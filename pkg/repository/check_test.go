// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package repository_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// packFiles are the files of the packs with files' contents, by name.
func (w *world) packFiles() map[string]string {
	w.t.Helper()
	root := filepath.Join(w.loc.Spec.Filesystem.Path, "kopia", "app")
	found := map[string]string{}
	if err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name := strings.ReplaceAll(strings.TrimPrefix(path, root+"/"), "/", "")
		if name, isBlob := strings.CutSuffix(name, ".f"); err == nil && isBlob && name[0] == 'p' {
			found[name] = path
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return found
}

func (w *world) check(r *repository.Repository, options repository.CheckOptions) repository.Check {
	w.t.Helper()
	done, err := r.Check(w.t.Context(), options)
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

// A check finds the packs that the store has lost, and which snapshots need them: until an
// upload has stored anew what they held.
func TestCheckFindsMissingPacks(t *testing.T) {
	w := newWorld(t)
	lost, kept := t.TempDir(), t.TempDir()
	random(t, lost, 10, 10_000)
	random(t, kept, 10, 10_000)
	first := w.upload(w.open(), "lost", lost)
	packs := w.packFiles()
	second := w.upload(w.open(), "kept", kept)
	if done := w.check(w.open(), repository.CheckOptions{All: true}); done.Lost() || done.Read != done.Packs || done.Packs < 4 {
		t.Fatalf("of a repository that is whole a check says %+v", done)
	}
	for _, path := range packs {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	done := w.check(w.open(), repository.CheckOptions{})
	if done.Missing != len(packs) || done.Contents != 10 || !slices.Equal(done.Snapshots, []string{first}) {
		t.Errorf("of %d packs that are gone a check says %+v", len(packs), done)
	}
	want := map[string]map[string]string{second: contents(t, kept)}
	w.expectRestored(want)
	third := w.upload(w.open(), "other", lost)
	if done := w.check(w.open(), repository.CheckOptions{All: true}); done.Lost() || len(done.Snapshots) > 0 {
		t.Errorf("after an upload of the same files a check says %+v", done)
	}
	want[first], want[third] = contents(t, lost), contents(t, lost)
	w.expectRestored(want)
}

// A check reads each pack once in some weeks, and finds one of which a byte has changed. A
// client that knows of it writes anew what the pack held.
func TestCheckReadsPacks(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	random(t, dir, 10, 10_000)
	id := w.upload(w.open(), "volume", dir)
	var damaged string
	for name, path := range w.packFiles() {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[5000] ^= 1
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged = name
	}
	r, found, read := w.open(), 0, 0
	for range 28 {
		w.Advance(24 * time.Hour)
		done := w.check(r, repository.CheckOptions{})
		read += done.Read
		if done.Lost() {
			found++
			if done.Contents != 1 || !slices.Equal(done.Damaged, []string{damaged}) || !slices.Equal(done.Snapshots, []string{id}) {
				t.Errorf("a check says %+v", done)
			}
		}
		if done.Read > done.Packs {
			t.Errorf("%d of %d packs were read", done.Read, done.Packs)
		}
	}
	if found != 1 {
		t.Errorf("it was found %d times in four weeks", found)
	}
	if packs := w.check(r, repository.CheckOptions{}).Packs; read != packs {
		t.Errorf("in four weeks %d packs were read, of %d", read, packs)
	}
	if done := w.check(r, repository.CheckOptions{All: true}); !done.Lost() {
		t.Error("a check of all does not find it")
	}
	knowing := w.open()
	knowing.Distrust([]string{damaged})
	if done := w.check(knowing, repository.CheckOptions{}); !done.Lost() {
		t.Error("what was damaged is not looked at again")
	}
	again := w.upload(knowing, "volume", dir)
	if done := w.check(knowing, repository.CheckOptions{All: true}); done.Lost() {
		t.Errorf("after an upload a check says %+v", done)
	}
	w.expectRestored(map[string]map[string]string{id: contents(t, dir), again: contents(t, dir)})
}

// Full maintenances succeed beside lost packs, before and after the snapshots that need them
// are removed, and what is left is whole.
func TestMaintenanceOfWhatIsLost(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"missing": os.Remove,
		"short":   func(path string) error { return os.Truncate(path, 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			want := map[string]map[string]string{}
			var lost string
			for i, volume := range []string{"one", "two", "three"} {
				dir := t.TempDir()
				random(t, dir, 5, 10_000)
				before := w.packFiles()
				id := w.upload(w.open(), volume, dir)
				if i > 0 {
					want[id] = contents(t, dir)
					continue
				}
				lost = id
				for name, path := range w.packFiles() {
					if _, known := before[name]; known {
						continue
					}
					if err := lose(path); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 4 { // packs that are not full are put together
				w.Advance(25 * time.Hour)
				w.maintain()
			}
			w.expectRestored(want)
			if done := w.check(w.open(), repository.CheckOptions{All: true}); !slices.Equal(done.Snapshots, []string{lost}) {
				t.Errorf("a check says %+v", done)
			}
			w.remove(lost)
			for range 5 {
				w.Advance(25 * time.Hour)
				w.maintain()
			}
			w.expectRestored(want)
			if done := w.check(w.open(), repository.CheckOptions{All: true}); done.Lost() {
				t.Errorf("when no snapshot needs it any more a check says %+v", done)
			}
		})
	}
}

// Packs that are only thought to be lost, as after a listing that lags, are stored twice, which
// harms nothing.
func TestPacksThatAreOnlyThoughtToBeLost(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	random(t, dir, 10, 10_000)
	first := w.upload(w.open(), "volume", dir)
	wrong, packs := w.open(), w.packFiles()
	wrong.Distrust(slices.Collect(maps.Keys(packs)))
	second := w.upload(wrong, "volume", dir)
	if now := len(w.packFiles()); now <= len(packs) {
		t.Errorf("of %d packs there are %d after an upload that does not trust them", len(packs), now)
	}
	want := map[string]map[string]string{first: contents(t, dir), second: contents(t, dir)}
	w.expectRestored(want)
	for range 5 {
		w.Advance(25 * time.Hour)
		w.maintain()
	}
	w.expectRestored(want)
	if done := w.check(w.open(), repository.CheckOptions{All: true}); done.Lost() {
		t.Errorf("a check says %+v", done)
	}
}
