// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refresh keeps the catalogue up to date with the stores. Each location
// is refreshed by itself, so that a slow one delays no other. What lies where, a
// layout.Layout knows. It holds no more than store.Ranger, so it can't change or remove
// anything in a store.
//
// There are levels, the cheapest first:
//
//  1. What this cluster has stored is read when it ends, and nothing is listed.
//  2. A poll lists one shard of a location, which is one request, and goes on from there with
//     the next poll. Of a store of a thousand backups it sees everything. With a second request
//     it lists a part of what was read, and so finds what was replaced since, in time.
//  3. A full listing lists all of them: at first, every hour, and when it is asked for. Polls go
//     on after it where they were.
//
// What is new in a listing is read. How much is asked of a store at once, the store decides:
// more and more, until it can't answer.
//
// A fault is the store's or one backup's. What can't be parsed is the backup's; what
// can't be asked is the store's, and changes nothing that is known. Where access is
// denied, a known backup that can still be read makes it the denied one's fault.
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
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/layout"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/velero"
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
	// Layout is how the backups lie in it. Default: Velero's.
	Layout layout.Layout
	// Indexed is whether there may be indexes in it, see package index.
	Indexed bool
	// Cache, if not nil, keeps what is read for the next process.
	Cache Cache
	// Beside, if not nil, reads what else is in the store, after all of it was listed: each
	// FullInterval, and when that was asked for.
	Beside func(ctx context.Context, from store.Reader) error
	// Interval, if not nil, is that of the location instead of Options.Interval.
	Interval *time.Duration
	// Asked is what was asked of the location. When it changes, all of it is listed.
	Asked Asked
	// Accepted is an instant: backups that were missing then may go, however many they are.
	// When it changes, all of the location is listed.
	Accepted time.Time
	// Known is what a former process knew of the location.
	Known Known
}

// Cache keeps what is read of one location, see package local. It is opened once, and closed.
type Cache interface {
	Open(ctx context.Context) (iter.Seq[index.Entry], error)
	Add(ctx context.Context, storeName string, content catalog.Content) error
	// Remove has what is named not be shown by the next process, however this one ends.
	Remove(storeNames ...string) error
	// Write writes what was added if that is due, and Close in any case, but for what is
	// not to be kept.
	Write(ctx context.Context, keep func(storeName string) bool) error
	Close(ctx context.Context, keep func(storeName string) bool) error
}

// Asked is what was asked of a location: State.Synced says which of it has been done.
type Asked struct {
	// Generation is that of the location's record.
	Generation int64
	// Request is any text.
	Request string
}

// Known is what a former process knew.
type Known struct {
	// Backups is how many there were; zero if that is not known.
	Backups int
	// Suspicious is since when fewer are there than should be; zero if that is not so.
	Suspicious time.Time
}

// Options are settings of a Refresher. Zero values mean the defaults.
type Options struct {
	// SystemNamespace is where backups that are not of a namespace's own are listed.
	SystemNamespace string
	// Interval is the time from one poll of a location to the next, give or take
	// a tenth. Zero means that locations are listed at first and when asked for only.
	Interval time.Duration
	// FullInterval is the time from one listing of all of a location to the next, if that
	// takes more than a poll. Default 1 h.
	FullInterval time.Duration
	// Reads is how many requests are made of a location at once, to begin with. Default 16.
	Reads int
	// MostReads is how many are when the store bears it. Default 128, or Reads if that is set.
	MostReads int
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
	defaultMostReads      = 128
	defaultRequestTimeout = 30 * time.Second
	defaultFullInterval   = time.Hour
	// A location that failed is tried again after firstRetry, and then twice as
	// long each time, up to the interval, or up to mostRetry if there is none.
	firstRetry = 5 * time.Second
	mostRetry  = 5 * time.Minute
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
	// LastFull is when the last one began that listed all besides.
	LastFull time.Time
	// Synced is what had been asked of the location by then.
	Synced Asked
	// Backups is how many are known, and Replaced of how many of them somebody has replaced
	// the metadata.
	Backups, Replaced int
	// LeftOut is how many of them are not listed for lack of room, and NewestLeftOut is the name
	// of the newest. They have no trusted signature.
	LeftOut       int
	NewestLeftOut string
	// Cached is true while what a former process has left is shown, and the store was not
	// listed yet.
	Cached bool
	// LastError is why the last refresh failed, in stable words; empty if it did not.
	LastError string
	// Suspicion says why backups that the store does not list any more are still
	// shown; empty if there are none.
	Suspicion string

	// recovered is true once there are as many backups as a former process knew, or fewer
	// were accepted; noticed is when they were fewer first.
	recovered bool
	noticed   time.Time
	// position is where the next poll goes on, and watched where it looks for what was replaced.
	position, watched string
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
		if location.Layout == nil {
			location.Layout = &velero.Layout{
				Location: location.Name, SystemNamespace: r.options.SystemNamespace, Clock: r.options.Clock,
				Vouches: func(origin *v1alpha1.BackupOrigin) bool {
					own, trusted := r.catalog.KnowsKey(location.Name, origin.ClusterUID, origin.PublicKey)
					return own || trusted
				},
			}
		}
		wanted[location.Name] = location
	}
	former := map[string]*worker{} // of those that are only opened anew
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
			if found { // what was known is not of this store
				location.Known = Known{}
				wanted[name] = location
			}
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

