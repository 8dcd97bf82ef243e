// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

type worker struct {
	location Location
	catalog  *catalog.Catalog
	options  *Options
	nudged   chan struct{}
	cancel   context.CancelFunc
	limiter  *limiter

	// opening serialises opening, and guards opened.
	opening sync.Mutex
	opened  Store
	// users use the store, which is closed after the last.
	users sync.WaitGroup

	// recording is held for changes of the catalogue: a stopped worker makes none.
	recording sync.Mutex
	stopped   bool // guarded by recording

	// alive is the store's last answer, in Unix nanoseconds.
	alive atomic.Int64

	rows atomic.Int64

	mu     sync.Mutex
	state  State // guarded by mu
	wanted Location
	full   bool
	// doing has the requests before the latest full listing; guarded by mu.
	doing Asked

	unconfirmed *unconfirmed

	// asked has, by entry, the listed versions of the last read; only refresh uses it.
	asked map[string]map[string]string

	freed time.Time

	// beside wakes readBeside, and lastBeside is its last start; only refresh uses them.
	beside     chan struct{}
	lastBeside time.Time
}

const manyRows = 100_000

var errStopped = errors.New("the storage location was changed or removed meanwhile")

func (w *worker) stop() {
	w.recording.Lock()
	w.stopped = true
	w.recording.Unlock()
	w.cancel()
}

func (w *worker) record(change func(now time.Time)) error {
	w.recording.Lock()
	defer w.recording.Unlock()
	if w.stopped {
		return errStopped
	}
	w.isAlive()
	change(w.options.Clock.Now())
	return nil
}

func (w *worker) isAlive() { w.alive.Store(w.options.Clock.Now().UnixNano()) }

// isSilent reports whether the store, as a hung mount, has not answered for a request's time.
func (w *worker) isSilent() bool {
	return w.options.Clock.Now().UnixNano()-w.alive.Load() >= int64(w.options.RequestTimeout)
}

func (w *worker) snapshot() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *worker) want(location Location) {
	w.mu.Lock()
	before := w.wanted
	w.wanted = location
	w.mu.Unlock()
	switch {
	case location.Asked != before.Asked || !location.Accepted.Equal(before.Accepted):
		w.nudge(true)
	case !ptr.Equal(location.Interval, before.Interval):
		w.nudge(false)
	}
}

func (w *worker) nudge(full bool) {
	w.mu.Lock()
	w.full = w.full || full
	w.mu.Unlock()
	select {
	case w.nudged <- struct{}{}:
	default:
	}
}

func (w *worker) awaits(asked Asked) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted.Asked == asked && w.doing != asked
}

// interval returns the time between polls; zero means none.
func (w *worker) interval() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *cmp.Or(w.wanted.Interval, &w.options.Interval)
}

func (w *worker) run(ctx context.Context) {
	defer w.close(ctx)
	var confirming sync.WaitGroup
	defer confirming.Wait()
	if w.location.Indexed {
		confirming.Go(func() { w.confirm(ctx) })
	}
	if w.location.Beside != nil {
		confirming.Go(func() { w.readBeside(ctx) })
	}
	w.openCache(ctx)
	defer w.closeCache(ctx)
	for failures := 0; ; {
		if err := w.refresh(ctx); err == nil {
			failures = 0
			w.writeCache(ctx)
		} else {
			failures++
		}
		if !w.wait(ctx, w.pause(failures)) {
			return
		}
	}
}

func (w *worker) readBeside(ctx context.Context) {
	var again <-chan time.Time
	for failures := 0; ; {
		select {
		case <-w.beside:
		case <-again:
		case <-ctx.Done():
			return
		}
		opened, done, err := w.use(ctx)
		if err == nil {
			err = w.location.Beside(ctx, requests{opened, w})
			done()
		}
		if again = nil; err == nil {
			failures = 0
			continue
		}
		if ctx.Err() == nil {
			klog.FromContext(ctx).Info("Could not read what lies beside the backups; it will be tried again", "reason", store.Reason(err))
		}
		failures++
		again = w.options.Clock.After(min(mostRetry, firstRetry<<min(failures-1, 10)))
	}
}

