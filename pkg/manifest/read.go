// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

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
	maxIndexBytes = 4 << 20
)

// ErrFormat says that what was read is no manifest, or a damaged one.
var ErrFormat = errors.New("it is not a manifest that can be read")

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
	for {
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
		if text = bytes.TrimSuffix(text, []byte("\n")); len(text) == 0 {
			continue
		}
		item, err := decode(text)
		if err != nil {
			return err
		}
		if !each(item) {
			return nil
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

func decode(line []byte) (*Item, error) {
	item := &Item{}
	if err := json.Unmarshal(bytes.TrimSuffix(line, []byte(",")), item); err != nil {
		return nil, fmt.Errorf("%w: an item: %w", ErrFormat, err)
	}
	if item.APIVersion == "" || item.KindName == "" || item.Name == "" {
		return nil, fmt.Errorf("%w: an item has no version, kind or name", ErrFormat)
	}
	return item, nil
}

// Ranges reads parts of a file. A negative offset counts from its end; then less may
// come, if the file is shorter.
type Ranges func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

// Find reads one item, in at most three reads of some ten kilobytes. It is nil if there
// is none. groupKind is as Item.GroupKind gives it.
func Find(ctx context.Context, ranges Ranges, groupKind, namespace, name string) (*Item, error) {
	last, err := part(ctx, ranges, -footerBytes, footerBytes)
	if err != nil {
		return nil, err
	}
	if len(last) != footerBytes || !bytes.Equal(last, footer(int64(binary.LittleEndian.Uint64(last[16:])))) {
		return nil, fmt.Errorf("%w: its end is another one", ErrFormat)
	}
	at := int64(binary.LittleEndian.Uint64(last[16:]))
	compressed, err := part(ctx, ranges, at, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	plain, err := bounded(compressed, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(plain)), itemsEnd)
	var index []indexEntry
	if !ok || json.Unmarshal([]byte(strings.TrimSuffix(encoded, "}")), &index) != nil {
		return nil, fmt.Errorf("%w: its index", ErrFormat)
	}
	key := namespace + "/" + name
	// The last member that does not begin behind the item.
	i := sort.Search(len(index), func(i int) bool {
		return index[i].Kind > groupKind || index[i].Kind == groupKind && index[i].First > key
	}) - 1
	if i < 0 || index[i].Kind != groupKind {
		return nil, nil
	}
	if index[i].At < 0 || index[i].Size <= 0 {
		return nil, fmt.Errorf("%w: its index", ErrFormat)
	}
	if compressed, err = part(ctx, ranges, index[i].At, min(index[i].Size, maxIndexBytes)); err != nil {
		return nil, err
	}
	if plain, err = bounded(compressed, memberBytes+maxLine); err != nil {
		return nil, err
	}
	for line := range bytes.SplitSeq(plain, []byte("\n")) {
		if len(bytes.TrimSuffix(line, []byte(","))) == 0 {
			continue
		}
		item, err := decode(line)
		if err != nil {
			return nil, err
		}
		if item.key() == key {
			return item, nil
		}
	}
	return nil, nil
}

func part(ctx context.Context, ranges Ranges, offset, length int64) ([]byte, error) {
	r, err := ranges(ctx, offset, length)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return io.ReadAll(io.LimitReader(r, length))
}

// bounded decompresses what must not be larger than a limit.
func bounded(compressed []byte, limit int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if int64(len(plain)) > limit {
		return nil, fmt.Errorf("%w: a part of it is too large", ErrFormat)
	}
	return plain, nil
}
