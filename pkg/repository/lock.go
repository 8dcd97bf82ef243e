// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/holdfast-io/holdfast/pkg/store"
)

// A location's lock is the retention of Kopia's packs, indexes and kopia.repository, and each full
// maintenance extends all of them. Other blobs have none: logs, and what each maintenance rewrites.
//
// Holdfast stores no kopia.blobcfg, where Kopia keeps the retention, and answers Kopia's read of it
// by the location's lock. So a writer of the store can't end the locks, and the key can be changed
// (ErrRetention). A new lock counts from the next opening on. See docs/lock.md.

// extendedAtOnce is the number of parallel listings, which extend locks one by one.
const extendedAtOnce = 4

// leastLocked is the part of a lock that a full maintenance leaves to each blob. Kopia offers it
// all blobs every day; one locked for longer is left alone.
func leastLocked(period time.Duration) time.Duration { return period / 4 * 3 }

// lockBlobs prepares the answer to Kopia's read of kopia.blobcfg. It does nothing without a lock.
func (s *storage) lockBlobs(ctx context.Context, key Key) error {
	mode, period := s.bucket.Lock()
	if period == 0 {
		return nil
	}
	parsed, err := s.format(ctx)
	switch {
	case errors.Is(err, blob.ErrBlobNotFound):
		return ErrNotInitialized
	case err != nil:
		return fmt.Errorf("read the repository's format: %w", err)
	}
	// With a wrong key the answer can't be read; Kopia then fails at kopia.repository before.
	select {
	case derivations <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	derived, err := parsed.DeriveFormatEncryptionKeyFromPassword(string(key))
	<-derivations
	if err != nil {
		return fmt.Errorf("unlock the repository's format: %w", err)
	}
	written := &staging{blobs: map[blob.ID][]byte{}}
	retention := format.BlobStorageConfiguration{RetentionMode: blob.RetentionMode(mode), RetentionPeriod: period}
	if err := retention.Validate(); err != nil {
		return fmt.Errorf("lock the repository: %w", err)
	}
	if err := parsed.WriteBlobCfgBlob(ctx, written, retention, derived); err != nil {
		return fmt.Errorf("lock the repository: %w", err)
	}
	s.locks = written.blobs[format.KopiaBlobCfgBlobID]
	return nil
}

// ExtendBlobRetention leaves blobs alone with a lock that is long enough, or that were removed.
func (s *storage) ExtendBlobRetention(ctx context.Context, id blob.ID, opts blob.ExtendOptions) error {
	if s.locks == nil {
		return blob.ErrUnsupportedObjectLock // a retention of Kopia's own, without a location's lock
	}
	return s.persist(ctx, func() error {
		until, err := s.bucket.ExtendLock(ctx, s.key(id), leastLocked(opts.RetentionPeriod))
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err == nil:
			s.lockedUntil.add(until)
		default:
			s.unextended.CompareAndSwap(nil, &err)
		}
		return err
	})
}

// extendLocks has Kopia's full maintenance extend the locks, if the location has one. The
// parameters for that stay: without a lock, Kopia has nothing to extend.
func (r *Repository) extendLocks(ctx context.Context, w repo.DirectRepositoryWriter) error {
	r.storage.lockedUntil.clear()
	r.storage.unextended.Store(nil)
	if r.storage.locks == nil {
		return nil
	}
	params, err := maintenance.GetParams(ctx, w)
	if err != nil {
		return fmt.Errorf("read the repository's maintenance parameters: %w", err)
	}
	if params.ExtendObjectLocks {
		return nil
	}
	params.ExtendObjectLocks = true
	if err := maintenance.SetParams(ctx, w, params); err != nil {
		return fmt.Errorf("have the repository's maintenance extend locks: %w", err)
	}
	if err := w.Flush(ctx); err != nil {
		return fmt.Errorf("have the repository's maintenance extend locks: %w", err)
	}
	return nil
}

// extendAll extends all locks. Kopia does so in a full maintenance, which does not run on a damaged
// repository.
func (r *Repository) extendAll(ctx context.Context) error {
	if r.storage.locks == nil {
		return nil
	}
	mode, period := r.storage.bucket.Lock()
	options := blob.ExtendOptions{RetentionMode: blob.RetentionMode(mode), RetentionPeriod: period}
	err := blob.IterateAllPrefixesInParallel(ctx, extendedAtOnce, r.storage, repo.GetLockingStoragePrefixes(), func(found blob.Metadata) error {
		return r.storage.ExtendBlobRetention(ctx, found.BlobID, options)
	})
	if err != nil {
		return fmt.Errorf("extend the locks of the repository's blobs: %w", err)
	}
	return nil
}

type earliest struct {
	mu sync.Mutex
	at time.Time
}

func (e *earliest) add(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() || at.Before(e.at) {
		e.at = at
	}
}

func (e *earliest) get() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

func (e *earliest) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = time.Time{}
}
