// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func filesystem(path string) enginev1alpha1.StorageLocationSpec {
	return enginev1alpha1.StorageLocationSpec{
		Provider:   enginev1alpha1.StorageProviderFilesystem,
		Filesystem: &enginev1alpha1.FilesystemLocation{Path: path},
	}
}

// Folders that go with their last object, while others write into them, are made anew.
func TestFilesystemConcurrentRemovers(t *testing.T) {
	storetest.RemoveConcurrently(t, storetest.Filesystem(t), "race-%d/in/folders/object")
}

// A folder that is found in the place of the expected one, as a mount point without its disk,
// is neither read nor written to; the expected one is used again when it is back.
func TestFilesystemThatIsNotMounted(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "store")
	must(t, os.Mkdir(folder, 0o700))
	bucket := storetest.Open(t, filesystem(folder), nil)
	ctx := t.Context()
	id, err := bucket.Identify(ctx, time.Now())
	must(t, err)
	must(t, bucket.Expect(ctx, id))
	must(t, bucket.Put(ctx, "backups/a/object", nil))
	object, err := bucket.Attributes(ctx, "backups/a/object")
	must(t, err)

	must(t, os.Rename(folder, folder+".disk"))
	must(t, os.Mkdir(folder, 0o700))
	_, attributesErr := bucket.Attributes(ctx, "a")
	_, writerErr := bucket.NewWriter(ctx, "a")
	_, folderErr := bucket.Folder(ctx, "kopia/app/")
	_, unfinishedErr := bucket.RemoveUnfinished(ctx, "backups/", time.Now(), false)
	for operation, err := range map[string]error{
		"list": drain(bucket.List(ctx, "backups/", store.ListOptions{})), "get": get(ctx, bucket, "a"),
		"attributes": attributesErr, "writer": writerErr, "create": bucket.Create(ctx, "a", nil), "put": bucket.Put(ctx, "a/b", nil),
		"delete": bucket.Delete(ctx, object), "remove": bucket.Remove(ctx, "a"), "check": bucket.Check(ctx), "folder": folderErr, "unfinished": unfinishedErr,
	} {
		if !errors.Is(err, store.ErrOther) || !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", operation, err)
		} else if strings.Contains(err.Error(), folder) {
			t.Errorf("%s tells where the folder is: %v", operation, err)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("the mount point holds %v, %v", entries, err)
	}

	must(t, os.Remove(folder))
	must(t, os.CopyFS(folder, os.DirFS(folder+".disk"))) // the same content in another folder: mounted anew
	if _, err := bucket.Attributes(ctx, "backups/a/object"); err != nil {
		t.Error(err)
	}

	// Another disk in the same place, as the root folders of two disks have the same numbers.
	other := storetest.Filesystem(t)
	_, err = other.Identify(ctx, time.Now())
	must(t, err)
	content, err := other.Get(ctx, format.StoreIdentityKey)
	must(t, err)
	defer content.Close()
	identity, err := io.ReadAll(content)
	must(t, err)
	key := filepath.Join(folder, filepath.FromSlash(format.StoreIdentityKey))
	must(t, os.WriteFile(key+".new", identity, 0o600))
	must(t, os.Rename(key+".new", key))
	if err := bucket.Put(ctx, "b", nil); !errors.Is(err, store.ErrOther) {
		t.Errorf("another disk: %v", err)
	}
}

// A folder that is not mounted is never an empty store.
func TestFilesystemGone(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Open(t, filesystem(folder), nil)
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	location := filesystem(folder)
	if again, err := store.Open(t.Context(), &location, nil); err == nil || strings.Contains(err.Error(), folder) {
		t.Errorf("it opens as %v, with the error %v", again, err)
	}
	ctx := t.Context()
	_, attributesErr := bucket.Attributes(ctx, "a")
	_, writerErr := bucket.NewWriter(ctx, "a")
	for operation, err := range map[string]error{
		"list": drain(bucket.List(ctx, "backups/", store.ListOptions{})), "get": get(ctx, bucket, "a"),
		"attributes": attributesErr, "writer": writerErr, "create": bucket.Create(ctx, "a", nil),
		"delete": bucket.Delete(ctx, store.Object{Key: "a", Version: "1"}), "check": bucket.Check(ctx),
	} {
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", operation, err)
		}
		if strings.Contains(err.Error(), folder) {
			t.Errorf("%s says where the folder is: %v", operation, err)
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder was made")
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := bucket.Create(ctx, "a", nil); err != nil {
		t.Errorf("after the folder came back: %v", err)
	}
}

// A listing that can't see everything says so.
func TestFilesystemUnreadableFolder(t *testing.T) {
	folder := t.TempDir()
	hidden := filepath.Join(folder, "backups/one")
	writeFile(t, filepath.Join(hidden, "object"))
	writeFile(t, filepath.Join(folder, "backups/two/object"))
	for path, mode := range map[string]os.FileMode{filepath.Dir(folder): 0o755, folder: 0o755, filepath.Dir(hidden): 0o755, hidden: 0} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(hidden, 0o700) })
	bucket := storetest.Open(t, filesystem(folder), nil)
	var err error
	asNobody(t, func() { err = drain(bucket.List(t.Context(), "backups/", store.ListOptions{Recursive: true})) })
	if !errors.Is(err, store.ErrDenied) {
		t.Errorf("got %v, want %v", err, store.ErrDenied)
	}
	asNobody(t, func() { err = drain(bucket.List(t.Context(), "backups/one/", store.ListOptions{})) })
	if !errors.Is(err, store.ErrDenied) {
		t.Errorf("got %v, want %v", err, store.ErrDenied)
	}
}

