// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
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
	c, err := openConfined(dir)
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
