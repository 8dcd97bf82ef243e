// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

const (
	bookmarkInterval = time.Minute
	// bookmarkLead is how long before a watch's timeout its last bookmark is sent, to resume from a fresh version.
	bookmarkLead = 2 * time.Second

	watchBatch  = 64
	watchBuffer = 16
)

// watcher delivers the events of one scope to one client. run owns the fields below result. It ends when the
// client stops it, its context ends, or after an error event.
type watcher[T Object] struct {
	log    *Log[T]
	scope  scope
	opts   storage.ListOptions
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	cursor   uint64 // delivered up to it
	progress uint64
	endDue   bool // the bookmark that ends the initial events is due
	batch    []event[T]
}

// Watch implements storage.Interface.
func (l *Log[T]) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := storage.PrepareKey(l.prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := l.parseVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	w := &watcher[T]{log: l, scope: l.scopeOf(key, opts.Recursive), opts: opts, cursor: rv}

	l.mu.Lock()
	if err := l.checkOpenLocked(); err != nil {
		l.mu.Unlock()
		return nil, err
	}
	wantsInitial := rv == 0
	if opts.SendInitialEvents != nil {
		wantsInitial = *opts.SendInitialEvents
	}
	var initial *state[T]
	switch {
	case wantsInitial && rv > l.rv:
		err = storage.NewTooLargeResourceVersionError(rv, l.rv, 1)
	case wantsInitial:
		s, now := l.snapshotLocked()
		initial, w.cursor = &s, now
		w.endDue = opts.SendInitialEvents != nil && opts.Predicate.AllowWatchBookmarks
	case rv == 0:
		w.cursor = l.rv
	default:
		err = l.checkIssuedLocked(rv)
	}
	w.progress = l.progress
	l.mu.Unlock()
	if initial != nil {
		l.onRead(ctx)
	}
	if err != nil {
		return failedWatch(err), nil
	}

	w.ctx, w.cancel = context.WithCancel(ctx)
	w.result = make(chan watch.Event, watchBuffer)
	go w.run(initial)
	return w, nil
}

// checkIssuedLocked returns 410 Expired unless this log issued version rv and remembers the later events.
func (l *Log[T]) checkIssuedLocked(rv uint64) error {
	switch {
	case rv > l.rv:
		return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d was not issued by this server (current: %d); list again", rv, l.rv))
	case rv < l.history.oldest:
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (oldest: %d); list again", rv, l.history.oldest))
	}
	return nil
}

func failedWatch(err error) watch.Interface {
	result := make(chan watch.Event, 1)
	result <- errorEvent(err)
	close(result)
	return watch.NewProxyWatcher(result)
}

// Stop implements watch.Interface.
func (w *watcher[T]) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher[T]) ResultChan() <-chan watch.Event { return w.result }

func (w *watcher[T]) run(initial *state[T]) {
	defer close(w.result)
	defer w.cancel()
	if initial != nil && !w.sendInitial(*initial) {
		return
	}
	// The watch costs little now: return its seat in the server's priority and fairness.
	utilflowcontrol.WatchInitialized(w.ctx)

	var tick, deadline <-chan time.Time
	if w.opts.Predicate.AllowWatchBookmarks {
		ticker := time.NewTicker(bookmarkInterval)
		defer ticker.Stop()
		tick = ticker.C
		if end, ok := w.ctx.Deadline(); ok {
			timer := time.NewTimer(time.Until(end) - bookmarkLead)
			defer timer.Stop()
			deadline = timer.C
		}
	}
	for {
		changed, ok := w.deliver()
		if !ok {
			return
		}
		if changed == nil {
			continue // there is more
		}
		select {
		case <-changed:
			continue
		case <-tick:
		case <-deadline:
		case <-w.ctx.Done():
			return
		}
		if w.endDue {
			continue
		}
		if !w.sendBookmark(w.log.newObject()) {
			return
		}
	}
}

