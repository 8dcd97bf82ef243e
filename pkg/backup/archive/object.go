// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// MaxObjectBytes bounds an object. No API server accepts one as large.
const MaxObjectBytes = 16 << 20

// ErrPlace reports an object that is not where the manifest says.
var ErrPlace = errors.New("the object does not lie where the manifest says")

// PartBytes returns how many bytes of a gzip member suffice to read an object of a size at a Position's
// offset. Impossible places are ErrPlace.
func PartBytes(offset, size int64) (int64, error) {
	if offset < 0 || size < 0 || offset > 4*MaxObjectBytes || size > MaxObjectBytes {
		return 0, fmt.Errorf("%w: %d bytes from %d", ErrPlace, size, offset)
	}
	// For long paths' headers and incompressible data.
	const headers = 128 << 10
	return (offset + size + headers) / 100 * 101, nil
}

// ReadObject reads an object's first copy, in any version. part begins with a gzip member, and the
// object's header is at the offset. Another object is ErrPlace.
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
