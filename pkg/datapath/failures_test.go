// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// bad is an open repository in which some operations fail.
type bad struct {
	repo.RepositoryWriter
	// objects whose description begins so can't be written, for the reason err.
	objects string
	// fails says which calls fail, and bogus the id of a manifest that is found and
	// is not there.
	fails func(call string) bool
	bogus manifest.ID
	err   error
}

func (b *bad) NewObjectWriter(ctx context.Context, options object.WriterOptions) object.Writer {
	w := b.RepositoryWriter.NewObjectWriter(ctx, options)
	if b.objects != "" && strings.HasPrefix(options.Description, b.objects) {
		return badObject{w, b.err}
	}
	return w
}

type badObject struct {
	object.Writer
	err error
}

func (o badObject) Write([]byte) (int, error) { return 0, o.err }

func (b *bad) failing(call string) error {
	if b.fails != nil && b.fails(call) {
		return b.err
	}
	return nil
}

func (b *bad) PutManifest(ctx context.Context, labels map[string]string, payload any) (manifest.ID, error) {
	if err := b.failing("put"); err != nil {
		return "", err
	}
	return b.RepositoryWriter.PutManifest(ctx, labels, payload)
}

func (b *bad) FindManifests(ctx context.Context, labels map[string]string) ([]*manifest.EntryMetadata, error) {
	if err := b.failing(fmt.Sprintf("find claim=%t checkpoint=%t", labels[tagClaim] != "", labels[tagCheckpoint] != "")); err != nil {
		return nil, err
	}
	found, err := b.RepositoryWriter.FindManifests(ctx, labels)
	if b.bogus != "" && labels[tagClaim] != "" {
		found = append(found, &manifest.EntryMetadata{ID: b.bogus, ModTime: time.Now().Add(time.Hour)})
	}
	return found, err
}

func (b *bad) GetManifest(ctx context.Context, id manifest.ID, payload any) (*manifest.EntryMetadata, error) {
	if err := b.failing("get"); err != nil {
		return nil, err
	}
	return b.RepositoryWriter.GetManifest(ctx, id, payload)
}

func (b *bad) DeleteManifest(ctx context.Context, id manifest.ID) error {
	if err := b.failing("delete"); err != nil {
		return err
	}
	return b.RepositoryWriter.DeleteManifest(ctx, id)
}

// inSession opens a repository for writing, and writes nothing.
func (s store) inSession(t *testing.T, do func(ctx context.Context, w repo.RepositoryWriter)) {
	t.Helper()
	dropped := errors.New("dropped")
	err := repo.WriteSession(t.Context(), s.client(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		do(ctx, w)
		return dropped
	})
	if !errors.Is(err, dropped) {
		t.Error(err)
	}
}

var errBad = errors.New("the store is out of order")

// An upload that was not whole is never taken for whole, whatever stopped it. What
// can't be stored has not vanished, even where its error looks so.
func TestUploadFolderIsWholeOrFails(t *testing.T) {
	small := t.TempDir()
	write(t, filepath.Join(small, "sub/file"), "content")
	must(t, os.Symlink("sub", filepath.Join(small, "link")))
	gone := &os.PathError{Op: "open", Path: "/mnt/backups", Err: syscall.ENOENT}
	s := newStore(t)
	for name, test := range map[string]struct {
		dir  string
		bad  bad
		stop func(cancel func(), o *uploadObserver)
		err  error
		want string
	}{
		"the context ends":            {dir: endless(t), stop: func(cancel func(), _ *uploadObserver) { cancel() }, err: context.Canceled},
		"Kopia stops by itself":       {dir: endless(t), stop: func(_ func(), o *uploadObserver) { o.cancel() }, want: "the upload ended early"},
		"a file can't be stored":      {dir: small, bad: bad{objects: "FILE:", err: errBad}, err: errBad, want: `"sub/file"`},
		"nor where the store is gone": {dir: small, bad: bad{objects: "FILE:", err: gone}, err: syscall.ENOENT, want: `"sub/file"`},
		"a link can't be stored":      {dir: small, bad: bad{objects: "SYMLINK:", err: gone}, err: syscall.ENOENT, want: `"link"`},
		"a folder can't be stored":    {dir: small, bad: bad{objects: "DIR:", err: gone}, err: syscall.ENOENT, want: "upload the volume"},
	} {
		t.Run(name, func(t *testing.T) {
			s.inSession(t, func(ctx context.Context, w repo.RepositoryWriter) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				var n notes
				vol, err := openVolume(Folder{Path: test.dir}, &n, new(Progress))
				must(t, err)
				defer vol.close()
				folder, err := vol.folder()
				must(t, err)
				o := &uploadObserver{progress: new(Progress), notes: &n}
				if test.stop != nil {
					go func() {
						for o.progress.Done() == 0 && ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						test.stop(cancel, o)
					}()
				}
				test.bad.RepositoryWriter = w
				man, err := uploadFolder(ctx, &test.bad, folder, uploadPolicy(), web.info(w.ClientOptions(), requester), nil, nil, o)
				if err == nil || man != nil || !strings.Contains(err.Error(), test.want) || test.err != nil && !errors.Is(err, test.err) {
					t.Errorf("got %v, %v", man, err)
				}
				if w := n.warnings(); w.Count != 0 {
					t.Errorf("the warnings are %v", w)
				}
			})
		})
	}
}

