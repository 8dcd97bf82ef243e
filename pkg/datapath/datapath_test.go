// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// richTree fills a folder with one of each.
func richTree(t *testing.T, dir string) {
	t.Helper()
	write(t, filepath.Join(dir, "plain"), "hello")
	write(t, filepath.Join(dir, "empty"), "")
	must(t, os.Mkdir(filepath.Join(dir, "empty folder"), 0o700))
	write(t, filepath.Join(dir, "deep/er/and deeper/file"), "deep")
	write(t, filepath.Join(dir, "with space, newline\nand ünïcödé 漢字 \U0001f600"), "names")
	write(t, filepath.Join(dir, "data.kopia-entry"), `{"name":"x","type":"f","obj":"k0"}`)
	write(t, filepath.Join(dir, ".kopiaignore"), "*\n")
	write(t, filepath.Join(dir, "-rf"), "a name like an option")
	write(t, filepath.Join(dir, strings.Repeat("n", 255)), "long")

	random := make([]byte, 9<<20+123) // more than one chunk
	rand.NewChaCha8([32]byte{1}).Read(random)
	write(t, filepath.Join(dir, "big"), string(random))

	for name, mode := range map[string]os.FileMode{
		"read only": 0o400, "all": 0o777,
		"setuid": 0o755 | os.ModeSetuid, "setgid": 0o755 | os.ModeSetgid, "sticky": 0o644 | os.ModeSticky,
	} {
		write(t, filepath.Join(dir, "modes", name), name)
		must(t, os.Chmod(filepath.Join(dir, "modes", name), mode))
	}
	if os.Geteuid() == 0 {
		write(t, filepath.Join(dir, "modes/none"), "for root only")
		must(t, os.Chmod(filepath.Join(dir, "modes/none"), 0))
		write(t, filepath.Join(dir, "owned"), "by someone")
		must(t, os.Chown(filepath.Join(dir, "owned"), 1234, 5678))
		must(t, os.Chown(filepath.Join(dir, "modes/setuid"), 33, 33))
		must(t, os.Chmod(filepath.Join(dir, "modes/setuid"), 0o755|os.ModeSetuid))
		must(t, os.Chown(filepath.Join(dir, "deep"), 99, 100))
	}

	must(t, os.Symlink("plain", filepath.Join(dir, "link")))
	must(t, os.Symlink("/does/not/exist", filepath.Join(dir, "dangling")))
	must(t, os.Symlink("deep/er", filepath.Join(dir, "link to folder")))
	must(t, os.Symlink("not \xff utf-8", filepath.Join(dir, "link to strange name")))
	if os.Geteuid() == 0 {
		must(t, os.Lchown(filepath.Join(dir, "dangling"), 7, 8))
	}

	// Old and odd times, on folders too, from the leaves up.
	when := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)
	for _, name := range []string{"plain", "deep/er/and deeper/file", "deep/er/and deeper", "deep/er", "deep", "empty folder", "modes"} {
		when = when.Add(time.Hour)
		must(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	stamp := []unix.Timespec{unix.NsecToTimespec(when.UnixNano()), unix.NsecToTimespec(when.UnixNano())}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "dangling"), stamp, unix.AT_SYMLINK_NOFOLLOW))
	must(t, os.Chmod(dir, 0o770|os.ModeSetgid))
	must(t, os.Chtimes(dir, when, when))
}

