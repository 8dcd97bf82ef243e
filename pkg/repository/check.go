// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sync/errgroup"
)

// A daily check reads a share of the packs, all in checkDays days. A share is at most mostRead
// bytes and mostContents contents, so a larger repository takes longer.
const (
	checkDays    = 28
	mostRead     = 16 << 30
	mostContents = 400_000
	// readAtOnce packs are read at once, with keptForCheck bytes in memory.
	readAtOnce   = 3
	keptForCheck = 64 << 20
	// shortPack is the size up to which Kopia's maintenance joins packs.
	shortPack = 12 << 20
)

// CheckOptions selects a check's packs.
type CheckOptions struct {
	All bool
	// Short also reads the short packs, which a failed maintenance has read.
	Short bool
}

// Check has a check's findings.
type Check struct {
	// Packs counts the index's packs; Read and ReadBytes what was read.
	Packs, Read int
	ReadBytes   int64
	Missing     int
	Damaged     []string
	// Indexes names the lost indexes of the last maintenance; anything that only they name is
	// unknown.
	Indexes  []string
	Contents int
	// Snapshots has the ids of affected snapshots, AffectedUntil the newest's start. If Incomplete,
	// any that began until then may be affected.
	Snapshots     []string
	AffectedUntil time.Time
	Incomplete    bool
}

// Lost reports whether data is lost.
func (c *Check) Lost() bool { return c.Missing > 0 || len(c.Damaged) > 0 || len(c.Indexes) > 0 }

// Check compares the packs of the index with the store's listing. Without caches, it reads a share
// of them, and all that were damaged before. An error means that the store does not answer, not
// damage.
func (r *Repository) Check(ctx context.Context, options CheckOptions) (Check, error) {
	ctx, stop := r.While(ctx)
	defer stop()
	r.storage.uncached.Store(true)
	defer r.storage.uncached.Store(false)
	if err := r.direct.Refresh(ctx); err != nil {
		return Check{}, fmt.Errorf("read the indexes of the repository: %w", cmp.Or(context.Cause(ctx), err))
	}
	found := share{packs: map[blob.ID]int64{}}
	missing, err := r.compare(ctx, false, found.add)
	if err != nil {
		return Check{}, err
	}
	indexes, err := r.lostIndexes(ctx)
	if err != nil {
		return Check{}, err
	}
	done := Check{Packs: len(found.packs) + len(missing.packs), Missing: len(missing.packs), Indexes: indexes}
	if len(indexes) > 0 && !options.All {
		found.packs = nil // each maintenance comes here until they are back
	}
	found.choose(options, r.damaged, r.direct.Time())
	bad, err := r.readPacks(ctx, found.packs, &done)
	if err != nil {
		return done, err
	}
	done.Contents = missing.Contents + len(bad)
	if missing.Contents+len(bad) == 0 {
		return done, nil
	}
	err = r.affected(ctx, func(info content.Info) bool {
		_, isBad := bad[info.ContentID]
		return isBad || missing.lacks(info)
	}, &done)
	return done, err
}

type share struct {
	packs    map[blob.ID]int64
	bytes    int64
	contents int64
}

func (s *share) add(id blob.ID, length int64, pack namedPack) {
	s.packs[id] = length
	s.bytes += length
	s.contents += int64(pack.contents)
}

// choose keeps the due packs, by their names and the day, without state. A missed day leaves its
// share to the next round.
func (s *share) choose(options CheckOptions, again map[blob.ID]struct{}, now time.Time) {
	if options.All {
		return
	}
	shares := max(checkDays, 1+s.bytes/mostRead, 1+s.contents/mostContents)
	today := now.Unix() / int64((24 * time.Hour).Seconds()) % shares
	maps.DeleteFunc(s.packs, func(id blob.ID, length int64) bool {
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(id))
		_, isAgain := again[id]
		isDue := int64(hash.Sum64()%uint64(shares)) == today
		return !isDue && !isAgain && !(options.Short && length < shortPack)
	})
}

func (r *Repository) readPacks(ctx context.Context, packs map[blob.ID]int64, done *Check) (bad map[content.ID]struct{}, err error) {
	contents := map[blob.ID][]content.Info{}
	if len(packs) > 0 {
		err = r.direct.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
			if _, chosen := packs[info.PackBlobID]; chosen {
				contents[info.PackBlobID] = append(contents[info.PackBlobID], info)
			}
			return ctx.Err()
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read the index of the repository: %w", cmp.Or(context.Cause(ctx), err))
	}
	kept := r.KeepPacks(keptForCheck)
	defer kept.Release()
	bad = map[content.ID]struct{}{}
	var mu sync.Mutex
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(readAtOnce)
	for _, id := range slices.Sorted(maps.Keys(contents)) {
		reading.Go(func() error {
			kept.Expect(id, len(contents[id]))
			found, err := r.readPack(ctx, contents[id])
			mu.Lock()
			defer mu.Unlock()
			done.Read++
			done.ReadBytes += packs[id]
			if len(found) > 0 {
				done.Damaged = append(done.Damaged, string(id))
				for _, info := range found {
					bad[info.ContentID] = struct{}{}
				}
			}
			return err
		})
	}
	err = reading.Wait()
	slices.Sort(done.Damaged)
	return bad, err
}

func (r *Repository) readPack(ctx context.Context, contents []content.Info) (bad []content.Info, err error) {
	for _, info := range contents {
		if ctx.Err() != nil {
			return bad, context.Cause(ctx)
		}
		_, err := r.direct.ContentReader().GetContent(ctx, info.ContentID)
		if err == nil {
			continue
		}
		// Only sent bytes prove damage; silence or a denial does not.
		length := int64(info.PackedLength)
		err = r.storage.piece(ctx, info.PackBlobID, int64(info.PackOffset), length, &fixed{into: make([]byte, length)})
		gone := errors.Is(err, blob.ErrBlobNotFound) || errors.Is(err, blob.ErrInvalidRange)
		if err != nil && !gone {
			return bad, fmt.Errorf("read pack %s: %w", info.PackBlobID, cmp.Or(context.Cause(ctx), err))
		}
		if !gone {
			if _, err := r.direct.ContentReader().GetContent(ctx, info.ContentID); err == nil {
				continue // the first answer was damaged in transit
			}
		}
		bad = append(bad, info)
	}
	return bad, nil
}
