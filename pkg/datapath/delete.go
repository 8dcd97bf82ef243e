// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Snapshot is one of a repository, as far as its tags tell.
type Snapshot struct {
	// ID is Kopia's.
	ID string
	// Backup is the uid of the backup that it was made for, since Holdfast uploads volumes.
	Backup types.UID
	// StoreName and ClusterUID are as in the UploadRequest.
	StoreName, ClusterUID string
	// Saved is when it was stored, by the clock of who did.
	Saved time.Time
	// Extras is the id of the snapshot that this one needs beside it, for what Kopia has no
	// place for; empty without. No backup lists it.
	Extras string
}

// Snapshots are all of a repository, with what uploads have stored on their way.
func Snapshots(ctx context.Context, r *repository.Repository) (all []Snapshot, err error) {
	defer func() { err = causeOf(ctx, err) }()
	entries, err := r.Kopia().FindManifests(ctx, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots of the repository: %w", err)
	}
	for _, entry := range entries {
		all = append(all, Snapshot{
			ID: string(entry.ID), Backup: types.UID(entry.Labels[tagBackup]), Saved: entry.ModTime,
			StoreName: entry.Labels[tagStoreName], ClusterUID: entry.Labels[tagCluster],
			Extras: entry.Labels[tagExtras],
		})
	}
	return all, nil
}

// DeleteSnapshots removes snapshots from a repository, by Kopia's ids. One that is
// not there counts as removed, so it may be repeated; what is not a snapshot stays. What one
// needs beside it goes with it, unless another one that stays needs it, too: a copy has its tags.
// The space of their data comes back with the repository's maintenance, and a
// restore that has begun is not disturbed before.
func DeleteSnapshots(ctx context.Context, r *repository.Repository, ids []string) (err error) {
	defer func() { err = causeOf(ctx, err) }()
	all, err := Snapshots(ctx, r)
	if err != nil {
		return err
	}
	there := make(map[string]Snapshot, len(all))
	neededBy := map[string]int{} // how many that stay, by the id of what they need beside them
	for _, snapshot := range all {
		there[snapshot.ID] = snapshot
		neededBy[snapshot.Extras]++
	}
	var found []manifest.ID
	// add returns what lies beside the snapshot, or "".
	add := func(id string) string {
		snapshot, ok := there[id]
		if ok {
			found = append(found, manifest.ID(id))
			delete(there, id)
			neededBy[snapshot.Extras]--
		}
		return snapshot.Extras
	}
	for _, id := range ids {
		if beside := add(id); neededBy[beside] == 0 {
			add(beside)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return repo.WriteSession(ctx, r.Kopia(), repo.WriteSessionOptions{Purpose: "delete snapshots"}, func(ctx context.Context, w repo.RepositoryWriter) error {
		for _, id := range found {
			// Pins hold a snapshot against Kopia's retention only.
			if err := w.DeleteManifest(ctx, id); err != nil {
				return fmt.Errorf("delete snapshot %s: %w", id, err)
			}
		}
		return ctx.Err() // what is not flushed is dropped
	})
}
