// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

// A folder of a snapshot is read as Kopia reads it, and each of its files takes few objects.
func TestStoredFolder(t *testing.T) {
	const files = 500
	dir := t.TempDir()
	for i := range files {
		write(t, filepath.Join(dir, fmt.Sprintf("file-%d", i)), fmt.Sprint(i))
	}
	write(t, filepath.Join(dir, "folder/file"), "x")
	write(t, filepath.Join(dir, "empty"), "")
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	must(t, os.Chmod(filepath.Join(dir, "file-0"), 0o755|os.ModeSetuid))
	must(t, os.Chmod(filepath.Join(dir, "file-1"), 0))
	s := newStore(t)
	id := s.upload(t, dir, web).SnapshotID
	r := s.open(t).Kopia()
	man, err := snapshot.LoadSnapshot(t.Context(), r, manifest.ID(id))
	must(t, err)
	var got []*snapshot.DirEntry
	if objects := objectsOf(files, func() {
		got, err = readFolder(t.Context(), r, man.RootEntry)
		must(t, err)
	}); objects > 5 {
		t.Errorf("%v objects for each file", objects)
	}
	content, err := r.OpenObject(t.Context(), man.RootEntry.ObjectID)
	must(t, err)
	defer content.Close()
	var want snapshot.DirManifest
	must(t, json.NewDecoder(content).Decode(&want))
	if len(got) != files+3 || !reflect.DeepEqual(got, want.Entries) {
		t.Errorf("read %d entries, want %d, or they differ", len(got), len(want.Entries))
	}
	for _, broken := range []storedEntry{{Mode: "0999"}, {ObjectID: "no id"}} {
		if err := broken.decode(new(snapshot.DirEntry)); err == nil {
			t.Errorf("%+v was read", broken)
		}
	}
}
