// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is the needed part of a store.
type Store interface {
	store.Reader
	store.Writer
	store.Remover
}

const (
	// Few, since each head repeats them.
	newestRows, newestEntries = 20_000, 1000
	// Segments are merged up to these sizes: a dozen for a million rows.
	segmentRows, segmentEntries = 100_000, 5000
	// The oldest segments beyond it are dropped.
	maxSegments = format.MaxIndexSegments
	// defaultGrace exceeds a reader's time from a head to its segments.
	defaultGrace = time.Hour
	// pageNames divides less than a page, which also has other objects.
	pageNames = 800
)

// Writer writes a cluster's index in a store. It begins with Load, and is not safe for concurrent use.
// Changes are visible after Commit.
type Writer struct {
	// Grace is how long unnamed objects are kept. Default 1 h.
	Grace time.Duration
	// Exact removes swept entries from every segment, not only from mostly swept ones: readers show
	// only listed names.
	Exact bool

	store   Store
	cluster format.Cluster
	keys    []string
	clock   clock.PassiveClock

	head    format.IndexHead
	number  int64
	newest  map[string]*Entry
	stamps  map[string]string
	changed bool
}

// NewWriter returns a Writer of a cluster's index.
func NewWriter(to Store, cluster format.Cluster, keys []string, clock clock.PassiveClock) *Writer {
	return &Writer{Grace: defaultGrace, store: to, cluster: cluster, keys: keys, clock: clock, newest: map[string]*Entry{}, stamps: map[string]string{}}
}

// Load reads the present index's valid parts. An error is the store's.
func (w *Writer) Load(ctx context.Context) error {
	index, err := Open(ctx, w.store, func(clusterUID string) bool { return clusterUID == w.cluster.UID }, func(_, publicKey string) Standing {
		if publicKey == w.cluster.Key.PublicKey() || slices.Contains(w.keys, publicKey) {
			return Own
		}
		return Ignored
	})
	if err != nil {
		return err
	}
	w.head, w.newest, w.stamps, w.changed = format.IndexHead{}, map[string]*Entry{}, map[string]string{}, false
	if index.Empty() {
		return nil
	}
	found := index.heads[0]
	w.number = max(w.number, found.number)
	for _, segment := range found.Segments {
		decoded, err := w.segment(ctx, segment)
		if errors.Is(err, errCorrupt) || errors.Is(err, store.ErrNotFound) {
			w.changed = true
			continue
		}
		if err != nil {
			return err
		}
		w.head.Segments = append(w.head.Segments, segment)
		for name, stamp := range decoded.Names() {
			w.stamps[name] = stamp
		}
	}
	entries, err := decodeEntries(found.newest)
	w.changed = w.changed || err != nil
	for _, entry := range entries {
		w.newest[entry.StoreName], w.stamps[entry.StoreName] = &entry, entry.Stamp
	}
	return nil
}

func (w *Writer) segment(ctx context.Context, segment format.IndexSegment) (*Segment, error) {
	data, err := read(ctx, w.store, format.IndexSegmentKey(w.cluster.UID, segment.SHA256), min(segment.Size, format.MaxIndexSegmentBytes))
	if err != nil {
		return nil, err
	}
	if !segment.Bears(data) {
		return nil, errCorrupt
	}
	return Decode(data)
}

func decodeEntries(data []byte) ([]Entry, error) {
	segment, err := Decode(data)
	if err != nil {
		return nil, err
	}
	return segment.all(func(string) bool { return true })
}

// Has reports whether an entry has a stamp.
func (w *Writer) Has(storeName, stamp string) bool {
	has, known := w.stamps[storeName]
	return known && has == stamp
}

func (w *Writer) has(storeName string) bool {
	_, known := w.stamps[storeName]
	return known
}

// Len returns the number of entries.
func (w *Writer) Len() int { return len(w.stamps) }

// Add adds or replaces an entry. It may write a segment.
func (w *Writer) Add(ctx context.Context, entry Entry) error {
	w.newest[entry.StoreName], w.stamps[entry.StoreName], w.changed = &entry, entry.Stamp, true
	rows := 0
	for _, entry := range w.newest {
		rows += entry.Content.Rows()
	}
	if rows <= newestRows && len(w.newest) <= newestEntries {
		return nil
	}
	return w.spill(ctx)
}

func (w *Writer) spill(ctx context.Context) error {
	entries := sorted(w.newest)
	kept := w.head.Segments
	if last := len(kept) - 1; last >= 0 {
		rows := int64(0)
		for i := range entries {
			rows += int64(entries[i].Content.Rows())
		}
		if kept[last].Rows+rows <= segmentRows && kept[last].Entries+int64(len(entries)) <= segmentEntries {
			segment, err := w.segment(ctx, kept[last])
			var before []Entry
			if err == nil {
				before, err = segment.all(func(name string) bool { return w.newest[name] == nil && w.has(name) })
			}
			if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			entries, kept = append(before, entries...), kept[:last]
		}
	}
	written, err := w.write(ctx, entries)
	if err != nil {
		return err
	}
	kept = slices.Concat(kept, written)
	w.head.Segments, w.newest = kept[max(0, len(kept)-maxSegments):], map[string]*Entry{}
	return nil
}

func sorted(entries map[string]*Entry) []Entry {
	all := make([]Entry, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		all = append(all, *entries[name])
	}
	return all
}

