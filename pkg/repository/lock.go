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

// A location's lock is Kopia's retention. With one, Kopia writes its packs, its indexes and
// kopia.repository with a retention, and each full maintenance extends all of them. Other blobs have
// none: logs, and what each maintenance rewrites.
//
// Kopia keeps the retention in a second blob, kopia.blobcfg, which the repository's key encrypts.
// Holdfast stores none. It answers Kopia's read of that blob by the location's lock, for three
// reasons: a writer of the store could remove or replace the blob, and so end the locks. Two blobs
// can't change their key at once (ErrRetention). And a repository takes a lock on, or another
// number of days, at its next opening.

// extendedAtOnce is the number of parallel listings. Each extends locks one by one.
const extendedAtOnce = 4

// leastLocked is the part of a location's lock that a full maintenance leaves to each blob: Kopia
// offers all of them to it every day, and one that is locked for longer is left alone.
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

// ExtendBlobRetention implements blob.Storage. It leaves blobs alone whose lock is long enough, and
// blobs that were removed meanwhile.
func (s *storage) ExtendBlobRetention(ctx context.Context, id blob.ID, opts blob.ExtendOptions) error {
	if s.locks == nil {
		return blob.ErrUnsupportedObjectLock // a retention of Kopia's own, without a lock of the location
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

// extendLocks has Kopia's full maintenance extend the locks, if the location has one. Kopia does
// that only if the repository's parameters say so. They stay, since without a lock of the location
// there is nothing that Kopia would extend.
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

// extendAll extends the locks of all blobs that have locks. Kopia does this in a full maintenance,
// which does not run on a damaged repository. The blobs that are left stay locked all the same.
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

// earliest keeps the earliest of several instants.
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