// listed is a folder as it was when it was listed.
type listed struct {
	fs.Directory
	entries []fs.Entry
}

func (l *listed) Iterate(context.Context) (fs.DirectoryIterator, error) {
	return fs.StaticIterator(l.entries, nil), nil
}

// What vanished after it was listed is a warning, and all else is stored.
func TestVanishedIsAWarning(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	write(t, filepath.Join(dir, "sub/file"), "content")
	write(t, filepath.Join(dir, "stays"), "content")
	must(t, os.Symlink("stays", filepath.Join(dir, "link")))
	newStore(t).inSession(t, func(ctx context.Context, w repo.RepositoryWriter) {
		var n notes
		vol, err := openVolume(Folder{Path: dir}, &n, new(Progress))
		must(t, err)
		defer vol.close()
		folder, err := vol.folder()
		must(t, err)
		before := &listed{Directory: folder}
		must(t, fs.IterateEntries(ctx, folder, func(_ context.Context, e fs.Entry) error {
			before.entries = append(before.entries, e)
			return nil
		}))
		for _, name := range []string{"file", "sub", "link"} {
			must(t, os.RemoveAll(filepath.Join(dir, name)))
		}
		write(t, filepath.Join(dir, "sub"), "no folder any more")
		man, err := uploadFolder(ctx, w, before, uploadPolicy(), web.info(w.ClientOptions(), requester), nil, nil, &uploadObserver{progress: new(Progress), notes: &n})
		must(t, err)
		// For Kopia, too, these are no errors.
		if summary := man.RootEntry.DirSummary; summary.TotalFileCount != 1 || summary.FatalErrorCount != 0 || summary.IgnoredErrorCount != 3 {
			t.Errorf("stored is %+v", summary)
		}
		if w := n.warnings(); w.Count != 3 || !strings.Contains(strings.Join(w.First, " "), `"file" vanished before it was read`) {
			t.Errorf("the warnings are %v", w)
		}
	})

	// What can't be read is neither gone nor empty.
	vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
	must(t, err)
	folder, err := vol.folder()
	must(t, err)
	it, err := folder.Iterate(t.Context())
	must(t, err)
	it.Close()
	if _, err := it.Next(t.Context()); err == nil || errors.Is(err, errVanished) {
		t.Errorf("a closed folder: %v", err)
	}
	vol.close()
	if _, err := vol.folder(); err == nil {
		t.Error("the folder of a closed volume is read")
	}
	if err := vol.stillThere(); err == nil {
		t.Error("a closed volume is still there")
	}
}