func (w *Writer) write(ctx context.Context, entries []Entry) ([]format.IndexSegment, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	data, err := Encode(entries)
	if errors.Is(err, errTooLarge) || len(data) > format.MaxIndexSegmentBytes {
		if len(entries) == 1 {
			return nil, nil // readers read that backup itself
		}
		var all []format.IndexSegment
		for half := range slices.Chunk(entries, (len(entries)+1)/2) {
			written, err := w.write(ctx, half)
			if err != nil {
				return nil, err
			}
			all = append(all, written...)
		}
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	rows := 0
	for i := range entries {
		rows += entries[i].Content.Rows()
	}
	segment := format.NewIndexSegment(data, len(entries), rows)
	// An existing segment has this content: its digest is its name.
	if err := w.store.Create(ctx, format.IndexSegmentKey(w.cluster.UID, segment.SHA256), data); err != nil && !errors.Is(err, store.ErrExists) {
		return nil, err
	}
	return []format.IndexSegment{segment}, nil
}

// Commit writes a head if anything has changed. Until then readers see the former index.
func (w *Writer) Commit(ctx context.Context) error {
	if !w.changed {
		return nil
	}
	newest, err := Encode(sorted(w.newest))
	if errors.Is(err, errTooLarge) || len(newest) > format.MaxIndexHeadBytes/2 {
		if err := w.spill(ctx); err != nil {
			return err
		}
		newest, err = Encode(nil)
	}
	if err != nil {
		return err
	}
	w.head.Boundaries = nil
	names := slices.SortedFunc(maps.Keys(w.stamps), func(a, b string) int { // in the order of listings
		return strings.Compare(format.BackupPrefix(a), format.BackupPrefix(b))
	})
	for i, name := range names {
		if i > 0 && i%pageNames == 0 {
			w.head.Boundaries = append(w.head.Boundaries, name)
		}
	}
	data, err := format.EncodeIndexHead(w.head, newest, w.cluster)
	if err != nil {
		return err
	}
	for range attempts {
		// Numbers order heads, not the writers' clocks.
		w.number = max(w.number+1, w.clock.Now().UnixMilli())
		err = w.store.Create(ctx, format.IndexHeadKey(w.cluster.UID, w.number), data)
		if !errors.Is(err, store.ErrExists) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	w.changed = false
	return nil
}

// Sweep drops the entries that keep rejects.
func (w *Writer) Sweep(ctx context.Context, keep func(storeName string) bool) error {
	before := len(w.stamps)
	maps.DeleteFunc(w.stamps, func(name, _ string) bool { return !keep(name) })
	if len(w.stamps) == before {
		return nil
	}
	count := len(w.newest)
	maps.DeleteFunc(w.newest, func(name string, _ *Entry) bool { return !w.has(name) })
	w.changed = w.changed || len(w.newest) < count
	var segments []format.IndexSegment
	for _, segment := range w.head.Segments {
		decoded, err := w.segment(ctx, segment)
		if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		var kept []Entry
		if err == nil {
			live, swept := 0, false
			for name := range decoded.Names() {
				if w.has(name) && w.newest[name] == nil {
					live++
				}
				swept = swept || !w.has(name)
			}
			if 4*live >= 3*len(decoded.entries) && !(w.Exact && swept) {
				segments = append(segments, segment)
				continue
			}
			if kept, err = decoded.all(func(name string) bool { return w.has(name) && w.newest[name] == nil }); err != nil {
				kept = nil
			}
		}
		written, err := w.write(ctx, kept)
		if err != nil {
			return err
		}
		segments, w.changed = append(segments, written...), true
	}
	w.head.Segments = segments
	return nil
}

// Clean removes objects of the cluster's index, after a grace, that the newest head does not name, if
// it is this Writer's.
func (w *Writer) Clean(ctx context.Context) error {
	named := map[string]bool{}
	for _, segment := range w.head.Segments {
		named[segment.SHA256] = true
	}
	var stale []store.Object
	heads := map[int64]time.Time{}
	for object, err := range w.store.List(ctx, format.IndexPrefix(w.cluster.UID), store.ListOptions{Recursive: true}) {
		if err != nil {
			return err
		}
		clusterUID, number, digest, ok := format.ParseIndexKey(object.Key)
		switch {
		case !ok || clusterUID != w.cluster.UID || named[digest]:
		case digest == "" && number > w.number:
			return nil // another writer is active
		case digest == "":
			heads[number] = object.ModTime
			if number < w.number {
				stale = append(stale, object)
			}
		default:
			stale = append(stale, object)
		}
	}
	// Readers may still use the newest head before the grace. Objects that later heads name are
	// younger, and stay.
	at, former := heads[w.number], int64(0) // by the store's clock
	for number, written := range heads {
		if at.Sub(written) >= w.Grace {
			former = max(former, number)
		}
	}
	if former != 0 && former != w.number {
		data, err := read(ctx, w.store, format.IndexHeadKey(w.cluster.UID, former), format.MaxIndexHeadBytes)
		if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if head, _, err := format.DecodeIndexHead(data, w.cluster.UID); err == nil {
			for _, segment := range head.Segments {
				named[segment.SHA256] = true
			}
		}
	}
	for _, object := range stale {
		_, number, digest, _ := format.ParseIndexKey(object.Key)
		if at.Sub(object.ModTime) < w.Grace || named[digest] || digest == "" && number == former {
			continue
		}
		if err := w.store.Delete(ctx, object); err != nil && !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
	return nil
}