// sendInitial sends the existing objects and, on request, the bookmark that ends them.
func (w *watcher[T]) sendInitial(s state[T]) bool {
	for e := range s.scan(w.scope, "") {
		shown := e.in(w.scope)
		ok, err := w.opts.Predicate.Matches(shown.obj)
		if err != nil {
			w.send(errorEvent(err))
			return false
		}
		if ok && !w.send(watch.Event{Type: watch.Added, Object: w.log.copyOf(shown)}) {
			return false
		}
	}
	w.log.mu.Lock()
	ready := w.log.ready
	w.log.mu.Unlock()
	return !ready || w.sendEnd()
}

// sendEnd sends the bookmark that ends the initial events, if it is due and all objects are there.
func (w *watcher[T]) sendEnd() bool {
	if !w.endDue {
		return true
	}
	w.endDue = false
	end := w.log.newObject()
	if err := storage.AnnotateInitialEventsEndBookmark(end); err != nil {
		w.send(errorEvent(err))
		return false
	}
	return w.sendBookmark(end)
}

// deliver sends the next events. It returns a channel that the next change closes, nil if events are left, and
// false at the end of the watch.
func (w *watcher[T]) deliver() (changed <-chan struct{}, ok bool) {
	l := w.log
	l.mu.Lock()
	w.batch, ok = l.history.after(w.cursor, w.batch[:0], watchBatch)
	if !ok {
		err := l.checkIssuedLocked(w.cursor)
		l.mu.Unlock()
		w.send(errorEvent(err))
		return nil, false
	}
	upTo, progress, ready := l.rv, w.progress, false
	if len(w.batch) == watchBatch {
		upTo = w.batch[watchBatch-1].rv
	} else {
		changed, progress, ready = l.changedLocked(), l.progress, l.ready
	}
	l.mu.Unlock()

	for i := range w.batch {
		e, err := w.translate(&w.batch[i])
		if err != nil {
			w.send(errorEvent(err))
			return nil, false
		}
		if e.Object != nil && !w.send(e) {
			return nil, false
		}
	}
	clear(w.batch) // an idle watcher keeps no object alive
	w.cursor = upTo
	if ready && !w.sendEnd() {
		return nil, false
	}
	if progress != w.progress {
		w.progress = progress
		if w.opts.ProgressNotify && !w.endDue && !w.sendBookmark(l.newObject()) {
			return nil, false
		}
	}
	return changed, true
}

// translate returns the event that this client sees, or none. An object that begins to match the selector is
// added. One that ceases to match is deleted, with its last matching content.
func (w *watcher[T]) translate(e *event[T]) (watch.Event, error) {
	if !w.scope.contains(e.key()) || e.was != nil && e.now != nil && e.was.in(w.scope).is(e.now.in(w.scope)) {
		return watch.Event{}, nil
	}
	was, err := w.matches(e.was)
	if err != nil {
		return watch.Event{}, err
	}
	now, err := w.matches(e.now)
	if err != nil {
		return watch.Event{}, err
	}
	switch {
	case was && now:
		return watch.Event{Type: watch.Modified, Object: e.now.in(w.scope).obj.DeepCopyObject()}, nil
	case now:
		return watch.Event{Type: watch.Added, Object: e.now.in(w.scope).obj.DeepCopyObject()}, nil
	case was:
		return watch.Event{Type: watch.Deleted, Object: withVersion(e.was.in(w.scope).obj, e.rv)}, nil
	}
	return watch.Event{}, nil
}

func (w *watcher[T]) matches(e *entry[T]) (bool, error) {
	if e == nil {
		return false, nil
	}
	return w.opts.Predicate.Matches(e.in(w.scope).obj)
}

func (w *watcher[T]) sendBookmark(bookmark T) bool {
	setVersion(bookmark, w.cursor)
	return w.send(watch.Event{Type: watch.Bookmark, Object: bookmark})
}

func (w *watcher[T]) send(e watch.Event) bool {
	select {
	case w.result <- e:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func errorEvent(err error) watch.Event {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	return watch.Event{Type: watch.Error, Object: &status}
}