// asNobody makes permission bits count even when root runs the tests.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		// Rights on files are those of a thread, and this one ends with the goroutine.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				done <- err
				return
			}
		}
		do()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// What a crashed writer left is not listed, can't be addressed, and goes with its
// folder.
func TestFilesystemLeftovers(t *testing.T) {
	folder := t.TempDir()
	leftover := filepath.Join(folder, "backups/b/.holdfast-CRASHED.tmp")
	writeFile(t, leftover)
	bucket := storetest.Open(t, filesystem(folder), nil)
	for object, err := range bucket.List(t.Context(), "backups/", store.ListOptions{Recursive: true}) {
		t.Errorf("listed %v, %v", object, err)
	}
	if err := bucket.Put(t.Context(), "backups/b/.holdfast-CRASHED.tmp", nil); err == nil {
		t.Error("the name of an unfinished write was taken as a key")
	}
	storetest.Empty(t, bucket, "backups/b/")
	if _, err := os.Stat(leftover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover is still there: %v", err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("empty folders are left: %v, %v", entries, err)
	}
}

// What is no file is no object, and a pipe makes nobody wait.
func TestFilesystemPipe(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "backups/b"), 0o700), syscall.Mkfifo(filepath.Join(folder, "backups/b/velero-backup.json"), 0o600)); err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Open(t, filesystem(folder), nil)
	if err := get(t.Context(), bucket, "backups/b/velero-backup.json"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := bucket.Attributes(t.Context(), "backups/b/velero-backup.json"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("attributes: %v", err)
	}
}

// Nothing but the objects lies in the folder, and only their owner reads them.
func TestFilesystemFiles(t *testing.T) {
	folder := t.TempDir()
	bucket := storetest.Open(t, filesystem(folder), nil)
	if err := errors.Join(
		bucket.Create(t.Context(), "backups/b/velero-backup.json", []byte("{}")),
		bucket.Put(t.Context(), "backups/b/b-logs.gz", nil),
		stream(t.Context(), bucket, "backups/b/b.tar.gz", 10),
	); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		files = append(files, entry.Name())
		return nil
	})
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v", files, err)
	}
}

// Who has opened a folder stays in it, as a repository that is being written must when
// another volume is mounted in its place; and it holds what is in it, not its links.
func TestFilesystemFolderStays(t *testing.T) {
	location := t.TempDir()
	writeFile(t, filepath.Join(location, "kopia/one/object"))
	writeFile(t, filepath.Join(location, "kopia/two/object"))
	if err := os.Symlink("../two", filepath.Join(location, "kopia/one/link")); err != nil {
		t.Fatal(err)
	}
	if _, err := storetest.Open(t, filesystem(location), nil).Folder(t.Context(), "kopia/three/"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a folder that isn't there: %v", err)
	}
	bucket, err := storetest.Open(t, filesystem(location), nil).Folder(t.Context(), "kopia/one/")
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if err := get(t.Context(), bucket, "link/object"); err == nil {
		t.Error("read another folder")
	}
	if err := errors.Join(os.Rename(location, location+".before"), os.Mkdir(location, 0o700)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(location + ".before")
	if err := errors.Join(bucket.Put(t.Context(), "new/object", nil), get(t.Context(), bucket, "object")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(location); err != nil || len(left) > 0 {
		t.Errorf("in the new folder are %v, %v", left, err)
	}
}

// A link out of the folder is not followed.
func TestFilesystemEscape(t *testing.T) {
	outside := t.TempDir()
	writeFile(t, filepath.Join(outside, "secret"))
	folder := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Open(t, filesystem(folder), nil)
	if err := get(t.Context(), bucket, "link/secret"); err == nil {
		t.Error("read a file outside of the folder")
	}
	if err := bucket.Put(t.Context(), "link/new", nil); err == nil {
		t.Error("wrote a file outside of the folder")
	}
	_ = bucket.Delete(t.Context(), store.Object{Key: "link/secret", Version: "1"})
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Errorf("removed a file outside of the folder: %v", err)
	}
}

func drain(listing iter.Seq2[store.Object, error]) error {
	for _, err := range listing {
		if err != nil {
			return err
		}
	}
	return nil
}

func get(ctx context.Context, bucket *store.Bucket, key string) error {
	return getPart(ctx, bucket, key, 0, -1)
}

func getPart(ctx context.Context, bucket *store.Bucket, key string, offset, length int64) error {
	content, err := bucket.GetRange(ctx, key, offset, length)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, content)
	return errors.Join(err, content.Close())
}

func stream(ctx context.Context, bucket store.Writer, key string, size int) error {
	w, err := bucket.NewWriter(ctx, key)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write(make([]byte, size)); err != nil {
		return err
	}
	return w.Commit()
}