// Nothing is visible of an upload whose folder went away while it was read, or which
// the store does not take.
func TestUploadThatLeavesNothing(t *testing.T) {
	var hook atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	s := newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if do := hook.Load(); do == nil || !(*do)(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	})
	refuse := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusForbidden)
		}
		return r.Method == http.MethodPut
	}
	r := s.open(t)
	for name, test := range map[string]struct {
		hook func(dir string, w http.ResponseWriter, r *http.Request) bool
		want string
	}{
		"the folder goes away": {func(dir string, _ http.ResponseWriter, _ *http.Request) bool {
			_ = os.Rename(dir, dir+".old") // the first time
			return false
		}, "went away"},
		"the store takes nothing": {func(_ string, w http.ResponseWriter, r *http.Request) bool { return refuse(w, r) }, "denies access"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "volume")
			write(t, filepath.Join(dir, "file"), "content")
			do := func(w http.ResponseWriter, r *http.Request) bool { return test.hook(dir, w, r) }
			hook.Store(&do)
			_, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
			hook.Store(nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Upload = %v", err)
			}
			if left := s.snapshots(t); len(left) != 0 {
				t.Errorf("%d snapshots are left", len(left))
			}
		})
	}

	// Nor is a snapshot taken for removed.
	id := s.upload(t, t.TempDir(), web).SnapshotID
	must(t, r.Kopia().Refresh(t.Context()))
	hook.Store(&refuse)
	err := DeleteSnapshots(t.Context(), r, []string{id})
	hook.Store(nil)
	if err == nil || len(s.snapshots(t)) != 1 {
		t.Errorf("DeleteSnapshots = %v, and %d snapshots are left", err, len(s.snapshots(t)))
	}
}

func TestSaveThatFails(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	s.upload(t, dir, web)
	saveCheckpoint(t, s.client(t), string(s.snapshots(t)[0].ID))
	s.inSession(t, func(ctx context.Context, w repo.RepositoryWriter) {
		for _, call := range []string{"put", "find claim=false checkpoint=true", "delete", "none"} {
			man := &snapshot.Manifest{Source: web.info(w.ClientOptions(), requester)}
			err := save(ctx, &bad{RepositoryWriter: w, err: errBad, fails: func(c string) bool { return c == call }}, man, newExtras(&notes{}), nil, nil)
			if errors.Is(err, errBad) != (call != "none") {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}

// The newest whole snapshot comes first, whatever else has been stored since. What
// can't be looked for is not taken for absent, which would read all files anew.
func TestPreviousSnapshots(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	source := Source{Namespace: namespace, Pod: "web-0", Volume: "data", ClaimUID: "uid"}
	s.upload(t, dir, source)
	checkpoint := s.upload(t, dir, source).SnapshotID
	saveCheckpoint(t, s.client(t), checkpoint)
	whole := s.upload(t, dir, Source{Namespace: namespace, Pod: "web-1", Volume: "data", ClaimUID: "uid"})
	s.inSession(t, func(ctx context.Context, w repo.RepositoryWriter) {
		for name, test := range map[string]struct {
			bad   bad
			found bool // of the claim; else of the source
			err   error
		}{
			"both":                              {found: true},
			"the snapshot is gone":              {bad: bad{bogus: "0123456789abcdef"}},
			"the snapshot can't be found":       {bad: bad{err: errBad, fails: func(c string) bool { return c == "find claim=true checkpoint=false" }}, err: errBad},
			"the checkpoint can't be found":     {bad: bad{err: errBad, fails: func(c string) bool { return c == "find claim=false checkpoint=true" }}, err: errBad},
			"they are found, and can't be read": {bad: bad{err: errBad, fails: func(c string) bool { return c == "get" }}, err: errBad},
		} {
			test.bad.RepositoryWriter = w
			got, left, err := previousSnapshots(ctx, &test.bad, source)
			if !errors.Is(err, test.err) {
				t.Errorf("%s: %v", name, err)
			}
			if test.err != nil {
				continue
			}
			if got == nil || left == nil || got.IncompleteReason != "" || left.IncompleteReason == "" || (string(got.ID) == whole.SnapshotID) != test.found {
				t.Errorf("%s: got %+v and %+v", name, got, left)
			}
		}
	})
}

// A repository whose records can't be read is not an empty one.
func TestBrokenRepository(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	id := s.upload(t, dir, web).SnapshotID
	must(t, filepath.WalkDir(s.location.Spec.Filesystem.Path, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasPrefix(strings.TrimPrefix(path, s.location.Spec.Filesystem.Path), "/kopia/"+namespace+"/q") {
			err = os.Remove(path)
		}
		return err
	}))
	why := errors.New("the record was deleted")
	r := s.open(t)
	for name, test := range map[string]struct {
		do   func(ctx context.Context, r *repository.Repository) error
		want string
	}{
		"upload": {func(ctx context.Context, r *repository.Repository) error {
			_, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress))
			return err
		}, "look for the previous snapshot"},
		"restore": {func(ctx context.Context, r *repository.Repository) error {
			_, err := Restore(ctx, r, RestoreRequest{SnapshotID: id, Path: dir}, new(Progress))
			return err
		}, "read snapshot " + id},
		"list": {func(ctx context.Context, r *repository.Repository) error {
			_, err := Snapshots(ctx, r)
			return err
		}, "list the snapshots of the repository"},
		"delete": {func(ctx context.Context, r *repository.Repository) error {
			return DeleteSnapshots(ctx, r, []string{id})
		}, "list the snapshots of the repository"},
	} {
		if err := test.do(t.Context(), r); err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrSnapshotNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if err := test.do(ctx, r); !errors.Is(err, why) {
			t.Errorf("%s when cancelled: %v", name, err)
		}
	}
	if err := causeOf(t.Context(), errBad); !errors.Is(err, errBad) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := causeOf(ctx, nil); err != nil {
		t.Errorf("what was done before its context ended failed: %v", err)
	}
}

// The folders of a snapshot that can't be read are not taken for empty, and neither are
// its files that a restore does not meet.
func TestSnapshotThatCannotBeRead(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "other"), `{"stream":"another"}`)
	write(t, filepath.Join(dir, "text"), "<html>")
	id, r := s.upload(t, dir, web).SnapshotID, s.client(t)
	man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), manifest.ID(id))
	must(t, err)
	root := snapshotfs.EntryFromDirEntry(r.Kopia(), man.RootEntry).(fs.Directory)
	absent, err := object.ParseID("k0123456789abcdef0123456789abcdef")
	must(t, err)
	objects := map[string]object.ID{`open folder`: absent}
	for name, want := range map[string]string{"other": `is a "another"`, "text": "read folder"} {
		child, err := root.Child(t.Context(), name)
		must(t, err)
		objects[want] = child.(object.HasObjectID).ObjectID()
	}
	for want, id := range objects {
		if _, err := readFolder(t.Context(), r.Kopia(), &snapshot.DirEntry{ObjectID: id}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}

	if err := (&restoration{}).folder(t.Context(), strings.Repeat("n", longestPath+1), nil); !errors.Is(err, errTooLong) {
		t.Errorf("folders in folders without end: %v", err)
	}

	if _, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: id, Path: filepath.Join(t.TempDir(), "gone")}, new(Progress)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	var more manifest.ID
	must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		man.RootEntry.DirSummary.TotalFileCount++
		more, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
	if _, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: string(more), Path: t.TempDir()}, new(Progress)); err == nil || !strings.Contains(err.Error(), "restored 2 of the 3 files") {
		t.Errorf("with a file less: %v", err)
	}
}

