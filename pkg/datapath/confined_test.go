// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A link on the way is followed inside of the folder, and never out of it, whether something is
// opened or made.
func TestConfined(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "file"), "of the node")
	write(t, filepath.Join(dir, "folder/file"), "of the volume")
	must(t, os.Symlink("folder", filepath.Join(dir, "inside")))
	must(t, os.Symlink(outside, filepath.Join(dir, "outside")))
	must(t, os.Symlink(filepath.Join(outside, "made"), filepath.Join(dir, "made")))
	c, err := openConfined(Folder{Path: dir}, new(calls))
	must(t, err)
	defer c.Close()
	const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	for _, test := range []struct {
		path  string
		flags int
		fine  bool
	}{
		{"folder/file", os.O_RDONLY, true},
		{"inside/file", os.O_RDONLY, true},
		{"inside/made", create, true},
		{"folder/made", create, false}, // it is the one before
		{"outside/file", os.O_RDONLY, false},
		{"outside/made", create, false},
		{"made", create, false},
		{"../made", create, false},
	} {
		h, err := c.handle(test.path, test.flags)
		if err == nil != test.fine {
			t.Errorf("%s: %v", test.path, err)
		}
		if err == nil {
			must(t, h.close())
		}
	}
	if _, err := os.Lstat(filepath.Join(outside, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made outside: %v", err)
	}
}

// TestFolderBelowRoot: below a root no link is followed to a folder, and nothing above it is
// reached; what was opened is meant, whatever takes its place.
func TestFolderBelowRoot(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "a/b/file"), "of the volume")
	write(t, filepath.Join(outside, "b/file"), "of the node")
	must(t, os.Symlink("a", filepath.Join(root, "within")))
	must(t, os.Symlink(outside, filepath.Join(root, "out")))
	must(t, os.Symlink("b", filepath.Join(root, "a/itself")))
	const link = "symbolic link"
	for _, test := range []struct{ path, root, problem string }{
		{filepath.Join(root, "a/b"), root, ""},
		{root + "//a/b/", root, ""},
		{root, root, ""},
		{filepath.Join(root, "within/b"), root, link},
		{filepath.Join(root, "out/b"), root, link},
		{filepath.Join(root, "out"), root, link},
		{filepath.Join(root, "a/itself"), root, link},
		{root + "/../" + filepath.Base(outside), root, "cross-device link"},
		{outside, root, "cross-device link"},
		{filepath.Join(root, "a/b/file"), root, "not a directory"},
		{filepath.Join(root, "none"), root, "no such file"},
		{filepath.Join(root, "none/a"), filepath.Join(root, "none"), "is it mounted into the agent's pod"},
	} {
		c, err := openConfined(Folder{Path: test.path, Root: test.root}, new(calls))
		switch {
		case err == nil:
			must(t, c.Close())
			if test.problem != "" {
				t.Errorf("%s was opened", test.path)
			}
		case test.problem == "" || !strings.Contains(err.Error(), test.problem):
			t.Errorf("%s: %v, want an error about %q", test.path, err, test.problem)
		}
	}

	c, err := openConfined(Folder{Path: filepath.Join(root, "a/b"), Root: root}, new(calls))
	must(t, err)
	defer c.Close()
	must(t, c.stillThere())
	must(t, os.Rename(filepath.Join(root, "a"), filepath.Join(root, "moved")))
	must(t, os.Symlink(outside, filepath.Join(root, "a")))
	if content, err := c.root.ReadFile("file"); err != nil || string(content) != "of the volume" {
		t.Errorf("it has %q, %v", content, err)
	}
	for _, target := range []string{outside, "moved"} { // the very folder, too
		must(t, os.Remove(filepath.Join(root, "a")))
		must(t, os.Symlink(target, filepath.Join(root, "a")))
		if err := c.stillThere(); err == nil || !strings.Contains(err.Error(), link) {
			t.Errorf("with a link to %s in its place: %v", target, err)
		}
	}
	must(t, os.Remove(filepath.Join(root, "a")))
	must(t, os.Rename(filepath.Join(root, "moved"), filepath.Join(root, "a")))
	must(t, c.stillThere())
}