// Nudge asks for a listing of all of a location soon. Several become one.
func (r *Refresher) Nudge(location string) {
	if w := r.worker(location); w != nil {
		w.nudge(true)
	}
}

// Removed says that a backup is being deleted, or is gone: the next process is not to show it
// from what is kept for it. What is read again counts again.
func (r *Refresher) Removed(location, storeName string) {
	if w := r.worker(location); w != nil {
		w.uncache(context.Background(), storeName)
	}
}

// Awaits reports whether a listing that was asked for is yet to begin, so that it will have
// what is in the store now.
func (r *Refresher) Awaits(location string, asked Asked) bool {
	w := r.worker(location)
	return w != nil && w.awaits(asked)
}

// State is how well the catalogue knows a location; false if it is none.
func (r *Refresher) State(location string) (State, bool) {
	w := r.worker(location)
	if w == nil {
		return State{}, false
	}
	state := w.snapshot()
	state.Backups = r.catalog.Len(location) // what was deleted since is no loss to the next process
	state.Replaced = r.catalog.Replaced(location)
	state.LeftOut, state.NewestLeftOut = r.catalog.LeftOut(location)
	return state, true
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

// Use gives the store of a location, open, until done is called. It stays open for those
// who use it when the location is opened anew.
func (r *Refresher) Use(ctx context.Context, location string) (opened Store, done func(), err error) {
	w := r.worker(location)
	if w == nil {
		return nil, nil, fmt.Errorf("there is no storage location %q", location)
	}
	return w.use(ctx)
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

// Replacements tell of each location where somebody has replaced metadata, which is no doubt
// about what is there.
func (r *Refresher) Replacements() []string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.states())) {
		if count := r.catalog.Replaced(name); count > 0 {
			texts = append(texts, fmt.Sprintf("storage location %q: %s", name, Replacement(count)))
		}
	}
	return texts
}

// LeftOuts tell of each location with more backups without a trusted signature than are listed.
// That raises no doubt about any other backup.
func (r *Refresher) LeftOuts() []string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.states())) {
		if count, newest := r.catalog.LeftOut(name); count > 0 {
			texts = append(texts, fmt.Sprintf("storage location %q: %s", name, LeftOut(count, newest)))
		}
	}
	return texts
}

// LeftOut says that so many backups in a location are not listed, and names the newest.
func LeftOut(backups int, newest string) string {
	return fmt.Sprintf("%d backups are not listed (%s), the newest of them %q: nobody whom the location trusts has signed them, and lists have room for the newest of such; they are in the store, and nothing removes them: trust their cluster in spec.trustedClusters, or raise --foreign-backups-memory of the API server",
		backups, enginev1alpha1.ConditionBackupsLeftOut, newest)
}

// Replacement says that somebody has replaced the metadata of so many backups in a location.
func Replacement(backups int) string {
	return fmt.Sprintf("another writer, such as Velero, has replaced the metadata of %d backups, which have the condition %s: let it use another prefix or other names", backups, catalog.ConditionMetadataReplaced)
}
