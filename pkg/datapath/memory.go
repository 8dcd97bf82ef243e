// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// What the parts of the work take in memory at most.
const (
	// processMemory is for the process itself: what it knows of the cluster, and the
	// indexes of repositories.
	processMemory = 128 << 20
	// volumeMemory is for a volume that is moved: the packs that are being filled.
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
type Memory struct {
	// Volumes is how many may be moved at once.
	Volumes int
	files   int64
	atOnce  *semaphore.Weighted
	packs   int64
	// indexes are the files, all but one, in whose place indexes may be.
	indexes *semaphore.Weighted
}

// NewMemory returns what may be taken of limit bytes. Something can always be moved, so that
// less than 256 MiB is no bound.
func NewMemory(limit int64) *Memory {
	rest := max(limit-processMemory, 0)
	m := &Memory{Volumes: int(max(1, rest/4/volumeMemory)), files: max(1, rest/2/fileMemory)}
	m.atOnce, m.indexes = semaphore.NewWeighted(m.files), semaphore.NewWeighted(m.files-1)
	m.packs = rest / 4 / int64(m.Volumes)
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

// file waits until a file may be read or written, and returns what ends that. The end of
// ctx does, too: a read that hangs must not take the turn of others.
func (m *Memory) file(ctx context.Context) (done func(), err error) {
	if m == nil {
		return func() {}, nil
	}
	if err := m.atOnce.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { m.atOnce.Release(1) })
	stop := context.AfterFunc(ctx, release)
	return func() { stop(); release() }, nil
}

// Indexes waits until the indexes of a repository may take so many bytes, and returns what
// ends that; nil if that needs no end, since there is room for indexes of that size. Others
// take it from the files that are moved at once, of which one always may be.
func (m *Memory) Indexes(ctx context.Context, bytes int64) (done func(), err error) {
	if m == nil || bytes <= indexMemory {
		return nil, nil
	}
	files := min((bytes-indexMemory+fileMemory-1)/fileMemory, m.files-1)
	// First among indexes alone, so that what waits for others' indexes keeps no file waiting.
	if err := m.indexes.Acquire(ctx, files); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := m.atOnce.Acquire(ctx, files); err != nil {
		m.indexes.Release(files)
		return nil, context.Cause(ctx)
	}
	return func() { m.atOnce.Release(files); m.indexes.Release(files) }, nil
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
