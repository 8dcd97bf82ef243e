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
	// MinHistoryAge is how long events are kept unless they are too many or too large. Clients may expect it, as
	// of Kubernetes' watch cache.
	MinHistoryAge = 75 * time.Second

	defaultHistoryAge = 5 * time.Minute
	// defaultHistoryEvents suffices for MinHistoryAge at 1,700 events a second. The queue has at most 1,000.
	defaultHistoryEvents = 1 << 17
	olderEvents          = 1 << 15   // most events while some are older than MinHistoryAge
	defaultHistoryBytes  = 128 << 20 // clients choose the size of objects

	maxRetryAfter = 10 * time.Second
)

// Object is a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Options describe a Log. Only Resource is required.
type Options struct {
	Resource   schema.GroupResource // keys begin with its Prefix
	Namespaced bool
	Loading    string // what the log waits for until SetReady, as 429s name it
	// OnRead is called on each answered Get and GetList, perhaps to warn of stale data. Optional.
	OnRead func(ctx context.Context)

	// HistoryAge is how long events are remembered: 5 minutes if zero, at least MinHistoryAge.
	HistoryAge time.Duration
	// HistoryEvents bounds them: 131,072 if zero. Those beyond 32,768 are younger than MinHistoryAge.
	HistoryEvents int
	HistoryBytes  int // of estimated memory for their objects: 128 MiB if zero
	// Clock gives the log's birth, from which versions count, and the age of events. Default: the real clock.
	Clock clock.PassiveClock
}

// Log is the event log of one resource. It implements storage.Interface.
//
// Guarantees:
//
//  1. A resourceVersion is a decimal number that grows with every event. No two events of a resource share one.
//     A log serves in terms. Each begins, by Begin, above every version issued before, which pkg/lease keeps in its
//     Lease. A version is the time since 1970 in units of 2^-20 s, plus the number of events since. It stays below
//     2^53 until 2242. An object without a change in a term has the version of its beginning, so no object looks
//     older than at the replica before.
//  2. A watch from a version that this log never issued, or has forgotten, ends with 410 Expired. So does a list
//     of exactly a forgotten version. A page with such a continue token gets 410, and a token for the current
//     version. A get or list of a future version gets 504 with the cause ResourceVersionTooLarge.
//  3. A watcher receives every event of its scope once and in order, or 410. A slow watcher blocks no other.
//  4. An incomplete log never looks complete. Until Open, each request gets 429 with Retry-After. Until SetReady, a
//     get of an unknown object gets 429. A list without a version, as a person's, gets the known objects, and
//     OnRead adds a warning. A list with an earlier log's version or 0, as an informer's, gets 429. The bookmark
//     that ends a watch's initial events is sent after SetReady.
//  5. Stored objects never change; clients get deep copies.
//  6. Events are remembered as HistoryAge, HistoryEvents and HistoryBytes say.
//  7. Requests over all namespaces may see more of an object than requests within its namespace, which include all
//     gets. A change of one view is no event, and no new version, to the other requests. Their selectors don't
//     find it.
type Log[T Object] struct {
	newObject func() T
	options   Options
	prefix    string
	versioner storage.APIObjectVersioner
	clock     clock.PassiveClock
	born      time.Time

	floor atomic.Uint64 // the version of the term's beginning, of objects without a later change

	// writers is held from a change's comparison to its commit, and taken before mu, so that readers need not wait
	// for comparisons.
	writers sync.Mutex

	// mu guards the fields below. It is never held while objects are copied, compared or selected.
	mu       sync.Mutex
	open     bool
	ready    bool
	rv       uint64 // of the last event
	first    uint64 // the oldest version that a client may have seen
	state    state[T]
	history  history[T]
	wake     chan struct{} // closed by the next change; nil if nothing waits
	progress uint64
}

var _ storage.Interface = (*Log[Object])(nil)

// Prefix returns the beginning of a resource's storage keys, with a slash at the end.
func Prefix(resource schema.GroupResource) string {
	if resource.Group == "" {
		return "/" + resource.Resource + "/"
	}
	return "/" + resource.Group + "/" + resource.Resource + "/"
}

// New returns an empty Log that is not ready. newObject returns an empty object.
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

// FirstVersion returns a log's birth in units of 2^-20 s. Its fractions of a second tell it from a replacement in
// the same second.
func FirstVersion(birth time.Time) uint64 {
	seconds := uint64(max(birth.Unix(), 0))
	fraction := uint64(birth.Nanosecond()) << 20 / uint64(time.Second)
	return max(seconds<<20+fraction, 1) // zero has a meaning of its own in requests
}

// Open lets clients in before all objects are there; see guarantee 4 of Log. Later objects are events.
func (l *Log[T]) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openLocked()
}

// openLocked lets clients in. The history starts here: no client has seen an earlier version.
func (l *Log[T]) openLocked() {
	if !l.open {
		l.open, l.first = true, l.rv
		l.history.forget(l.rv)
	}
}

// SetReady says that all objects are there, and opens the log.
func (l *Log[T]) SetReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openLocked()
	l.ready = true
	l.wakeLocked()
}

// Begin starts a term: the log issues no version below the given one, and forgets earlier ones. Objects stay. Call
// it before the term's first client is let in.
func (l *Log[T]) Begin(version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rv = max(l.rv+1, version)
	l.first = l.rv
	l.floor.Store(l.rv)
	l.history.forget(l.rv)
	l.wakeLocked()
}

// Version returns the version of the last event.
func (l *Log[T]) Version() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rv
}

func (l *Log[T]) copyOf(v view[T]) T {
	c := v.obj.DeepCopyObject().(T)
	if floor := l.floor.Load(); v.rv < floor {
		setVersion(c, floor)
	}
	return c
}

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

func (l *Log[T]) tooEarly() error {
	return TooEarly(l.options.Resource, l.options.Loading, l.clock.Since(l.born))
}

// TooEarly returns the answer to a request for a resource that has been loading for that time.
func TooEarly(resource schema.GroupResource, loading string, since time.Duration) error {
	if loading == "" {
		loading = "its data"
	}
	// A load of a second may well take another.
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

// CompactRevision implements storage.Interface: versions below it are forgotten. It is 0 while a client can't know
// of any.
func (l *Log[T]) CompactRevision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.history.oldest == l.first {
		return 0
	}
	return int64(l.history.oldest)
}

// EnableResourceSizeEstimation implements storage.Interface. Objects have no serialized size here.
func (l *Log[T]) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// RequestWatchProgress implements storage.Interface: it sends bookmarks to watchers that want progress.
func (l *Log[T]) RequestWatchProgress(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress++
	l.wakeLocked()
	return nil
}

func (l *Log[T]) snapshotLocked() (state[T], uint64) { return l.state.snapshot(), l.rv }

// snapshotAt returns the state at a version up to the present one, or false if it is forgotten.
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

func (l *Log[T]) wakeLocked() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

func (l *Log[T]) changedLocked() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}
