// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSurplus: files that a volume has and the snapshot does not are removed if that is asked for, and
// the volume is as it was. Else they stay, and a warning counts them.
func TestSurplus(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "db/table"), "old")
	write(t, filepath.Join(dir, "db/log/0001"), "old")
	write(t, filepath.Join(dir, "was a file"), "file")
	must(t, os.MkdirAll(filepath.Join(dir, "was a folder"), 0o750))
	must(t, os.Symlink("db", filepath.Join(dir, "link")))
	id := s.upload(t, dir, web).SnapshotID
	want := tree(t, dir)

	// later is a volume some time after the backup.
	later := func(t *testing.T) (target, outside string) {
		target, outside = t.TempDir(), t.TempDir()
		s.restore(t, id, target)
		write(t, filepath.Join(outside, "file"), "untouched")
		write(t, filepath.Join(target, "db/log/0002"), "new")
		write(t, filepath.Join(target, "db/deep/er/file"), "new")
		must(t, os.MkdirAll(filepath.Join(target, "db/deep/empty"), 0o755))
		must(t, os.Symlink(outside, filepath.Join(target, "db/away")))
		must(t, unix.Mkfifo(filepath.Join(target, "pipe"), 0o600))
		write(t, filepath.Join(target, "not \xff utf-8"), "new")
		must(t, os.MkdirAll(filepath.Join(target, "lost+found"), 0o700))
		return target, outside
	}
	restore := func(t *testing.T, target string, replace bool) (RestoreResult, error) {
		t.Helper()
		return Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: target, Replace: replace}, new(Progress))
	}

	t.Run("replace", func(t *testing.T) {
		target, outside := later(t)
		must(t, os.Remove(filepath.Join(target, "was a file")))
		write(t, filepath.Join(target, "was a file/with/more"), "new")
		must(t, os.Remove(filepath.Join(target, "was a folder")))
		write(t, filepath.Join(target, "was a folder"), "new")
		must(t, os.Remove(filepath.Join(target, "link")))
		write(t, filepath.Join(target, "link/file"), "new")
		result, err := restore(t, target, true)
		must(t, err)
		if result.Warnings.Count != 0 || result.Removed < 9 {
			t.Errorf("Restore = %+v", result)
		}
		got := tree(t, target)
		if _, kept := got["lost+found"]; !kept {
			t.Error("the folder of the file system was removed")
		}
		delete(got, "lost+found")
		expectSameTree(t, got, want)
		if data, err := os.ReadFile(filepath.Join(outside, "file")); string(data) != "untouched" {
			t.Errorf("a file outside of the volume became %q, %v", data, err)
		}
	})
	t.Run("overwrite", func(t *testing.T) {
		target, _ := later(t)
		before := tree(t, target)
		result, err := restore(t, target, false)
		must(t, err)
		if len(tree(t, target)) != len(before) || result.Removed != 0 {
			t.Errorf("something was removed: %+v", result)
		}
		// 0002, deep/er/file, away, pipe, and the name that is not UTF-8.
		if text := result.Warnings.String(); result.Warnings.Count != 1 || !strings.HasSuffix(text, "is not in the backup, and stays; so do 4 other files") {
			t.Errorf("the warnings are %q", text)
		}
	})
	t.Run("nothing besides", func(t *testing.T) {
		target := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(target, "lost+found"), 0o700))
		if result, err := restore(t, target, false); err != nil || result.Warnings.Count != 0 {
			t.Errorf("Restore = %+v, %v", result, err)
		}
	})
	t.Run("paths", func(t *testing.T) {
		target, _ := later(t)
		before := tree(t, target)
		result, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: target, Only: []string{"db"}, Replace: true}, new(Progress))
		must(t, err)
		if len(tree(t, target)) != len(before) || result.Warnings.Count != 0 {
			t.Errorf("Restore = %+v", result)
		}
	})
}

// TestSurplusOfAnotherFileSystem: what is mounted in a volume is no part of it, and stays with all below.
func TestSurplusOfAnotherFileSystem(t *testing.T) {
	target := t.TempDir()
	write(t, filepath.Join(target, "mounted/precious"), "another file system")
	write(t, filepath.Join(target, "file"), "of the volume")
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	o := &output{root: root, progress: new(Progress)}
	must(t, o.surplus.begin(root, true))
	o.surplus.device++ // so that each folder lies on another one
	must(t, o.settleSurplus(t.Context(), "", nil))
	o.surplus.tell(&o.notes)
	if data, err := os.ReadFile(filepath.Join(target, "mounted/precious")); err != nil || len(data) == 0 {
		t.Errorf("a file of another file system: %v", err)
	}
	if o.surplus.removed != 1 {
		t.Errorf("%d files were removed, want 1", o.surplus.removed)
	}
	if text := o.notes.warnings().String(); text != `"mounted" is not in the backup, and could not be removed: another file system is mounted there` {
		t.Errorf("the warnings are %q", text)
	}
}

// TestSurplusInPieces: more surplus files than are kept in memory at once go, too.
func TestSurplusInPieces(t *testing.T) {
	target := t.TempDir()
	for i := range 257 {
		write(t, filepath.Join(target, fmt.Sprint(i)), "new")
	}
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	o := &output{root: root, progress: new(Progress)}
	must(t, o.surplus.begin(root, true))
	o.surplus.most = 16
	must(t, o.settleSurplus(t.Context(), "", nil))
	if left := tree(t, target); len(left) != 1 || o.surplus.removed != 257 {
		t.Errorf("%d of 257 files were removed: %v", o.surplus.removed, left)
	}
}
