// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refresh keeps the catalogue up to date with the stores. Each location
// is refreshed by itself, so that a slow one delays no other: one listing of its
// backups, and two reads for each backup that is new. It holds no more than
// store.Reader, so it can't change or remove anything in a store.
//
// A fault is the store's or one backup's. What can't be parsed is the backup's; what
// can't be asked is the store's, and changes nothing that is known. Where access is
// denied, a known backup that can still be read makes it the denied one's fault.
package refresh

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is what is needed of a store.
type Store interface {
	store.Reader
	Close() error
}

// Location is a storage location to be read.
type Location struct {
	// Name is the location's name.
	Name string
	// Store identifies the store, by provider, bucket and prefix or the like. When it
	// changes, what was known of the location is forgotten.
	Store string
	// Settings stands for all that Open depends on. When it changes, the store is
	// opened anew.
	Settings string
	// Open opens the store. It is called again until it succeeds. The Refresher
	// closes what it returns.
	Open func(ctx context.Context) (Store, error)
}

// Options are settings of a Refresher. Zero values mean the defaults.
type Options struct {
	// SystemNamespace is where backups that are not of a namespace's own are listed.
	SystemNamespace string
	// Interval is the time from one refresh of a location to the next, give or take
	// a tenth. Zero means that locations are refreshed at first and on Nudge only.
	Interval time.Duration
	// Reads is how many backups of a location are read at once. Default 16.
	Reads int
	// RequestTimeout bounds each request to a store. Default 30 s.
	RequestTimeout time.Duration
	// Clock tells the time. Default: the real one.
	Clock clock.WithDelayedExecution
	// Asked, if not nil, is called after each refresh of a location, and after the
	// last attempt to read a single backup of it, well or not.
	Asked func(location string)
}

const (
	defaultReads          = 16
	defaultRequestTimeout = 30 * time.Second
	// A location that failed is tried again after firstRetry, and then twice as
	// long each time, up to the interval.
	firstRetry = 5 * time.Second
	// Single reads come one at a time mostly: when a backup ends.
	singleReaders = 4
	// A backup that was said to have ended may take some time to show, in stores
	// that are not consistent; after so many attempts the next refresh will do.
	singleAttempts = 8
)

// State is how well the catalogue knows a location.
type State struct {
	// Loaded is true once a refresh has ended, well or not: what can be known at
	// start is known.
	Loaded bool
	// LastSuccess is when the last refresh that read everything began; zero if none
	// did.
	LastSuccess time.Time
	// LastError is why the last refresh failed, in stable words; empty if it did not.
	LastError string
	// Suspicion says why backups that the store does not list any more are still
	// shown; empty if there are none.
	Suspicion string
}

// Refresher refreshes the catalogue. Create it with New.
type Refresher struct {
	catalog *catalog.Catalog
	options Options
	singles workqueue.TypedRateLimitingInterface[single]

	// changed wakes Run when wanted differs from workers.
	changed chan struct{}

	mu      sync.Mutex
	wanted  []Location         // guarded by mu
	set     bool               // whether wanted has been set; guarded by mu
	workers map[string]*worker // by location; guarded by mu
}

// single is a backup to be read by itself.
type single struct{ location, storeName string }

// New makes a Refresher of a catalogue. Nothing happens before Run.
func New(c *catalog.Catalog, options Options) *Refresher {
	if options.Reads <= 0 {
		options.Reads = defaultReads
	}
	if options.RequestTimeout <= 0 {
		options.RequestTimeout = defaultRequestTimeout
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Asked == nil {
		options.Asked = func(string) {}
	}
	registerMetrics()
	return &Refresher{
		catalog: c,
		options: options,
		singles: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[single](100*time.Millisecond, firstRetry)),
		changed: make(chan struct{}, 1),
		workers: map[string]*worker{},
	}
}

// Run refreshes until ctx ends, and returns when everything has stopped.
func (r *Refresher) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer r.singles.ShutDown()
	for range singleReaders {
		running.Go(func() {
			for r.processSingle(ctx) {
			}
		})
	}
	for {
		r.apply(ctx, &running)
		select {
		case <-r.changed:
		case <-ctx.Done():
			return
		}
	}
}

// SetLocations says which locations there are, all of them each time. New ones
// are refreshed at once; those that are not given any more are forgotten.
func (r *Refresher) SetLocations(locations []Location) {
	r.mu.Lock()
	r.wanted, r.set = slices.Clone(locations), true
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default: // Run will see the latest anyway
	}
}

