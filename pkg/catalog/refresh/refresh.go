// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refresh updates the catalogue from the stores, each location by itself. A Layout knows the
// objects. The package only reads (store.Ranger). docs/catalogue.md describes backups read when they
// end, polls and full listings.
//
// Unparsable content is a backup's fault. A failed request is the store's, and changes nothing known. A
// refusal is the backup's fault if a known backup is still readable. The limiter adapts concurrency to
// the store.
package refresh

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is the needed part of a store.
type Store interface {
	store.Reader
	Close() error
}

// Location is a storage location to read.
type Location struct {
	Name string
	// Store identifies the store, as by provider, bucket and prefix. A change forgets the location.
	Store string
	// Settings represents Open's dependencies. A change reopens the store.
	Settings string
	// Open is repeated until it succeeds. The Refresher closes the store.
	Open func(ctx context.Context) (Store, error)
	// Layout defaults to Velero's.
	Layout  Layout
	Indexed bool
	// Cache keeps the contents for the next process; may be nil.
	Cache Cache
	// Beside, if not nil, reads other objects after full listings, each FullInterval and on request.
	Beside   func(ctx context.Context, from store.Reader) error
	Interval *time.Duration
	// Asked identifies requests. A change causes a full listing.
	Asked Asked
	// Accepted is as in catalog.Listing. A change causes a full listing.
	Accepted time.Time
	Known    Known
}

// Cache keeps a location's contents (index.LocalCache). It is opened once, and closed.
type Cache interface {
	Open(ctx context.Context) (iter.Seq[index.Entry], error)
	Add(ctx context.Context, storeName string, content catalog.Content) error
	// Remove hides names from the next process at once.
	Remove(storeNames ...string) error
	// Write writes if due, Close always, what keep accepts.
	Write(ctx context.Context, keep func(storeName string) bool) error
	Close(ctx context.Context, keep func(storeName string) bool) error
}

// Asked identifies requests; State.Synced has finished ones.
type Asked struct {
	Generation int64
	Request    string
}

// Known is a former process's knowledge.
type Known struct {
	Backups int
	// Suspicious is since when backups are missing; zero if none.
	Suspicious time.Time
}

// Options of a Refresher. Zero values mean the defaults.
type Options struct {
	// SystemNamespace gets backups that belong to no namespace here.
	SystemNamespace string
	// Interval is the time between polls of a location, within a tenth; zero for listings only at the
	// start and on request.
	Interval time.Duration
	// FullInterval is the time between full listings of more than a poll. Default 1 h.
	FullInterval time.Duration
	// Reads is the first number of concurrent requests. Default 16.
	Reads int
	// MostReads is the maximum. Default 128, or Reads if set.
	MostReads int
	// RequestTimeout bounds each request. Default 30 s.
	RequestTimeout time.Duration
	Clock          clock.WithDelayedExecution
	// Asked, if not nil, is called after a location's refresh, and after the last attempt to read a
	// single backup.
	Asked func(location string)
}

const (
	defaultReads          = 16
	defaultMostReads      = 128
	defaultRequestTimeout = 30 * time.Second
	defaultFullInterval   = time.Hour
	// A failed location waits for firstRetry, doubled each time up to the interval, or mostRetry.
	firstRetry    = 5 * time.Second
	mostRetry     = 5 * time.Minute
	singleReaders = 4
	// An ended backup may appear late. After singleAttempts the next refresh finds it.
	singleAttempts = 8
)

// State is a location's state in the catalogue.
type State struct {
	// Loaded is true after the first refresh, even a failed one.
	Loaded      bool
	LastSuccess time.Time
	LastFull    time.Time
	// Synced has the requests before LastFull.
	Synced            Asked
	Backups, Replaced int
	// LeftOut counts omitted untrusted backups, to NewestLeftOut.
	LeftOut       int
	NewestLeftOut string
	// Unfinished counts folders without a finished backup.
	Unfinished int
	// Cached is true while a former process's entries are shown.
	Cached bool
	// LastError is why the last refresh failed, in stable words.
	LastError string
	Suspicion string

	// recovered is true once there are as many backups as a former process knew, or the loss was
	// accepted; noticed is since when there are fewer.
	recovered bool
	noticed   time.Time
	// position is the next poll's start, watched its start for replaced metadata.
	position, watched string
}

