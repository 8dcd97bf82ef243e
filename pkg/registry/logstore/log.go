// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"
)

const (
	// MinHistoryAge is the age up to which events are kept as long as they are not too
	// many or too large: what the watch cache of Kubernetes keeps, and so what clients
	// may expect.
	MinHistoryAge = 75 * time.Second

	defaultHistoryAge = 5 * time.Minute
	// defaultHistoryEvents is enough for MinHistoryAge at 1,700 events a second. The
	// queue has at most 1,000.
	defaultHistoryEvents = 1 << 17
	// olderEvents is how many events there may be for any older than MinHistoryAge to
	// be kept.
	olderEvents = 1 << 15
	// defaultHistoryBytes bounds the memory whatever the objects are: clients choose
	// how large these are.
	defaultHistoryBytes = 128 << 20

	maxRetryAfter = 10 * time.Second
)

// Object is what a Log stores: a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Options describe a Log. Only Resource is required.
type Options struct {
	// Resource names the resource; the keys of its objects begin with Prefix(Resource).
	Resource schema.GroupResource
	// Namespaced says whether objects live in namespaces.
	Namespaced bool
	// Loading says what is awaited before Open and SetReady, such as "the backup catalogue".
	// Clients read it in the 429 that they get until then.
	Loading string
	// OnRead, if set, is called on every Get and GetList that is answered, so that
	// the owner can add a Warning header when the data is stale.
	OnRead func(ctx context.Context)

	// HistoryAge is how long events are remembered: 5 minutes if zero, and never less
	// than MinHistoryAge. Events that outlive it are dropped by the next change.
	HistoryAge time.Duration
	// HistoryEvents is how many events are remembered at most: 131,072 if zero, of which
	// those beyond 32,768 are younger than MinHistoryAge.
	HistoryEvents int
	// HistoryBytes is how much memory their objects may take, by estimate: 128 MiB if
	// zero.
	HistoryBytes int
	// Clock gives the log's birth, from which its versions count, and the age of
	// events. It is the real clock if nil.
	Clock clock.PassiveClock
}

// Log is the event log of one resource. It implements storage.Interface.
type Log[T Object] struct {
	newObject func() T
	options   Options
	prefix    string
	versioner storage.APIObjectVersioner
	clock     clock.PassiveClock
	born      time.Time

	// floor is where the present term began: what a client is shown of an object that
	// last changed before is of this version.
	floor atomic.Uint64

	// writers is held by whoever changes the state, from the comparison to the
	// commit. It is taken before mu, and spares readers the time of comparing.
	writers sync.Mutex

	// mu guards the fields below. It is held briefly: never while objects are
	// copied, compared or selected.
	mu       sync.Mutex
	open     bool   // whether clients are let in
	ready    bool   // whether all objects are there
	rv       uint64 // of the last event
	first    uint64 // the oldest version that a client may have seen
	state    state[T]
	history  history[T]
	wake     chan struct{} // closed by the next change; nil when nobody waits
	progress uint64        // counts the requests for watch progress
}

var _ storage.Interface = (*Log[Object])(nil)

// Prefix is what the storage keys of a resource begin with; it ends with a slash.
func Prefix(resource schema.GroupResource) string {
	if resource.Group == "" {
		return "/" + resource.Resource + "/"
	}
	return "/" + resource.Group + "/" + resource.Resource + "/"
}

// New returns an empty Log that is not ready. newObject returns a new, empty
// object of the stored type.
func New[T Object](newObject func() T, options Options) *Log[T] {
	l := &Log[T]{
		newObject: newObject,
		options:   options,
		prefix:    Prefix(options.Resource),
		clock:     options.Clock,
		state:     newState[T](),
	}
	if l.clock == nil {
		l.clock = clock.RealClock{}
	}
	l.born = l.clock.Now()
	l.rv = FirstVersion(l.born)
	l.first = l.rv
	l.history = history[T]{maxAge: options.HistoryAge, maxEvents: options.HistoryEvents, maxBytes: options.HistoryBytes, oldest: l.rv}
	if l.history.maxAge == 0 {
		l.history.maxAge = defaultHistoryAge
	}
	l.history.maxAge = max(l.history.maxAge, MinHistoryAge)
	if l.history.maxEvents <= 0 {
		l.history.maxEvents = defaultHistoryEvents
	}
	if l.history.maxBytes <= 0 {
		l.history.maxBytes = defaultHistoryBytes
	}
	return l
}

// FirstVersion counts the birth of a log in units of 2^-20 s. The counter starts
// at the fraction of the second, so that a log that replaces another one within
// a second does not issue its versions again.
func FirstVersion(birth time.Time) uint64 {
	seconds := uint64(max(birth.Unix(), 0))
	fraction := uint64(birth.Nanosecond()) << 20 / uint64(time.Second)
	return max(seconds<<20+fraction, 1) // zero has a meaning of its own in requests
}

