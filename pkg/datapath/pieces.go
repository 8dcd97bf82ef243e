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
	// wholePiece is a splitter that leaves a piece as it is: none is larger than buzhash.Most.
	wholePiece = "FIXED-8M"
	// prefixOfList is that of the contents that list an object's pieces, in Kopia's format.
	prefixOfList = "x"
)

// pieces stores a file that is cut by its content: the same object that Kopia's writer makes
// of it. To find where to cut is nearly half of what such a file costs there, and Kopia has no place
// for a faster way to the same end. So each piece is an object of its own, and the file is the
// list of them. One goroutine at a time uses it, which fileWriter sees to.
type pieces struct {
	begin   func(object.WriterOptions) object.Writer
	options object.WriterOptions

	splitter buzhash.Splitter
	piece    object.Writer // what is written to since the last cut, if anything
	length   int64         // of it
	ended    []*object.IndirectObjectEntry
	end      int64 // of all that have ended
	storing  errgroup.Group
}

func newPieces(begin func(object.WriterOptions) object.Writer, options object.WriterOptions) *pieces {
	w := &pieces{begin: begin, options: options}
	w.storing.SetLimit(max(1, options.AsyncWrites))
	return w
}

// add writes to the piece.
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

// cut ends the piece after its last bytes, and stores it beside what follows.
func (w *pieces) cut(last []byte) error {
	if err := w.add(nil); err != nil {
		return err
	}
	piece, entry := w.piece, &object.IndirectObjectEntry{Start: w.end, Length: w.length + int64(len(last))}
	w.ended = append(w.ended, entry)
	w.piece, w.length, w.end = nil, 0, w.end+entry.Length
	last = bytes.Clone(last) // the one who writes uses them anew
	w.storing.Go(func() (err error) {
		defer piece.Close() //nolint:errcheck // it has none
		// The last bytes of a piece of the greatest length make Kopia store it at once.
		if _, err = piece.Write(last); err == nil {
			entry.Object, err = piece.Result()
		}
		return err
	})
	return nil
}

// Write implements object.Writer.
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

// Checkpoint implements object.Writer.
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

// Result implements object.Writer.
func (w *pieces) Result() (object.ID, error) {
	if w.length > 0 || len(w.ended) == 0 {
		if err := w.cut(nil); err != nil {
			return object.EmptyID, err
		}
	}
	return w.Checkpoint()
}

// Close implements object.Writer.
func (w *pieces) Close() error {
	_ = w.storing.Wait() // Result has told, if anybody wants to know
	if w.piece == nil {
		return nil
	}
	piece := w.piece
	w.piece = nil
	return piece.Close()
}
