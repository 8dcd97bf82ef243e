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
	// SmallPiece is the size up to which the time of a request exceeds the time of its bytes.
	SmallPiece = 1 << 20
	// packPart is the size of one request for a pack: several connections at once are faster.
	packPart = 8 << 20
)

const (
	// wholeFrom is the minimum of expected pieces for reading a whole pack. In a folder, which
	// answers at once, it is wholeFromFolder.
	wholeFrom       = 16
	wholeFromFolder = 256
	// learnAfter is how many pieces of a pack are read singly without an expectation, as of packs
	// with folders.
	learnAfter = 4
)

// Packs keeps whole packs in memory while many small pieces of them are read, as by a restore of small
// files. With a request for each piece it would mostly wait for the store. A pack that made room for
// others is not read whole again, unless more of it is expected.
type Packs struct {
	// limit bounds the kept bytes, besides the packs that are being read.
	limit int64
	// from is wholeFrom or wholeFromFolder.
	from    int
	storage *storage
	// users counts KeepPacks without Release. The storage's keeping guards it.
	users int

	mu    sync.Mutex
	known map[blob.ID]*keptPack
	kept  int64
	uses  int64
}

// keptPack is the state of a pack. The mutex of Packs guards it.
type keptPack struct {
	// pieces counts single reads and expected ones.
	pieces int
	// loaded is closed after the read of the pack, also a failed one; nil before.
	loaded  chan struct{}
	loading bool
	// data is nil if it is not kept.
	data []byte
	used int64
}

// Release ends it. It is called once for each KeepPacks.
func (p *Packs) Release() {
	p.storage.keeping.Lock()
	defer p.storage.keeping.Unlock()
	if p.users--; p.users == 0 {
		p.storage.packs.Store(nil)
	}
}

// Expect says how many small pieces of a pack will be read.
func (p *Packs) Expect(id blob.ID, pieces int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[id]; known == nil || known.data == nil && !known.loading {
		p.known[id] = &keptPack{pieces: pieces}
	}
}

// get reads a small piece from the whole pack. It returns false if the piece is to be read by itself.
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

// whole returns a pack, or nil if it is not read whole, or could not be.
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

// keep keeps a pack. The packs that were not used for longest make room.
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

// read reads a whole pack. It returns nil after an error, which the reads of the pieces report, and for
// a pack larger than the limit: the store's word on its size is not bounded.
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

// fixed takes as many bytes as there is room for.
type fixed struct {
	into   []byte
	length int
}

func (f *fixed) Reset()      { f.length = 0 }
func (f *fixed) Length() int { return f.length }

func (f *fixed) Write(b []byte) (int, error) {
	copy(f.into[min(f.length, len(f.into)):], b)
	f.length += len(b) // by which it is seen if that is too much
	return len(b), nil
}
