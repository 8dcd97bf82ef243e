// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
)

// mostWalked bounds the files and folders of a check, each folder once for all snapshots: some
// minutes.
const mostWalked = 10_000_000

var errTooMany = errors.New("there is too much to look through")

func (r *Repository) affected(ctx context.Context, bad func(content.Info) bool, done *Check) error {
	ids, err := snapshot.ListSnapshotManifests(ctx, r.direct, nil, nil)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	all, err := snapshot.LoadSnapshots(ctx, r.direct, ids)
	if err != nil {
		return fmt.Errorf("read the snapshots: %w", err)
	}
	// The newest matter most, and older ones share their folders.
	slices.SortFunc(all, func(a, b *snapshot.Manifest) int { return b.StartTime.ToTime().Compare(a.StartTime.ToTime()) })
	w := &walk{repository: r, bad: bad, folders: map[object.ID]bool{}, left: mostWalked}
	hit := map[string]bool{}
	for _, man := range all {
		if man.RootEntry == nil || man.IncompleteReason != "" {
			continue
		}
		touched, err := w.touches(ctx, man.RootEntry)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errTooMany):
			done.Incomplete, touched = true, true
		case err != nil:
			return err
		}
		if touched && done.AffectedUntil.IsZero() {
			done.AffectedUntil = man.StartTime.ToTime()
		}
		if done.Incomplete {
			break
		}
		if touched {
			hit[string(man.ID)] = true
		}
	}
	for _, man := range all {
		for _, value := range man.Tags {
			if hit[value] {
				hit[string(man.ID)] = true
				if at := man.StartTime.ToTime(); done.AffectedUntil.Before(at) {
					done.AffectedUntil = at
				}
			}
		}
	}
	for id := range hit {
		done.Snapshots = append(done.Snapshots, id)
	}
	slices.Sort(done.Snapshots)
	return nil
}

type walk struct {
	repository *Repository
	bad        func(content.Info) bool
	folders    map[object.ID]bool
	left       int
}

func (w *walk) touches(ctx context.Context, entry *snapshot.DirEntry) (bool, error) {
	if w.left--; w.left < 0 {
		return false, errTooMany
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	isFolder := entry.Type == snapshot.EntryTypeDirectory
	if known, ok := w.folders[entry.ObjectID]; ok && isFolder {
		return known, nil
	}
	touched := w.object(ctx, entry.ObjectID)
	if isFolder && !touched {
		var err error
		if touched, err = w.folder(ctx, entry.ObjectID); err != nil {
			return false, err
		}
	}
	if isFolder {
		w.folders[entry.ObjectID] = touched
	}
	return touched, nil
}

func (w *walk) object(ctx context.Context, id object.ID) bool {
	contents, err := w.repository.direct.VerifyObject(ctx, id)
	return err != nil || slices.ContainsFunc(contents, func(id content.ID) bool {
		info, err := w.repository.direct.ContentInfo(ctx, id)
		return err != nil || w.bad(info)
	})
}

func (w *walk) folder(ctx context.Context, id object.ID) (bool, error) {
	listing, err := w.repository.direct.OpenObject(ctx, id)
	if err != nil {
		return false, fmt.Errorf("open the listing of a folder: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer listing.Close()
	var folder snapshot.DirManifest
	if err := json.NewDecoder(listing).Decode(&folder); err != nil {
		return false, fmt.Errorf("read the listing of a folder: %w", cmp.Or(context.Cause(ctx), err))
	}
	for _, entry := range folder.Entries {
		if touched, err := w.touches(ctx, entry); touched || err != nil {
			return touched, err
		}
	}
	return false, nil
}
