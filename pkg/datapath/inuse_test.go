// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

// TestVolumeInUse changes files between listing, opening and closing.
func TestVolumeInUse(t *testing.T) {
	dir := t.TempDir()
	at := time.Now().Add(-time.Hour)
	for _, name := range []string{"removed", "grows", "rewritten", "cut", "replaced", "still", "parts", "renamed", "new mode", "folder/x"} {
		write(t, filepath.Join(dir, name), "content")
		must(t, os.Chtimes(filepath.Join(dir, name), at, at))
	}
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "of the node")

	var n notes
	vol, err := openVolume(Folder{Path: dir}, &n, new(Progress))
	must(t, err)
	defer vol.close()
	root, err := vol.folder()
	must(t, err)
	entries := map[string]kopiafs.Entry{}
	must(t, kopiafs.IterateEntries(t.Context(), root, func(_ context.Context, e kopiafs.Entry) error {
		entries[e.Name()] = e
		return nil
	}))
	open := func(name string) (kopiafs.Reader, error) {
		return entries[name].(kopiafs.File).Open(t.Context())
	}

	must(t, os.Remove(filepath.Join(dir, "removed")))
	if _, err := open("removed"); !errors.Is(err, errVanished) {
		t.Errorf("a removed file: %v", err)
	}
	for _, outside := range []string{secret, "/etc/hostname"} {
		must(t, os.RemoveAll(filepath.Join(dir, "replaced")))
		must(t, os.Symlink(outside, filepath.Join(dir, "replaced")))
		if _, err := open("replaced"); err == nil {
			t.Error("a link out of the volume was followed")
		}
	}
	must(t, os.RemoveAll(filepath.Join(dir, "replaced")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "replaced"), 0o644))
	if _, err := open("replaced"); !errors.Is(err, errVanished) {
		t.Errorf("a pipe in the place of a file: %v", err)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "folder")))
	must(t, os.Symlink(filepath.Dir(secret), filepath.Join(dir, "folder")))
	if _, err := entries["folder"].(kopiafs.Directory).Iterate(t.Context()); err == nil {
		t.Error("a link out of the volume was followed")
	}

	if w := n.warnings(); w.Count != 0 {
		t.Errorf("there are warnings already: %v", w)
	}
	for _, change := range []struct {
		name, content string
		at            time.Time
	}{
		{"grows", "longer content", at},
		{"rewritten", "CONTENT", at.Add(time.Minute)},
		{"cut", "con", at},
		{"still", "content", at},
	} {
		path := filepath.Join(dir, change.name)
		r, err := open(change.name)
		must(t, err)
		must(t, os.WriteFile(path, []byte(change.content), 0o644))
		must(t, os.Chtimes(path, change.at, change.at))
		must(t, r.Close())
	}
	for _, content := range []string{"content", "longer content"} { // between its parts
		must(t, os.WriteFile(filepath.Join(dir, "parts"), []byte(content), 0o644))
		must(t, os.Chtimes(filepath.Join(dir, "parts"), at, at))
		r, err := open("parts")
		must(t, err)
		must(t, r.Close())
	}
	if w := n.warnings(); w.Count != 4 || !slices.Equal(w.First, []string{`"grows" changed while it was read`, `"rewritten" changed while it was read`, `"cut" changed while it was read`, `"parts" changed while it was read`}) {
		t.Errorf("the warnings are %+v", w)
	}
	// Before it is opened: what was listed is stored with it.
	write(t, filepath.Join(dir, "new"), "content")
	must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "renamed")))
	must(t, os.Chmod(filepath.Join(dir, "new mode"), 0o600))
	for i, name := range []string{"renamed", "new mode"} {
		r, err := open(name)
		must(t, err)
		must(t, r.Close())
		if w := n.warnings(); w.Count != 5+i {
			t.Errorf("%s: the warnings are %+v", name, w)
		}
	}

	must(t, vol.stillThere())
	must(t, os.Rename(dir, dir+".old"))
	if err := vol.stillThere(); err == nil {
		t.Error("the folder went away unnoticed")
	}
	must(t, os.Mkdir(dir, 0o755))
	if err := vol.stillThere(); err == nil {
		t.Error("the folder was replaced unnoticed")
	}
}

