// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"container/list"
	"context"
	"sync"
)

// What the parts of the work take in memory at most.
const (
	// processMemory is for the process itself: what it knows of the cluster, and the
	// indexes of repositories.
	processMemory = 128 << 20
	// volumeMemory is for a volume that is moved: the packs that are being filled, or the entries of
	// a batch that is restored.
	volumeMemory = 40 << 20
	// fileMemory is for a file that is read or written: a chunk of 8 MiB as it is, packed
	// and encrypted, and a pack of 20 MB that it has filled, or lies in.
	fileMemory = 48 << 20
	// indexMemory is for the indexes of a repository that is open. As many are as volumes are
	// moved, and a few more.
	indexMemory = 8 << 20
)

// Memory divides what a process may take among its work. Half of it is for the files that
// are read or written at once, of whichever volume; the rest for the volumes, and for the
// packs that restores keep.
//
// A file has a turn, from before it is opened until it is closed. Each volume that a Manager
// moves has one turn of its own, which no other volume takes: one whose files hang holds its
// own turn, and what there is of the others, and all other volumes go on. The others are
// shared, in the order in which they are asked for.
type Memory struct {
	// Volumes is how many may be moved at once.
	Volumes int
	files   int64
	packs   int64
	extras  int64

	mu sync.Mutex
	// reserved is how many turns are volumes' own, one for each that may be moved at once. When
	// it grows, more than files may have turns until enough of the shared ones are given back.
	reserved int64
	// taken is how many of the shared turns are in use, and indexed those in whose place
	// indexes are.
	taken, indexed int64
	// unmanaged is that of all work that no manager runs.
	unmanaged share
	waiting   list.List // of *turns, in the order in which they were asked for
}

// share is what a volume has of the turns. The first of those that it holds is its own.
type share struct{ held int64 }

// turns is what is asked for: that of a file, or those that indexes take.
type turns struct {
	of      *share // whose file it is; nil for indexes
	indexes int64  // how many they take, if there are as many; 0 for a file
	granted chan struct{}
	count   int64 // of those that were granted
}

// NewMemory returns what may be taken of limit bytes. Something can always be moved, so that
// less than 256 MiB is no bound.
func NewMemory(limit int64) *Memory {
	rest := max(limit-processMemory, 0)
	m := &Memory{Volumes: int(max(1, rest/4/volumeMemory)), files: max(1, rest/2/fileMemory), reserved: 1}
	m.packs = rest / 4 / int64(m.Volumes)
	m.extras = max(leastExtras, min(m.packs, volumeMemory)-looseExtras)
	return m
}

type memoryKey struct{}

// WithMemory has the work of a context keep to m.
func WithMemory(ctx context.Context, m *Memory) context.Context {
	return context.WithValue(ctx, memoryKey{}, m)
}

// MemoryOf is what the work of a context keeps to; nil is no bound.
func MemoryOf(ctx context.Context) *Memory {
	m, _ := ctx.Value(memoryKey{}).(*Memory)
	return m
}

type shareKey struct{}

// withShare has the files of a context be those of a volume that has turns of its own.
func withShare(ctx context.Context) context.Context {
	return context.WithValue(ctx, shareKey{}, new(share))
}

// reserve says how many volumes may be moved at once.
func (m *Memory) reserve(volumes int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserved = int64(max(1, volumes))
	m.grantLocked()
}

// file waits until a file may be read or written, and returns what ends that. The end of
// ctx does, too: a read that hangs must not take the turn of others.
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

// Indexes waits until the indexes of a repository may take so many bytes, and returns what
// ends that; nil if that needs no end, since there is room for indexes of that size. Others
// take it from the turns of files that are shared: of all, where there are too few.
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

// take waits for turns, and returns the error of ctx if that ends before.
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
	m.grantLocked() // what waits may be indexes that keep no file waiting
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
		m.grantLocked() // it may have been the first
	}
	return ctx.Err()
}

func (m *Memory) giveBack(t *turns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBackLocked(t)
}

// giveBackLocked ends turns. The last of a volume's is its own, which only the volume takes.
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

// grantLocked grants shared turns. What waits first has them first, so that the many files
// keep no indexes waiting for ever; but those that wait for others' indexes keep no file waiting.
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

// fitLocked reports whether there are shared turns enough besides those that are taken.
func (m *Memory) fitLocked(t *turns, taken int64) bool {
	return m.wantedLocked(t) <= max(0, m.files-m.reserved-taken)
}

// wantedLocked is never more than there are.
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

// readers is how many of the further readers of a large file may be at work.
func (m *Memory) readers(most int64) int64 {
	if m == nil {
		return most
	}
	return min(most, m.files/int64(m.Volumes))
}

// packMemory is how many bytes of packs a restore keeps at most: four of them, as each has
// some 20 MB.
const packMemory = 96 << 20

// kept is how many bytes of packs a restore keeps.
func (m *Memory) kept() int64 {
	if m == nil {
		return packMemory
	}
	return min(packMemory, m.packs)
}

const (
	// leastExtras is what the extras of a volume may take with any limit; 256 MiB have room for it.
	leastExtras = 24 << 20
	// unboundedExtras is what they may take without one.
	unboundedExtras = 256 << 20
)

// keptExtras is how many bytes the extras of a volume may take, packed. While it is uploaded they are
// in the place of the packs that a restore keeps, and while it is restored in that of those that an
// upload fills. So nothing waits for them.
func (m *Memory) keptExtras() int64 {
	if m == nil {
		return unboundedExtras
	}
	return m.extras
}