// Open lets clients in before all objects are there; those that come later are
// events. What a client is told until SetReady is part of the truth, and no client
// is told that it is all: OnRead warns those that list, and those that would take
// what they get for the whole wait, as guarantee 4 of the package says.
func (l *Log[T]) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openLocked()
}

// openLocked lets clients in. The history starts here: no client has seen an earlier
// version.
func (l *Log[T]) openLocked() {
	if !l.open {
		l.open, l.first = true, l.rv
		l.history.forget(l.rv)
	}
}

// SetReady says that all objects are there, and lets clients in if that was not
// done before.
func (l *Log[T]) SetReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openLocked()
	l.ready = true
	l.wakeLocked()
}

// Begin starts a term of this log: from here on it issues no version below the given
// one, and every version from before is forgotten, so that nobody takes what one log
// issued for another's. What is stored stays, as of the beginning of the term. Begin
// is called before the term's first client is let in.
func (l *Log[T]) Begin(version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rv = max(l.rv+1, version)
	l.first = l.rv
	l.floor.Store(l.rv)
	l.history.forget(l.rv)
	l.wakeLocked()
}

// Version is that of the last event.
func (l *Log[T]) Version() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rv
}

// copyOf returns a copy of an object for a client.
func (l *Log[T]) copyOf(v view[T]) T {
	c := v.obj.DeepCopyObject().(T)
	if floor := l.floor.Load(); v.rv < floor {
		setVersion(c, floor)
	}
	return c
}

// scopeOf returns the scope of a request for a key.
func (l *Log[T]) scopeOf(key string, recursive bool) scope {
	return scope{key, recursive, recursive && key == l.prefix}
}

// ReadinessCheck implements storage.Interface. It returns nil once clients are let in.
func (l *Log[T]) ReadinessCheck() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkOpenLocked()
}

func (l *Log[T]) checkOpenLocked() error {
	if l.open {
		return nil
	}
	return l.tooEarly()
}

// tooEarly answers a request that can't be answered before SetReady.
func (l *Log[T]) tooEarly() error {
	return TooEarly(l.options.Resource, l.options.Loading, l.clock.Since(l.born))
}

// TooEarly answers a request for a resource that is being loaded since some time.
func TooEarly(resource schema.GroupResource, loading string, since time.Duration) error {
	if loading == "" {
		loading = "its data"
	}
	// What took a second so far may well take another one.
	retryAfter := min(max(since, time.Second), maxRetryAfter)
	return apierrors.NewTooManyRequests(
		fmt.Sprintf("%s can't be served yet: the server is still loading %s; try again in a moment", resource, loading),
		int(retryAfter.Seconds()))
}

// Versioner implements storage.Interface.
func (l *Log[T]) Versioner() storage.Versioner { return l.versioner }

// Stats implements storage.Interface.
func (l *Log[T]) Stats(context.Context) (storage.Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return storage.Stats{ObjectCount: int64(l.state.len())}, nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (l *Log[T]) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return l.Version(), nil
}

// CompactRevision implements storage.Interface: versions below it are forgotten.
// It is 0 as long as every version that a client may have seen is remembered.
func (l *Log[T]) CompactRevision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.history.oldest == l.first {
		return 0
	}
	return int64(l.history.oldest)
}

// EnableResourceSizeEstimation implements storage.Interface. Objects have no
// serialized size here, so there is nothing to estimate.
func (l *Log[T]) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// RequestWatchProgress implements storage.Interface: every watcher that asked for
// progress notifications gets a bookmark.
func (l *Log[T]) RequestWatchProgress(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress++
	l.wakeLocked()
	return nil
}

// snapshotLocked returns the current state and its version.
func (l *Log[T]) snapshotLocked() (state[T], uint64) { return l.state.snapshot(), l.rv }

// snapshotAt returns the state as it was at version rv, or false when the
// history does not reach back that far. rv must not lie in the future.
func (l *Log[T]) snapshotAt(rv uint64) (state[T], bool) {
	l.mu.Lock()
	events, ok := l.history.after(rv, nil, math.MaxInt)
	if !ok {
		l.mu.Unlock()
		return state[T]{}, false
	}
	s := l.state.snapshot()
	l.mu.Unlock()
	s.undo(events)
	return s, true
}

// wakeLocked wakes the watchers that wait for a change.
func (l *Log[T]) wakeLocked() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// changedLocked returns a channel that the next change closes.
func (l *Log[T]) changedLocked() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}
