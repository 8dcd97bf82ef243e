// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
)

// Kopia trusts its index: even if the pack is lost, it does not write a content again that the
// index names, nor read its file. So the index is compared with the store's listing.

const (
	believedFor = 2 * time.Minute
	// mostConfirmed bounds the single requests for packs that a listing lacks.
	mostConfirmed = 64
)

// Missing has the index's packs that the store lacks in whole or in part, and known damaged ones.
type Missing struct {
	packs, damaged map[blob.ID]struct{}
	Contents       int
}

// Packs returns the names.
func (m *Missing) Packs() []string {
	var names []string
	for _, packs := range []map[blob.ID]struct{}{m.packs, m.damaged} {
		for _, id := range slices.Sorted(maps.Keys(packs)) {
			names = append(names, string(id))
		}
	}
	return names
}

// Any reports whether a pack is missing.
func (m *Missing) Any() bool { return m != nil && len(m.packs)+len(m.damaged) > 0 }

func (m *Missing) has(info content.Info) bool {
	_, damaged := m.damaged[info.PackBlobID]
	return damaged || m.lacks(info)
}

func (m *Missing) lacks(info content.Info) bool {
	_, missing := m.packs[info.PackBlobID]
	return missing
}

type comparison struct {
	mu      sync.Mutex
	missing *Missing
	at      time.Time
}

// Missing compares the packs of the index with the store's listing, a thousand packs a request, at
// most every two minutes. It asks by name for packs that the listing lacks, since it may lag. The
// index is read first, and packs precede their index, so a new pack is never missing.
func (r *Repository) Missing(ctx context.Context) (*Missing, error) {
	r.compared.mu.Lock()
	defer r.compared.mu.Unlock()
	if r.compared.missing != nil && time.Since(r.compared.at) < believedFor {
		return r.compared.missing, nil
	}
	found, err := r.compare(ctx, false, nil)
	if err != nil {
		return nil, err
	}
	r.compared.missing, r.compared.at = found, time.Now()
	return found, nil
}

type namedPack struct {
	// end is the pack's minimum length, contents the number of live ones.
	end      int64
	contents int
}

func (r *Repository) named(ctx context.Context, deleted bool) (map[blob.ID]namedPack, error) {
	packs := map[blob.ID]namedPack{}
	err := r.direct.ContentReader().IterateContents(ctx, content.IterateOptions{IncludeDeleted: deleted}, func(info content.Info) error {
		pack := packs[info.PackBlobID]
		pack.end = max(pack.end, int64(info.PackOffset)+int64(info.PackedLength))
		if !info.Deleted {
			pack.contents++
		}
		packs[info.PackBlobID] = pack
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("read the index of the repository: %w", cmp.Or(context.Cause(ctx), err))
	}
	return packs, nil
}

func (r *Repository) compare(ctx context.Context, deleted bool, listed func(id blob.ID, length int64, pack namedPack)) (*Missing, error) {
	ctx, stop := r.While(ctx)
	defer stop()
	packs, err := r.named(ctx, deleted)
	if err != nil {
		return nil, err
	}
	missing := &Missing{packs: map[blob.ID]struct{}{}, damaged: map[blob.ID]struct{}{}}
	for id := range r.damaged {
		if _, isNamed := packs[id]; isNamed {
			missing.damaged[id] = struct{}{}
		}
	}
	for _, prefix := range content.PackBlobIDPrefixes {
		err := r.storage.ListBlobs(ctx, prefix, func(found blob.Metadata) error {
			if pack, isNamed := packs[found.BlobID]; isNamed && found.Length >= pack.end {
				delete(packs, found.BlobID)
				if listed != nil {
					listed(found.BlobID, found.Length, pack)
				}
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("list the packs of the repository: %w", cmp.Or(context.Cause(ctx), err))
		}
	}
	asked := 0
	for id, pack := range packs {
		if asked++; asked <= mostConfirmed {
			found, err := r.storage.GetMetadata(ctx, id)
			switch {
			case err == nil && found.Length >= pack.end:
				continue
			case err != nil && !errors.Is(err, blob.ErrBlobNotFound):
				return nil, fmt.Errorf("look for a pack of the repository: %w", cmp.Or(context.Cause(ctx), err))
			}
		}
		missing.packs[id] = struct{}{}
		missing.Contents += pack.contents
	}
	return missing, nil
}
