// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot/policy"
)

// TestDeleteSnapshots removes one of two snapshots that share all of their data.
func TestDeleteSnapshots(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "file"), "shared")
	first, second := s.upload(t, dir, web).SnapshotID, s.upload(t, dir, web).SnapshotID

	policies, err := s.open(t).Kopia().FindManifests(t.Context(), map[string]string{manifest.TypeLabelKey: policy.ManifestType})
	must(t, err)
	if len(policies) == 0 {
		t.Fatal("the repository has no policy")
	}
	ids := []string{first, "0123456789abcdef", string(policies[0].ID)}
	must(t, DeleteSnapshots(t.Context(), s.open(t), ids))

	if left := s.snapshots(t); len(left) != 1 || string(left[0].ID) != second {
		t.Errorf("the snapshots left are %v, want %s", left, second)
	}
	if _, err := s.open(t).Kopia().GetManifest(t.Context(), policies[0].ID, nil); err != nil {
		t.Errorf("a manifest that is no snapshot: %v", err)
	}
	if _, err := Restore(t.Context(), s.open(t), RestoreRequest{SnapshotID: first, Path: t.TempDir()}, new(Progress)); !errors.Is(err, ErrSnapshotNotFound) {
		t.Errorf("Restore of the deleted snapshot = %v, want ErrSnapshotNotFound", err)
	}
	s.restore(t, second, target)
	expectSameTree(t, tree(t, target), tree(t, dir))

	// Nothing is left to do, so nothing is written.
	before := blobs(t, s)
	must(t, DeleteSnapshots(t.Context(), s.open(t), ids))
	if after := blobs(t, s); after != before {
		t.Errorf("the second deletion made %d blobs of %d", after, before)
	}
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
