// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// stored is what an upload comes to.
type stored struct {
	Root        *snapshot.DirEntry
	Stats       snapshot.Stats
	Read        int64 // bytes of files
	Done, Files int64 // of the progress
	Extras      []string
	Warnings    Warnings
}

// storedAgain uploads a folder, of which there is a snapshot unless last is nil. With reuse its
// listings are used again, else Kopia's uploader decides about each file. It returns how many
// files are in those that were.
func storedAgain(t *testing.T, s store, dir string, last *snapshot.Manifest, reuse bool) (_ *snapshot.Manifest, got stored, reused int64) {
	t.Helper()
	var n notes
	vol, err := openVolume(Folder{Path: dir}, &n, new(Progress))
	must(t, err)
	defer vol.close()
	folder, err := vol.folder()
	must(t, err)
	var p Progress
	var previous []*snapshot.Manifest
	if last != nil {
		previous = append(previous, last)
	}
	if reuse {
		folder.relyOn(s.client(t).Kopia(), last, &p)
	}
	var man *snapshot.Manifest
	must(t, repo.WriteSession(t.Context(), s.client(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		man, err = uploadFolder(ctx, w, folder, uploadPolicy(), web.info(w.ClientOptions(), requester), nil, previous, &uploadObserver{progress: &p, notes: &n})
		return err
	}))
	vol.last.addTo(&man.Stats)
	if vol.last != nil {
		reused = vol.last.files.Load()
	}
	files, _ := p.Files()
	got = stored{man.RootEntry, man.Stats, vol.read.Load(), p.Done(), files, collected(t, vol.extras), n.warnings()}
	return man, got, reused
}

// oddNames are of files, and need care in JSON.
var oddNames = []string{`quote"`, `","obj":"x"},`, `],"summary":`, `back\slash`, "line\nfeed", "<&>", "ünï", "delete\x7f", "\u2028", " "}

