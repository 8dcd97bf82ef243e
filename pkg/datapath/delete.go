// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Snapshot describes a snapshot by its tags.
type Snapshot struct {
	ID string
	// Backup is the backup's uid, empty for old snapshots.
	Backup                types.UID
	StoreName, ClusterUID string
	// Volume distinguishes a backup's volumes: the claim's uid, or Kopia's source path.
	Volume string
	// Saved is by the writer's clock.
	Saved time.Time
	// Extras is the id of the snapshot with its extras, in no backup's list; or empty.
	Extras string
}

// Snapshots returns all snapshots of a repository, also checkpoints.
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
			Volume: cmp.Or(entry.Labels[tagClaim], entry.Labels[snapshot.PathLabel]),
			Extras: entry.Labels[tagExtras],
		})
	}
	return all, nil
}

// DeleteSnapshots deletes snapshots by Kopia's ids, with extras that no remaining snapshot shares.
// Missing ids count as deleted; manifests of other types stay. Maintenance frees the space later,
// which disturbs no restore.
func DeleteSnapshots(ctx context.Context, r *repository.Repository, ids []string) (err error) {
	defer func() { err = causeOf(ctx, err) }()
	all, err := Snapshots(ctx, r)
	if err != nil {
		return err
	}
	there := make(map[string]Snapshot, len(all))
	neededBy := map[string]int{} // remaining snapshots that need extras, by their id
	for _, snapshot := range all {
		there[snapshot.ID] = snapshot
		neededBy[snapshot.Extras]++
	}
	var found []manifest.ID
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
			// Pins protect a snapshot against Kopia's retention only.
			if err := w.DeleteManifest(ctx, id); err != nil {
				return fmt.Errorf("delete snapshot %s: %w", id, err)
			}
		}
		return ctx.Err() // an error drops unflushed writes
	})
}
