// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/holdfast-io/holdfast/pkg/store"
)

// Moved is a clock that a test moves, for clients of a repository and for its store.
type Moved struct {
	// Skew is how far the store's clock is ahead of the clients'.
	Skew time.Duration

	mu      sync.Mutex
	offset  time.Duration
	written map[blob.ID]time.Time
}

// NewMoved returns a clock that shows the time.
func NewMoved() *Moved { return &Moved{written: map[blob.ID]time.Time{}} }

// Advance moves the clock.
func (m *Moved) Advance(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offset += by
}

// Now is what it shows.
func (m *Moved) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Add(m.offset)
}

// Open opens a repository under the clock.
func (m *Moved) Open(ctx context.Context, loc Location, namespace string, key Key, workDir string) (*Repository, error) {
	bucket, err := store.Open(ctx, &loc.Spec, loc.Secret)
	if err != nil {
		return nil, err
	}
	st, err := connect(ctx, bucket, loc.Spec.Provider, namespace)
	if err != nil {
		return nil, err
	}
	clocked := &movedStorage{st, m}
	info, release := lend(clocked)
	config, err := json.Marshal(repo.LocalConfig{
		Storage: &info, Caching: &content.CachingOptions{},
		ClientOptions: repo.ClientOptions{Username: clientUser, Hostname: clientHost, FormatBlobCacheDuration: -1},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(workDir, "repository.config")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	opened, err := repo.Open(ctx, file, string(key), &repo.Options{DisableRepositoryLog: true, DoNotWaitForUpgrade: true, TimeNowFunc: m.Now, OnFatalError: func(error) {}})
	if err != nil {
		return nil, err
	}
	return &Repository{direct: opened.(repo.DirectRepository), storage: st, workDir: workDir, release: release}, nil
}

// movedStorage tells of each blob when it was written by the moved clock.
type movedStorage struct {
	*storage
	clock *Moved
}

func (s *movedStorage) at(m blob.Metadata) blob.Metadata {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if at, ok := s.clock.written[m.BlobID]; ok {
		m.Timestamp = at
	}
	return m
}

func (s *movedStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, opts blob.PutOptions) error {
	err := s.storage.PutBlob(ctx, id, data, opts)
	now := s.clock.Now().Add(s.clock.Skew)
	s.clock.mu.Lock()
	s.clock.written[id] = now
	s.clock.mu.Unlock()
	if opts.GetModTime != nil {
		*opts.GetModTime = now
	}
	return err
}

func (s *movedStorage) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	found, err := s.storage.GetMetadata(ctx, id)
	return s.at(found), err
}

func (s *movedStorage) ListBlobs(ctx context.Context, prefix blob.ID, callback func(blob.Metadata) error) error {
	return s.storage.ListBlobs(ctx, prefix, func(found blob.Metadata) error { return callback(s.at(found)) })
}

// IndexBlobs are how many indexes an opening of a repository reads, and how many lie in its store.
func IndexBlobs(t *testing.T, r *Repository) (read, stored int) {
	t.Helper()
	if err := r.direct.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, all := range []bool{false, true} {
		blobs, err := r.direct.IndexBlobs(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		read, stored = stored, len(blobs)
	}
	return read, stored
}

// SetMaintenance says who maintains a repository, and how often in full.
func SetMaintenance(t *testing.T, r *Repository, owner string, full time.Duration) {
	t.Helper()
	err := repo.WriteSession(t.Context(), r.direct, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		params := maintenance.DefaultParams()
		params.Owner, params.FullCycle.Interval = owner, full
		return maintenance.SetParams(ctx, w, &params)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Distrust has a repository know that packs are damaged.
func (r *Repository) Distrust(packs []string) { r.distrust(packs) }
