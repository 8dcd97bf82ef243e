// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// worker refreshes one location.
type worker struct {
	location Location
	catalog  *catalog.Catalog
	options  *Options
	nudged   chan struct{}
	cancel   context.CancelFunc

	// opening is held while the store is opened, and guards opened.
	opening sync.Mutex
	opened  Store
	// users are the operations on the store; it is closed after the last.
	users sync.WaitGroup

	// recording is held while the catalogue is changed, so that a stopped worker
	// does not change it any more.
	recording sync.Mutex
	stopped   bool // guarded by recording

	// alive is when the store last yielded something, in nanoseconds since 1970.
	alive atomic.Int64

	mu    sync.Mutex
	state State // guarded by mu
}

var errStopped = errors.New("the storage location was changed or removed meanwhile")

// stop makes the worker end, soon, and not touch the catalogue from now on.
func (w *worker) stop() {
	w.recording.Lock()
	w.stopped = true
	w.recording.Unlock()
	w.cancel()
}

// record changes the catalogue.
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

// isAlive takes note that the store yields something.
func (w *worker) isAlive() { w.alive.Store(w.options.Clock.Now().UnixNano()) }

// isSilent reports whether the store has yielded nothing for as long as a request
// may take. It may never do so again: a hung mount does not even give up.
func (w *worker) isSilent() bool {
	return w.options.Clock.Now().UnixNano()-w.alive.Load() >= int64(w.options.RequestTimeout)
}

func (w *worker) snapshot() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *worker) run(ctx context.Context) {
	defer w.close(ctx)
	for failures := 0; ; {
		if err := w.refresh(ctx); err == nil {
			failures = 0
		} else {
			failures++
		}
		if !w.wait(ctx, w.pause(failures)) {
			return
		}
	}
}

// wait ends after the pause, or for ever if it is zero, or when nudged. It is
// false when ctx has ended.
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

// pause is how long to wait after so many failures in a row; zero is for ever.
func (w *worker) pause(failures int) time.Duration {
	const jitter = 0.1 // so that two API servers don't ask in step
	pause := time.Duration(float64(w.options.Interval) * (1 - jitter + 2*jitter*rand.Float64()))
	if failures == 0 || failures > 20 {
		return pause
	}
	return min(pause, firstRetry<<(failures-1))
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

// use gives the store, open, until done is called.
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

// refresh lists the backups once and reads those that call for it.
func (w *worker) refresh(ctx context.Context) error {
	begin := w.options.Clock.Now()
	suspicion, err := w.refreshFrom(ctx, begin)
	if ctx.Err() != nil {
		return ctx.Err() // it says nothing about the store
	}
	logger := klog.FromContext(ctx)
	w.mu.Lock()
	before := w.state
	w.state.Loaded = true
	w.state.LastError = ""
	if err != nil {
		w.state.LastError = store.Reason(err)
	} else {
		w.state.LastSuccess = begin
		w.state.Suspicion = suspicion
	}
	after := w.state
	w.mu.Unlock()

	count := w.catalog.Len(w.location.Name)
	observeRefresh(w.location.Name, w.options.Clock.Since(begin), count, w.catalog.Replaced(w.location.Name), after.LastSuccess)
	// Each change is told once, not each refresh.
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

func (w *worker) refreshFrom(ctx context.Context, begin time.Time) (suspicion string, err error) {
	opened, done, err := w.use(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	storeNames, err := w.list(ctx, opened)
	if err != nil {
		return "", err
	}
	var findings catalog.Findings
	if err := w.record(func(now time.Time) { findings = w.catalog.Observe(w.location.Name, storeNames, begin, now) }); err != nil {
		return "", err
	}
	return findings.Suspicion, w.readAll(ctx, opened, findings.Read)
}

// list gives the store names of all folders of backups. Each request of the
// listing has its own time.
func (w *worker) list(ctx context.Context, from store.Reader) ([]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := w.options.Clock.AfterFunc(w.options.RequestTimeout, func() { cancel(context.DeadlineExceeded) })
	defer watchdog.Stop()
	countRequest(w.location.Name, "list")
	var storeNames []string
	for folder, err := range from.List(ctx, format.BackupsPrefix, store.ListOptions{}) {
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if ctx.Err() != nil {
			break
		}
		watchdog.Reset(w.options.RequestTimeout)
		w.isAlive()
		if storeName, ok := format.StoreNameOf(folder.Key); ok {
			storeNames = append(storeNames, storeName)
		}
	}
	if ctx.Err() != nil {
		return nil, errors.New("the store did not list its backups in time")
	}
	return storeNames, nil
}

// readAll reads backups, several at once. One that can't be read is recorded as
// such. When the store itself fails, what was not read stays to be read by the
// next refresh; after a row of failures the rest is not even tried. Those that it
// refuses to show are no failures as long as it shows others.
func (w *worker) readAll(ctx context.Context, from store.Reader, storeNames []string) error {
	var row, failed atomic.Int32
	var first atomic.Pointer[error]
	var mu sync.Mutex
	var denied []string // guarded by mu
	// In no order, so that a row of refusals does not always begin at the same one.
	storeNames = slices.Clone(storeNames)
	rand.Shuffle(len(storeNames), func(i, j int) { storeNames[i], storeNames[j] = storeNames[j], storeNames[i] })
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(w.options.Reads)
	for _, storeName := range storeNames {
		group.Go(func() error {
			if int(row.Load()) >= w.options.Reads || groupCtx.Err() != nil {
				failed.Add(1)
				return nil
			}
			err := w.read(groupCtx, from, storeName, false)
			switch {
			case err == nil || errors.Is(err, store.ErrNotFound):
				row.Store(0)
				return nil
			case errors.Is(err, errStopped):
				return err
			case errors.Is(err, store.ErrDenied):
				mu.Lock()
				denied = append(denied, storeName)
				mu.Unlock()
				if int(row.Load()) >= w.options.Reads-1 && w.showsOthers(groupCtx, from) {
					row.Store(0)
				} else {
					row.Add(1)
				}
			default:
				row.Add(1)
				failed.Add(1)
			}
			first.CompareAndSwap(nil, &err)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	unread, err := w.readDenied(ctx, from, denied)
	if errors.Is(err, errStopped) {
		return err
	}
	all, why := int(failed.Load())+unread, first.Load()
	if all == 0 || why == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%d of %d backups could not be read: %s", all, len(storeNames), store.Reason(*why))
}

func (w *worker) readOne(ctx context.Context, storeName string) error {
	opened, done, err := w.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return w.read(ctx, opened, storeName, false)
}
