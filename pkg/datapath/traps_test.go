// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot/policy"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// A checkpoint of a long upload applies the retention that is stored in the repository,
// whoever has set it: it takes nothing away that we have stored.
func TestCheckpointKeepsWhatIsStored(t *testing.T) {
	s := newStore(t)
	const stored = 5
	for i := range stored {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "file"), fmt.Sprint(i))
		s.upload(t, dir, web)
	}
	keep, none := policy.OptionalInt(1), policy.OptionalInt(0)
	must(t, repo.WriteSession(t.Context(), s.open(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		return policy.SetPolicy(ctx, w, policy.GlobalPolicySourceInfo, &policy.Policy{RetentionPolicy: policy.RetentionPolicy{
			KeepLatest: &keep, KeepHourly: &none, KeepDaily: &none, KeepWeekly: &none, KeepMonthly: &none, KeepAnnual: &none,
		}})
	}))
	vol, err := openVolume(Folder{Path: endless(t)}, &notes{}, new(Progress))
	must(t, err)
	defer vol.close()
	folder, err := vol.folder()
	must(t, err)
	s.inSession(t, func(ctx context.Context, w repo.RepositoryWriter) {
		u := newUploader(w, &uploadObserver{progress: new(Progress), notes: &notes{}}, nil)
		u.CheckpointInterval = 10 * time.Millisecond
		var checkpoints, others int
		go func() {
			defer u.Cancel()
			for deadline := time.Now().Add(time.Minute); checkpoints == 0 && time.Now().Before(deadline); {
				checkpoints, others = 0, 0
				for _, man := range s.snapshots(t) {
					if man.IncompleteReason == "" {
						others++
					} else {
						checkpoints++
					}
				}
			}
		}()
		man, err := u.Upload(ctx, folder, uploadPolicy(), web.info(w.ClientOptions(), requester))
		must(t, err)
		if man.IncompleteReason == "" || checkpoints == 0 || others != stored {
			t.Errorf("at the checkpoint, %d of %d snapshots were left; the upload ended %q", others, stored, man.IncompleteReason)
		}
	})
}

// A cache on disk does not make what is damaged in the store look sound: contents are
// read from the store, and checked.
func TestDamageBehindACache(t *testing.T) {
	var damaged atomic.Bool
	s := newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pack := r.Method == http.MethodGet && strings.HasPrefix(path.Base(r.URL.Path), "p")
			if !damaged.Load() || !pack {
				next.ServeHTTP(w, r)
				return
			}
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			body[len(body)/2] ^= 1
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		})
	})
	dir := t.TempDir()
	cache, err := repository.NewCache(t.TempDir(), 1<<30)
	must(t, err)
	content := make([]byte, 6<<20)
	rand.NewChaCha8([32]byte{7}).Read(content)
	write(t, filepath.Join(dir, "large"), string(content))
	write(t, filepath.Join(dir, "small"), string(content[:5000]))
	open := func() *repository.Repository {
		r, err := repository.Open(t.Context(), s.location, namespace, s.key, repository.Options{Cache: cache})
		must(t, err)
		t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
		return r
	}
	r := open()
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	_, err = Restore(t.Context(), r, RestoreRequest{SnapshotID: uploaded.SnapshotID, Path: t.TempDir()}, new(Progress))
	must(t, err)
	damaged.Store(true)
	for name, r := range map[string]*repository.Repository{"the same client": r, "the next one": open()} {
		target := t.TempDir()
		if _, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: uploaded.SnapshotID, Path: target}, new(Progress)); err == nil {
			t.Errorf("%s restores what is damaged", name)
		} else if !strings.Contains(err.Error(), "invalid checksum") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A full disk fails a restore, which says so. With room, its repetition is whole.
func TestRestoreToAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it mounts a small file system, which needs root")
	}
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	richTree(t, dir) // some 9 MiB
	want := tree(t, dir)
	id := s.upload(t, dir, web).SnapshotID
	must(t, syscall.Mount("tmpfs", target, "tmpfs", 0, "size=4m"))
	defer func() { must(t, syscall.Unmount(target, syscall.MNT_DETACH)) }()
	_, err := Restore(t.Context(), s.open(t), RestoreRequest{SnapshotID: id, Path: target}, new(Progress))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), `"big"`) {
		t.Errorf("Restore = %v, want that the disk is full at which file", err)
	}
	// Of paths, what is there stays until the new file is complete.
	must(t, os.RemoveAll(filepath.Join(target, "big")))
	write(t, filepath.Join(target, "big"), "old")
	before := tree(t, target)
	paths := RestoreRequest{SnapshotID: id, Path: target, Only: []string{"big"}}
	if _, err := Restore(t.Context(), s.open(t), paths, new(Progress)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Restore of a path = %v", err)
	}
	after := tree(t, target)
	after["."] = before["."] // its time
	expectSameTree(t, after, before)
	must(t, syscall.Mount("tmpfs", target, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	s.restore(t, id, target)
	expectSameTree(t, tree(t, target), want)
}

// A restore whose volume goes away, since its pod was deleted for instance, has not
// completed, wherever its last files went.
func TestRestoreWhoseVolumeGoesAway(t *testing.T) {
	var target atomic.Pointer[string]
	s := newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if dir := target.Load(); dir != nil && strings.HasPrefix(path.Base(r.URL.Path), "p") {
				_ = os.Rename(*dir, *dir+".old") // the first time
			}
			next.ServeHTTP(w, r)
		})
	})
	source, dir := t.TempDir(), filepath.Join(t.TempDir(), "volume")
	write(t, filepath.Join(source, "file"), "content")
	id := s.upload(t, source, web).SnapshotID
	r := s.open(t)
	must(t, os.Mkdir(dir, 0o755))
	target.Store(&dir)
	if _, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: id, Path: dir}, new(Progress)); err == nil || !strings.Contains(err.Error(), "went away") {
		t.Errorf("Restore = %v", err)
	}
}

// As many at once as the container has processors, not the node.
func TestParallelismFollowsTheContainer(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(100))
	newStore(t).inSession(t, func(_ context.Context, w repo.RepositoryWriter) {
		if got := newUploader(w, &uploadObserver{}, nil).ParallelUploads; got != 200 {
			t.Errorf("with 100 processors, %d files are uploaded at once", got)
		}
		runtime.GOMAXPROCS(1)
		if got := newUploader(w, &uploadObserver{}, nil).ParallelUploads; got != 8 {
			t.Errorf("with one processor, %d files are uploaded at once", got)
		}
	})
}
