// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Manager runs a node's volume work within its limit, fair to runs (docs/node-agent.md). It is safe
// for concurrent use.
type Manager struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	moved  atomic.Int64
	memory *Memory

	mu      sync.Mutex
	limit   int
	stopped bool
	waiting backlog
	running [classes]int
	jobs    map[string]*job // waiting and running, by key
}

// NewManager returns a manager, whose work gets its own turns of ctx's Memory, which no other may
// share.
func NewManager(ctx context.Context, limit int) *Manager {
	ctx, cancel := context.WithCancel(ctx)
	return &Manager{ctx: ctx, cancel: cancel, limit: limit, memory: MemoryOf(ctx), jobs: map[string]*job{}}
}

// Submit queues work. It returns false if the key exists or the manager is stopped.
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

// ErrCancelled is the cause that Cancel gives to running work.
var ErrCancelled = errors.New("it was cancelled")

// Cancel drops waiting work, or ends running work's context, and reports whether it still runs.
func (m *Manager) Cancel(key string) (running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[key]
	if j == nil {
		return false
	}
	if j.cancel != nil {
		j.cancel(ErrCancelled)
		return true
	}
	m.waiting.remove(j)
	delete(m.jobs, key)
	return false
}

// SetLimit changes the limit. Running work goes on; zero starts nothing more.
func (m *Manager) SetLimit(limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
	m.startLocked()
}

// Load is the work of a manager.
type Load struct {
	Limit            int
	Running, Waiting [classes]int
	// WaitingSince is the oldest waiting request's time, or zero.
	WaitingSince time.Time
	Moved        int64
}

// Progress returns a Progress that also counts for the manager.
func (m *Manager) Progress() *Progress { return &Progress{all: &m.moved} }

// Load returns the present work.
func (m *Manager) Load() Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Load{Limit: m.limit, Running: m.running, Waiting: m.waiting.lengths(), WaitingSince: m.waiting.oldest(), Moved: m.moved.Load()}
}

// Stop drops waiting work, cancels running work, and returns after its end.
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

func (m *Manager) startLocked() {
	// After a lower limit, running work still needs its turns.
	m.memory.reserve(max(m.limit, total(m.running)))
	for total(m.running) < m.limit {
		j := m.waiting.pop()
		if j == nil {
			return
		}
		var ctx context.Context
		ctx, j.cancel = context.WithCancelCause(withShare(m.ctx))
		m.running[j.Class]++
		m.group.Go(func() {
			defer m.finish(j)
			j.Do(ctx)
		})
	}
}

func (m *Manager) finish(j *job) {
	j.cancel(nil)
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
