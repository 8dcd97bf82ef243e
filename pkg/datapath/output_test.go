// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/kopia/kopia/fs"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// An attribute that a file system does not have, or that is not to be given, is a warning;
// one that could not be set for another reason is an error.
func TestAttributesThatCannotBeSet(t *testing.T) {
	target := t.TempDir()
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	write(t, filepath.Join(target, "file"), "content")
	must(t, os.Mkdir(filepath.Join(target, "folder"), 0o755))
	long := "user." + strings.Repeat("n", 300)
	for _, test := range []struct {
		attribute, value string
		err              error
		warning          string
	}{
		{"user.comment", "fine", nil, ""},
		{"user.large", strings.Repeat("x", 70_000), unix.E2BIG, ""},
		{long, "", unix.ERANGE, ""},
		{"system.posix_acl_access", "no list", nil, "did not get its attribute system.posix_acl_access"},
		{"system.posix_acl_access", "no", nil, "did not get its attribute system.posix_acl_access"}, // not even a header
		{"system.unknown", "", nil, "did not get its attribute system.unknown"},
		{"trusted.other", "not to be set", nil, ""},
	} {
		for _, name := range []string{"file", "folder"} {
			attributes := map[string][]byte{test.attribute: []byte(test.value)}
			o := &output{root: root, progress: new(Progress), extras: new(packed)}
			info, err := root.Stat(name)
			must(t, err)
			f, err := root.handle(name, os.O_RDONLY)
			must(t, err)
			err = o.finish(f, name, &entry{FileInfo: info, owner: fs.OwnerInfo{UserID: uint32(os.Geteuid()), GroupID: uint32(os.Getegid())}}, extra{Attributes: attributes})
			if !errors.Is(err, test.err) || err != nil && !strings.Contains(err.Error(), `set the attribute `+test.attribute+` of "`+name+`"`) {
				t.Errorf("%s of a %s: %v, want %v", test.attribute, name, err, test.err)
			}
			if warnings := o.notes.warnings().String(); warnings != "" != (test.warning != "") || !strings.Contains(warnings, test.warning) {
				t.Errorf("%s of a %s: the warnings are %s", test.attribute, name, warnings)
			}
			got, err := attributesAt(filepath.Join(target, name))
			if set := err == nil && got[test.attribute] != nil; set != (test.value == "fine") {
				t.Errorf("%s of a %s: there is %q, %v", test.attribute, name, got, err)
			}
		}
	}
	if size, err := unix.Lgetxattr(filepath.Join(target, "file"), "trusted.other", nil); !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("an attribute of the node's own was set, with %d bytes, %v", size, err)
	}
}

// Names that could not be made are errors.
func TestLinksThatFail(t *testing.T) {
	target := t.TempDir()
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	write(t, filepath.Join(target, "file"), "content")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx      context.Context
		from, to string
		err      error
	}{
		"of what is gone":   {t.Context(), "none", "new", os.ErrNotExist},
		"in what is gone":   {t.Context(), "file", "none/new", os.ErrNotExist},
		"when it is over":   {ended, "file", "late", context.Canceled},
		"out of the volume": {t.Context(), "file", "../new", nil},
	} {
		o := &output{root: root}
		o.extras, o.links = linked(t, test.from, test.to)
		if err := o.Close(test.ctx); err == nil || test.err != nil && !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(target); err != nil || len(left) != 1 {
		t.Errorf("there is %v, %v", left, err)
	}
}

// linked are the lines of two names, the second of which is to be one of the first.
func linked(t *testing.T, from, to string) (*packed, []link) {
	t.Helper()
	lines := new(packed)
	must(t, errors.Join(lines.add(from, nil), lines.add(to, nil), lines.finish()))
	return lines, []link{{0, 1}}
}

// A default list that could not be removed is told: what is made in the folder inherits it.
func TestDefaultListThatStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a folder of another owner is needed")
	}
	target := t.TempDir()
	must(t, os.Chmod(filepath.Dir(target), 0o755))
	must(t, os.Chmod(target, 0o755))
	setAttribute(t, target, "system.posix_acl_default", acl(4321, 7))
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	o := &output{root: root, extras: new(packed)}
	asNobody(t)
	_, err = o.BeginDirectory(t.Context(), "")
	must(t, err)
	if warnings := o.notes.warnings().String(); warnings != `"." has kept a default access control list` {
		t.Errorf("the warnings are %s", warnings)
	}
	f, err := o.openFolder(".")
	must(t, err)
	must(t, o.removeOthers(f, ".", extra{}))
	must(t, f.close())
	if warnings := o.notes.warnings().String(); !strings.Contains(warnings, `"." has kept its attribute system.posix_acl_default`) {
		t.Errorf("the warnings of what it did not have are %s", warnings)
	}
	must(t, root.Close())
	if _, err := o.BeginDirectory(t.Context(), ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed volume: %v", err)
	}
}