// entry is of a snapshot.
type entry struct {
	os.FileInfo
	fs.Reader
	owner fs.OwnerInfo
	err   error
	// What happens when it is asked for its owner, and for its time.
	onOwner, onTime func()
}

func (e *entry) Owner() fs.OwnerInfo {
	if e.onOwner != nil {
		e.onOwner()
	}
	return e.owner
}

func (e *entry) ModTime() time.Time {
	if e.onTime != nil {
		e.onTime()
	}
	return e.FileInfo.ModTime()
}

func (e *entry) Device() fs.DeviceInfo                     { return fs.DeviceInfo{} }
func (e *entry) LocalFilesystemPath() string               { return "" }
func (e *entry) Close()                                    {}
func (e *entry) Open(context.Context) (fs.Reader, error)   { return reader{e}, e.err }
func (e *entry) Readlink(context.Context) (string, error)  { return "target", e.err }
func (e *entry) Resolve(context.Context) (fs.Entry, error) { return nil, errors.ErrUnsupported }

type reader struct{ *entry }

func (r reader) Read([]byte) (int, error) {
	if r.Size() == 0 {
		return 0, io.EOF
	}
	return 0, errBad
}

func (reader) Close() error { return nil }

// noFile is empty.
type noFile struct{ os.FileInfo }

func (noFile) Size() int64 { return 0 }

