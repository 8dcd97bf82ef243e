// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// MaxBytes bounds the decompressed size of a tarball, as in Velero.
const MaxBytes = 16 << 30

// MaxItems bounds the objects of a backup.
const MaxItems = 1_000_000

// ErrTooMany reports more objects than MaxItems.
var ErrTooMany = fmt.Errorf("there are more objects than a restore reads, which are %d: make several backups, each of some namespaces", MaxItems)

// ErrTooLarge reports objects that exceed the memory of a restore.
var ErrTooLarge = errors.New("the objects take more than a restore reads, with both copies of each: make several backups, each of some namespaces")

// ErrBomb reports a tarball that decompresses to far more than its size allows.
var ErrBomb = errors.New("it decompresses to far more than a backup does: refusing to read it")

const (
	// maxRatio bounds the compression beyond ratioFrom. Very similar objects reach 50.
	maxRatio  = 250
	ratioFrom = 256 << 20
)

// Entry is one copy of an object.
type Entry struct {
	Item
	Path string
	// Versioned is false for the copy that every restore reads.
	Versioned bool
	Preferred bool
	Size      int64
	Offset    int64
}

// Reader reads a tarball of any writer.
type Reader struct {
	tar   *tar.Reader
	plain *limitedReader
	next  int64
}

// NewReader returns a Reader of a whole tarball.
func NewReader(r io.Reader) (*Reader, error) { return NewReaderAt(r, 0) }

// NewReaderAt returns a Reader from a gzip member on; a tar header follows after offset decompressed
// bytes.
func NewReaderAt(r io.Reader, offset int64) (*Reader, error) {
	in := &countingReader{r: r}
	decompressed, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("the tarball is not gzip: %w", err)
	}
	plain := &limitedReader{r: decompressed, left: MaxBytes, in: in}
	if _, err := io.CopyN(io.Discard, plain, offset); err != nil {
		return nil, fmt.Errorf("read the tarball: %w", err)
	}
	return &Reader{tar: tar.NewReader(plain), plain: plain, next: offset}, nil
}

// Next moves to the next copy. It returns io.EOF at the end, and an error for a path outside the
// tarball.
func (r *Reader) Next() (Entry, error) {
	for {
		header, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return Entry{}, io.EOF
		}
		if err != nil {
			return Entry{}, fmt.Errorf("read the tarball: %w", err)
		}
		if strings.HasPrefix(header.Name, "/") || containsParent(header.Name) {
			return Entry{}, fmt.Errorf("the tarball holds the path %q, which leaves it: refusing to read it", header.Name)
		}
		offset := r.next
		r.next = r.plain.read
		if header.Typeflag < tar.TypeLink || header.Typeflag > tar.TypeFifo { // others have no content
			r.next += (header.Size + blockBytes - 1) / blockBytes * blockBytes
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		for record := range header.PAXRecords {
			if strings.HasPrefix(record, "GNU.sparse.") {
				return Entry{}, fmt.Errorf("the tarball holds the path %q as a file with holes, which no backup has: refusing to read it", header.Name)
			}
		}
		if entry, ok := parsePath(header.Name); ok {
			entry.Size, entry.Offset = header.Size, offset
			return entry, nil
		}
	}
}

// Read reads the current entry's content.
func (r *Reader) Read(p []byte) (int, error) { return r.tar.Read(p) }

func containsParent(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == ".." {
			return true
		}
	}
	return false
}

func parsePath(path string) (Entry, bool) {
	segments := strings.Split(strings.TrimPrefix(path, "./"), "/")
	if len(segments) < 4 || segments[0] != resourcesFolder || !allSegments(segments) {
		return Entry{}, false
	}
	entry := Entry{Path: path, Item: Item{Resource: schema.ParseGroupResource(segments[1])}}
	segments = segments[2:]
	if segments[0] != clusterFolder && segments[0] != namespacesFolder {
		entry.Versioned = true
		entry.Version, entry.Preferred = strings.CutSuffix(segments[0], preferredSuffix)
		segments = segments[1:]
	}
	switch {
	case len(segments) == 2 && segments[0] == clusterFolder:
	case len(segments) == 3 && segments[0] == namespacesFolder:
		entry.Namespace = segments[1]
	default:
		return Entry{}, false
	}
	var isItem bool
	entry.Name, isItem = strings.CutSuffix(segments[len(segments)-1], itemSuffix)
	return entry, isItem && isSegment(entry.Name)
}

// allSegments validates segments: without a namespace an item would pass for a cluster-scoped one.
func allSegments(segments []string) bool {
	for _, segment := range segments {
		if !isSegment(segment) {
			return false
		}
	}
	return true
}

const blockBytes = 512

type countingReader struct {
	r    io.Reader
	read int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.read += int64(n)
	return n, err
}

// limitedReader fails beyond its limits; io.LimitReader would end.
type limitedReader struct {
	r          io.Reader
	left, read int64
	in         *countingReader
}

func (l *limitedReader) Read(p []byte) (int, error) {
	switch {
	case l.left <= 0:
		return 0, ErrTooLarge
	case l.read > ratioFrom && l.read > maxRatio*l.in.read:
		return 0, ErrBomb
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	l.read += int64(n)
	return n, err
}
