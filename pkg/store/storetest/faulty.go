// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"io"
	"iter"
	"path"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/store"
)

// Operation is a method of a store.
type Operation string

// The operations that Faulty counts. Commit ends a NewWriter's write, Write is each piece of it.
const (
	List       Operation = "List"
	Get        Operation = "Get"
	Attributes Operation = "Attributes"
	Create     Operation = "Create"
	Put        Operation = "Put"
	NewWriter  Operation = "NewWriter"
	Write      Operation = "Write"
	Commit     Operation = "Commit"
	Delete     Operation = "Delete"
	Check      Operation = "Check"
)

// Fault is a fault and its place.
type Fault struct {
	Operation Operation
	Key       string
	// Delay precedes the operation, by Faulty's clock.
	Delay time.Duration
	Err   error
	// Truncate ends a List or Get after After results or bytes: with Err, or as if complete.
	Truncate bool
	After    int
}

// Faulty is a store that counts operations, and fails on request.
type Faulty struct {
	inner Store
	clock clock.Clock

	mu     sync.Mutex
	faults []Fault
	counts map[Operation]int
	active int
	peak   int
}

// NewFaulty wraps a store. Without faults it behaves alike.
func NewFaulty(inner Store, clock clock.Clock) *Faulty {
	return &Faulty{inner: inner, clock: clock, counts: map[Operation]int{}}
}

// Inject replaces the faults; the first match applies.
func (f *Faulty) Inject(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = faults
}

// Count returns the calls of an operation since the last Reset.
func (f *Faulty) Count(operation Operation) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[operation]
}

// Counts returns all calls since the last Reset.
func (f *Faulty) Counts() map[Operation]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[Operation]int{}
	for operation, count := range f.counts {
		counts[operation] = count
	}
	return counts
}

// Peak returns the maximum of concurrent Gets, until Close, since the last Reset.
func (f *Faulty) Peak() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peak
}

// Reset sets all counts to zero.
func (f *Faulty) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts, f.peak = map[Operation]int{}, f.active
}

func (f *Faulty) strike(ctx context.Context, operation Operation, key string) (Fault, error) {
	f.mu.Lock()
	f.counts[operation]++
	var fault Fault
	for _, candidate := range f.faults {
		matches, err := path.Match(candidate.Key, key)
		if err != nil {
			panic(err)
		}
		if (candidate.Operation == "" || candidate.Operation == operation) && (candidate.Key == "" || matches) {
			fault = candidate
			break
		}
	}
	f.mu.Unlock()
	if fault.Delay > 0 {
		select {
		case <-f.clock.After(fault.Delay):
		case <-ctx.Done():
			return fault, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
		}
	}
	if fault.Truncate {
		return fault, nil
	}
	return fault, fault.Err
}

// List implements store.Reader.
func (f *Faulty) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		fault, err := f.strike(ctx, List, folder)
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		count := 0
		for object, err := range f.inner.List(ctx, folder, options) {
			if fault.Truncate && count == fault.After {
				break
			}
			if count++; !yield(object, err) {
				return
			}
		}
		if fault.Truncate && fault.Err != nil {
			yield(store.Object{}, fault.Err)
		}
	}
}

// Get implements store.Reader.
func (f *Faulty) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	f.enter(1)
	fault, err := f.strike(ctx, Get, key)
	if err == nil {
		var content io.ReadCloser
		if content, err = f.inner.Get(ctx, key); err == nil {
			return &faultyReader{ReadCloser: content, faulty: f, fault: fault, left: fault.After}, nil
		}
	}
	f.enter(-1)
	return nil, err
}

func (f *Faulty) enter(change int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active += change
	f.peak = max(f.peak, f.active)
}

// Attributes implements store.Reader.
func (f *Faulty) Attributes(ctx context.Context, key string) (store.Object, error) {
	if _, err := f.strike(ctx, Attributes, key); err != nil {
		return store.Object{}, err
	}
	return f.inner.Attributes(ctx, key)
}

// Create implements store.Writer.
func (f *Faulty) Create(ctx context.Context, key string, content []byte) error {
	if _, err := f.strike(ctx, Create, key); err != nil {
		return err
	}
	return f.inner.Create(ctx, key, content)
}

// Put implements store.Writer.
func (f *Faulty) Put(ctx context.Context, key string, content []byte) error {
	if _, err := f.strike(ctx, Put, key); err != nil {
		return err
	}
	return f.inner.Put(ctx, key, content)
}

// NewWriter implements store.Writer.
func (f *Faulty) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	if _, err := f.strike(ctx, NewWriter, key); err != nil {
		return nil, err
	}
	w, err := f.inner.NewWriter(ctx, key)
	if err != nil {
		return nil, err
	}
	return &faultyWriter{ObjectWriter: w, ctx: ctx, faulty: f, key: key}, nil
}

// Delete implements store.Remover.
func (f *Faulty) Delete(ctx context.Context, object store.Object) error {
	if _, err := f.strike(ctx, Delete, object.Key); err != nil {
		return err
	}
	return f.inner.Delete(ctx, object)
}

// Check implements Store.
func (f *Faulty) Check(ctx context.Context) error {
	if _, err := f.strike(ctx, Check, ""); err != nil {
		return err
	}
	return f.inner.Check(ctx)
}

type faultyReader struct {
	io.ReadCloser
	faulty *Faulty
	fault  Fault
	left   int
	once   sync.Once
}

func (r *faultyReader) Read(p []byte) (int, error) {
	if !r.fault.Truncate {
		return r.ReadCloser.Read(p)
	}
	if r.left == 0 {
		if r.fault.Err != nil {
			return 0, r.fault.Err
		}
		return 0, io.EOF
	}
	n, err := r.ReadCloser.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

func (r *faultyReader) Version() string { return store.VersionOf(r.ReadCloser) }

func (r *faultyReader) Close() error {
	r.once.Do(func() { r.faulty.enter(-1) })
	return r.ReadCloser.Close()
}

type faultyWriter struct {
	store.ObjectWriter
	ctx    context.Context
	faulty *Faulty
	key    string
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if _, err := w.faulty.strike(w.ctx, Write, w.key); err != nil {
		return 0, err
	}
	return w.ObjectWriter.Write(p)
}

func (w *faultyWriter) Commit() error {
	if _, err := w.faulty.strike(w.ctx, Commit, w.key); err != nil {
		w.Abort()
		return err
	}
	return w.ObjectWriter.Commit()
}