// TestRestoreOfPaths: only what was asked for is written, with what it lies in if that is
// missing; all else stays as it is. What is not there is told before anything is written.
func TestRestoreOfPaths(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for _, name := range []string{"db/users.dat", "db/orders.dat", "logs/2026/a", "logs/2026/b", "other"} {
		write(t, filepath.Join(dir, name), "stored "+name)
	}
	must(t, os.Chmod(filepath.Join(dir, "logs"), 0o751))
	id := s.upload(t, dir, web).SnapshotID
	restore := func(target string, only ...string) (RestoreResult, error) {
		return Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: target, Only: only}, new(Progress))
	}
	t.Run("files and folders", func(t *testing.T) {
		target := t.TempDir()
		write(t, filepath.Join(target, "db/users.dat"), "now")
		write(t, filepath.Join(target, "db/orders.dat"), "now")
		must(t, os.Chmod(filepath.Join(target, "db"), 0o700))
		before, err := os.Stat(target)
		must(t, err)
		got, err := restore(target, "logs/2026", "db/users.dat", "./logs/2026/a")
		must(t, err)
		if got.Files != 3 || got.TotalBytes != int64(len("stored db/users.dat")+2*len("stored logs/2026/a")) {
			t.Errorf("restored %d files, %d bytes", got.Files, got.TotalBytes)
		}
		for name, want := range map[string]string{"db/users.dat": "stored db/users.dat", "db/orders.dat": "now", "logs/2026/a": "stored logs/2026/a", "logs/2026/b": "stored logs/2026/b", "other": ""} {
			if data, _ := os.ReadFile(filepath.Join(target, name)); string(data) != want {
				t.Errorf("%s: %q, want %q", name, data, want)
			}
		}
		for name, want := range map[string]os.FileMode{"db": 0o700, "logs": 0o751, ".": before.Mode().Perm()} {
			if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	})
	t.Run("after one that was interrupted", func(t *testing.T) {
		target := t.TempDir()
		write(t, filepath.Join(target, "db/users.dat"), "now")
		left := (&output{snapshot: id}).besideName("db/users.dat")
		must(t, os.Symlink("/", filepath.Join(target, left))) // or a part of the file
		if left == (&output{snapshot: "earlier"}).besideName("db/users.dat") {
			t.Error("what the restore of another snapshot left, and this one may have, has the same name")
		}
		must(t, os.MkdirAll(filepath.Join(target, "other"), 0o755))
		_, err := restore(target, "db", "other")
		must(t, err)
		got := tree(t, target)
		for _, name := range []string{"db/users.dat", "db/orders.dat", "other"} {
			if data, _ := os.ReadFile(filepath.Join(target, name)); string(data) != "stored "+name {
				t.Errorf("%s: %q", name, data)
			}
		}
		if len(got) != 5 {
			t.Errorf("the volume has %v", got)
		}
		must(t, os.Remove(filepath.Join(target, "other")))
		write(t, filepath.Join(target, "other/file"), "stays")
		if _, err := restore(target, "other"); err == nil || len(tree(t, target)) != 6 {
			t.Errorf("a folder that is not empty: %v, %v", err, tree(t, target))
		}
	})
	t.Run("refused", func(t *testing.T) {
		target, outside := t.TempDir(), t.TempDir()
		must(t, os.Symlink(outside, filepath.Join(target, "logs")))
		for _, asked := range []string{"gone", "db/users.dat/x", "../other", "/other", ".", "", "db/../../x"} {
			if _, err := restore(target, "other", asked); err == nil {
				t.Errorf("%q was restored", asked)
			}
		}
		if _, err := restore(target, "logs/2026/a"); err == nil || !strings.Contains(err.Error(), "is no folder in the volume") {
			t.Errorf("through a link: %v", err)
		}
		if len(tree(t, outside)) > 1 || len(tree(t, target)) > 2 {
			t.Errorf("something was written: %v, %v", tree(t, target), tree(t, outside))
		}
	})
}

