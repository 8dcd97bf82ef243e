// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// read reads an entry into the catalogue, with its faults. It fails if the store fails, or with
// store.ErrNotFound without a finished backup. A refusal is the store's failure, unless other entries
// are readable.
func (w *worker) read(ctx context.Context, from store.Ranger, name string, readable bool) error {
	location := w.location.Name
	begun := w.options.Clock.Now()
	content, err := w.location.Layout.Read(ctx, from, name, KnownEntry{
		Versions: w.catalog.Versions(location, name),
		Volumes:  func() []catalog.Volume { return w.catalog.EntryVolumes(location, name) },
		Beside:   func(backup types.UID) []string { return w.catalog.Changes(location, name, backup) },
		MayRead:  readable,
	})
	if errors.Is(err, ErrUnfinished) {
		if err := w.record(func(now time.Time) { w.catalog.PutUnfinished(location, name, begun, now) }); err != nil {
			return err
		}
		return fmt.Errorf("there is no finished backup %s in the store: %w", name, store.ErrNotFound)
	}
	if unreadable, ok := errors.AsType[*UnreadableError](err); ok {
		return w.record(func(now time.Time) { w.catalog.PutUnreadable(location, name, unreadable.Reason, now) })
	}
	if err != nil {
		return err
	}
	// The cache and the catalogue share the rows.
	content.Packed, content.Volumes = new(catalog.Packer).Pack(content.Volumes), nil
	if err := w.record(func(now time.Time) { w.catalog.Put(location, name, content, now) }); err != nil {
		return err
	}
	w.rows.Add(int64(content.Rows()))
	w.cache(ctx, name, content)
	return nil
}

// readDenied reads refused entries again. If another entry is readable meanwhile, they are at fault,
// else the store. It returns how many remain unread.
func (w *worker) readDenied(ctx context.Context, from store.Ranger, names []string) (int, error) {
	if len(names) == 0 || !w.showsOthers(ctx, from) {
		return len(names), nil
	}
	for i, name := range names {
		if err := w.read(ctx, from, name, true); err != nil && !errors.Is(err, store.ErrNotFound) {
			return len(names) - i, err
		}
	}
	return 0, nil
}

// readSlow reads timed-out entries again. If another entry is readable meanwhile, they become
// unreadable; else the store has failed. It returns the unread names.
func (w *worker) readSlow(ctx context.Context, from store.Ranger, names []string) ([]string, error) {
	if len(names) == 0 || !w.showsOthers(ctx, from) {
		return names, nil
	}
	pass, err := w.readPass(ctx, from, names)
	if err != nil || ctx.Err() != nil || len(pass.slow) != len(pass.failed)+len(pass.denied) {
		return append(pass.failed, pass.denied...), err
	}
	reason := fmt.Sprintf("the store did not yield it within %s, though it yields others", w.options.RequestTimeout)
	return nil, w.record(func(now time.Time) {
		for _, name := range pass.slow {
			w.catalog.PutUnreadable(w.location.Name, name, reason, now)
		}
	})
}

func (w *worker) showsOthers(ctx context.Context, from store.Ranger) bool {
	name := w.catalog.Readable(w.location.Name)
	return name != "" && w.location.Layout.Probe(ctx, from, name) == nil
}
