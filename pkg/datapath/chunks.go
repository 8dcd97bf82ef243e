// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"

	"github.com/holdfast-io/holdfast/pkg/datapath/buzhash"
)

// inPlaceSplitter cuts files that are written in place every MiB, by their names. Others are cut by
// content, so that moved data is found again. In disk images and databases nothing moves: a fixed
// size halves CPU time and memory, and a changed block costs 1 MiB, not 4 or more. A file that
// changes its splitter is stored anew once.
const inPlaceSplitter = "FIXED-1M"

var inPlaceExtensions = func() []string {
	extensions := []string{
		".img", ".qcow", ".qcow2", ".qed", ".raw", ".vdi", ".vhd", ".vhdx", ".vmdk",
		// SQLite, bbolt, LMDB, MySQL, SQL Server, Access, dBase, Firebird, WiredTiger.
		".db", ".db3", ".sqlite", ".sqlite3", ".mdb", ".ibd", ".myd", ".myi", ".mdf", ".ndf", ".ldf", ".accdb", ".dbf", ".fdb", ".wt",
	}
	for _, extension := range extensions {
		extensions = append(extensions, strings.ToUpper(extension))
	}
	slices.Sort(extensions)
	return extensions
}()

func isInPlace(name string) bool {
	_, found := slices.BinarySearch(inPlaceExtensions, path.Ext(name))
	return found
}

// chunker cuts files that are changed in place into chunks of one size. Kopia's policies choose a
// splitter by folder, but compression by kind of file. So uploadPolicy marks these files by
// disabling their compression, and they are compressed here. Files too small for compression are
// marked too, and stay uncompressed.
type chunker struct {
	repo.RepositoryWriter
	byContent bool // the repository's splitter is buzhash.Name
	files     *atomic.Int64
}

// flushEvery is after how many files the indexes are written. Kopia keeps them in memory until
// then, 0.4 to 0.8 KB a file, by default for ten minutes.
var flushEvery int64 = 100_000

func newChunker(w repo.RepositoryWriter) chunker {
	direct, ok := w.(repo.DirectRepositoryWriter)
	return chunker{w, ok && direct.ObjectFormat().Splitter == buzhash.Name, new(atomic.Int64)}
}

// contentOfFile begins Kopia's description of a file, before its name; or of a large file's part,
// before a UUID.
const contentOfFile = "FILE:"

func (c chunker) NewObjectWriter(ctx context.Context, options object.WriterOptions) object.Writer {
	name, isFile := strings.CutPrefix(options.Description, contentOfFile)
	if options.Compressor == "" && isFile && (isInPlace(name) || uuid.Validate(name) == nil) {
		options.Compressor, options.Splitter = compressor, inPlaceSplitter
	}
	if !isFile {
		return c.RepositoryWriter.NewObjectWriter(ctx, options)
	}
	return &fileWriter{begin: func(options object.WriterOptions) object.Writer {
		if c.byContent && options.Splitter == "" {
			return newPieces(func(options object.WriterOptions) object.Writer {
				return c.RepositoryWriter.NewObjectWriter(ctx, options)
			}, options)
		}
		return c.RepositoryWriter.NewObjectWriter(ctx, options)
	}, options: options, stored: func() error {
		if c.files.Add(1)%flushEvery != 0 {
			return nil
		}
		return c.Flush(ctx)
	}}
}

// smallFile bytes are cut by no splitter of Kopia.
const smallFile = 64 << 10

var beginnings = sync.Pool{New: func() any { return new([smallFile]byte) }}

// fileWriter stores a small file itself, since goroutines for a large file's pieces would cost as
// much as the file. The stored objects are the same.
type fileWriter struct {
	begin   func(object.WriterOptions) object.Writer
	options object.WriterOptions
	stored  func() error

	mu     sync.Mutex // checkpoints come from another goroutine
	kept   *[smallFile]byte
	length int
	begun  object.Writer
}

func (w *fileWriter) beginLocked() error {
	w.begun = w.begin(w.options)
	if w.kept == nil {
		return nil
	}
	defer w.release()
	_, err := w.begun.Write(w.kept[:w.length])
	return err
}

func (w *fileWriter) release() {
	if w.kept != nil {
		beginnings.Put(w.kept)
		w.kept = nil
	}
}

func (w *fileWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == nil {
		if w.length+len(b) <= smallFile {
			if w.kept == nil {
				w.kept = beginnings.Get().(*[smallFile]byte)
			}
			w.length += copy(w.kept[w.length:], b)
			return len(b), nil
		}
		if err := w.beginLocked(); err != nil {
			return 0, err
		}
	}
	return w.begun.Write(b)
}

func (w *fileWriter) Checkpoint() (object.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == nil {
		return object.EmptyID, nil
	}
	return w.begun.Checkpoint()
}

func (w *fileWriter) Result() (object.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == nil {
		w.options.Splitter, w.options.AsyncWrites = inPlaceSplitter, 0
		if err := w.beginLocked(); err != nil {
			return object.EmptyID, err
		}
	}
	id, err := w.begun.Result()
	if err == nil {
		err = w.stored()
	}
	return id, err
}

func (w *fileWriter) Close() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release()
	if w.begun != nil {
		err = w.begun.Close()
	}
	return err
}
