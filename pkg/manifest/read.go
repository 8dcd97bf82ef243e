// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
)

const (
	// MaxBytes bounds a decompressed manifest: over four million items.
	MaxBytes = 4 << 30
	maxLine  = 2 * maxItemBytes
	// maxIndexBytes bounds an index, compressed or not: several million items.
	maxIndexBytes = 8 << 20
	// tailBytes is a document's end that is read first: the index of a million items.
	tailBytes = 256 << 10
	// maxEmpty bounds lines without an item: of an empty document, or if a kind is read from its second
	// member on.
	maxEmpty  = 1
	partBytes = 256 << 10
)

// ErrFormat means no manifest, or a damaged one.
var ErrFormat = errors.New("it is not a manifest that can be read")

var errEmpty = fmt.Errorf("%w: it has lines without an item", ErrFormat)

// Read yields a document's items, with one in memory. It fails with ErrFormat if the document is
// damaged, cut, or larger than MaxBytes.
func Read(r io.Reader) Sequence {
	return func(yield func(*Item, error) bool) {
		if err := read(r, func(item *Item) bool { return yield(item, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

func read(r io.Reader, each func(*Item) bool) error {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	limited := &io.LimitedReader{R: plain, N: MaxBytes}
	lines := bufio.NewReaderSize(limited, maxLine)
	line := func() ([]byte, error) {
		text, err := lines.ReadSlice('\n')
		if err != nil {
			return nil, fmt.Errorf("%w: a line is too long or cut short: %w", ErrFormat, err)
		}
		return text, nil
	}
	head, err := line()
	if err != nil {
		return err
	}
	var version int
	if _, err := fmt.Sscanf(string(head), `{"version":%d,"items":[`, &version); err != nil || version != Version {
		return fmt.Errorf("%w: it begins with %.40q", ErrFormat, head)
	}
	for empty := 0; ; {
		begin, err := lines.Peek(len(itemsEnd))
		if err != nil {
			return fmt.Errorf("%w: it is cut short: %w", ErrFormat, err)
		}
		if string(begin) == itemsEnd {
			break
		}
		text, err := line()
		if err != nil {
			return err
		}
		item, err := decode(text)
		if err != nil {
			return err
		}
		switch {
		case item != nil:
			if !each(item) {
				return nil
			}
		case empty == maxEmpty:
			return errEmpty
		default:
			empty++
		}
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if limited.N <= 0 {
		return fmt.Errorf("%w: it is too large", ErrFormat)
	}
	return nil
}

// decode returns nil for a separator alone.
func decode(line []byte) (*Item, error) {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte(","))
	if len(line) == 0 {
		return nil, nil
	}
	item, ok := decodePlain(line)
	if !ok {
		item = &Item{}
		if err := json.Unmarshal(line, item); err != nil {
			return nil, fmt.Errorf("%w: an item: %w", ErrFormat, err)
		}
	}
	if item.APIVersion == "" || item.KindName == "" || item.Name == "" {
		return nil, fmt.Errorf("%w: an item has no version, kind or name", ErrFormat)
	}
	return item, nil
}
