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

// Files are cut into chunks where their content says so, by the repository's own rule: what
// moves within a file, as in a dump or a log, is found again. In images of disks and files
// of databases nothing moves. They are written to in place, block by block, and are cut
// every mebibyte: that takes little more than half of the CPU time and half of the memory,
// and a block that has changed costs one mebibyte and not four or more.
//
// The name decides, as it stays: a file that is cut otherwise than the last time is stored
// anew, once.
const inPlaceSplitter = "FIXED-1M"

// inPlaceExtensions of names, sorted, in either case.
var inPlaceExtensions = func() []string {
	extensions := []string{
		// Images of disks.
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

// isInPlace reports whether a name is that of a file that is written to in place.
func isInPlace(name string) bool {
	_, found := slices.BinarySearch(inPlaceExtensions, path.Ext(name))
	return found
}

// chunker has files that are changed in place cut into chunks of one size. Kopia's policies
// name a splitter for a folder, not for kinds of files, and know kinds of files only where
// it is about compression. So uploadPolicy says that these are not compressed, by which
// they are known here, and they are compressed as the others. So it says of files that are
// too small for it, which stay as they are.
type chunker struct {
	repo.RepositoryWriter
	byContent bool // the repository's rule is that of package buzhash
	files     *atomic.Int64
}

// flushEvery is after how many files the indexes of what was stored so far are written: until
// then Kopia keeps them in memory, some 0.4 to 0.8 KB for each file, which it would for ten minutes.
var flushEvery int64 = 100_000

func newChunker(w repo.RepositoryWriter) chunker {
	direct, ok := w.(repo.DirectRepositoryWriter)
	return chunker{w, ok && direct.ObjectFormat().Splitter == buzhash.Name, new(atomic.Int64)}
}

// contentOfFile is how Kopia's uploader describes the content of a file, before its name, or
// of a part of a large one, before a UUID.
const contentOfFile = "FILE:"

// NewObjectWriter implements repo.RepositoryWriter.
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

// smallFile is up to how many bytes a file is small: none of Kopia's rules cuts so few.
const smallFile = 64 << 10

var beginnings = sync.Pool{New: func() any { return new([smallFile]byte) }}

// fileWriter keeps the beginning of a file until there is more of it than a small file has.
// A small one is then stored by the one that writes it: what has others cut and store the
// pieces of a large file at the same time costs as much as a small file. It is stored as it
// would be else.
type fileWriter struct {
	begin   func(object.WriterOptions) object.Writer
	options object.WriterOptions
	stored  func() error // is told that a file is

	mu     sync.Mutex // a checkpoint comes from elsewhere
	kept   *[smallFile]byte
	length int
	begun  object.Writer // nil until it has begun
}

// beginLocked has what was kept written.
func (w *fileWriter) beginLocked() error {
	w.begun = w.begin(w.options)
	if w.kept == nil {
		return nil // an empty file
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

// Write implements object.Writer.
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

// Checkpoint implements object.Writer.
func (w *fileWriter) Checkpoint() (object.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == nil {
		return object.EmptyID, nil // nothing is stored yet
	}
	return w.begun.Checkpoint()
}

// Result implements object.Writer.
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

// Close implements object.Writer.
func (w *fileWriter) Close() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release()
	if w.begun != nil {
		err = w.begun.Close()
	}
	return err
}
