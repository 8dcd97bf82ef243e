// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/maintenancestats"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotmaintenance"
	"k8s.io/klog/v2"
)

var (
	ErrOtherOwner = errors.New("another client owns the maintenance of the repository; give it back with kopia maintenance set --owner=" + clientUser + "@" + clientHost)
	// ErrClockSkew: the clocks of this machine and the store differ too much to tell ages.
	ErrClockSkew = errors.New("the clocks of this machine and of the store differ by more than 5 minutes; set them right")
)

// MaintenanceKind is the extent of a maintenance.
type MaintenanceKind string

const (
	// MaintenanceQuick keeps the indexes few.
	MaintenanceQuick MaintenanceKind = "quick"
	// MaintenanceFull also removes contents that no snapshot needs.
	MaintenanceFull MaintenanceKind = "full"
)

// Maintenance says what a maintenance has done.
type Maintenance struct {
	Kind MaintenanceKind
	// Reclaimed are the bytes removed from the store.
	Reclaimed int64
	// Rewritten are the bytes moved to new packs; the old packs are removed later.
	Rewritten int64
	// Skew is how far the store's clock is ahead.
	Skew time.Duration
	// Size is the repository's in the store, Files the newest snapshots'; only after a full
	// maintenance.
	Size, Files int64
	// LockedUntil is until when all locked blobs are locked at least; only after a full maintenance
	// with a lock.
	LockedUntil time.Time
}

// Maintain runs Kopia's maintenance, full if due, else quick. By Kopia's safety intervals, uploads
// and restores may run meanwhile. The caller ensures that only one process maintains the
// repository. If an index is lost, it does nothing. After an error the result has the work before
// it.
func (r *Repository) Maintain(ctx context.Context) (Maintenance, error) {
	ctx, stop := r.While(ctx)
	defer stop()
	begun := r.direct.Time()
	kind, err := r.DueMaintenance(ctx)
	if err != nil {
		return Maintenance{}, err
	}
	done := Maintenance{Kind: kind}
	mode := maintenance.ModeQuick
	if kind == MaintenanceFull {
		mode = maintenance.ModeFull
	}
	lost, err := r.lostIndexes(ctx)
	if err == nil && len(lost) > 0 {
		err = r.errIndexLost(lost)
	}
	var missing *Missing
	if err == nil {
		missing, err = r.compare(ctx, true, nil)
	}
	if err != nil {
		if kind == MaintenanceFull {
			err = errors.Join(err, r.extendAll(ctx))
		}
		return done, err
	}
	err = repo.DirectWriteSession(ctx, r.direct, repo.WriteSessionOptions{Purpose: "maintenance"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		if err := r.extendLocks(ctx, w); err != nil {
			return err
		}
		if missing.Any() {
			w = sparing{w, missing}
		}
		return snapshotmaintenance.Run(ctx, w, mode, false, maintenance.SafetyFull)
	})
	if unextended := r.storage.unextended.Load(); err != nil && unextended != nil {
		err = errors.Join(err, *unextended)
	}
	var notOwned maintenance.NotOwnedError
	switch {
	case ctx.Err() != nil:
		return done, context.Cause(ctx)
	case errors.As(err, &notOwned):
		return done, fmt.Errorf("%w: it is %q", ErrOtherOwner, notOwned.Owner)
	case err != nil && strings.Contains(err.Error(), "clock skew detected"): // Kopia has no error for it
		return done, fmt.Errorf("%w: %w", ErrClockSkew, err)
	}
	// Also after a failure: the next maintenance removes the replaced indexes.
	err = errors.Join(err, r.noteIndexes(ctx), r.account(ctx, begun, &done))
	if err == nil && done.Kind == MaintenanceFull {
		done.LockedUntil = r.storage.lockedUntil.get()
		err = r.measure(ctx, &done)
	}
	return done, err
}

// sparing hides unreadable contents, which would fail Kopia's maintenance: it reads short packs,
// and deleted contents that are needed again.
type sparing struct {
	repo.DirectRepositoryWriter
	missing *Missing
}

func (s sparing) ContentReader() content.Reader {
	return sparingReader{s.DirectRepositoryWriter.ContentReader(), s.missing}
}

type sparingReader struct {
	content.Reader
	missing *Missing
}

