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
	// MaxBytes is the decompressed size beyond which a manifest is not read: that of more
	// than four million items.
	MaxBytes = 4 << 30
	// maxLine is the size beyond which a line is not an item.
	maxLine = 2 * maxItemBytes
	// maxIndexBytes is the size beyond which an index is not read, compressed or not: that of
	// several million items.
	maxIndexBytes = 8 << 20
	// tailBytes is how much of the end of a document is read at first. An index of a million
	// items fits in.
	tailBytes = 256 << 10
	// maxEmpty is how many lines without an item a document has: one if there are no items, or
	// if it is read from the second member of a kind on.
	maxEmpty = 1
	// partBytes is how much of several members is read ahead.
	partBytes = 256 << 10
)

// ErrFormat says that what was read is no manifest, or a damaged one.
var ErrFormat = errors.New("it is not a manifest that can be read")

var errEmpty = fmt.Errorf("%w: it has lines without an item", ErrFormat)

// Read yields the items of a document, with memory for one of them. It fails with
// ErrFormat for what is damaged, cut short or larger than MaxBytes.
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

// decode reads a line. It is nil for one that has only a separator.
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
