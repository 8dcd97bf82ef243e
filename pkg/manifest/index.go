// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// Ranges reads a part of a file, or less if the file is shorter.
type Ranges func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

// Index has the positions of a document's items.
type Index struct {
	ranges  Ranges
	members []indexEntry
}

// ReadIndex reads the index of a document of this size, in one read, or two for several million items.
func ReadIndex(ctx context.Context, ranges Ranges, size int64) (*Index, error) {
	if size < footerBytes {
		return nil, fmt.Errorf("%w: it is cut short", ErrFormat)
	}
	begin := max(0, size-tailBytes)
	tail, err := part(ctx, ranges, begin, size-begin)
	if err != nil {
		return nil, err
	}
	if int64(len(tail)) != size-begin {
		return nil, fmt.Errorf("%w: it is shorter than it was", ErrFormat)
	}
	last := tail[len(tail)-footerBytes:]
	at := int64(binary.LittleEndian.Uint64(last[16:]))
	if !bytes.Equal(last, footer(at)) || at < 0 || at > size-footerBytes || size-at > maxIndexBytes {
		return nil, fmt.Errorf("%w: its end is another one", ErrFormat)
	}
	if at < begin {
		if tail, err = part(ctx, ranges, at, size-at); err != nil {
			return nil, err
		}
		begin = at
	}
	plain, err := bounded(tail[at-begin:], maxIndexBytes)
	if err != nil {
		return nil, err
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(plain)), itemsEnd)
	if !ok {
		return nil, fmt.Errorf("%w: its index", ErrFormat)
	}
	members, err := decodeIndex(strings.TrimSuffix(encoded, "}"), at)
	if err != nil {
		return nil, fmt.Errorf("%w: its index: %w", ErrFormat, err)
	}
	return &Index{ranges, members}, nil
}

// decodeIndex checks each entry, so that a forged index takes no more memory than a valid one.
func decodeIndex(encoded string, end int64) ([]indexEntry, error) {
	decoder := json.NewDecoder(strings.NewReader(encoded))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return nil, errors.Join(err, errors.New("it is no list"))
	}
	var members []indexEntry
	last := indexEntry{}
	for decoder.More() {
		var m indexEntry
		if err := decoder.Decode(&m); err != nil {
			return nil, err
		}
		if m.Kind == "" || m.At < last.At+last.Size || m.Size <= 0 || m.Size > maxIndexBytes || m.At+m.Size > end ||
			cmp.Or(cmp.Compare(last.Kind, m.Kind), cmp.Compare(last.First, m.First)) >= 0 {
			return nil, errors.New("it is not in order")
		}
		members, last = append(members, m), m
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	return members, nil
}

// Kinds returns the items' GroupKinds, in order.
func (x *Index) Kinds() []string {
	var kinds []string
	for _, m := range x.members {
		kinds = append(kinds, m.Kind)
	}
	return slices.Compact(kinds)
}

// Find reads an item, in one read of about ten kilobytes, or returns nil.
func (x *Index) Find(ctx context.Context, groupKind, namespace, name string) (*Item, error) {
	key := namespace + "/" + name
	// The last member that begins at or before the item.
	i := sort.Search(len(x.members), func(i int) bool {
		return x.members[i].Kind > groupKind || x.members[i].Kind == groupKind && x.members[i].First > key
	}) - 1
	if i < 0 || x.members[i].Kind != groupKind {
		return nil, nil
	}
	for item, err := range x.read(ctx, x.members[i:i+1]) {
		if err != nil {
			return nil, err
		}
		if item.key() == key {
			return item, nil
		}
	}
	return nil, nil
}

// maxGap bytes of other kinds are read to save a read.
const maxGap = 256 << 10

// Read yields the items of some kinds, with one in memory. Kinds within 256 KiB take one read.
func (x *Index) Read(ctx context.Context, kinds ...string) Sequence {
	return func(yield func(*Item, error) bool) {
		for i := 0; i < len(x.members); {
			if !slices.Contains(kinds, x.members[i].Kind) {
				i++
				continue
			}
			end := i + 1
			for next := end; next < len(x.members) && x.members[next].At-(x.members[end-1].At+x.members[end-1].Size) <= maxGap; next++ {
				if slices.Contains(kinds, x.members[next].Kind) {
					end = next + 1
				}
			}
			for item, err := range ordered(x.read(ctx, x.members[i:end])) {
				if err == nil && !slices.Contains(kinds, item.GroupKind()) {
					continue
				}
				if !yield(item, err) || err != nil {
					return
				}
			}
			i = end
		}
	}
}

// read yields the items of adjacent members, which must have the index's kinds.
func (x *Index) read(ctx context.Context, members []indexEntry) Sequence {
	return func(yield func(*Item, error) bool) {
		first, last := members[0], members[len(members)-1]
		length := last.At + last.Size - first.At
		compressed, err := x.ranges(ctx, first.At, length)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = compressed.Close() }()
		left := &io.LimitedReader{R: compressed, N: length}
		plain, err := gzip.NewReader(bufio.NewReaderSize(left, int(min(partBytes, length))))
		if err != nil {
			yield(nil, fmt.Errorf("%w: %w", ErrFormat, err))
			return
		}
		// The line that fills a member ends it.
		limited := &io.LimitedReader{R: plain, N: min(MaxBytes, int64(len(members))*(memberBytes+maxLine))}
		lines := bufio.NewReaderSize(limited, maxLine)
		for empty := 0; ; {
			text, err := lines.ReadSlice('\n')
			if err != nil && err != io.EOF {
				yield(nil, fmt.Errorf("%w: a line is too long or cut short: %w", ErrFormat, err))
				return
			}
			item, failure := decode(text)
			if failure == nil && item == nil && err == nil {
				if empty++; empty > maxEmpty {
					failure = errEmpty
				}
			}
			if failure == nil && item != nil && (item.GroupKind() < first.Kind || item.GroupKind() > last.Kind) {
				failure = fmt.Errorf("%w: an item is not of the kind that the index says", ErrFormat)
			}
			if failure != nil {
				yield(nil, failure)
				return
			}
			if item != nil && !yield(item, nil) {
				return
			}
			if err == io.EOF {
				break
			}
		}
		switch {
		case limited.N <= 0:
			yield(nil, fmt.Errorf("%w: it is too large", ErrFormat))
		case left.N > 0:
			yield(nil, fmt.Errorf("%w: it is cut short", ErrFormat))
		}
	}
}

func part(ctx context.Context, ranges Ranges, offset, length int64) ([]byte, error) {
	r, err := ranges(ctx, offset, length)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return io.ReadAll(io.LimitReader(r, length))
}

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
