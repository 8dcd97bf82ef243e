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

// MaxBytes is the decompressed size beyond which a tarball is not read: Velero
// stops at the same size.
const MaxBytes = 16 << 30

// ErrTooLarge says that a tarball has more than MaxBytes.
var ErrTooLarge = errors.New("the objects take more than a restore reads, with both copies of each: make several backups, each of some namespaces")

// Entry is one copy of an object.
type Entry struct {
	Item
	// Path is where the copy lies in the tarball.
	Path string
	// Versioned is false for the copy that every restore reads; the Version of
	// such a copy is empty.
	Versioned bool
	// Preferred says of a versioned copy that its version was the group's preferred.
	Preferred bool
	// Size of the content, in bytes.
	Size int64
}

// Reader reads a tarball, whoever wrote it.
type Reader struct {
	tar *tar.Reader
}

// NewReader starts reading.
func NewReader(r io.Reader) (*Reader, error) {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the tarball is not gzip: %w", err)
	}
	return &Reader{tar: tar.NewReader(&limitedReader{r: plain, left: MaxBytes})}, nil
}

// Next goes on to the next copy of an object, and skips what is none, such as
// the version file. It returns io.EOF at the end, and an error for a path that
// leaves the tarball.
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
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if entry, ok := parsePath(header.Name); ok {
			entry.Size = header.Size
			return entry, nil
		}
	}
}

// Read reads the content of the current entry.
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

// allSegments is false for a path that an item has not: without a namespace an
// item would pass for a cluster-scoped one.
func allSegments(segments []string) bool {
	for _, segment := range segments {
		if !isSegment(segment) {
			return false
		}
	}
	return true
}

// limitedReader fails beyond its limit, where io.LimitReader would end.
type limitedReader struct {
	r    io.Reader
	left int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, ErrTooLarge
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	return n, err
}
