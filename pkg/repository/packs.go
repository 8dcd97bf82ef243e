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
	// smallPiece is up to how many bytes a piece of a pack is small: what a store needs to
	// send it is less than what it needs to answer at all.
	smallPiece = 1 << 20
	// packPart is how many bytes of a pack are read by one request: a connection to a
	// store is slow by itself, and several at once are not.
	packPart = 8 << 20
)

// packs keeps the packs whole in memory of which many small pieces are read, as a
// restore of small files does: with a request for each piece it would wait for the store
// most of the time. The first piece of a pack is read by itself, since nobody may want
// another one. A pack that had to make room for others is not read whole again: the
// pieces that are wanted lie scattered, and each request would bring far more than
// that.
type packs struct {
	// limit is how many bytes are kept, besides the packs that are being read.
	limit int64
	// piece reads a part of a pack, and size is that of one.
	piece func(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error
	size  func(ctx context.Context, id blob.ID) (int64, error)

	mu    sync.Mutex
	known map[blob.ID]*keptPack
	kept  int64
	uses  int64
}

// keptPack is what is known of a pack. The mutex of packs guards it, but for data, which does not
// change once loaded is closed.
type keptPack struct {
	loaded chan struct{} // nil before it is read whole
	data   []byte        // nil if that failed, or it has made room
	used   int64
	spent  bool
}

// get reads a small piece of a pack if it is kept, or is to be from now on. Else it
// returns false, and the piece is to be read by itself.
func (p *packs) get(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) bool {
	if length <= 0 || length > smallPiece || id[:1] != content.PackBlobIDPrefixRegular && id[:1] != content.PackBlobIDPrefixSpecial {
		return false
	}
	data := p.whole(ctx, id)
	if offset+length > int64(len(data)) {
		return false
	}
	_, err := output.Write(data[offset : offset+length])
	return err == nil
}

// whole returns a pack; nil if it is not to be read whole, or that failed.
func (p *packs) whole(ctx context.Context, id blob.ID) []byte {
	p.mu.Lock()
	this := p.known[id]
	switch {
	case this == nil:
		p.known[id] = &keptPack{}
		p.mu.Unlock()
		return nil
	case this.spent:
		p.mu.Unlock()
		return nil
	case this.loaded == nil:
		this.loaded = make(chan struct{})
		p.mu.Unlock()
		data := p.read(ctx, id)
		p.keep(this, data)
		return data
	}
	p.uses++
	this.used = p.uses
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

// keep keeps a pack, and has those make room that were not used for the longest time.
func (p *packs) keep(this *keptPack, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses++
	this.data, this.used, this.spent = data, p.uses, data == nil
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
		oldest.data, oldest.spent = nil, true
	}
}

// read reads a whole pack; nil if that fails, so that whoever wants a piece hears why.
func (p *packs) read(ctx context.Context, id blob.ID) []byte {
	size, err := p.size(ctx, id)
	if err != nil {
		return nil
	}
	data := make([]byte, size)
	reading, ctx := errgroup.WithContext(ctx)
	for offset := int64(0); offset < size; offset += packPart {
		part := data[offset:min(offset+packPart, size)]
		reading.Go(func() error { return p.piece(ctx, id, offset, int64(len(part)), &fixed{into: part}) })
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
