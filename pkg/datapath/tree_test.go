// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/upload"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const namespace = "app"

// store is a repository in a folder, or in a bucket.
type store struct {
	location repository.Location
	key      repository.Key
	shared   *shared
}

// shared is the client by which a test does all that needs none of its own: deriving the
// key of each takes most of a test's time.
type shared struct{ *repository.Repository }

func newStoreAt(t testing.TB, location repository.Location, key repository.Key) store {
	s := store{location, key, &shared{}}
	t.Cleanup(func() {
		if r := s.shared.Repository; r != nil {
			must(t, r.Close(context.WithoutCancel(t.Context())))
		}
	})
	return s
}

func inFolder(dir string) repository.Location {
	return repository.Location{Spec: enginev1alpha1.StorageLocationSpec{
		Provider:   enginev1alpha1.StorageProviderFilesystem,
		Filesystem: &enginev1alpha1.FilesystemLocation{Path: dir},
	}}
}

func (s store) create(t testing.TB) {
	t.Helper()
	must(t, repository.Create(t.Context(), s.location, namespace, s.key))
}

// An empty repository, made once.
var template struct {
	sync.Once
	dir string
	key repository.Key
}

func TestMain(m *testing.M) {
	code := m.Run()
	if template.dir != "" {
		os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

func templateDir(t testing.TB) string {
	t.Helper()
	template.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-template-")
		must(t, err)
		template.dir, template.key = dir, repository.NewKey()
		store{location: inFolder(dir), key: template.key}.create(t)
	})
	return template.dir
}

func newStore(t testing.TB) store {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(templateDir(t))))
	return newStoreAt(t, inFolder(dir), template.key)
}

// newBucket is a store in a bucket, whose requests pass through wrap.
func newBucket(t testing.TB, wrap func(next http.Handler) http.Handler) store {
	t.Helper()
	spec, secret := storetest.FakeS3(t, wrap)
	bucket := storetest.Open(t, spec, secret)
	folder := path.Join("kopia", namespace)
	files := os.DirFS(filepath.Join(templateDir(t), folder))
	must(t, fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		blob, isBlob := strings.CutSuffix(name, ".f")
		if err != nil || !isBlob {
			return err
		}
		content, err := fs.ReadFile(files, name)
		// In a bucket the names of blobs are not cut into folders.
		return errors.Join(err, bucket.Put(t.Context(), path.Join(folder, strings.ReplaceAll(blob, "/", "")), content))
	}))
	return newStoreAt(t, repository.Location{Spec: spec, Secret: secret}, template.key)
}

// client returns the shared one. It sees what others have stored.
func (s store) client(t testing.TB) *repository.Repository {
	t.Helper()
	if s.shared == nil {
		return s.open(t)
	}
	if s.shared.Repository == nil {
		r, err := repository.Open(t.Context(), s.location, namespace, s.key, repository.Options{})
		must(t, err)
		s.shared.Repository = r
	}
	must(t, s.shared.Kopia().Refresh(t.Context()))
	return s.shared.Repository
}

// open returns a client of its own, which has no cache.
func (s store) open(t testing.TB) *repository.Repository {
	t.Helper()
	r, err := repository.Open(t.Context(), s.location, namespace, s.key, repository.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.WithoutCancel(t.Context())) })
	return r
}

func (s store) upload(t testing.TB, dir string, source Source) UploadResult {
	t.Helper()
	result, err := Upload(t.Context(), s.client(t), UploadRequest{Path: dir, Source: source}, new(Progress))
	if err != nil {
		t.Fatalf("Upload: %v", err)
	}
	return result
}

func (s store) restore(t testing.TB, id, dir string) RestoreResult {
	t.Helper()
	var p Progress
	result, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: id, Path: dir}, &p)
	if err != nil {
		t.Fatalf("Restore: %v", err)
	}
	if p.Done() != result.TotalBytes || p.Total() != result.TotalBytes {
		t.Errorf("the progress ended at %d of %d bytes, of %d", p.Done(), p.Total(), result.TotalBytes)
	}
	return result
}

// snapshots returns every snapshot of the repository, checkpoints included.
func (s store) snapshots(t testing.TB) []*snapshot.Manifest {
	t.Helper()
	r := s.client(t).Kopia()
	ids, err := snapshot.ListSnapshotManifests(t.Context(), r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := snapshot.LoadSnapshots(t.Context(), r, ids)
	if err != nil {
		t.Fatal(err)
	}
	return manifests
}

var web = Source{Namespace: namespace, Pod: "web-0", Volume: "data"}

// made is what a restored file must have in common with the original.
type made struct {
	Mode     fs.FileMode
	UID, GID uint32
	ModTime  time.Time
	Size     int64
	Content  string // a checksum, or a link's target
}

// tree describes what lies below a folder, the folder itself included.
func tree(t testing.TB, dir string) map[string]made {
	t.Helper()
	all := map[string]made{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		m := made{Mode: info.Mode(), UID: stat.Uid, GID: stat.Gid, ModTime: info.ModTime().UTC()}
		switch info.Mode().Type() {
		case 0:
			m.Size = info.Size()
			m.Content, err = checksum(path)
		case os.ModeSymlink:
			m.Content, err = os.Readlink(path)
		}
		all[rel] = m
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

func expectSameTree(t testing.TB, got, want map[string]made) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the trees differ (-want +got):\n%s", diff)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// diskBytes is what a file, or all in a folder, takes on the disk.
func diskBytes(t testing.TB, path string) (bytes int64) {
	t.Helper()
	must(t, filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		var stat syscall.Stat_t
		err = errors.Join(err, syscall.Stat(path, &stat))
		bytes += stat.Blocks * 512
		return err
	}))
	return bytes
}

// saveCheckpoint turns a snapshot into what an interrupted upload leaves.
func saveCheckpoint(t testing.TB, r *repository.Repository, id string) {
	t.Helper()
	err := repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
		if err != nil {
			return err
		}
		if err := w.DeleteManifest(ctx, man.ID); err != nil {
			return err
		}
		man.IncompleteReason = upload.IncompleteReasonCheckpoint
		man.Tags = map[string]string{tagCheckpoint: "true"}
		_, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	})
	must(t, err)
}
