// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// A new location is read from its store's indexes: an entry counts if the listing has its name. Entries
// are confirmed later, one at a time.

// confirmPause is short: a thousand confirmations take a quarter of an hour.
const confirmPause = time.Second

// batchRows is about how many rows are put at once: others wait milliseconds for the lock.
const batchRows = 20_000

type indexed struct {
	boundaries []string
	fetched    index.Fetched
}

// readIndex starts to read the indexes. The first function waits for the result, or nil; stop ends all
// reading.
func (w *worker) readIndex(ctx context.Context, from store.Ranger) (_ func() *indexed, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan *indexed, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		opened, err := index.Open(ctx, from,
			func(clusterUID string) bool { return w.catalog.KnowsCluster(w.location.Name, clusterUID) },
			func(clusterUID, publicKey string) index.Standing {
				own, trusted := w.catalog.KnowsKey(w.location.Name, clusterUID, publicKey)
				switch {
				case own:
					return index.Own
				case trusted:
					return index.Others
				}
				return index.Ignored
			})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("The index of a storage location can't be read, so its backups are", "reason", store.Reason(err))
		}
		if err != nil || opened.Empty() {
			found <- nil
			return
		}
		fetched := opened.Fetch(ctx)
		defer fetched.Wait()
		found <- &indexed{opened.Boundaries(), fetched}
	})
	return sync.OnceValue(func() *indexed { return <-found }), func() { cancel(); reading.Wait() }
}

func (w *worker) putIndexed(known *indexed, read []string, listings []listing) ([]string, error) {
	wanted := make(map[string]bool, len(read))
	for _, name := range read {
		wanted[name] = true
	}
	taken, err := w.putEntries(known.fetched.Entries(func(name string) bool { return wanted[name] }), true)
	if err != nil {
		return nil, err
	}
	for _, name := range taken {
		delete(wanted, name)
	}
	for _, listing := range listings { // these may be newer than the index
		for _, name := range w.catalog.ObserveChanges(w.location.Name, listing.Holds, listing.beside) {
			wanted[name] = true
		}
	}
	w.unconfirmed.add(taken...)
	return slices.DeleteFunc(slices.Concat(read, taken), func(name string) bool { return !wanted[name] }), nil
}

// putEntries records entries, in the cache if isNew, and returns their names.
func (w *worker) putEntries(entries iter.Seq[index.Entry], isNew bool) (taken []string, err error) {
	var batch []catalog.Item
	rows := 0
	put := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := w.record(func(now time.Time) { w.catalog.PutAll(w.location.Name, batch, now) })
		if err != nil {
			return err
		}
		w.rows.Add(int64(rows))
		for _, item := range batch {
			taken = append(taken, item.StoreName)
			if isNew {
				w.cache(context.Background(), item.StoreName, item.Content)
			}
		}
		batch, rows = nil, 0
		return nil
	}
	for entry := range entries {
		if !w.localise(&entry) {
			continue
		}
		batch = append(batch, catalog.Item{StoreName: entry.StoreName, Content: entry.Content})
		if rows += entry.Content.Rows(); rows >= batchRows || len(batch) >= batchRows/10 {
			if err := put(); err != nil {
				return taken, err
			}
		}
	}
	return taken, put()
}

// localise adapts an entry to this location, which the index may name differently.
func (w *worker) localise(entry *index.Entry) bool {
	backup := entry.Content.Backup
	if backup == nil { // only its versions need be equal
		return !w.location.Indexed
	}
	if backup.Name != entry.StoreName || backup.Status.Origin == nil {
		return false
	}
	if backup.UID == format.DerivedUID("backup", backup.Spec.StorageLocation, entry.StoreName) {
		backup.UID = format.DerivedUID("backup", w.location.Name, entry.StoreName)
	}
	backup.Namespace, backup.Spec.StorageLocation = w.options.SystemNamespace, w.location.Name
	if origin := backup.Status.Origin; origin.Trust != "" {
		catalog.Abridge(backup)
	} else if own, trusted := w.catalog.KnowsKey(w.location.Name, origin.ClusterUID, origin.PublicKey); !own && !trusted {
		catalog.Abridge(backup)
	}
	// The confirmation reads everything: an index's digest proves nothing about its rows.
	entry.Content.Versions = nil
	return true
}

// unconfirmed has entries from an index. It outlives reopening a location.
type unconfirmed struct {
	mu    sync.Mutex
	names []string // guarded by mu
	added chan struct{}
}

func newUnconfirmed() *unconfirmed { return &unconfirmed{added: make(chan struct{}, 1)} }

func (u *unconfirmed) take() (name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if last := len(u.names) - 1; last >= 0 {
		name, u.names = u.names[last], u.names[:last]
	}
	return name
}

