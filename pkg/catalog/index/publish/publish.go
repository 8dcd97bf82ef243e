// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the cluster's index in each storage location. It runs in the leading
// controller; two at once only waste time. Ended backups are indexed together. A periodic search adds
// missing backups, drops others, and removes unused objects of its own index.
package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is the needed part of a store.
type Store interface {
	store.Ranger
	store.Writer
	store.Remover
	Close() error
}

// Location is a storage location with an index.
type Location struct {
	Name string
	// Settings represents Open's dependencies. A change restarts the worker.
	Settings string
	Open     func(ctx context.Context) (Store, error)
	Layout   refresh.Layout
}

// Options of a Publisher. Zero values mean the defaults.
type Options struct {
	Cluster format.Cluster
	Keys    []string
	Clock   clock.WithTicker
	// Interval is the time between searches, within a tenth, default 6 h. Delay precedes the first,
	// default 30 s.
	Interval, Delay time.Duration
	// Gather is how long an ended backup waits for others. Default 2 s.
	Gather time.Duration
}

const (
	reads                 = 4
	failures              = 10
	firstRetry, lastRetry = 30 * time.Second, time.Hour
	requestTimeout        = time.Minute
	lastTimeout           = 10 * time.Second
	headsToClean          = 50
)

// Publisher writes indexes.
type Publisher struct {
	options Options
	changed chan struct{}

	mu      sync.Mutex
	wanted  []Location         // guarded by mu
	workers map[string]*worker // by location; guarded by mu
}

// New returns a Publisher. Nothing happens before Run.
func New(options Options) *Publisher {
	if options.Interval == 0 {
		options.Interval = 6 * time.Hour
	}
	if options.Delay == 0 {
		options.Delay = 30 * time.Second
	}
	if options.Gather == 0 {
		options.Gather = 2 * time.Second
	}
	return &Publisher{options: options, changed: make(chan struct{}, 1), workers: map[string]*worker{}}
}

// SetLocations sets all locations.
func (p *Publisher) SetLocations(locations []Location) {
	p.mu.Lock()
	p.wanted = slices.Clone(locations)
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Ended says that a backup has ended.
func (p *Publisher) Ended(location, storeName string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[location]; w != nil { // else a search finds it
		w.end(storeName)
	}
}

// Run publishes until ctx ends, and returns after all workers.
func (p *Publisher) Run(ctx context.Context) {
	if p.options.Cluster.UID == "" || p.options.Cluster.Key == nil {
		return // no reader could trust it
	}
	var running sync.WaitGroup
	defer running.Wait()
	for {
		p.apply(ctx, &running)
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Publisher) apply(ctx context.Context, running *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[string]Location{}
	for _, location := range p.wanted {
		wanted[location.Name] = location
	}
	for name, w := range p.workers {
		if location, found := wanted[name]; found && location.Settings == w.Settings {
			delete(wanted, name)
			continue
		}
		w.cancel()
		delete(p.workers, name)
	}
	for name, location := range wanted {
		workerCtx, cancel := context.WithCancel(ctx)
		w := &worker{Location: location, options: &p.options, cancel: cancel, woken: make(chan struct{}, 1)}
		p.workers[name] = w
		running.Go(func() {
			defer cancel()
			w.run(klog.NewContext(workerCtx, klog.LoggerWithValues(klog.FromContext(ctx), "location", name)))
		})
	}
}

type worker struct {
	Location
	options *Options
	cancel  context.CancelFunc
	woken   chan struct{}

	mu    sync.Mutex
	ended []string // guarded by mu

	opened Store
	writer *index.Writer
	heads  int
}

func (w *worker) end(storeName string) {
	w.mu.Lock()
	w.ended = append(w.ended, storeName)
	w.mu.Unlock()
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *worker) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := w.ended
	w.ended = nil
	slices.Sort(ended)
	return slices.Compact(ended)
}

func (w *worker) putBack(ended []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, ended...)
}

func (w *worker) run(ctx context.Context) {
	defer w.close()
	const jitter = 0.1
	around := func(pause time.Duration) time.Duration {
		return time.Duration(float64(pause) * (1 - jitter + 2*jitter*rand.Float64()))
	}
	failed := 0
	var ended []string
	due := w.options.Clock.After(around(w.options.Delay))
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-due:
			ended = w.take()
			if err = w.search(ctx, ended); err == nil {
				failed, due = 0, w.options.Clock.After(around(w.options.Interval))
			}
		case <-w.woken:
			if w.writer == nil {
				continue
			}
			select {
			case <-w.options.Clock.After(w.options.Gather):
			case <-ctx.Done():
				return
			}
			ended = w.take()
			err = w.add(ctx, ended)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Could not write the index of a storage location", "reason", store.Reason(err))
		w.close()
		w.putBack(ended)
		failed++
		due = w.options.Clock.After(around(min(firstRetry<<min(failed-1, 10), lastRetry)))
	}
}

