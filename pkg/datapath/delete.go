// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

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
	snapshots := make(map[manifest.ID]bool, len(entries))
	for _, entry := range entries {
		snapshots[entry.ID] = true
	}
	var found []manifest.ID
	for _, id := range ids {
		if snapshots[manifest.ID(id)] {
			found = append(found, manifest.ID(id))
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