// wait waits for the pause, forever if zero, or a nudge. It is false when ctx has ended.
func (w *worker) wait(ctx context.Context, pause time.Duration) bool {
	var due <-chan time.Time
	if pause > 0 {
		timer := w.options.Clock.NewTimer(pause)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-due:
	case <-w.nudged:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// pause returns the wait after failures; zero means forever.
func (w *worker) pause(failures int) time.Duration {
	const jitter = 0.1 // keeps two API servers out of step
	pause := time.Duration(float64(w.interval()) * (1 - jitter + 2*jitter*rand.Float64()))
	if failures == 0 {
		return pause
	}
	return min(cmp.Or(pause, mostRetry), firstRetry<<min(failures-1, 10))
}

func (w *worker) close(ctx context.Context) {
	w.opening.Lock()
	defer w.opening.Unlock()
	w.stop()
	w.users.Wait()
	if w.opened == nil {
		return
	}
	if err := w.opened.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not close a store", "reason", store.Reason(err))
	}
	w.opened = nil
}

func (w *worker) use(ctx context.Context) (opened Store, done func(), err error) {
	w.opening.Lock()
	defer w.opening.Unlock()
	if w.opened == nil {
		if err := w.record(func(time.Time) {}); err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, w.options.RequestTimeout)
		defer cancel()
		if w.opened, err = w.location.Open(ctx); err != nil {
			w.opened = nil
			return nil, nil, err
		}
	}
	w.users.Add(1)
	return w.opened, w.users.Done, nil
}

type level struct {
	full     bool
	position string
	watched  string
	begin    time.Time
	location Location
}

func (w *worker) begin() level {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := level{position: w.state.position, watched: w.state.watched, begin: w.options.Clock.Now(), location: w.wanted}
	if l.full = w.full || !l.begin.Before(w.state.LastFull.Add(w.options.FullInterval)); l.full {
		l.position = ""
		w.full = false // a later request may not be covered
	}
	if l.position == "" {
		w.doing = l.location.Asked
	}
	return l
}

type outcome struct {
	all       bool
	position  string
	watched   string
	suspicion string
}

func (w *worker) refresh(ctx context.Context) error {
	l := w.begin()
	found, err := w.refreshFrom(ctx, l)
	if ctx.Err() != nil {
		return ctx.Err() // proves nothing about the store
	}
	logger := klog.FromContext(ctx)
	count := w.catalog.Len(w.location.Name)
	// Repeated reads of entries with many rows, as Longhorn's, leave little garbage each.
	if w.rows.Swap(0) >= manyRows && !l.begin.Before(w.freed.Add(w.options.FullInterval)) {
		w.freed = l.begin
		debug.FreeOSMemory()
	}
	w.mu.Lock()
	before := w.state
	w.state.Loaded, w.state.LastError, w.state.Backups = true, "", count
	w.full = w.full || l.full && (err != nil || !found.all)
	if err != nil {
		w.state.LastError = store.Reason(err)
	} else {
		w.state.LastSuccess, w.state.Suspicion = l.begin, found.suspicion
		if w.state.watched = found.watched; !l.full { // polls go on where the last one ended
			w.state.position = found.position
		}
		w.state.Cached = w.state.Cached && !found.all
		if found.all {
			w.state.LastFull, w.state.Synced = l.begin, l.location.Asked
			w.full = w.full || w.wanted.Asked != l.location.Asked || !w.wanted.Accepted.Equal(l.location.Accepted)
			w.recallLocked(l)
		}
		if w.state.Suspicion == "" && !w.state.recovered {
			w.state.Suspicion = w.state.fewer(count, &w.location.Known)
		}
	}
	after := w.state
	w.mu.Unlock()

	if err == nil && found.all && found.suspicion == "" && (l.full || !l.begin.Before(w.lastBeside.Add(w.options.FullInterval))) {
		w.lastBeside = l.begin
		select {
		case w.beside <- struct{}{}:
		default:
		}
	}
	leftOut, _ := w.catalog.LeftOut(w.location.Name)
	observeRefresh(w.location.Name, w.options.Clock.Since(l.begin), w.catalog.Replaced(w.location.Name), leftOut, w.catalog.Unfinished(w.location.Name), after)
	switch {
	case after.LastError != "" && after.LastError != before.LastError:
		logger.Info("Could not refresh the catalogue; what is known is served", "reason", after.LastError, "backups", count)
	case after.LastError == "" && (before.LastError != "" || !before.Loaded):
		logger.Info("Refreshed the catalogue", "backups", count)
	}
	if after.Suspicion != "" && after.Suspicion != before.Suspicion {
		logger.Info("The listing of the store is not believed", "reason", after.Suspicion)
	}
	w.options.Asked(w.location.Name)
	return err
}