// What could not be restored is an error, at whichever step that was.
func TestOutputFails(t *testing.T) {
	target := t.TempDir()
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	write(t, filepath.Join(target, "file"), "content")
	info, err := os.Stat(filepath.Join(target, "file"))
	must(t, err)
	file := &entry{FileInfo: info, owner: fs.OwnerInfo{UserID: uint32(os.Geteuid()), GroupID: uint32(os.Getegid())}}
	errOpen := errors.New("it can't be opened")
	unreadable := &entry{FileInfo: info, owner: file.owner, err: errOpen}
	ctx := t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	// What a pod may do that uses the volume meanwhile.
	remove := func() { _ = os.Remove(filepath.Join(target, "new")) }
	empty := func(e entry) *entry {
		e.FileInfo, e.owner = noFile{info}, file.owner
		return &e
	}
	o := &output{root: root, progress: new(Progress)}
	for name, test := range map[string]struct {
		do   func() error
		want error
	}{
		"a folder too late":      {func() error { _, err := o.BeginDirectory(ended, "late"); return err }, context.Canceled},
		"a folder in none":       {func() error { _, err := o.BeginDirectory(ctx, "none/sub"); return err }, os.ErrNotExist},
		"a folder that is gone":  {func() error { return o.FinishDirectory("none", nil, extra{}) }, os.ErrNotExist},
		"an unreadable file":     {func() error { return o.WriteFile(ctx, "new", unreadable, extra{}) }, errOpen},
		"a file in no folder":    {func() error { return o.WriteFile(ctx, "none/new", file, extra{}) }, os.ErrNotExist},
		"a file that breaks off": {func() error { return o.WriteFile(ctx, "new", file, extra{}) }, errBad},
		"an unreadable link":     {func() error { return o.CreateSymlink(ctx, "new", unreadable) }, errOpen},
		"a link in no folder":    {func() error { return o.CreateSymlink(ctx, "none/link", file) }, os.ErrNotExist},
		"a link that goes":       {func() error { return o.CreateSymlink(ctx, "new", empty(entry{onOwner: remove})) }, os.ErrNotExist},
		"a link that goes late":  {func() error { return o.CreateSymlink(ctx, "new", empty(entry{onTime: remove})) }, os.ErrNotExist},
		"attributes":             {func() error { return o.finish(handle{-1, "file", new(calls)}, "file", file, extra{}) }, syscall.EBADF},
		"what comes back at once": {func() error {
			return o.replace("none", func() error { return &os.PathError{Op: "open", Err: os.ErrExist} })
		}, os.ErrExist},
		"what is no lack of permission": {func() error { return o.permitted(errBad, "file", "is bad") }, errBad},
		"the disk": {func() error {
			other, err := openConfined(Folder{Path: target}, new(calls))
			must(t, err)
			must(t, other.Close())
			return (&output{root: other}).Close(ctx)
		}, os.ErrClosed},
	} {
		if err := test.do(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if left, err := os.ReadDir(target); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == "late" }) {
		t.Errorf("there is %v, %v", left, err)
	}
	if w := o.notes.warnings(); w.Count != 0 {
		t.Errorf("the warnings are %v", w)
	}
}

