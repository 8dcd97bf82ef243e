// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// SnapshotsOf returns Kopia's ids of the snapshots that were made for a backup since
// its volumes are uploaded by Holdfast, and of what uploads have stored on their way.
func SnapshotsOf(ctx context.Context, r *repository.Repository, backup types.UID) (ids []string, err error) {
	defer func() { err = causeOf(ctx, err) }()
	entries, err := r.Kopia().FindManifests(ctx, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType, tagBackup: string(backup)})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots of backup %s: %w", backup, err)
	}
	for _, entry := range entries {
		ids = append(ids, string(entry.ID))
	}
	return ids, nil
}

// DeleteSnapshots removes snapshots from a repository, by Kopia's ids. One that is
// not there counts as removed, so it may be repeated; what is not a snapshot stays.
// The space of their data comes back with the repository's maintenance, and a
// restore that has begun is not disturbed before.
func DeleteSnapshots(ctx context.Context, r *repository.Repository, ids []string) (err error) {
	defer func() { err = causeOf(ctx, err) }()
	entries, err := r.Kopia().FindManifests(ctx, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType})
	if err != nil {
		return fmt.Errorf("list the snapshots of the repository: %w", err)
	}
	snapshots := make(map[manifest.ID]*manifest.EntryMetadata, len(entries))
	for _, entry := range entries {
		snapshots[entry.ID] = entry
	}
	var found []manifest.ID
	// add returns what lies beside the snapshot, or "".
	add := func(id manifest.ID) manifest.ID {
		snapshot := snapshots[id]
		if snapshot == nil {
			return ""
		}
		found = append(found, id)
		delete(snapshots, id)
		return manifest.ID(snapshot.Labels[tagExtras])
	}
	for _, id := range ids {
		add(add(manifest.ID(id)))
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
