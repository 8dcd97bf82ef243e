// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/fs"
	"golang.org/x/sys/unix"
)

// objectsOf counts the objects that are made for each of some files, the least of several
// times: what else goes on in the process makes some, too.
func objectsOf(files int, do func()) float64 {
	least := math.Inf(1)
	for range 5 {
		least = min(least, testing.AllocsPerRun(1, do)/float64(files))
	}
	return least
}

// A file that is listed takes its entry, its name, and the name for each of two calls of the
// kernel; one that is only measured its name twice.
func TestObjectsOfListing(t *testing.T) {
	const files = 600
	dir := t.TempDir()
	for i := range files {
		write(t, filepath.Join(dir, fmt.Sprintf("folder-%d/file-%d", i%2, i)), "x")
	}
	vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
	must(t, err)
	defer vol.close()
	root, err := vol.folder()
	must(t, err)
	seen := 0
	var walk func(context.Context, fs.Entry) error
	walk = func(ctx context.Context, e fs.Entry) error {
		if folder, ok := e.(fs.Directory); ok {
			return fs.IterateEntries(ctx, folder, walk)
		}
		seen++
		return nil
	}
	if got := objectsOf(files, func() { must(t, walk(t.Context(), root)) }); got > 4.5 || seen%files != 0 {
		t.Errorf("%v objects for each file that is listed, %d files", got, seen)
	}
	var bytes, counted int64
	if got := objectsOf(files, func() { bytes, counted = vol.size(t.Context(), ".") }); got > 2.5 || bytes != files || counted != files {
		t.Errorf("%v objects for each file that is measured, %d of %d bytes", got, counted, bytes)
	}
}

// Some file systems number files by 0, and list them all the same.
func TestFilesNumberedByZero(t *testing.T) {
	vol, err := openVolume(Folder{Path: t.TempDir()}, new(notes), new(Progress))
	must(t, err)
	defer vol.close()
	root, err := vol.folder()
	must(t, err)
	it, err := root.Iterate(t.Context())
	must(t, err)
	defer it.Close()
	entry := make([]byte, 24)
	binary.NativeEndian.PutUint16(entry[listedLength:], uint16(len(entry)))
	copy(entry[listedName:], "file")
	listing := it.(*volumeIterator)
	listing.rest = entry
	if name, err := listing.name(); name != "file" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
}

// What is listed is as os tells of it, in a folder that takes several calls, and until it is
// gone.
func TestListing(t *testing.T) {
	dir := t.TempDir()
	const files = 600
	for i := range files {
		write(t, filepath.Join(dir, fmt.Sprintf("a-file-with-a-rather-long-name-%d", i)), fmt.Sprint(i))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	write(t, filepath.Join(dir, "tool"), "tool")
	must(t, os.Chmod(filepath.Join(dir, "tool"), 0o755|os.ModeSetuid|os.ModeSetgid))
	must(t, os.Chmod(filepath.Join(dir, "folder"), 0o777|os.ModeSticky))
	long := time.Date(1901, 2, 3, 4, 5, 6, 7, time.UTC)
	must(t, os.Chtimes(filepath.Join(dir, "tool"), long, long))
	must(t, os.Chtimes(dir, long, long))

	var n notes
	vol, err := openVolume(Folder{Path: dir}, &n, new(Progress))
	must(t, err)
	defer vol.close()
	root, err := vol.folder()
	must(t, err)
	it, err := root.Iterate(t.Context())
	must(t, err)
	defer it.Close()
	seen := map[string]bool{}
	gone := ""
	for {
		e, err := it.Next(t.Context())
		must(t, err)
		if e == nil {
			break
		}
		info, err := os.Lstat(filepath.Join(dir, e.Name()))
		must(t, err)
		stat := info.Sys().(*syscall.Stat_t)
		size := info.Size()
		if info.IsDir() {
			size = 0
		}
		if seen[e.Name()] || e.Mode() != info.Mode() || e.Size() != size || !e.ModTime().Equal(info.ModTime()) || e.IsDir() != info.IsDir() || e.Owner() != (fs.OwnerInfo{UserID: stat.Uid, GroupID: stat.Gid}) {
			t.Errorf("%s is listed with %v, %d bytes, of %v, again: %v; want %v, %d, %v", e.Name(), e.Mode(), e.Size(), e.ModTime(), seen[e.Name()], info.Mode(), size, info.ModTime())
		}
		seen[e.Name()] = true
		if listing := it.(*volumeIterator); gone == "" {
			// What comes next has been listed by the kernel already, as many do that come first.
			rest := listing.rest
			if gone, err = listing.name(); gone == "pipe" {
				gone = ""
			}
			must(t, err)
			listing.rest = rest
			if gone != "" {
				must(t, os.RemoveAll(filepath.Join(dir, gone)))
			}
		}
	}
	if len(seen) != files+3-1 || seen[gone] || gone == "" {
		t.Errorf("%d of %d are listed, %q was removed", len(seen), files+3, gone)
	}
	if w := n.warnings(); w.Count != 3 { // the pipe, what is gone, and so the folder
		t.Errorf("the warnings are %v", w)
	}
	for mode, want := range map[uint32]os.FileMode{
		unix.S_IFSOCK | 0o1:   os.ModeSocket | 0o1,
		unix.S_IFBLK | 0o2:    os.ModeDevice | 0o2,
		unix.S_IFCHR | 0o4:    os.ModeDevice | os.ModeCharDevice | 0o4,
		0o170000 | 0o7:        os.ModeIrregular | 0o7,
		unix.S_IFIFO | 0o1777: os.ModeNamedPipe | os.ModeSticky | 0o777,
	} {
		if got := modeOf(mode); got != want {
			t.Errorf("%o is %v, want %v", mode, got, want)
		}
	}
}