func TestRoundTrip(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	richTree(t, dir)
	want := tree(t, dir)

	uploaded := s.upload(t, dir, web)
	if uploaded.Warnings.Count != 0 {
		t.Errorf("the upload warns: %v", uploaded.Warnings)
	}
	files, bytes := int64(0), int64(0)
	for _, m := range want {
		if m.Mode.IsRegular() {
			files++
			bytes += m.Size
		}
	}
	if uploaded.Files != files || uploaded.TotalBytes != bytes {
		t.Errorf("uploaded %d files with %d bytes, want %d and %d", uploaded.Files, uploaded.TotalBytes, files, bytes)
	}

	restored := s.restore(t, uploaded.SnapshotID, target)
	if restored.Files != files || restored.TotalBytes != bytes || restored.Warnings.Count != 0 {
		t.Errorf("restored %+v, want %d files with %d bytes", restored, files, bytes)
	}
	expectSameTree(t, tree(t, target), want)
	expectSameTree(t, tree(t, dir), want)
	write(t, filepath.Join(dir, "log"), fmt.Sprint(make([]int, 1<<20)))
	before := diskBytes(t, s.location.Spec.Filesystem.Path)
	s.upload(t, dir, web)
	if grown := diskBytes(t, s.location.Spec.Filesystem.Path) - before; grown > 1<<18 {
		t.Errorf("2 MiB that compress well take %d bytes in the store", grown)
	}

	// Once more over the result.
	s.restore(t, uploaded.SnapshotID, target)
	expectSameTree(t, tree(t, target), want)
}

func TestSparse(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	f, err := os.Create(filepath.Join(dir, "disk"))
	must(t, err)
	for _, at := range []int64{0, 5<<20 + 17, 40 << 20} {
		_, err := f.WriteAt([]byte("data"), at)
		must(t, err)
	}
	must(t, f.Truncate(64<<20)) // with a hole at the end
	must(t, f.Close())

	s.restore(t, s.upload(t, dir, web).SnapshotID, target)
	expectSameTree(t, tree(t, target), tree(t, dir))
	if got := diskBytes(t, filepath.Join(target, "disk")); got > 1<<20 {
		t.Errorf("64 MiB with 12 bytes of data take %d bytes on the disk", got)
	}
}

func TestWriteData(t *testing.T) {
	data := make([]byte, 5*sparseBlock+10)
	copy(data[sparseBlock:], "second")
	copy(data[2*sparseBlock:], "third")
	copy(data[5*sparseBlock:], "last")
	var w recorder
	written, err := writeData(&w, data, 1000*sparseBlock)
	must(t, err)
	if written != len(data) {
		t.Errorf("what was written ends at %d of %d", written, len(data))
	}
	want := recorder{
		{1001 * sparseBlock, 2 * sparseBlock},
		{1005 * sparseBlock, 10},
	}
	if fmt.Sprint(w) != fmt.Sprint(want) {
		t.Errorf("wrote %v, want %v", w, want)
	}
}

type recorder [][2]int64

func (r *recorder) WriteAt(b []byte, at int64) (int, error) {
	*r = append(*r, [2]int64{at, int64(len(b))})
	return len(b), nil
}

// settled has files that were written a moment ago count as older than the snapshots of a test.
func settled(t testing.TB) {
	was := racy
	racy = -100 * 365 * 24 * time.Hour
	t.Cleanup(func() { racy = was })
}

func TestIncremental(t *testing.T) {
	settled(t)
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), strings.Repeat("a", 1000))
	write(t, filepath.Join(dir, "sub/b"), strings.Repeat("b", 500))
	must(t, os.Symlink("sub/b", filepath.Join(dir, "link")))
	of := func(pod string) Source {
		return Source{Namespace: namespace, Pod: pod, Volume: "data", ClaimName: "claim", ClaimUID: "uid-1"}
	}

	r := s.client(t)
	previous := int64(0)
	trees := map[string]map[string]made{}
	for _, step := range []struct {
		name        string
		source      Source
		change      func()
		incremental int64
	}{
		{"first", of("web-1"), func() {}, 1500},
		{"unchanged", of("web-1"), func() {}, 0},
		{"in another pod", of("web-2"), func() {}, 0},
		{"one file changed", of("web-2"), func() { write(t, filepath.Join(dir, "sub/b"), "new") }, 3},
		{"one file removed", of("web-2"), func() { must(t, os.Remove(filepath.Join(dir, "a"))) }, 0},
		{"without a claim", Source{Namespace: namespace, Pod: "web-2", Volume: "claim"}, func() {}, 3},
		{"another volume", web, func() {}, 3},
	} {
		step.change()
		if step.source.ClaimUID == "" {
			previous = 0 // which this one is not of
		}
		var p Progress
		got, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: step.source}, &p)
		must(t, err)
		if got.IncrementalBytes != step.incremental {
			t.Errorf("%s: %d incremental bytes, want %d", step.name, got.IncrementalBytes, step.incremental)
		}
		// What needs no reading counts as moved, and the last size is the estimate.
		done := got.TotalBytes + int64(len("sub/b")) // of the link
		if p.Done() != done || p.Total() != max(previous, done) {
			t.Errorf("%s: the progress ended at %d of %d bytes, want %d", step.name, p.Done(), p.Total(), done)
		}
		previous = done
		trees[got.SnapshotID] = tree(t, dir)
	}
	for id, want := range trees {
		target := t.TempDir()
		_, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: id, Path: target}, new(Progress))
		must(t, err)
		expectSameTree(t, tree(t, target), want)
	}
}

