// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sync/errgroup"
)

const (
	// SmallPiece is the size up to which a request's overhead exceeds the time of its bytes.
	SmallPiece = 1 << 20
	// packPart is the size of each of the parallel requests for a pack.
	packPart = 8 << 20
)

const (
	// wholeFrom expected pieces make a whole pack be read; in a folder, which answers at once,
	// wholeFromFolder.
	wholeFrom       = 16
	wholeFromFolder = 256
	// learnAfter pieces of an unexpected pack, as with folders, are read singly.
	learnAfter = 4
)

// Packs keeps whole packs in memory while many small pieces of them are read, which saves requests.
// An evicted pack is read whole again only if more of it is expected.
type Packs struct {
	// limit bounds the kept bytes, besides packs in reading.
	limit   int64
	from    int
	storage *storage
	// users counts KeepPacks without Release; guarded by the storage's keeping.
	users int

	mu    sync.Mutex
	known map[blob.ID]*keptPack
	kept  int64
	uses  int64
}

// keptPack is guarded by the mutex of Packs.
type keptPack struct {
	// pieces counts single reads and expected ones.
	pieces int
	// loaded is closed after the pack's read, also a failed one; nil before.
	loaded  chan struct{}
	loading bool
	data    []byte
	used    int64
}

// Release ends a KeepPacks.
func (p *Packs) Release() {
	p.storage.keeping.Lock()
	defer p.storage.keeping.Unlock()
	if p.users--; p.users == 0 {
		p.storage.packs.Store(nil)
	}
}

// Expect announces how many small pieces of a pack will be read.
func (p *Packs) Expect(id blob.ID, pieces int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[id]; known == nil || known.data == nil && !known.loading {
		p.known[id] = &keptPack{pieces: pieces}
	}
}

// get reads a small piece from the whole pack; false if it must be read singly.
func (p *Packs) get(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) bool {
	if length <= 0 || length > SmallPiece || id[:1] != content.PackBlobIDPrefixRegular && id[:1] != content.PackBlobIDPrefixSpecial {
		return false
	}
	data := p.whole(ctx, id)
	if offset+length > int64(len(data)) {
		return false
	}
	_, err := output.Write(data[offset : offset+length])
	return err == nil
}

// whole returns a pack, or nil if it is not read whole, or failed.
func (p *Packs) whole(ctx context.Context, id blob.ID) []byte {
	p.mu.Lock()
	this := p.known[id]
	if this == nil {
		this = &keptPack{pieces: p.from - learnAfter}
		p.known[id] = this
	}
	p.uses++
	this.used = p.uses
	switch {
	case this.loaded != nil:
	case this.pieces < p.from:
		this.pieces++
		p.mu.Unlock()
		return nil
	default:
		this.loaded, this.loading = make(chan struct{}), true
		p.mu.Unlock()
		data := p.read(ctx, id)
		p.keep(this, data)
		return data
	}
	p.mu.Unlock()
	select {
	case <-this.loaded:
	case <-ctx.Done():
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return this.data
}

func (p *Packs) keep(this *keptPack, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses++
	this.data, this.used, this.loading = data, p.uses, false
	p.kept += int64(len(data))
	close(this.loaded)
	for p.kept > p.limit {
		var oldest *keptPack
		for _, other := range p.known {
			if other.data != nil && (oldest == nil || other.used < oldest.used) {
				oldest = other
			}
		}
		p.kept -= int64(len(oldest.data))
		oldest.data = nil
	}
}

// read returns a whole pack; nil after an error, which the pieces' reads report, and beyond the
// limit, since the store's size is unverified.
func (p *Packs) read(ctx context.Context, id blob.ID) []byte {
	found, err := p.storage.GetMetadata(ctx, id)
	if err != nil {
		return nil
	}
	size := found.Length
	if size > p.limit {
		return nil
	}
	data := make([]byte, size)
	reading, ctx := errgroup.WithContext(ctx)
	for offset := int64(0); offset < size; offset += packPart {
		part := data[offset:min(offset+packPart, size)]
		reading.Go(func() error { return p.storage.piece(ctx, id, offset, int64(len(part)), &fixed{into: part}) })
	}
	if reading.Wait() != nil {
		return nil
	}
	return data
}

type fixed struct {
	into   []byte
	length int
}

func (f *fixed) Reset()      { f.length = 0 }
func (f *fixed) Length() int { return f.length }

func (f *fixed) Write(b []byte) (int, error) {
	copy(f.into[min(f.length, len(f.into)):], b)
	f.length += len(b)
	return len(b), nil
}