// Refresher refreshes the catalogue.
type Refresher struct {
	catalog *catalog.Catalog
	options Options
	singles workqueue.TypedRateLimitingInterface[single]

	changed chan struct{}

	mu      sync.Mutex
	wanted  []Location         // guarded by mu
	set     bool               // SetLocations was called; guarded by mu
	workers map[string]*worker // by location; guarded by mu
}

type single struct{ location, storeName string }

// New returns a Refresher of a catalogue. Nothing happens before Run.
func New(c *catalog.Catalog, options Options) *Refresher {
	if options.Reads <= 0 {
		options.Reads = defaultReads
		options.MostReads = cmp.Or(options.MostReads, defaultMostReads)
	}
	options.FullInterval = cmp.Or(options.FullInterval, defaultFullInterval)
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

// Run refreshes until ctx ends, and returns after all workers.
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

// SetLocations sets all locations. New ones are refreshed at once.
func (r *Refresher) SetLocations(locations []Location) {
	r.mu.Lock()
	r.wanted, r.set = slices.Clone(locations), true
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// apply stops and starts workers. Only Run calls it.
func (r *Refresher) apply(ctx context.Context, running *sync.WaitGroup) {
	r.mu.Lock()
	wanted := map[string]Location{}
	for _, location := range r.wanted {
		if location.Layout == nil {
			location.Layout = &VeleroLayout{
				Location: location.Name, SystemNamespace: r.options.SystemNamespace, Clock: r.options.Clock,
				Vouches: func(origin *v1alpha1.BackupOrigin) bool {
					own, trusted := r.catalog.KnowsKey(location.Name, origin.ClusterUID, origin.PublicKey)
					return own || trusted
				},
			}
		}
		wanted[location.Name] = location
	}
	former := map[string]*worker{}
	var forgotten []string
	for name, w := range r.workers {
		location, found := wanted[name]
		sameStore := found && location.Store == w.location.Store
		if sameStore && location.Settings == w.location.Settings {
			w.want(location)
			delete(wanted, name)
			continue
		}
		w.stop()
		delete(r.workers, name)
		if sameStore {
			former[name] = w
		} else {
			forgotten = append(forgotten, name)
			if found { // Known was about another store
				location.Known = Known{}
				wanted[name] = location
			}
		}
	}
	r.mu.Unlock()

	// Without the lock, since callbacks may call State.
	for _, name := range forgotten {
		r.catalog.Forget(name)
		forgetMetrics(name)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		workerCtx, cancel := context.WithCancel(ctx)
		w := &worker{
			location:    wanted[name],
			catalog:     r.catalog,
			options:     &r.options,
			nudged:      make(chan struct{}, 1),
			beside:      make(chan struct{}, 1),
			cancel:      cancel,
			limiter:     newLimiter(r.options.Reads, r.options.MostReads, r.options.Clock),
			wanted:      wanted[name],
			unconfirmed: newUnconfirmed(),
			asked:       map[string]map[string]string{},
		}
		if before := former[name]; before != nil {
			w.state, w.unconfirmed = before.snapshot(), before.unconfirmed
		}
		w.isAlive()
		r.workers[name] = w
		running.Go(func() {
			defer cancel()
			w.run(klog.NewContext(workerCtx, klog.LoggerWithValues(klog.FromContext(ctx), "location", name)))
		})
	}
}

// Nudge requests a full listing soon, at most one.
func (r *Refresher) Nudge(location string) {
	if w := r.worker(location); w != nil {
		w.nudge(true)
	}
}

// Removed hides a deleted backup from the next process, unless it is read again.
func (r *Refresher) Removed(location, storeName string) {
	if w := r.worker(location); w != nil {
		w.uncache(context.Background(), storeName)
	}
}

// Awaits reports whether a requested full listing has not begun.
func (r *Refresher) Awaits(location string, asked Asked) bool {
	w := r.worker(location)
	return w != nil && w.awaits(asked)
}

// State returns a location's state; false without one.
func (r *Refresher) State(location string) (State, bool) {
	w := r.worker(location)
	if w == nil {
		return State{}, false
	}
	state := w.snapshot()
	state.Backups = r.catalog.Len(location) // backups deleted since are no loss to the next process
	state.Replaced = r.catalog.Replaced(location)
	state.LeftOut, state.NewestLeftOut = r.catalog.LeftOut(location)
	state.Unfinished = r.catalog.Unfinished(location)
	return state, true
}

// ReadOne reads one backup now. It fails with store.ErrNotFound for a missing one.
func (r *Refresher) ReadOne(ctx context.Context, location, storeName string) error {
	w := r.worker(location)
	if w == nil {
		return fmt.Errorf("read backup %s: there is no storage location %q", storeName, location)
	}
	return w.readOne(ctx, storeName)
}

// Use returns a location's open store until done is called, even if the location is reopened.
func (r *Refresher) Use(ctx context.Context, location string) (opened Store, done func(), err error) {
	w := r.worker(location)
	if w == nil {
		return nil, nil, fmt.Errorf("there is no storage location %q", location)
	}
	return w.use(ctx)
}

// ReadSoon is ReadOne in the background, with some attempts.
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

// Loaded reports whether all locations, also new ones, were read or tried, or were silent for a
// request's time.
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

// Warnings returns a sentence for each location that was not read, or lacks backups.
func (r *Refresher) Warnings() []string {
	var warnings []string
	states := r.states()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		state := states[name]
		switch {
		case !state.Loaded:
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q may be missing, since it has not been read yet", name))
		case state.Cached && state.LastError == "":
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q are shown as a former process of this server has left them on its disk, since the store was not listed yet", name))
		case state.Cached:
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q are shown as a former process of this server has left them on its disk, since the store could not be read: %s", name, state.LastError))
		case state.LastError != "" && state.LastSuccess.IsZero():
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q may be missing, since it could not be read: %s", name, state.LastError))
		case state.LastError != "":
			warnings = append(warnings, fmt.Sprintf("the backups of storage location %q are shown as of %s (%s ago), since it could not be read: %s", name, state.LastSuccess.UTC().Format(time.RFC3339),
				duration.HumanDuration(r.options.Clock.Since(state.LastSuccess)), state.LastError))
		case state.Suspicion != "":
			warnings = append(warnings, fmt.Sprintf("storage location %q: %s", name, state.Suspicion))
		}
	}
	return warnings
}

// Replacements returns a sentence for each location with replaced metadata. Present metadata is not in
// doubt.
func (r *Refresher) Replacements() []string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.states())) {
		if count := r.catalog.Replaced(name); count > 0 {
			texts = append(texts, fmt.Sprintf("storage location %q: %s", name, Replacement(count)))
		}
	}
	return texts
}

// LeftOuts returns a sentence for each location with omitted backups. Others are not in doubt.
func (r *Refresher) LeftOuts() []string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.states())) {
		if count, newest := r.catalog.LeftOut(name); count > 0 {
			texts = append(texts, fmt.Sprintf("storage location %q: %s", name, LeftOut(count, newest)))
		}
	}
	return texts
}

// LeftOut says how many backups are not listed, and names the newest.
func LeftOut(backups int, newest string) string {
	return fmt.Sprintf("%d backups are not listed (%s), the newest of them %q: nobody whom the location trusts has signed them, and lists have room for the newest of such; they are in the store, and nothing removes them: trust their cluster in spec.trustedClusters, or raise --foreign-backups-memory of the API server",
		backups, enginev1alpha1.ConditionBackupsLeftOut, newest)
}

// Replacement says how many backups have replaced metadata.
func Replacement(backups int) string {
	return fmt.Sprintf("another writer, such as Velero, has replaced the metadata of %d backups, which have the condition %s: let it use another prefix or other names", backups, catalog.ConditionMetadataReplaced)
}
