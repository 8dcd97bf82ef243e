// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// MaxObjectBytes is the size beyond which an object is not read by itself: no API server
// takes one as large.
const MaxObjectBytes = 16 << 20

// ErrPlace says that an object does not lie where it should.
var ErrPlace = errors.New("the object does not lie where the manifest says")

// PartBytes is how much of a tarball has to be read, at most, from a gzip member on, to
// read an object of a size whose Position has the offset. It fails with ErrPlace for what
// no Writer has written.
func PartBytes(offset, size int64) (int64, error) {
	if offset < 0 || size < 0 || offset > 4*MaxObjectBytes || size > MaxObjectBytes {
		return 0, fmt.Errorf("%w: %d bytes from %d", ErrPlace, size, offset)
	}
	// Headers, those of long paths too; and what can't be compressed takes more.
	const headers = 128 << 10
	return (offset + size + headers) / 100 * 101, nil
}

// ReadObject reads the first copy of an object, of so many bytes, whose header lies at the
// offset of a part of a tarball that begins with a gzip member. The item's version does not
// matter. It fails with ErrPlace if another object lies there.
func ReadObject(part io.Reader, offset int64, item Item, size int64) ([]byte, error) {
	reader, err := NewReaderAt(bufio.NewReader(part), offset)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlace, err)
	}
	entry, err := reader.Next()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlace, err)
	}
	if item.Version = ""; entry.Versioned || entry.Item != item || entry.Offset != offset || entry.Size != size {
		return nil, fmt.Errorf("%w: there are %d bytes of %.300q", ErrPlace, entry.Size, entry.Path)
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(reader, content); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlace, err)
	}
	return content, nil
}
