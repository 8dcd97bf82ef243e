// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Manager runs the volume work of one node: no more than its limit at once, in an order
// that is fair to runs (docs/node-agent.md). Waiting work starts when a slot becomes
// free, and at no other moment is anything done. It is safe for concurrent use.
type Manager struct {
	ctx    context.Context // ends when the manager is stopped
	cancel context.CancelFunc
	group  sync.WaitGroup
	moved  atomic.Int64
	memory *Memory // of ctx

	mu      sync.Mutex
	limit   int
	stopped bool
	waiting backlog
	running [classes]int
	jobs    map[string]*job // by key: waiting and running
}

// NewManager returns a manager with a limit. Work gets a context derived from ctx, of whose Memory
// each has turns of its own; so no two managers have the same one.
func NewManager(ctx context.Context, limit int) *Manager {
	ctx, cancel := context.WithCancel(ctx)
	return &Manager{ctx: ctx, cancel: cancel, limit: limit, memory: MemoryOf(ctx), jobs: map[string]*job{}}
}

// Submit queues work. It returns false, and does nothing, if work of its key waits or
// runs already, or if the manager is stopped.
func (m *Manager) Submit(work Work) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.jobs[work.Key] != nil {
		return false
	}
	j := &job{Work: work}
	m.jobs[j.Key] = j
	m.waiting.push(j)
	m.startLocked()
	return true
}

// Cancel drops the work of a key if it waits, and ends its context if it runs.
// It returns whether the work goes on until it has noticed.
func (m *Manager) Cancel(key string) (running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[key]
	if j == nil {
		return false
	}
	if j.cancel != nil {
		j.cancel()
		return true
	}
	m.waiting.remove(j)
	delete(m.jobs, key)
	return false
}

// SetLimit changes how much runs at once. What runs already goes on; zero starts
// nothing more.
func (m *Manager) SetLimit(limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
	m.startLocked()
}

// Load is what a manager has to do.
type Load struct {
	// Limit of work running at once.
	Limit int
	// Running and Waiting work of each class, by Class.
	Running, Waiting [classes]int
	// WaitingSince is when the oldest of what waits was asked for: zero if nothing waits.
	WaitingSince time.Time
	// Moved is how many bytes all work has moved so far.
	Moved int64
}

// Progress returns one that counts for the manager, too.
func (m *Manager) Progress() *Progress { return &Progress{all: &m.moved} }

// Load returns what there is to do now.
func (m *Manager) Load() Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Load{Limit: m.limit, Running: m.running, Waiting: m.waiting.lengths(), WaitingSince: m.waiting.oldest(), Moved: m.moved.Load()}
}

// Stop drops what waits, cancels what runs, and returns when nothing runs any more.
func (m *Manager) Stop() {
	m.mu.Lock()
	m.stopped = true
	for j := m.waiting.pop(); j != nil; j = m.waiting.pop() {
		delete(m.jobs, j.Key)
	}
	m.mu.Unlock()
	m.cancel()
	m.group.Wait()
}

// startLocked starts waiting work while there are slots.
func (m *Manager) startLocked() {
	// What runs goes on where the limit is less by now, and nothing begins beyond both.
	m.memory.reserve(max(m.limit, total(m.running)))
	for total(m.running) < m.limit {
		j := m.waiting.pop()
		if j == nil {
			return
		}
		var ctx context.Context
		ctx, j.cancel = context.WithCancel(withShare(m.ctx))
		m.running[j.Class]++
		m.group.Go(func() {
			defer m.finish(j)
			j.Do(ctx)
		})
	}
}

func (m *Manager) finish(j *job) {
	j.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, j.Key)
	m.running[j.Class]--
	m.startLocked()
}

func total(counts [classes]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}
