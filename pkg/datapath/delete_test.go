// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot/policy"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// TestDeleteSnapshots removes one of two snapshots that share all of their data.
func TestDeleteSnapshots(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "file"), "shared")
	first, second := s.upload(t, dir, web).SnapshotID, s.upload(t, dir, web).SnapshotID

	r := s.open(t)
	policies, err := r.Kopia().FindManifests(t.Context(), map[string]string{manifest.TypeLabelKey: policy.ManifestType})
	must(t, err)
	if len(policies) == 0 {
		t.Fatal("the repository has no policy")
	}
	ids := []string{first, first, "0123456789abcdef", string(policies[0].ID)}
	must(t, DeleteSnapshots(t.Context(), r, ids))

	if left := s.snapshots(t); len(left) != 1 || string(left[0].ID) != second {
		t.Errorf("the snapshots left are %v, want %s", left, second)
	}
	if _, err := s.client(t).Kopia().GetManifest(t.Context(), policies[0].ID, nil); err != nil {
		t.Errorf("a manifest that is no snapshot: %v", err)
	}
	if _, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: first, Path: t.TempDir()}, new(Progress)); !errors.Is(err, ErrSnapshotNotFound) {
		t.Errorf("Restore of the deleted snapshot = %v, want ErrSnapshotNotFound", err)
	}
	s.restore(t, second, target)
	expectSameTree(t, tree(t, target), tree(t, dir))

	// Nothing is left to do, so nothing is written.
	before := blobs(t, s)
	must(t, DeleteSnapshots(t.Context(), r, ids))
	if after := blobs(t, s); after != before {
		t.Errorf("the second deletion made %d blobs of %d", after, before)
	}
}

// snapshotsOf are the ids of the snapshots of a backup.
func snapshotsOf(ctx context.Context, r *repository.Repository, backup types.UID) (ids []string, err error) {
	all, err := Snapshots(ctx, r)
	for _, snapshot := range all {
		if snapshot.Backup == backup {
			ids = append(ids, snapshot.ID)
		}
	}
	return ids, err
}

// TestSnapshots finds what was uploaded for a backup, and what its uploads have
// stored on their way.
func TestSnapshotsOf(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	s.upload(t, dir, web) // by an older version
	var want []string
	for i, backup := range []types.UID{"one", "one", "two"} {
		source := Source{Namespace: namespace, Pod: fmt.Sprint("web-", i), Volume: "data"}
		uploaded, err := Upload(t.Context(), s.client(t), UploadRequest{Path: dir, Source: source, Backup: backup}, new(Progress))
		must(t, err)
		if backup == "one" {
			want = append(want, uploaded.SnapshotID)
		}
	}
	for backup, want := range map[types.UID][]string{"one": want, "none": nil} {
		got, err := snapshotsOf(t.Context(), s.client(t), backup)
		must(t, err)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the snapshots of %s are %q, want %q", backup, got, want)
		}
	}
	if tags := new(UploadRequest).tags(); len(tags) != 0 {
		t.Errorf("of no backup and no claim there are the tags %v", tags)
	}
	request := UploadRequest{Backup: "one", StoreName: "shop.daily", ClusterUID: "cluster", Source: Source{ClaimUID: "claim"}}
	must(t, repo.WriteSession(t.Context(), s.client(t).Kopia(), repo.WriteSessionOptions{}, func(_ context.Context, w repo.RepositoryWriter) error {
		labels := newUploader(w, &uploadObserver{}, request.tags()).CheckpointLabels
		if !maps.Equal(labels, map[string]string{tagCheckpoint: "true", tagBackup: "one", tagStoreName: "shop.daily", tagCluster: "cluster", tagClaim: "claim"}) {
			t.Errorf("the labels of a checkpoint are %v", labels)
		}
		return nil
	}))
}

// TestDeleteSnapshotsCancelled: a deletion that is stopped removes nothing.
func TestDeleteSnapshotsCancelled(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	id := s.upload(t, dir, web).SnapshotID
	r := s.open(t)
	why := errors.New("the controller stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := DeleteSnapshots(ctx, r, []string{id}); !errors.Is(err, why) {
		t.Errorf("DeleteSnapshots = %v, want the cause of the cancellation", err)
	}
	if left := s.snapshots(t); len(left) != 1 {
		t.Errorf("%d snapshots are left, want 1", len(left))
	}
}

// blobs is the number of files of a repository.
func blobs(t *testing.T, s store) (n int) {
	t.Helper()
	must(t, filepath.WalkDir(s.location.Spec.Filesystem.Path, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	}))
	return n
}