func (w *worker) close() {
	if w.opened != nil {
		_ = w.opened.Close()
	}
	w.opened, w.writer = nil, nil
}

// search updates the index. It reads ended backups even if indexed: a name may have a new backup.
func (w *worker) search(ctx context.Context, ended []string) (err error) {
	if w.opened == nil {
		if w.opened, err = w.Open(ctx); err != nil {
			w.opened = nil
			return err
		}
	}
	w.writer = index.NewWriter(w.opened, w.options.Cluster, w.options.Keys, w.options.Clock)
	if err := w.writer.Load(ctx); err != nil {
		return err
	}
	listed, trusted := map[string]bool{}, true
	var known []string
	var missing []refresh.Entry
	for shard := range w.Layout.List(ctx, w.opened, "") {
		if shard.Err != nil {
			return shard.Err
		}
		trusted = trusted && shard.Suspicion == ""
		for _, entry := range shard.Entries {
			listed[entry.Name] = true
			if _, anew := slices.BinarySearch(ended, entry.Name); !anew && w.writer.Has(entry.Name, stamp(entry.Beside)) {
				known = append(known, entry.Name)
			} else {
				missing = append(missing, entry)
			}
		}
	}
	if err := w.read(ctx, missing, w.mayRead(ctx, known, missing)); err != nil {
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
		defer cancel()
		return errors.Join(err, w.commit(finish))
	}
	// An unmounted folder lists nothing: then the index stays.
	if trusted && 2*len(known) >= w.writer.Len()-len(missing) {
		if err := w.writer.Sweep(ctx, func(name string) bool { return listed[name] }); err != nil {
			return err
		}
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	return w.clean(ctx)
}

// mayRead reports whether another backup can be read. Then a refusal is not the store's failure.
func (w *worker) mayRead(ctx context.Context, known []string, missing []refresh.Entry) bool {
	if len(missing) == 0 {
		return false
	}
	name := missing[rand.IntN(len(missing))].Name
	if len(known) > 0 {
		name = known[rand.IntN(len(known))]
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return w.Layout.Probe(ctx, w.opened, name) == nil
}

func (w *worker) add(ctx context.Context, storeNames []string) error {
	entries := make([]refresh.Entry, len(storeNames))
	for i, storeName := range storeNames {
		entries[i].Name = storeName
	}
	if err := w.read(ctx, entries, false); err != nil {
		return err
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	if w.heads < headsToClean {
		return nil
	}
	return w.clean(ctx)
}

func (w *worker) commit(ctx context.Context) error {
	w.heads++
	return w.writer.Commit(ctx)
}

func (w *worker) clean(ctx context.Context) error {
	w.heads = 0
	err := w.writer.Clean(ctx)
	if errors.Is(err, store.ErrDenied) { // temporary with object lock
		klog.FromContext(ctx).V(2).Info("Old parts of the index stay for now", "reason", store.Reason(err))
		return nil
	}
	return err
}

// read adds final backups. If mayRead, it omits refused ones; otherwise the store has failed.
func (w *worker) read(ctx context.Context, entries []refresh.Entry, mayRead bool) error {
	var mu sync.Mutex // guards the following variables and the writer
	var failed int
	var first error
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(reads)
	for _, entry := range entries {
		group.Go(func() error {
			readCtx, cancel := context.WithTimeout(groupCtx, requestTimeout)
			defer cancel()
			content, err := w.Layout.Read(readCtx, w.opened, entry.Name, refresh.KnownEntry{
				Volumes: func() []catalog.Volume { return nil },
				Beside:  func(backup types.UID) []string { return catalog.ChangesOf(entry.Beside, backup) },
				MayRead: mayRead,
			})
			if _, unreadable := errors.AsType[*refresh.UnreadableError](err); unreadable || errors.Is(err, refresh.ErrUnfinished) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if first == nil {
					first = err
				}
				if failed++; failed >= failures {
					return err
				}
				return nil
			}
			if !index.Indexable(&content) {
				return nil
			}
			return w.writer.Add(groupCtx, index.Entry{StoreName: entry.Name, Stamp: stamp(entry.Beside), Content: content})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return first
}

// entryVersion is the version of entries; others are read again.
const entryVersion = "2"

func stamp(beside []string) string {
	if len(beside) == 0 {
		return entryVersion
	}
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(beside)), "\n")))
	return entryVersion + "-" + hex.EncodeToString(sum[:8])
}