// TestVeleroConventions checks what Velero finds a snapshot by.
func TestVeleroConventions(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), "a")
	s.upload(t, dir, Source{Namespace: namespace, Pod: "web-0", Volume: "data", ClaimName: "claim", ClaimUID: "uid"})
	man := s.snapshots(t)[0]
	if got, want := man.Source.String(), "default@default:snapshot-pod-volume/kopia/app/web-0/claim"; got != want {
		t.Errorf("the source is %s, want %s", got, want)
	}
	want := map[string]string{
		"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia", "holdfast.io/claim-uid": "uid",
		"holdfast.io/full-read": man.Tags[tagFullRead],
	}
	if before := man.StartTime.ToTime().Sub(fullReadOf(man)); man.Tags[tagFullRead] == "" || before < 0 || before > time.Minute {
		t.Errorf("the last full read was at %q, %s before the snapshot", man.Tags[tagFullRead], before)
	}
	if !maps.Equal(man.Tags, want) {
		t.Errorf("the tags are %v, want %v", man.Tags, want)
	}
	if man.Description != "Kopia Uploader" || len(man.Pins) != 1 || man.Pins[0] != "velero-pin" || man.Stats.TotalFileSize != 1 {
		t.Errorf("the manifest is %+v", man)
	}
}

// TestUploadFails checks that a file that can't be stored is named, and that no
// snapshot remains.
func TestUploadFails(t *testing.T) {
	t.Run("name is not UTF-8", func(t *testing.T) {
		s, dir := newStore(t), t.TempDir()
		write(t, filepath.Join(dir, "fine"), "fine")
		write(t, filepath.Join(dir, "sub/bad\xffname"), "bad")
		_, err := Upload(t.Context(), s.open(t), UploadRequest{Path: dir, Source: web}, new(Progress))
		if err == nil || !strings.Contains(err.Error(), `"sub/bad\xffname"`) {
			t.Errorf("Upload = %v, want an error that names the file", err)
		}
		if got := s.snapshots(t); len(got) != 0 {
			t.Errorf("%d snapshots remain", len(got))
		}
	})
	t.Run("folders in folders without end", func(t *testing.T) {
		s, dir := newStore(t), t.TempDir()
		root, err := os.OpenRoot(dir)
		must(t, err)
		defer root.Close()
		level := strings.Repeat("n", 255) + "/"
		must(t, root.MkdirAll(strings.Repeat(level, longestPath/len(level)), 0o755))
		s.upload(t, dir, web)
		must(t, root.MkdirAll(strings.Repeat(level, longestPath/len(level)+2), 0o755))
		if _, err := Upload(t.Context(), s.open(t), UploadRequest{Path: dir, Source: web}, new(Progress)); !errors.Is(err, errTooLong) || !strings.Contains(err.Error(), level) {
			t.Errorf("Upload = %v, want an error that names the folder", err)
		}
	})
	t.Run("no folder", func(t *testing.T) {
		_, err := Upload(t.Context(), newStore(t).client(t), UploadRequest{Path: filepath.Join(t.TempDir(), "gone"), Source: web}, new(Progress))
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Upload = %v", err)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		cancelled := 0
		o := &uploadObserver{notes: &notes{}, cancel: func() { cancelled++ }}
		o.Error("sub/file", &os.PathError{Op: "read", Path: "file", Err: syscall.EIO}, true)
		o.Error("sub/other", syscall.EACCES, true)
		if failure := o.failure.Load(); cancelled == 0 || failure == nil || !errors.Is(*failure, syscall.EIO) || !strings.Contains((*failure).Error(), `"sub/file"`) {
			t.Errorf("the upload fails with %v", failure)
		}
	})
}