// TestUnchangedListings: with listings used again an upload comes to what it comes to without,
// whatever has changed in a volume since the last snapshot, and where nothing has they are.
func TestUnchangedListings(t *testing.T) {
	s := newStore(t)
	long := time.Date(2020, 1, 2, 3, 4, 5, 60_000_000, time.UTC)
	const perFolder = 7
	content := map[string]string{}
	for i := range perFolder {
		content[fmt.Sprint("a/file", i)] = fmt.Sprint("content ", i)
		content[fmt.Sprint("mixed/below/file", i)] = fmt.Sprint("below ", i)
	}
	content["mixed/file"] = "beside a folder"
	for _, name := range oddNames {
		content["odd/"+name] = name
	}
	all := int64(2*perFolder + len(oddNames) + 2) // but for mixed/file, and with the link and far/ahead
	build := func(t *testing.T) string {
		dir := t.TempDir()
		for name, content := range content {
			write(t, filepath.Join(dir, name), content)
			must(t, os.Chtimes(filepath.Join(dir, name), long, long))
		}
		must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
		must(t, os.Symlink("file0", filepath.Join(dir, "a/link")))
		if os.Getuid() == 0 {
			must(t, os.Chmod(filepath.Join(dir, "odd", oddNames[0]), 0))
		}
		write(t, filepath.Join(dir, "far/ahead"), "later")
		ahead := time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC) // later than a snapshot can hold
		at := unix.Timespec{Sec: ahead.Unix()}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "far/ahead"), []unix.Timespec{at, at}, 0))
		must(t, os.Chmod(filepath.Join(dir, "odd", oddNames[1]), 0o755|os.ModeSetuid))
		for i, at := range []time.Time{time.Unix(0, 0), time.Unix(-5, 7), time.Unix(1<<33, 0)} {
			must(t, os.Chtimes(filepath.Join(dir, "odd", oddNames[2+i]), at, at))
		}
		must(t, os.Link(filepath.Join(dir, "a/file1"), filepath.Join(dir, "mixed/below/other name")))
		return dir
	}
	all++ // the other name
	for _, test := range []struct {
		name   string
		change func(t *testing.T, dir string) error
		lost   int64 // files whose listings are not used again
	}{
		{"nothing", func(*testing.T, string) error { return nil }, 0},
		{"content, size and time", func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, "a/file3"), []byte("new"), 0o644)
		}, perFolder + 1},
		{"content and time", func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, "a/file3"), []byte("CONTENT 3"), 0o644)
		}, perFolder + 1},
		{"time by a nanosecond", func(t *testing.T, dir string) error {
			at := long.Add(1)
			return os.Chtimes(filepath.Join(dir, "odd/ünï"), at, at)
		}, int64(len(oddNames))},
		{"content and size, not its time", func(t *testing.T, dir string) error {
			path := filepath.Join(dir, "mixed/below/file6")
			if err := os.WriteFile(path, []byte("longer than it was"), 0o644); err != nil {
				return err
			}
			return os.Chtimes(path, long, long)
		}, perFolder + 1},
		{"mode", func(t *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, "a/file0"), 0o600) }, perFolder + 1},
		{"a bit beside the mode", func(t *testing.T, dir string) error {
			return os.Chmod(filepath.Join(dir, "a/file0"), 0o644|os.ModeSticky)
		}, perFolder + 1},
		{"new file", func(t *testing.T, dir string) error { return os.WriteFile(filepath.Join(dir, "a/new"), nil, 0o644) }, perFolder + 1},
		{"file in an empty folder", func(t *testing.T, dir string) error { return os.WriteFile(filepath.Join(dir, "empty/new"), nil, 0o644) }, 0},
		{"file is gone", func(t *testing.T, dir string) error { return os.Remove(filepath.Join(dir, "odd/<&>")) }, int64(len(oddNames))},
		{"other name", func(t *testing.T, dir string) error {
			return os.Rename(filepath.Join(dir, "a/file0"), filepath.Join(dir, "a/file9"))
		}, perFolder + 1},
		{"two have changed names", func(t *testing.T, dir string) error {
			one, other, third := filepath.Join(dir, "a/file0"), filepath.Join(dir, "a/file2"), filepath.Join(dir, "third")
			return errors.Join(os.Rename(one, third), os.Rename(other, one), os.Rename(third, other))
		}, 0}, // as Kopia sees it
		{"link in the place of a file", func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "a/file0")), os.Symlink("file11111", filepath.Join(dir, "a/file0")))
		}, perFolder + 1},
		{"link elsewhere", func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "a/link")), os.Symlink("file1", filepath.Join(dir, "a/link")))
		}, perFolder + 1},
		{"pipe", func(t *testing.T, dir string) error { return syscall.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600) }, perFolder + 1},
		{"new folder in one of files", func(t *testing.T, dir string) error { return os.Mkdir(filepath.Join(dir, "a/folder"), 0o755) }, perFolder + 1},
		{"folder's own mode and time", func(t *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, "a"), 0o700) }, 0},
		{"folder is gone", func(t *testing.T, dir string) error { return os.RemoveAll(filepath.Join(dir, "a")) }, perFolder + 1},
		{"folder has moved", func(t *testing.T, dir string) error {
			return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b"))
		}, perFolder + 1},
		{"folder beside a folder", func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, "mixed/new"), []byte("new"), 0o644)
		}, 0},
		{"attribute", func(t *testing.T, dir string) error {
			setAttribute(t, filepath.Join(dir, "a/file0"), "user.new", "value")
			return nil
		}, 0},
		{"further name", func(t *testing.T, dir string) error {
			return os.Link(filepath.Join(dir, "a/file0"), filepath.Join(dir, "mixed/name"))
		}, 0},
		{"name that is not UTF-8, gone again", func(t *testing.T, dir string) error {
			name := filepath.Join(dir, "a/\xff")
			return errors.Join(os.WriteFile(name, nil, 0o644), os.Remove(name))
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := build(t)
			last, first, _ := storedAgain(t, s, dir, nil, false)
			if err := test.change(t, dir); err != nil {
				t.Fatal(err)
			}
			_, want, _ := storedAgain(t, s, dir, last, false)
			_, got, reused := storedAgain(t, s, dir, last, true)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b object.ID) bool { return a == b })); diff != "" {
				t.Errorf("with listings used again it differs (-without +with):\n%s", diff)
			}
			if reused != all-test.lost {
				t.Errorf("listings of %d files are used again, want %d", reused, all-test.lost)
			}
			if test.name == "nothing" && (got.Read != 0 || got.Root.ObjectID != first.Root.ObjectID) {
				t.Errorf("of what has not changed, %d bytes were read", got.Read)
			}
		})
	}
}