// A large file is read in parts, by as many readers as there may be.
func TestCopyInParts(t *testing.T) {
	const size = 2*partSize + 5
	dir := t.TempDir()
	disk, err := os.Create(filepath.Join(dir, "disk"))
	must(t, err)
	for _, at := range []int64{0, partSize - 2, 2*partSize - 2, size - 4} {
		_, err := disk.WriteAt([]byte("data"), at)
		must(t, err)
	}
	must(t, disk.Close())
	vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
	must(t, err)
	defer vol.close()
	folder, err := vol.folder()
	must(t, err)
	child, err := folder.Child(t.Context(), "disk")
	must(t, err)
	file := child.(fs.File)

	target := t.TempDir()
	for name, test := range map[string]struct {
		again func(context.Context) (fs.Reader, error)
		err   error
	}{
		"by two readers":             {file.Open, nil},
		"by one that can't be there": {func(context.Context) (fs.Reader, error) { return nil, errBad }, errBad},
	} {
		to, err := os.Create(filepath.Join(target, "disk"))
		must(t, err)
		from, err := file.Open(t.Context())
		must(t, err)
		o := &output{progress: new(Progress), readers: semaphore.NewWeighted(1)}
		if err := o.copy(t.Context(), to, from, size, test.again); !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, errors.Join(from.Close(), to.Close()))
		if !o.readers.TryAcquire(1) {
			t.Errorf("%s: a reader is not given back", name)
		}
		if test.err == nil {
			expectSameFile(t, filepath.Join(dir, "disk"), to.Name())
			if o.progress.Done() != size {
				t.Errorf("%s: the progress ended at %d of %d bytes", name, o.progress.Done(), int64(size))
			}
		}
	}
}

func expectSameFile(t *testing.T, want, got string) {
	t.Helper()
	first, err := checksum(want)
	must(t, err)
	if second, err := checksum(got); err != nil || first != second {
		t.Errorf("%s differs from %s: %v", got, want, err)
	}
}

// Whatever became of an upload or a restore, nothing of the volume is open when it has
// ended, which would keep it from being unmounted, and nothing goes on.
func TestNothingStaysOpen(t *testing.T) {
	// A file that nobody has closed is closed with the garbage.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	withAttributes(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "large"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(dir, "large"), partSize+1))
	upload := func(ctx context.Context, dir string) (string, error) {
		result, err := Upload(ctx, s.client(t), UploadRequest{Path: dir, Source: web}, new(Progress))
		return result.SnapshotID, err
	}
	id, err := upload(t.Context(), dir)
	must(t, err)
	expectNothingOpen(t, "an upload", dir)
	for range 2 {
		s.restore(t, id, target)
		expectNothingOpen(t, "a restore", target)
	}

	bad := t.TempDir()
	write(t, filepath.Join(bad, "sub/bad\xffname"), "bad")
	if _, err := upload(t.Context(), bad); err == nil {
		t.Error("a file that can't be stored was")
	}
	expectNothingOpen(t, "an upload that failed", bad)
	full := t.TempDir()
	write(t, filepath.Join(full, "plain/precious"), "data")
	if _, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: full}, new(Progress)); err == nil {
		t.Error("a full folder was replaced")
	}
	expectNothingOpen(t, "a restore that failed", full)

	// A pipe in the place of a file that was listed.
	vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
	must(t, err)
	folder, err := vol.folder()
	must(t, err)
	child, err := folder.Child(t.Context(), "plain")
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "plain")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "plain"), 0o600))
	if _, err := child.(fs.File).Open(t.Context()); !errors.Is(err, errVanished) {
		t.Errorf("a pipe: %v", err)
	}
	vol.close()
	expectNothingOpen(t, "what vanished", dir)
}

func expectNothingOpen(t *testing.T, after, dir string) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, descriptor := range open {
		// One of them was that of the folder itself.
		at, err := os.Readlink(filepath.Join("/proc/self/fd", descriptor.Name()))
		if err == nil && (at == dir || strings.HasPrefix(at, dir+"/")) {
			t.Errorf("after %s, %s is open", after, at)
		}
	}
	stacks := make([]byte, 4<<20)
	if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte("datapath.measureLater")) {
		t.Errorf("after %s, somebody measures the volume", after)
	}
}