// endless is a folder whose one file takes long to read: zeros without end.
func endless(t *testing.T) string {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "zeros"))
	must(t, err)
	must(t, f.Truncate(1<<40))
	must(t, f.Close())
	return dir
}

func TestCancelUpload(t *testing.T) {
	s, dir := newStore(t), endless(t)
	why := errors.New("the record was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	var p Progress
	go func() {
		for p.Done() == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel(why)
	}()
	_, err := Upload(ctx, s.open(t), UploadRequest{Path: dir, Source: web}, &p)
	if !errors.Is(err, why) {
		t.Errorf("Upload = %v, want the cause of the cancellation", err)
	}
	if p.Done() == 0 {
		t.Error("the upload was not under way")
	}
	if got := s.snapshots(t); len(got) != 0 {
		t.Errorf("%d snapshots remain", len(got))
	}
}

// cancellingReader ends a context at the third read.
type cancellingReader struct {
	reads  int
	cancel func()
}

func (r *cancellingReader) Read(b []byte) (int, error) {
	if r.reads++; r.reads == 3 {
		r.cancel()
	}
	return len(b), nil
}

func TestCancelRestore(t *testing.T) {
	t.Run("within a file", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		must(t, err)
		defer f.Close()
		from := &cancellingReader{cancel: cancel}
		if err := copySparse(ctx, f, from, 0, 1<<40, 1<<40, new(Progress)); !errors.Is(err, context.Canceled) || from.reads != 3 {
			t.Errorf("after %d reads: %v", from.reads, err)
		}
	})
	t.Run("before the first file", func(t *testing.T) {
		s, dir, target := newStore(t), t.TempDir(), t.TempDir()
		write(t, filepath.Join(dir, "a"), "a")
		id, r := s.upload(t, dir, web).SnapshotID, s.client(t)
		why := errors.New("the record was deleted")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if _, err := Restore(ctx, r, RestoreRequest{SnapshotID: id, Path: target}, new(Progress)); !errors.Is(err, why) {
			t.Errorf("Restore = %v, want the cause of the cancellation", err)
		}
		if left := tree(t, target); len(left) != 1 {
			t.Errorf("there is %v", left)
		}
	})
}

// A pod that uses the volume may put a pipe where a folder was: it is an error, and
// nobody waits for who writes to the pipe.
func TestPipeInTheWayOfARestore(t *testing.T) {
	target := t.TempDir()
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	pipe := filepath.Join(target, "sub")
	must(t, syscall.Mkfifo(pipe, 0o600))
	o := &output{root: root, progress: new(Progress)}
	for name, restore := range map[string]func() error{
		"folder": func() error { return o.FinishDirectory("sub", nil, extra{}) },
		"link": func() error {
			_, err := o.openFolder("sub") // as the parent of a link
			return err
		},
	} {
		done := make(chan error)
		go func() { done <- restore() }()
		select {
		case err := <-done:
			if !errors.Is(err, syscall.ENOTDIR) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the restore hangs", name)
			f, err := os.OpenFile(pipe, os.O_RDWR, 0) // frees it
			must(t, err)
			<-done
			must(t, f.Close())
		}
	}
}