// TestListingsThatAreNotUsedAgain: folders in folders are found all the same.
func TestListingsThatAreNotUsedAgain(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 3 {
		write(t, filepath.Join(dir, fmt.Sprint("folder/file", i)), "content")
	}
	last, first, _ := storedAgain(t, s, dir, nil, false)
	root := objectOf(t, s, last.RootEntry.ObjectID)
	folder := foldersOf(t.Context(), strings.NewReader(root))["folder"]
	listing := objectOf(t, s, folder)
	if files, _, ok := cutListing(listing); !ok || len(files) != 3 {
		t.Fatalf("of %s there are %v", listing, files)
	}
	for cut := range listing {
		if files, end, ok := cutListing(listing[:cut]); ok && len(files) != 3 || ok && strings.HasSuffix(end, "}\n") {
			t.Errorf("%q is a listing of %v", listing[:cut], files)
		}
		_ = foldersOf(t.Context(), strings.NewReader(listing[:cut]))
	}

	for name, change := range map[string]func(string) string{
		"a file could not be stored": func(l string) string { return strings.Replace(l, `"numFailed":0`, `"numFailed":1`, 1) },
		"a checkpoint": func(l string) string {
			return strings.Replace(l, `,"numFailed"`, `,"incomplete":"checkpoint","numFailed"`, 1)
		},
		"a file twice": func(l string) string { return strings.Replace(l, "file1", "file0", 1) },
		"no listing":   func(l string) string { return "[]" },
	} {
		t.Run(name, func(t *testing.T) {
			changed := change(listing)
			if changed == listing {
				t.Fatal("nothing has changed")
			}
			man, entry := *last, *last.RootEntry
			man.RootEntry = &entry
			entry.ObjectID = putObject(t, s, strings.Replace(root, folder.String(), putObject(t, s, changed).String(), 1))
			if _, got, reused := storedAgain(t, s, dir, &man, true); reused != 0 || got.Root.ObjectID != first.Root.ObjectID {
				t.Errorf("%d files of it are used again: %v, want %v", reused, got.Root, first.Root)
			}
		})
	}
	t.Run("too long", func(t *testing.T) {
		defer func(most int64) { longestListing = most }(longestListing)
		for most, want := range map[int64]int64{int64(len(root)) - 1: 0, int64(max(len(root), len(listing))): 3} {
			longestListing = most
			if _, got, reused := storedAgain(t, s, dir, last, true); reused != want || got.Read != 0 {
				t.Errorf("up to %d bytes, %d files are used again, and %d bytes read", most, reused, got.Read)
			}
		}
	})
	t.Run("too many folders", func(t *testing.T) {
		defer func(most int) { mostFolders = most }(mostFolders)
		for most, want := range []int64{0, 3} {
			mostFolders = most
			if _, got, reused := storedAgain(t, s, dir, last, true); reused != want || got.Read != 0 || got.Root.ObjectID != first.Root.ObjectID {
				t.Errorf("up to %d folders, %d files are used again, and %d bytes read", most, reused, got.Read)
			}
		}
	})
	t.Run("gone", func(t *testing.T) {
		man, entry := *last, *last.RootEntry
		man.RootEntry = &entry
		var err error
		entry.ObjectID, err = object.ParseID("k" + strings.Repeat("0", 32))
		must(t, err)
		if _, got, reused := storedAgain(t, s, dir, &man, true); reused != 0 || got.Root.ObjectID != first.Root.ObjectID {
			t.Errorf("%d files, %v", reused, got.Root)
		}
	})
}

// endsAfter is a context that ends when it has been asked a number of times whether it has.
type endsAfter struct {
	context.Context
	asked *int
}

func (c endsAfter) Err() error {
	if *c.asked--; *c.asked < 0 {
		return context.Canceled
	}
	return nil
}

// A cancellation takes effect in the middle of a folder, however many files or folders it has.
func TestCancelledInAFolder(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 20 {
		write(t, filepath.Join(dir, fmt.Sprint("files/", i)), "content")
		must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("folders/", i)), 0o755))
	}
	last, _, _ := storedAgain(t, s, dir, nil, false)
	listings := foldersOf(t.Context(), strings.NewReader(objectOf(t, s, last.RootEntry.ObjectID)))
	files, _, ok := cutListing(objectOf(t, s, listings["files"]))
	if !ok {
		t.Fatal("there is no listing of files")
	}
	folders := objectOf(t, s, listings["folders"])
	for after, whole := range map[int]bool{0: false, 7: false, 30: true} {
		vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
		must(t, err)
		defer vol.close()
		folder := &volumeDir{volumeEntry: volumeEntry{volume: vol}, path: "files"}
		defer folder.Close()
		asked := after
		_, _, same := folder.compare(endsAfter{t.Context(), &asked}, maps.Clone(files))
		if seen := len(folder.begun.seen); same != whole || seen != min(after, len(files)) {
			t.Errorf("cancelled after %d files, it has looked at %d", after, seen)
		}
		asked = after
		if found := foldersOf(endsAfter{t.Context(), &asked}, strings.NewReader(folders)); (found != nil) != whole || !whole && asked != -1 {
			t.Errorf("cancelled after %d folders, it has found %d, and asked %d times more", after, len(found), -1-asked)
		}
	}
}

func objectOf(t *testing.T, s store, id object.ID) string {
	t.Helper()
	r, err := s.client(t).Kopia().OpenObject(t.Context(), id)
	must(t, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	must(t, err)
	return string(content)
}

func putObject(t *testing.T, s store, content string) (id object.ID) {
	t.Helper()
	must(t, repo.WriteSession(t.Context(), s.client(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		o := w.NewObjectWriter(ctx, object.WriterOptions{Prefix: "k"})
		defer o.Close()
		if _, err = io.WriteString(o, content); err == nil {
			id, err = o.Result()
		}
		return err
	}))
	return id
}