// apply stops workers, and starts others. Only Run calls it.
func (r *Refresher) apply(ctx context.Context, running *sync.WaitGroup) {
	r.mu.Lock()
	wanted := map[string]Location{}
	for _, location := range r.wanted {
		wanted[location.Name] = location
	}
	known := map[string]State{} // of those that are only opened anew
	var forgotten []string
	for name, w := range r.workers {
		location, found := wanted[name]
		sameStore := found && location.Store == w.location.Store
		if sameStore && location.Settings == w.location.Settings {
			delete(wanted, name)
			continue
		}
		w.stop()
		delete(r.workers, name)
		if sameStore {
			known[name] = w.snapshot()
		} else {
			forgotten = append(forgotten, name)
		}
	}
	r.mu.Unlock()

	// Without the lock, since whoever hears of it may ask for States.
	for _, name := range forgotten {
		r.catalog.Forget(name)
		forgetMetrics(name)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		workerCtx, cancel := context.WithCancel(ctx)
		w := &worker{
			location: wanted[name],
			catalog:  r.catalog,
			options:  &r.options,
			nudged:   make(chan struct{}, 1),
			cancel:   cancel,
			state:    known[name],
		}
		w.isAlive()
		r.workers[name] = w
		running.Go(func() {
			defer cancel()
			w.run(klog.NewContext(workerCtx, klog.LoggerWithValues(klog.FromContext(ctx), "location", name)))
		})
	}
}

// Nudge asks for a refresh of a location soon. Several become one.
func (r *Refresher) Nudge(location string) {
	if w := r.worker(location); w != nil {
		select {
		case w.nudged <- struct{}{}:
		default:
		}
	}
}

// ReadOne reads one backup now, such as one that has just ended. The error is
// store.ErrNotFound if there is none.
func (r *Refresher) ReadOne(ctx context.Context, location, storeName string) error {
	w := r.worker(location)
	if w == nil {
		return fmt.Errorf("read backup %s: there is no storage location %q", storeName, location)
	}
	return w.readOne(ctx, storeName)
}

// ReadSoon is ReadOne without waiting. It tries again a few times.
func (r *Refresher) ReadSoon(location, storeName string) {
	r.singles.Add(single{location, storeName})
}

func (r *Refresher) processSingle(ctx context.Context) bool {
	key, shutdown := r.singles.Get()
	if shutdown {
		return false
	}
	defer r.singles.Done(key)
	err := r.ReadOne(ctx, key.location, key.storeName)
	if err != nil && ctx.Err() == nil && r.singles.NumRequeues(key) < singleAttempts {
		klog.FromContext(ctx).V(2).Info("Could not read a backup yet", "location", key.location, "backup", key.storeName, "reason", store.Reason(err))
		r.singles.AddRateLimited(key)
		return true
	}
	r.singles.Forget(key)
	r.options.Asked(key.location)
	return true
}

func (r *Refresher) worker(location string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[location]
}

// Loaded reports whether all locations have been read once, or tried in vain, or have
// yielded nothing for as long as a request may take. It is false again when there is
// a new location.
func (r *Refresher) Loaded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.set {
		return false
	}
	for _, location := range r.wanted {
		if w := r.workers[location.Name]; w == nil || !w.snapshot().Loaded && !w.isSilent() {
			return false
		}
	}
	return true
}

// states are the states of all locations, by name.
func (r *Refresher) states() map[string]State {
	r.mu.Lock()
	defer r.mu.Unlock()
	states := map[string]State{}
	for _, location := range r.wanted {
		states[location.Name] = State{}
	}
	for name, w := range r.workers {
		states[name] = w.snapshot()
	}
	return states
}

// Warnings tell readers of the catalogue what it may lack, a sentence for each
// location that was not or could not be read, or is suspicious.
func (r *Refresher) Warnings() []string {
	var warnings []string
	states := r.states()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		state := states[name]
		switch {
		case !state.Loaded:
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q may be missing, since it has not been read yet", name))
		case state.LastError != "" && state.LastSuccess.IsZero():
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q may be missing, since it could not be read: %s", name, state.LastError))
		case state.LastError != "":
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q are shown as of %s, since it could not be read: %s", name, state.LastSuccess.UTC().Format(time.RFC3339), state.LastError))
		case state.Suspicion != "":
			warnings = append(warnings, fmt.Sprintf("storage location %q: %s", name, state.Suspicion))
		}
		if count := r.catalog.Replaced(name); count > 0 {
			warnings = append(warnings, fmt.Sprintf("storage location %q: another writer, such as Velero, has replaced the metadata of %d backups, which have the condition %s: let it use another prefix or other names", name, count, catalog.ConditionMetadataReplaced))
		}
	}
	return warnings
}
