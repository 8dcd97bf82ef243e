// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kopia/kopia/repo/blob"

	"github.com/holdfast-io/holdfast/pkg/store"
)

// Kopia knows only the indexes that the store lists: it does not know data that only a lost index
// names, and the next full maintenance removes its packs. So each maintenance notes the indexes
// that it leaves, and the next does nothing if one is missing unreplaced (docs/maintenance.md).

// ErrIndexLost: the store lacks indexes that the last maintenance left.
var ErrIndexLost = errors.New("the store has lost indexes of the repository")

const (
	// indexNote has the names of the indexes, one a line.
	indexNote   blob.ID = "holdfast.indexes"
	longestNote         = 16 << 20
)

var indexPrefixes = []blob.ID{"xn", "xs", "xr"}

type epochs struct{ kind, first, last int }

var indexName = regexp.MustCompile(`^x(?:([ns])(\d+)|(r)(\d+)_(\d+))_`)

func epochsOf(id blob.ID) (e epochs, ok bool) {
	parts := indexName.FindStringSubmatch(string(id))
	if parts == nil {
		return e, false
	}
	e.kind = strings.Index("nsr", parts[1]+parts[3])
	first, err := strconv.Atoi(parts[2] + parts[4])
	last, otherErr := strconv.Atoi(cmp.Or(parts[5], parts[2]))
	e.first, e.last = first, last
	return e, err == nil && otherErr == nil
}

// replaces reports whether this index has all contents of another, which Kopia may have removed.
func (e epochs) replaces(other epochs) bool {
	wider := e.last-e.first > other.last-other.first
	return e.first <= other.first && e.last >= other.last && (e.kind > other.kind || e.kind == other.kind && wider)
}

func (r *Repository) indexes(ctx context.Context) (names []blob.ID, err error) {
	for _, prefix := range indexPrefixes {
		err := r.storage.ListBlobs(ctx, prefix, func(found blob.Metadata) error {
			names = append(names, found.BlobID)
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("list the indexes of the repository: %w", err)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (r *Repository) noted(ctx context.Context) (names []blob.ID, err error) {
	var text []byte
	err = r.storage.persist(ctx, func() error {
		content, err := r.storage.bucket.Get(ctx, r.storage.key(indexNote))
		if err != nil {
			return err
		}
		defer content.Close()
		text, err = io.ReadAll(io.LimitReader(content, longestNote))
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read which indexes the last maintenance has left: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, whole := strings.CutSuffix(line, "\n"); whole {
			names = append(names, blob.ID(name))
		}
	}
	return names, nil
}

// lostIndexes returns the noted indexes that are missing unreplaced. It asks by name for any that
// the listing lacks.
func (r *Repository) lostIndexes(ctx context.Context) (lost []string, err error) {
	noted, err := r.noted(ctx)
	if err != nil || len(noted) == 0 {
		return nil, err
	}
	names, err := r.indexes(ctx) // after the note was read, so it has any replacement
	if err != nil {
		return nil, err
	}
	var there []epochs
	gone := map[blob.ID]struct{}{}
	for _, id := range noted {
		gone[id] = struct{}{}
	}
	for _, id := range names {
		delete(gone, id)
		if e, ok := epochsOf(id); ok {
			there = append(there, e)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		e, ok := epochsOf(id)
		if !ok || slices.ContainsFunc(there, func(other epochs) bool { return other.replaces(e) }) {
			continue
		}
		_, err := r.storage.GetMetadata(ctx, id)
		switch {
		case errors.Is(err, blob.ErrBlobNotFound):
			lost = append(lost, string(id))
		case err != nil:
			return nil, fmt.Errorf("look for an index of the repository: %w", err)
		}
	}
	return lost, nil
}

func (r *Repository) errIndexLost(lost []string) error {
	const most = 5
	names := strings.Join(lost[:min(len(lost), most)], ", ")
	if more := len(lost) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: %s; nothing is removed from the repository until they are back: bring them back from a copy or from older versions of their objects, or, to do without what only they name, delete %s from the repository's folder", ErrIndexLost, names, r.storage.key(indexNote))
}

func (r *Repository) noteIndexes(ctx context.Context) error {
	before, err := r.noted(ctx)
	if err != nil {
		return err
	}
	names, err := r.indexes(ctx)
	if err != nil || slices.Equal(names, before) {
		return err
	}
	var text strings.Builder
	for _, id := range names {
		fmt.Fprintln(&text, id)
	}
	err = r.storage.persist(ctx, func() error {
		return r.storage.bucket.Put(ctx, r.storage.key(indexNote), []byte(text.String()))
	})
	if err != nil {
		return fmt.Errorf("note which indexes the maintenance has left: %w", err)
	}
	return nil
}