// add adds names after all others, so that a failing one delays none.
func (u *unconfirmed) add(names ...string) {
	u.mu.Lock()
	u.names = slices.Insert(u.names, 0, names...)
	u.mu.Unlock()
	select {
	case u.added <- struct{}{}:
	default:
	}
}

func (w *worker) confirm(ctx context.Context) {
	pause := func(d time.Duration) bool {
		select {
		case <-w.options.Clock.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		for name := w.unconfirmed.take(); name != ""; name = w.unconfirmed.take() {
			if !pause(confirmPause) {
				w.unconfirmed.add(name)
				return
			}
			if !w.confirmOne(ctx, name) {
				w.unconfirmed.add(name)
				pause(time.Minute)
			}
		}
		select {
		case <-w.unconfirmed.added:
		case <-ctx.Done():
		}
	}
}

// confirmOne reports whether the store has decided about an entry. It leaves if its listed folder lacks
// it; without a listed folder, listings decide.
func (w *worker) confirmOne(ctx context.Context, name string) bool {
	opened, done, err := w.use(ctx)
	if err != nil {
		return false
	}
	defer done()
	from := requests{opened, w}
	if err := w.read(ctx, from, name, false); !errors.Is(err, store.ErrNotFound) {
		return err == nil
	}
	if w.catalog.IsMissing(w.location.Name, name) {
		return true
	}
	if w.snapshot().LastFull.IsZero() || !w.showsOthers(ctx, from) ||
		w.record(func(time.Time) { w.catalog.Remove(w.location.Name, name) }) != nil {
		return false
	}
	w.uncache(ctx, name)
	return true
}

func (w *worker) listRest(ctx context.Context, from store.Ranger, position string, boundaries []string) []Shard {
	starts := []string{position}
	if parted, ok := w.location.Layout.(Parted); ok {
		for _, name := range boundaries {
			if start := parted.Position(name); start > position {
				starts = append(starts, start)
			}
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	ranges := make([][]Shard, len(starts))
	var running sync.WaitGroup
	for i, start := range starts {
		running.Go(func() {
			for shard := range w.location.Layout.List(ctx, from, start) {
				if i+1 < len(starts) && (shard.Position == "" || shard.Position >= starts[i+1]) {
					shard = w.cut(shard, starts[i+1])
					ranges[i] = append(ranges[i], shard)
					return
				}
				ranges[i] = append(ranges[i], shard)
			}
		})
	}
	running.Wait()
	return slices.Concat(ranges...)
}

func (w *worker) cut(shard Shard, last string) Shard {
	position, holds := w.location.Layout.(Parted).Position, shard.Holds
	shard.Entries = slices.DeleteFunc(shard.Entries, func(entry Entry) bool {
		behind := position(entry.Name) > last
		for _, key := range entry.Beside {
			if behind && key <= last {
				shard.Beside = append(shard.Beside, key)
			}
		}
		return behind
	})
	shard.Holds = func(name string) bool { return position(name) <= last && holds(name) }
	shard.Position = last
	return shard
}

func (w *worker) openCache(ctx context.Context) {
	if w.location.Cache == nil {
		return
	}
	entries, err := w.location.Cache.Open(ctx)
	if err != nil {
		w.cacheFailed(ctx, err)
		return
	}
	if w.catalog.Len(w.location.Name) > 0 {
		return
	}
	taken, err := w.putEntries(entries, false)
	if err != nil {
		return
	}
	if len(taken) == 0 {
		return
	}
	w.mu.Lock()
	w.state.Loaded, w.state.Cached, w.state.Backups = true, true, len(taken)
	w.mu.Unlock()
	if w.location.Indexed {
		w.unconfirmed.add(taken...)
	}
	w.options.Asked(w.location.Name)
}

func (w *worker) cache(ctx context.Context, name string, content catalog.Content) {
	if w.location.Cache == nil {
		return
	}
	if content.Backup == nil { // more may be listed of it than the last read found
		shown := w.catalog.EntryRows(w.location.Name, name)
		if shown.Len() > content.Rows() {
			content.Versions = nil // the next process reads it again
		}
		content.Packed = shown
	}
	w.cacheFailed(ctx, w.location.Cache.Add(ctx, name, content))
}

func (w *worker) uncache(ctx context.Context, names ...string) {
	if w.location.Cache != nil {
		w.cacheFailed(ctx, w.location.Cache.Remove(names...))
	}
}

func (w *worker) writeCache(ctx context.Context) {
	if w.location.Cache != nil {
		w.cacheFailed(ctx, w.location.Cache.Write(ctx, w.lists))
	}
}

func (w *worker) closeCache(ctx context.Context) {
	if w.location.Cache != nil {
		w.cacheFailed(ctx, w.location.Cache.Close(context.WithoutCancel(ctx), w.lists))
	}
}

func (w *worker) lists(name string) bool { return w.catalog.Lists(w.location.Name, name) }

func (w *worker) cacheFailed(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("What is read is not kept on disk", "reason", err.Error())
	}
}