func (w *worker) recallLocked(l level) {
	known, s := w.location.Known, &w.state
	if s.noticed.IsZero() {
		if s.noticed = known.Suspicious; s.noticed.IsZero() {
			s.noticed = l.begin
		}
	}
	accepted := l.location.Accepted
	s.recovered = s.recovered || !accepted.Before(s.noticed) && !accepted.After(l.begin) || !catalog.IsSuspicious(known.Backups, s.Backups)
}

func (s *State) fewer(count int, known *Known) string {
	return fmt.Sprintf("the store holds %d backups, of %d that were known before this server began, which does not show the others: they are shown when they are found again; if their loss is accepted, this is not said any more", count, known.Backups)
}

func (w *worker) refreshFrom(ctx context.Context, l level) (found outcome, err error) {
	opened, done, err := w.use(ctx)
	if err != nil {
		return found, err
	}
	defer done()
	from := requests{opened, w}
	index := func() *indexed { return nil }
	if l.full && w.location.Indexed && w.snapshot().LastFull.IsZero() && w.catalog.Len(w.location.Name) == 0 {
		var stop func()
		index, stop = w.readIndex(ctx, from)
		defer stop()
	}
	var shards []Shard
	for shard := range w.location.Layout.List(ctx, from, l.position) {
		shards = append(shards, shard)
		if found.position = shard.Position; !l.full {
			break
		}
		if shard.Position == "" {
			continue
		}
		if known := index(); known != nil && len(known.boundaries) > 0 {
			shards, found.position = append(shards, w.listRest(ctx, from, shard.Position, known.boundaries)...), ""
			break
		}
	}
	found.all = l.position == "" && found.position == ""
	var read []string
	doubt := ""
	listings := w.listings(shards, found.all, l)
	for _, listing := range listings {
		var gone []string
		if err := w.record(func(now time.Time) {
			findings := w.catalog.ObserveListing(w.location.Name, listing.Listing, now)
			changed := w.catalog.ObserveChanges(w.location.Name, listing.Holds, listing.beside)
			read, gone = slices.Concat(read, findings.Read, listing.changed, changed), findings.Gone
			if found.suspicion = findings.Suspicion; listing.Suspicion != "" {
				doubt = cmp.Or(doubt, findings.Suspicion)
			}
		}); err != nil {
			return found, err
		}
		w.uncache(ctx, gone...)
	}
	found.suspicion = cmp.Or(found.suspicion, doubt)
	if known := index(); known != nil {
		if read, err = w.putIndexed(known, read, listings); err != nil {
			return found, err
		}
	}
	found.watched = l.watched
	var unwatched error
	var replaced []string
	if watched, ok := w.location.Layout.(Watched); ok && !l.full && w.catalog.HasVersions(w.location.Name) {
		var versions map[string]map[string]string
		versions, found.watched, unwatched = watched.Watch(ctx, from, l.watched)
		if errors.Is(unwatched, store.ErrDenied) { // one folder may be denied
			klog.FromContext(ctx).V(2).Info("Not all of a storage location can be watched for metadata that is replaced", "reason", store.Reason(unwatched))
			unwatched = nil
		}
		replaced = w.replaced(versions)
		read = slices.Concat(read, replaced)
	}
	if err = w.readAll(ctx, from, slices.Compact(slices.Sorted(slices.Values(read)))); err != nil {
		for _, name := range replaced {
			delete(w.asked, name)
		}
	}
	found.suspicion = cmp.Or(found.suspicion, w.catalog.Emptied(w.location.Name))
	for _, shard := range shards {
		if shard.Err != nil {
			return found, shard.Err
		}
	}
	return found, cmp.Or(err, unwatched)
}

// replaced returns entries whose listed version differs from the read one. Each version is tried once:
// a listing may differ from reads.
func (w *worker) replaced(versions map[string]map[string]string) []string {
	var names []string
	for name, present := range versions {
		known := w.catalog.Versions(w.location.Name, name)
		differs := false
		for of, version := range present {
			was, ok := known[of]
			differs = differs || ok && was != version
		}
		switch {
		case !differs:
			delete(w.asked, name)
		case !maps.Equal(w.asked[name], present):
			w.asked[name] = present
			names = append(names, name)
		}
	}
	return names
}

type listing struct {
	catalog.Listing
	beside, changed []string
}