// Whoever uses the volume may put a link in the place of a folder, after that was made and
// before what lies in it is made, changed or removed by its name. It is not followed out of the
// volume.
func TestFolderBecomesALink(t *testing.T) {
	target, outside := t.TempDir(), t.TempDir()
	root, err := openConfined(Folder{Path: target}, new(calls))
	must(t, err)
	defer root.Close()
	write(t, filepath.Join(target, "file"), "")
	write(t, filepath.Join(outside, "file"), "of the node")
	write(t, filepath.Join(outside, "sub/file"), "of the node")
	must(t, os.Chtimes(outside, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	info, err := os.Stat(filepath.Join(target, "file"))
	must(t, err)
	file := &entry{FileInfo: noFile{info}, owner: fs.OwnerInfo{UserID: 1234, GroupID: 5678}}
	ctx, before := t.Context(), tree(t, outside)
	for name, do := range map[string]func(o *output) error{
		"a file":                 func(o *output) error { return o.WriteFile(ctx, "folder/new", file, extra{}) },
		"a file in the way":      func(o *output) error { return o.WriteFile(ctx, "folder/file", file, extra{}) },
		"a file beside another":  func(o *output) error { o.beside = true; return o.WriteFile(ctx, "folder/file", file, extra{}) },
		"a link":                 func(o *output) error { return o.CreateSymlink(ctx, "folder/new", file) },
		"a folder":               func(o *output) error { _, err := o.BeginDirectory(ctx, "folder/new"); return err },
		"a folder that is there": func(o *output) error { _, err := o.BeginDirectory(ctx, "folder/sub"); return err },
		"a folder on the way":    func(o *output) error { _, err := o.EnsureDirectory("folder/new"); return err },
		"its attributes":         func(o *output) error { return o.FinishDirectory("folder", file, extra{}) },
		"those of a folder":      func(o *output) error { return o.FinishDirectory("folder/sub", file, extra{}) },
		"another name":           func(o *output) error { o.extras, o.links = linked(t, "file", "folder/new"); return o.Close(ctx) },
		"the name of another":    func(o *output) error { o.extras, o.links = linked(t, "folder/file", "new"); return o.Close(ctx) },
	} {
		o := &output{root: root, progress: new(Progress), extras: new(packed)}
		_, err := o.BeginDirectory(ctx, "folder")
		must(t, err)
		must(t, os.Remove(filepath.Join(target, "folder")))
		must(t, os.Symlink(outside, filepath.Join(target, "folder")))
		if err := do(o); err == nil {
			t.Errorf("%s: it was done", name)
		}
		expectSameTree(t, tree(t, outside), before)
		if left, err := os.ReadDir(target); err != nil || len(left) != 2 {
			t.Errorf("%s: there is %v, %v", name, left, err)
		}
		must(t, os.Remove(filepath.Join(target, "folder")))
	}
}

// asNobody takes the rights of root from the process, until the test ends, and gives
// the folders to whom it becomes.
func asNobody(t *testing.T, folders ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	for _, folder := range folders {
		must(t, filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, nobody, nobody))
		}))
	}
	must(t, syscall.Setresuid(-1, nobody, 0))
	t.Cleanup(func() { must(t, syscall.Setresuid(-1, 0, 0)) })
}

// An agent without root restores contents, and says what else it could not. What does
// not get its owner does not get its setuid bit either: it would be another's.
func TestRestoreWithoutRoot(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "sub/tool"), "content")
	must(t, os.Symlink("tool", filepath.Join(dir, "sub/link")))
	if os.Geteuid() != 0 {
		t.Skip("a file of another owner is needed")
	}
	must(t, os.Chown(filepath.Join(dir, "sub/tool"), 1234, 1234))
	must(t, os.Chmod(filepath.Join(dir, "sub/tool"), 0o755|os.ModeSetuid|os.ModeSetgid))
	id, r := s.upload(t, dir, web).SnapshotID, s.client(t)
	asNobody(t, s.location.Spec.Filesystem.Path, filepath.Dir(s.location.Spec.Filesystem.Path), filepath.Dir(target))
	got, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: id, Path: target}, new(Progress))
	must(t, err)
	restored := tree(t, target)
	if tool := restored["sub/tool"]; tool.Size != 7 || tool.Mode != 0o755 || restored["sub/link"].Content != "tool" {
		t.Errorf("restored %v", restored)
	}
	// The two folders, the file and the link.
	if got.Warnings.Count != 4 || !slices.Contains(got.Warnings.First, `"sub/tool" did not get its owner`) || !slices.Contains(got.Warnings.First, `"sub/link" did not get its owner`) {
		t.Errorf("the warnings are %v", got.Warnings)
	}
}

func TestMeasureLater(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "12345")
	write(t, filepath.Join(dir, "sub/b"), "123")
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for name, test := range map[string]struct {
		prepare func(vol *volume)
		wait    time.Duration
		want    int64
	}{
		"a long upload":           {func(*volume) {}, measureAfter + time.Millisecond, 8},
		"a short upload":          {func(*volume) {}, measureAfter - time.Millisecond, 0},
		"a volume that went away": {func(vol *volume) { vol.close() }, measureAfter + time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
			must(t, err)
			defer vol.close()
			test.prepare(vol)
			var p Progress
			stop := measureLater(t.Context(), vol, &p)
			time.Sleep(test.wait)
			synctest.Wait()
			stop()
			if p.Total() != test.want || vol.notes.warnings().Count != 0 {
				t.Errorf("%s: %d bytes are to be moved, with the warnings %v", name, p.Total(), vol.notes.warnings())
			}
		})
	}
}
