// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"container/list"
	"context"
	"sync"
)

const (
	// processMemory is for informers and the indexes of repositories.
	processMemory = 128 << 20
	// volumeMemory is for a volume in work: an upload's packs, or a restore's batch.
	volumeMemory = 40 << 20
	// fileMemory is for an open file: a chunk of 8 MiB, plain, packed and encrypted, and a pack of
	// 20 MB.
	fileMemory = 48 << 20
	// indexMemory is for an open repository's indexes. There are a few more repositories than
	// volumes in work.
	indexMemory = 8 << 20
)

// Memory divides the memory of a process: half for open files, the rest for volumes and the packs
// of restores.
//
// An open file has a turn. Each volume of a Manager has one of its own, so that hanging files stop
// no other volume. Other turns are shared, first come, first served.
type Memory struct {
	// Volumes bounds the volumes in work.
	Volumes int
	files   int64
	packs   int64
	extras  int64

	mu sync.Mutex
	// reserved counts the volumes' own turns. After it grows, there may be too many until shared
	// ones are returned.
	reserved       int64
	taken, indexed int64
	unmanaged      share
	waiting        list.List
}

// share counts the turns of a volume; the first is its own.
type share struct{ held int64 }

type turns struct {
	of      *share
	indexes int64 // wanted turns; 0 for a file
	granted chan struct{}
	count   int64
}

// NewMemory divides limit bytes, at least 256 MiB, so that some work is always possible.
func NewMemory(limit int64) *Memory {
	rest := max(limit-processMemory, 0)
	m := &Memory{Volumes: int(max(1, rest/4/volumeMemory)), files: max(1, rest/2/fileMemory), reserved: 1}
	m.packs = rest / 4 / int64(m.Volumes)
	m.extras = max(leastExtras, min(m.packs, volumeMemory)-looseExtras)
	return m
}

type memoryKey struct{}

// WithMemory binds the work of a context to m.
func WithMemory(ctx context.Context, m *Memory) context.Context {
	return context.WithValue(ctx, memoryKey{}, m)
}

// MemoryOf returns the Memory of a context; nil means no bound.
func MemoryOf(ctx context.Context) *Memory {
	m, _ := ctx.Value(memoryKey{}).(*Memory)
	return m
}

type shareKey struct{}

// withShare gives a context's files turns of their own.
func withShare(ctx context.Context) context.Context {
	return context.WithValue(ctx, shareKey{}, new(share))
}

func (m *Memory) reserve(volumes int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserved = int64(max(1, volumes))
	m.grantLocked()
}

// file waits for a file's turn. done or the end of ctx returns it: a hanging read must not keep it.
func (m *Memory) file(ctx context.Context) (done func(), err error) {
	if m == nil {
		return func() {}, nil
	}
	t := &turns{of: &m.unmanaged}
	if of, ok := ctx.Value(shareKey{}).(*share); ok {
		t.of = of
	}
	if err := m.take(ctx, t); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { m.giveBack(t) })
	stop := context.AfterFunc(ctx, release)
	return func() { stop(); release() }, nil
}

// Indexes waits until a repository's indexes may take so many bytes, and returns a function that
// frees them; nil for the usual size. Larger ones take shared turns, at most all.
func (m *Memory) Indexes(ctx context.Context, bytes int64) (done func(), err error) {
	if m == nil || bytes <= indexMemory {
		return nil, nil
	}
	t := &turns{indexes: (bytes - indexMemory + fileMemory - 1) / fileMemory}
	if err := m.take(ctx, t); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { m.giveBack(t) }, nil
}

func (m *Memory) take(ctx context.Context, t *turns) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if t.of != nil && t.of.held == 0 || m.waiting.Len() == 0 && m.fitLocked(t, m.taken) {
		m.countLocked(t)
		m.mu.Unlock()
		return nil
	}
	t.granted = make(chan struct{})
	waiting := m.waiting.PushBack(t)
	m.grantLocked()
	m.mu.Unlock()
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-t.granted:
		m.giveBackLocked(t)
	default:
		m.waiting.Remove(waiting)
		m.grantLocked()
	}
	return ctx.Err()
}

func (m *Memory) giveBack(t *turns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBackLocked(t)
}

// giveBackLocked returns turns. The last one of a volume is its own.
func (m *Memory) giveBackLocked(t *turns) {
	if t.of != nil {
		t.of.held--
	}
	if t.of == nil || t.of.held > 0 {
		m.taken -= t.count
	} else {
		for e := m.waiting.Front(); e != nil; e = e.Next() {
			if e.Value.(*turns).of == t.of {
				m.grantOneLocked(e)
				break
			}
		}
	}
	if t.indexes > 0 {
		m.indexed -= t.count
	}
	m.grantLocked()
}

// grantLocked grants shared turns in order, so files can't starve indexes. Indexes that wait for
// indexes delay no file.
func (m *Memory) grantLocked() {
	behindIndexes := false
	for e := m.waiting.Front(); e != nil; {
		t, next := e.Value.(*turns), e.Next()
		switch {
		case t.indexes > 0 && (behindIndexes || !m.fitLocked(t, m.indexed)):
			behindIndexes = true
		case m.fitLocked(t, m.taken):
			m.grantOneLocked(e)
		default:
			return
		}
		e = next
	}
}

func (m *Memory) grantOneLocked(e *list.Element) {
	t := m.waiting.Remove(e).(*turns)
	m.countLocked(t)
	close(t.granted)
}

func (m *Memory) fitLocked(t *turns, taken int64) bool {
	return m.wantedLocked(t) <= max(0, m.files-m.reserved-taken)
}

func (m *Memory) wantedLocked(t *turns) int64 {
	if t.indexes > 0 {
		return min(t.indexes, max(0, m.files-m.reserved))
	}
	return 1
}

func (m *Memory) countLocked(t *turns) {
	t.count = m.wantedLocked(t)
	if t.of != nil {
		if t.of.held++; t.of.held == 1 {
			return // its own
		}
	}
	m.taken += t.count
	if t.indexes > 0 {
		m.indexed += t.count
	}
}

func (m *Memory) readers(most int64) int64 {
	if m == nil {
		return most
	}
	return min(most, m.files/int64(m.Volumes))
}

// packMemory bounds a restore's packs: four of some 20 MB.
const packMemory = 96 << 20

func (m *Memory) kept() int64 {
	if m == nil {
		return packMemory
	}
	return min(packMemory, m.packs)
}

const (
	// leastExtras bounds a volume's extras with the smallest limit, 256 MiB.
	leastExtras     = 24 << 20
	unboundedExtras = 256 << 20
)

// keptExtras bounds a volume's packed extras. An upload keeps no packs of restores, and a restore
// fills none: extras use that memory without a turn.
func (m *Memory) keptExtras() int64 {
	if m == nil {
		return unboundedExtras
	}
	return m.extras
}
