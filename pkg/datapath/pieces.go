// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-io/holdfast/pkg/datapath/buzhash"
)

const (
	// wholePiece is a splitter that does not cut pieces of up to buzhash.Most.
	wholePiece   = "FIXED-8M"
	prefixOfList = "x"
)

// pieces stores a file cut by content as Kopia's writer would: a list of pieces, each an object.
// Kopia spends nearly half of the time on the cuts, and a faster splitter can't be registered. It
// is not safe for concurrent use.
type pieces struct {
	begin   func(object.WriterOptions) object.Writer
	options object.WriterOptions

	splitter buzhash.Splitter
	piece    object.Writer
	length   int64
	ended    []*object.IndirectObjectEntry
	end      int64
	storing  errgroup.Group
}

func newPieces(begin func(object.WriterOptions) object.Writer, options object.WriterOptions) *pieces {
	w := &pieces{begin: begin, options: options}
	w.storing.SetLimit(max(1, options.AsyncWrites))
	return w
}

func (w *pieces) add(b []byte) error {
	if w.piece == nil {
		options := w.options
		options.Splitter, options.AsyncWrites = wholePiece, 0
		w.piece = w.begin(options)
	}
	w.length += int64(len(b))
	_, err := w.piece.Write(b)
	return err
}

// cut ends the piece after its last bytes, and stores it while the next is read.
func (w *pieces) cut(last []byte) error {
	if err := w.add(nil); err != nil {
		return err
	}
	piece, entry := w.piece, &object.IndirectObjectEntry{Start: w.end, Length: w.length + int64(len(last))}
	w.ended = append(w.ended, entry)
	w.piece, w.length, w.end = nil, 0, w.end+entry.Length
	last = bytes.Clone(last) // the caller reuses them
	w.storing.Go(func() (err error) {
		defer piece.Close() //nolint:errcheck // it has none
		// Kopia stores a piece of the greatest length within Write.
		if _, err = piece.Write(last); err == nil {
			entry.Object, err = piece.Result()
		}
		return err
	})
	return nil
}

func (w *pieces) Write(b []byte) (int, error) {
	written := len(b)
	for len(b) > 0 {
		n := w.splitter.NextSplitPoint(b)
		if n < 0 {
			return written, w.add(b)
		}
		if err := w.cut(b[:n]); err != nil {
			return 0, err
		}
		b = b[n:]
	}
	return written, nil
}

func (w *pieces) Checkpoint() (object.ID, error) {
	if err := w.storing.Wait(); err != nil {
		return object.EmptyID, err
	}
	switch len(w.ended) {
	case 0:
		return object.EmptyID, nil
	case 1:
		return w.ended[0].Object, nil
	}
	list := w.begin(object.WriterOptions{
		Description:        "LIST(" + w.options.Description + ")",
		Prefix:             prefixOfList,
		Compressor:         w.options.MetadataCompressor,
		MetadataCompressor: w.options.MetadataCompressor,
	})
	defer list.Close() //nolint:errcheck // it has none
	if err := json.NewEncoder(list).Encode(struct {
		StreamID string                        `json:"stream"`
		Entries  []*object.IndirectObjectEntry `json:"entries"`
	}{"kopia:indirect", w.ended}); err != nil {
		return object.EmptyID, fmt.Errorf("write the list of a file's pieces: %w", err)
	}
	id, err := list.Result()
	if err != nil {
		return object.EmptyID, err
	}
	return object.ParseID("I" + id.String()) // an object by its list
}

func (w *pieces) Result() (object.ID, error) {
	if w.length > 0 || len(w.ended) == 0 {
		if err := w.cut(nil); err != nil {
			return object.EmptyID, err
		}
	}
	return w.Checkpoint()
}

func (w *pieces) Close() error {
	_ = w.storing.Wait() // Result returned the error
	if w.piece == nil {
		return nil
	}
	piece := w.piece
	w.piece = nil
	return piece.Close()
}
