// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package repository_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// blobFiles are the files of the blobs whose names begin so, by name.
func (w *world) blobFiles(prefix string) map[string]string {
	w.t.Helper()
	root := filepath.Join(w.loc.Spec.Filesystem.Path, "kopia", "app")
	found := map[string]string{}
	if err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		name := strings.ReplaceAll(strings.TrimPrefix(path, root+"/"), "/", "")
		if name, isBlob := strings.CutSuffix(name, ".f"); err == nil && isBlob && strings.HasPrefix(name, prefix) {
			found[name] = path
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return found
}

// A maintenance does nothing to a repository whose store has lost an index, and says which. So
// all is whole when the index is back. Without it, all that it named goes when somebody says so.
func TestLostIndex(t *testing.T) {
	w := newWorld(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first, second := t.TempDir(), t.TempDir()
	random(t, first, 10, 10_000)
	random(t, second, 10, 10_000)
	want := map[string]map[string]string{w.upload(w.open(), "first", first): contents(t, first)}
	before := w.blobFiles("xn")
	id := w.upload(w.open(), "second", second)
	w.maintain()
	var names []string
	kept := map[string][]byte{}
	for name, path := range w.blobFiles("xn") {
		if _, known := before[name]; !known {
			content, err := os.ReadFile(path)
			must(err)
			names, kept[path] = append(names, name), content
		}
	}
	slices.Sort(names)
	lose := func() {
		t.Helper()
		for path := range kept {
			must(os.Remove(path))
		}
	}
	lose()
	packs := w.packFiles()
	for range 5 {
		w.Advance(26 * time.Hour)
		_, err := w.open().Maintain(t.Context())
		if !errors.Is(err, repository.ErrIndexLost) || !strings.Contains(err.Error(), names[0]) || !strings.Contains(err.Error(), "delete holdfast.indexes.f ") {
			t.Fatalf("the maintenance says %v", err)
		}
		if done := w.check(w.open(), repository.CheckOptions{}); !done.Lost() || !slices.Equal(done.Indexes, names) || done.Read > 0 {
			t.Errorf("a check says %+v, want the indexes %v", done, names)
		}
	}
	if left := w.packFiles(); !maps.Equal(left, packs) {
		t.Errorf("of the packs %v there are %v", packs, left)
	}

	for path, content := range kept {
		must(os.WriteFile(path, content, 0o600))
	}
	w.maintain()
	if done := w.check(w.open(), repository.CheckOptions{All: true}); done.Lost() {
		t.Errorf("with the index a check says %+v", done)
	}
	want[id] = contents(t, second)
	w.expectRestored(want)

	lose()
	must(os.Remove(w.blobFiles("holdfast.indexes")["holdfast.indexes"]))
	w.maintain()
	delete(want, id)
	w.expectRestored(want)
}

// Indexes that Kopia has replaced by others are not lost, however often a repository is maintained.
func TestReplacedIndexesAreNotLost(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	seen := map[string]bool{}
	for day := range 7 {
		random(t, dir, 1, 1000)
		r := w.open()
		for range 21 { // by which an epoch ends
			w.upload(r, "volume", dir)
		}
		w.Advance(25 * time.Hour)
		for name := range w.blobFiles("x") {
			seen[name] = true
		}
		if _, err := w.open().Maintain(t.Context()); err != nil {
			t.Fatalf("on day %d: %v", day, err)
		}
	}
	gone, left := 0, w.blobFiles("x")
	for name := range seen {
		if _, there := left[name]; !there && name[1] == 'n' {
			gone++
		}
	}
	if gone == 0 || len(w.blobFiles("xs")) == 0 {
		t.Errorf("%d indexes were replaced; there are %v", gone, slices.Sorted(maps.Keys(left)))
	}
}
