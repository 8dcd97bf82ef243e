// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/restore"
	"github.com/kopia/kopia/snapshot/snapshotfs"
	"golang.org/x/sync/semaphore"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// ErrSnapshotNotFound: the repository has no complete snapshot of that id.
var ErrSnapshotNotFound = errors.New("the repository has no such snapshot")

// RestoreRequest says what to restore, and where to.
type RestoreRequest struct {
	// SnapshotID is Kopia's id of the snapshot.
	SnapshotID string
	// Path of the volume's folder, which must exist.
	Path string
}

// packMemory is how many bytes of packs a restore keeps in memory: four of them, as each
// has some 20 MB.
const packMemory = 96 << 20

// RestoreResult says what was restored.
type RestoreResult struct {
	// TotalBytes and Files of the snapshot.
	TotalBytes, Files int64
	// Warnings name files whose owner or mode could not be restored.
	Warnings Warnings
}

// Restore writes a snapshot into a folder. When it fails, the folder may hold a
// part of the files; a repetition replaces them.
func Restore(ctx context.Context, r *repository.Repository, req RestoreRequest, p *Progress) (_ RestoreResult, err error) {
	defer func() { err = causeOf(ctx, err) }()
	defer r.KeepPacks(packMemory)()
	man, err := snapshot.LoadSnapshot(ctx, r.Kopia(), manifest.ID(req.SnapshotID))
	switch {
	case errors.Is(err, snapshot.ErrSnapshotNotFound):
		return RestoreResult{}, fmt.Errorf("%w: %s", ErrSnapshotNotFound, req.SnapshotID)
	case err != nil:
		return RestoreResult{}, fmt.Errorf("read snapshot %s: %w", req.SnapshotID, err)
	case man.IncompleteReason != "" || man.RootEntry == nil || man.RootEntry.DirSummary == nil:
		return RestoreResult{}, fmt.Errorf("%w: %s is not a complete snapshot of a folder", ErrSnapshotNotFound, req.SnapshotID)
	}
	summary := man.RootEntry.DirSummary
	p.SetTotal(summary.TotalFileSize)

	root, err := os.OpenRoot(req.Path)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("open the volume's folder: %w", err)
	}
	defer root.Close()
	out := &output{root: root, progress: p, readers: semaphore.NewWeighted(partReaders)}
	switch out.extras, err = loadExtras(ctx, r.Kopia(), man); {
	case errors.Is(err, errNoExtras):
		out.notes.add(".", "did not get its extended attributes and hard links: they are gone from the repository")
	case err != nil:
		return RestoreResult{}, fmt.Errorf("read the extended attributes and hard links of snapshot %s: %w", req.SnapshotID, err)
	}
	stats, err := restore.Entry(ctx, r.Kopia(), out, newSnapshotEntry(r.Kopia(), man.RootEntry), restore.Options{
		Parallel:               parallelism(16),
		RestoreDirEntryAtDepth: math.MaxInt32,
	})
	switch {
	case err != nil:
		return RestoreResult{}, fmt.Errorf("restore snapshot %s: %w", req.SnapshotID, err)
	case int64(stats.RestoredFileCount) != summary.TotalFileCount:
		return RestoreResult{}, fmt.Errorf("restored %d of the %d files of snapshot %s", stats.RestoredFileCount, summary.TotalFileCount, req.SnapshotID)
	}
	return RestoreResult{
		TotalBytes: summary.TotalFileSize,
		Files:      summary.TotalFileCount,
		Warnings:   out.notes.warnings(),
	}, nil
}

// newSnapshotEntry presents an entry of a snapshot to Kopia's restore. Kopia's
// own view of a folder replaces the times of the folders in it by those of their
// newest files.
func newSnapshotEntry(r repo.Repository, stored *snapshot.DirEntry) fs.Entry {
	e := snapshotfs.EntryFromDirEntry(r, stored)
	if dir, ok := e.(fs.Directory); ok {
		return &snapshotDir{Directory: dir, repo: r, stored: stored}
	}
	return e
}

type snapshotDir struct {
	fs.Directory
	repo   repo.Repository
	stored *snapshot.DirEntry
}

// directoryStream is how Kopia marks the object of a folder.
const directoryStream = "kopia:directory"

func (d *snapshotDir) Iterate(ctx context.Context) (fs.DirectoryIterator, error) {
	object, err := d.repo.OpenObject(ctx, d.stored.ObjectID)
	if err != nil {
		return nil, fmt.Errorf("open folder %q of the snapshot: %w", d.Name(), err)
	}
	defer object.Close()
	var content snapshot.DirManifest
	if err := json.NewDecoder(object).Decode(&content); err != nil {
		return nil, fmt.Errorf("read folder %q of the snapshot: %w", d.Name(), err)
	}
	if content.StreamType != directoryStream {
		return nil, fmt.Errorf("folder %q of the snapshot is a %q", d.Name(), content.StreamType)
	}
	entries := make([]fs.Entry, len(content.Entries))
	for i, stored := range content.Entries {
		entries[i] = newSnapshotEntry(d.repo, stored)
	}
	return fs.StaticIterator(entries, nil), nil
}