func (w *worker) listings(shards []Shard, all bool, l level) []listing {
	each := make([]listing, 0, len(shards))
	var ofOthers []string
	for _, shard := range shards {
		ofOthers = append(ofOthers, shard.Beside...)
	}
	for _, shard := range shards {
		if shard.Err != nil {
			all = false
			continue
		}
		next := listing{Listing: catalog.Listing{Holds: shard.Holds, Begun: l.begin, Suspicion: shard.Suspicion, Accepted: l.location.Accepted}, beside: slices.Clone(ofOthers)}
		for _, entry := range shard.Entries {
			next.Names = append(next.Names, entry.Name)
			next.beside = append(next.beside, entry.Beside...)
			if entry.Versions != nil && !maps.Equal(entry.Versions, w.catalog.Versions(w.location.Name, entry.Name)) {
				next.changed = append(next.changed, entry.Name)
			}
		}
		each = append(each, next)
	}
	if !all || slices.ContainsFunc(each, func(next listing) bool { return next.Suspicion != "" }) {
		return each
	}
	whole := listing{Listing: catalog.Listing{Begun: l.begin, Accepted: l.location.Accepted}, beside: ofOthers}
	for _, next := range each {
		whole.Names = append(whole.Names, next.Names...)
		whole.beside = append(whole.beside, next.beside[len(ofOthers):]...)
		whole.changed = append(whole.changed, next.changed...)
	}
	return []listing{whole}
}

// readAll reads backups, and records unreadable ones. After a failure of the store, unread ones are
// tried again while others can be read and none timed out. Failures in a row end the attempt, but not
// refusals and timeouts while others can be read.
func (w *worker) readAll(ctx context.Context, from store.Ranger, names []string) error {
	const passes = 10
	all := len(names)
	var denied, slow []string
	var first error
	for range passes {
		pass, err := w.readPass(ctx, from, names)
		if err != nil {
			return err
		}
		denied, slow = append(denied, pass.denied...), pass.slow
		first = cmp.Or(first, pass.first)
		progress := len(pass.failed) < len(names)-len(pass.denied)
		if names = pass.failed; len(names) == 0 || !progress || len(slow) > 0 {
			break
		}
	}
	unread, err := w.readDenied(ctx, from, denied)
	if errors.Is(err, errStopped) {
		return err
	}
	if len(slow) < w.options.Reads && len(slow) == len(names) && ctx.Err() == nil {
		if names, err = w.readSlow(ctx, from, slow); err != nil {
			return err
		}
	}
	if unread += len(names); unread == 0 {
		return ctx.Err()
	}
	if first == nil {
		return cmp.Or(ctx.Err(), errStopped)
	}
	return fmt.Errorf("%d of %d backups could not be read: %s", unread, all, store.Reason(first))
}

type pass struct {
	failed, denied []string
	slow           []string
	first          error
}

func (w *worker) readPass(ctx context.Context, from store.Ranger, names []string) (pass, error) {
	var row atomic.Int32
	var mu sync.Mutex
	var p pass // guarded by mu
	// Shuffled, so that refusals in a row begin at different ones.
	names = slices.Clone(names)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	group, groupCtx := errgroup.WithContext(ctx)
	for i, name := range names {
		if err := w.limiter.enter(groupCtx, &w.limiter.readers); err != nil || int(row.Load()) >= w.options.Reads {
			if err == nil {
				w.limiter.leave(&w.limiter.readers)
			}
			mu.Lock()
			p.failed = append(p.failed, names[i:]...)
			mu.Unlock()
			break
		}
		group.Go(func() error {
			defer w.limiter.leave(&w.limiter.readers)
			err := w.read(groupCtx, from, name, false)
			if err == nil || errors.Is(err, store.ErrNotFound) {
				row.Store(0)
				return nil
			}
			if errors.Is(err, errStopped) {
				return err
			}
			refused := errors.Is(err, store.ErrDenied)
			if refused && int(row.Load()) >= w.options.Reads-1 && w.showsOthers(groupCtx, from) {
				row.Store(0)
			} else {
				row.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, context.DeadlineExceeded) {
				p.slow = append(p.slow, name)
			}
			if p.first = cmp.Or(p.first, err); refused {
				p.denied = append(p.denied, name)
			} else {
				p.failed = append(p.failed, name)
			}
			return nil
		})
	}
	err := group.Wait()
	return p, err
}

func (w *worker) readOne(ctx context.Context, storeName string) error {
	opened, done, err := w.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return w.read(ctx, requests{opened, w}, storeName, false)
}