func TestRestoreOverExisting(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "folder/file"), "restored")
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	id := s.upload(t, dir, web).SnapshotID
	want := tree(t, dir)

	t.Run("replaces and keeps", func(t *testing.T) {
		target, outside := t.TempDir(), t.TempDir()
		write(t, filepath.Join(outside, "file"), "untouched")
		write(t, filepath.Join(target, "kept"), "kept")
		write(t, filepath.Join(target, "other name"), "untouched")
		// A link to elsewhere in the place of a folder, and a file in that of a link.
		must(t, os.Symlink(outside, filepath.Join(target, "folder")))
		must(t, os.Link(filepath.Join(target, "other name"), filepath.Join(target, "link")))
		s.restore(t, id, target)

		got := tree(t, target)
		for _, name := range []string{"kept", "other name"} {
			if data, err := os.ReadFile(filepath.Join(target, name)); err != nil || len(data) == 0 {
				t.Errorf("%s: %q, %v", name, data, err)
			}
			delete(got, name)
		}
		expectSameTree(t, got, want)
		if data, _ := os.ReadFile(filepath.Join(outside, "file")); string(data) != "untouched" {
			t.Errorf("a file outside of the volume became %q", data)
		}
	})
	t.Run("file by its hard link", func(t *testing.T) {
		target := t.TempDir()
		write(t, filepath.Join(target, "folder/file"), "old")
		must(t, os.Link(filepath.Join(target, "folder/file"), filepath.Join(target, "other name")))
		s.restore(t, id, target)
		if data, _ := os.ReadFile(filepath.Join(target, "other name")); string(data) != "old" {
			t.Errorf("the other name of a replaced file became %q", data)
		}
	})
	t.Run("full folder in the way", func(t *testing.T) {
		target := t.TempDir()
		write(t, filepath.Join(target, "folder/file/precious"), "data")
		var p Progress
		_, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: target}, &p)
		if p.Total() != int64(len("restored")) {
			t.Errorf("%d bytes were to be restored", p.Total())
		}
		if err == nil || !strings.Contains(err.Error(), `replace "folder/file"`) {
			t.Errorf("Restore = %v, want an error that names the folder", err)
		}
		if _, err := os.Stat(filepath.Join(target, "folder/file/precious")); err != nil {
			t.Error(err)
		}
	})
	t.Run("no such snapshot", func(t *testing.T) {
		_, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: "0123456789abcdef", Path: t.TempDir()}, new(Progress))
		if !errors.Is(err, ErrSnapshotNotFound) {
			t.Errorf("Restore = %v, want ErrSnapshotNotFound", err)
		}
	})
}

// TestFolderThatChanges: a folder to which something comes, or from which something goes, after it was
// listed in its own and before all of it was, is a warning. So a file that is moved meanwhile and is in
// neither listing is no loss without a word. Who only reads a folder changes nothing.
func TestFolderThatChanges(t *testing.T) {
	s := newStore(t)
	for name, test := range map[string]struct {
		folder string // when it is listed
		change func(dir string) error
		want   []string
	}{
		"a file moved between listings": {"to", func(dir string) error {
			return os.Rename(filepath.Join(dir, "from/file"), filepath.Join(dir, "to/file"))
		}, []string{`"from" changed while it was read`, `"to" changed while it was read`}},
		"another mode":  {"to", func(dir string) error { return os.Chmod(filepath.Join(dir, "to"), 0o700) }, []string{`"to" changed while it was read`}},
		"the root":      {".", func(dir string) error { return os.Mkdir(filepath.Join(dir, "new"), 0o755) }, []string{`"." changed while it was read`}},
		"only read":     {"to", func(dir string) error { _, err := os.ReadDir(filepath.Join(dir, "to")); return err }, nil},
		"a file's time": {"to", func(dir string) error { return os.Chtimes(filepath.Join(dir, "to/kept"), time.Time{}, time.Now()) }, nil},
	} {
		for _, last := range []bool{false, true} { // also where the last snapshot's listings could be used again
			t.Run(fmt.Sprintf("%s, last %v", name, last), func(t *testing.T) {
				dir, at := t.TempDir(), time.Now().Add(-time.Hour)
				for _, name := range []string{"from/kept", "from/file", "to/kept"} {
					write(t, filepath.Join(dir, name), "content")
				}
				for _, name := range []string{"from", "to", "."} {
					must(t, os.Chtimes(filepath.Join(dir, name), at, at))
				}
				var n notes
				vol, err := openVolume(Folder{Path: dir}, &n, new(Progress))
				must(t, err)
				defer vol.close()
				root, err := vol.folder()
				must(t, err)
				if last {
					id := s.upload(t, dir, Source{Namespace: "app", Pod: t.Name(), Volume: "data"}).SnapshotID
					r := s.open(t)
					man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), manifest.ID(id))
					must(t, err)
					root.relyOn(r.Kopia(), man, new(Progress))
				}
				open := func(d *volumeDir) (kopiafs.DirectoryIterator, bool) {
					stored, err := d.DirEntryOrNil(t.Context())
					must(t, err)
					it, err := d.Iterate(t.Context())
					must(t, err)
					return it, stored == nil
				}
				list := func(it kopiafs.DirectoryIterator) (found []*volumeDir) {
					defer it.Close()
					for {
						e, err := it.Next(t.Context())
						must(t, err)
						if e == nil {
							return found
						}
						if d, ok := e.(*volumeDir); ok {
							found = append(found, d)
						}
					}
				}
				if test.folder == "." {
					it, _ := open(root)
					must(t, test.change(dir))
					list(it)
				} else {
					it, _ := open(root)
					folders := list(it)
					must(t, test.change(dir))
					for _, d := range folders {
						if it, ask := open(d); ask {
							list(it)
						} else {
							it.Close()
						}
					}
				}
				got := slices.Sorted(slices.Values(n.warnings().First))
				if !slices.Equal(got, test.want) {
					t.Errorf("the warnings are %q, want %q", got, test.want)
				}
			})
		}
	}
}