func TestWarnings(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "file"), "file")
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	socket, err := net.Listen("unix", filepath.Join(dir, "sock"))
	must(t, err)
	defer socket.Close()

	got := s.upload(t, dir, web)
	if got.Warnings.Count != 2 || !strings.Contains(fmt.Sprint(got.Warnings.First), `"pipe"`) || !strings.Contains(fmt.Sprint(got.Warnings.First), `"sock"`) {
		t.Errorf("the warnings are %+v", got.Warnings)
	}
	s.restore(t, got.SnapshotID, target)
	if restored := tree(t, target); len(restored) != 2 || restored["file"].Size != 4 {
		t.Errorf("restored %v", restored)
	}

	var n notes
	for i := range 2 * warningsTold {
		n.add(fmt.Sprint(i), "strange")
	}
	n.add("0", "strange")
	if w := n.warnings(); w.Count != 2*warningsTold || len(w.First) != warningsKept || len(n.seen) > warningsTold {
		t.Errorf("%d warnings with %d named, %d kept", w.Count, len(w.First), len(n.seen))
	}
}

// TestCheckpoints lets an upload find what an interrupted one stored.
func TestCheckpoints(t *testing.T) {
	settled(t)
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), "content")
	first, r := s.upload(t, dir, web), s.client(t)
	saveCheckpoint(t, r, first.SnapshotID)
	if got := s.snapshots(t); len(got) != 1 || got[0].IncompleteReason == "" {
		t.Fatalf("there are %v", got)
	}
	_, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: string(s.snapshots(t)[0].ID), Path: t.TempDir()}, new(Progress))
	if !errors.Is(err, ErrSnapshotNotFound) {
		t.Errorf("a checkpoint was restored: %v", err)
	}

	second := s.upload(t, dir, web)
	if second.IncrementalBytes != 0 {
		t.Errorf("%d bytes were read although a checkpoint has them", second.IncrementalBytes)
	}
	if got := s.snapshots(t); len(got) != 1 || got[0].IncompleteReason != "" {
		t.Errorf("after the upload there are %v", got)
	}
}

// TestRestoreOfNoFolder: only a folder that is known to be whole is restored.
func TestRestoreOfNoFolder(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), "content")
	id, r := s.upload(t, dir, web).SnapshotID, s.client(t)
	for name, change := range map[string]func(*snapshot.Manifest){
		"incomplete":   func(man *snapshot.Manifest) { man.IncompleteReason = "canceled" },
		"nothing":      func(man *snapshot.Manifest) { man.RootEntry = nil },
		"not a folder": func(man *snapshot.Manifest) { man.RootEntry.DirSummary = nil },
	} {
		var changed manifest.ID
		must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
			man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
			if err != nil {
				return err
			}
			change(man)
			changed, err = snapshot.SaveSnapshot(ctx, w, man)
			return err
		}))
		if _, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: string(changed), Path: t.TempDir()}, new(Progress)); !errors.Is(err, ErrSnapshotNotFound) {
			t.Errorf("%s: Restore = %v", name, err)
		}
	}
}

// A file that could not be written or read in full is no file.
func TestCopyThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the pack is gone")
	for name, test := range map[string]struct {
		flag int
		from io.Reader
		want string
	}{
		"a file that takes nothing": {os.O_RDONLY, strings.NewReader("data"), "bad file descriptor"},
		"and nothing but a hole":    {os.O_RDONLY, bytes.NewReader(make([]byte, 4)), "invalid argument"},
		"less than there should be": {os.O_RDWR, strings.NewReader("dat"), "3 of 4 bytes"},
		"what can't be read":        {os.O_RDWR, io.MultiReader(strings.NewReader("da"), iotest.ErrReader(broken)), broken.Error()},
	} {
		file, err := os.OpenFile(path, test.flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		from := struct {
			io.Reader
			io.Seeker
		}{Reader: test.from}
		if err := (&output{progress: new(Progress)}).copy(t.Context(), file, from, 4, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}