func (s sparingReader) IteratePacks(ctx context.Context, options content.IteratePackOptions, callback content.IteratePacksCallback) error {
	return s.Reader.IteratePacks(ctx, options, func(pack content.PackInfo) error {
		if options.IncludeContentInfos && s.missing.has(content.Info{PackBlobID: pack.PackID}) {
			return nil
		}
		return callback(pack)
	})
}

func (s sparingReader) IterateContents(ctx context.Context, options content.IterateOptions, callback content.IterateCallback) error {
	return s.Reader.IterateContents(ctx, options, func(info content.Info) error {
		if info.Deleted && s.missing.has(info) {
			return nil
		}
		return callback(info)
	})
}

func (r *Repository) measure(ctx context.Context, done *Maintenance) error {
	if err := r.direct.BlobReader().ListBlobs(ctx, "", func(found blob.Metadata) error {
		done.Size += found.Length
		return nil
	}); err != nil {
		return fmt.Errorf("look how large the repository is: %w", err)
	}
	ids, err := snapshot.ListSnapshotManifests(ctx, r.direct, nil, nil)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	all, err := snapshot.LoadSnapshots(ctx, r.direct, ids)
	if err != nil {
		return fmt.Errorf("read the snapshots: %w", err)
	}
	newest := map[snapshot.SourceInfo]*snapshot.Manifest{}
	for _, found := range all {
		if last := newest[found.Source]; found.RootEntry != nil && (last == nil || found.StartTime.After(last.StartTime)) {
			newest[found.Source] = found
		}
	}
	for _, found := range newest {
		if summary := found.RootEntry.DirSummary; summary != nil {
			done.Files += summary.TotalFileCount
		} else {
			done.Files++ // a device
		}
	}
	return nil
}

// DueMaintenance returns the due kind.
func (r *Repository) DueMaintenance(ctx context.Context) (MaintenanceKind, error) {
	schedule, err := maintenance.GetSchedule(ctx, r.direct)
	if err != nil {
		return "", fmt.Errorf("read when the repository was maintained: %w", err)
	}
	now := r.direct.Time()
	if !now.Before(schedule.NextFullMaintenanceTime) && now.Sub(lastFull(schedule)) >= minFullInterval {
		return MaintenanceFull, nil
	}
	return MaintenanceQuick, nil
}

// minFullInterval is the minimum time between full maintenances (docs/design/maintenance.md).
const minFullInterval = 23 * time.Hour

func lastFull(schedule *maintenance.Schedule) (last time.Time) {
	for _, run := range schedule.Runs[maintenance.TaskSnapshotGarbageCollection] {
		if run.Start.After(last) {
			last = run.Start
		}
	}
	return last
}

func (r *Repository) account(ctx context.Context, since time.Time, done *Maintenance) error {
	schedule, err := maintenance.GetSchedule(ctx, r.direct)
	if err != nil {
		return fmt.Errorf("read what the maintenance has done: %w", err)
	}
	logger := klog.FromContext(ctx)
	var last time.Time
	for _, task := range slices.Sorted(maps.Keys(schedule.Runs)) {
		for _, run := range schedule.Runs[task] {
			if run.Start.Before(since) {
				break // the newest come first
			}
			if run.End.After(last) {
				last = run.End
			}
			for _, extra := range run.Extra {
				removed, rewritten, summary := accountOf(extra)
				done.Reclaimed += removed
				done.Rewritten += rewritten
				logger.V(1).Info("Maintenance task", "task", task, "took", run.End.Sub(run.Start), "summary", summary)
			}
		}
	}
	if last.IsZero() {
		return nil
	}
	// The record was written after the last task, by this machine's clock.
	written, err := r.direct.BlobReader().GetMetadata(ctx, "kopia.maintenance")
	if err != nil {
		return fmt.Errorf("look at the clock of the store: %w", err)
	}
	done.Skew = written.Timestamp.Sub(last)
	return nil
}

func accountOf(extra maintenancestats.Extra) (removed, rewritten int64, summary string) {
	var sizes struct{ DeletedTotalSize, DeletedBlobSize, RewrittenContentSize int64 }
	stats, err := maintenancestats.BuildFromExtra(extra)
	err = cmp.Or(err, json.Unmarshal(extra.Data, &sizes))
	if err != nil {
		return 0, 0, err.Error()
	}
	return sizes.DeletedTotalSize + sizes.DeletedBlobSize, sizes.RewrittenContentSize, stats.Summary()
}
