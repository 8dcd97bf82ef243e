// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unique"

	"github.com/klauspost/compress/zstd"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/catalog"
)

// A segment is a header and its body, compressed with zstd:
//
//	body    = strings entries columns
//	strings = count { length bytes }
//	entries = count { name stamp rows length JSON } rows
//	columns = count { number length { value } }
//
// Numbers are unsigned varints (encoding/binary). The JSON is an entry's content without volumes. Each
// column has a value for each row of all entries. Repeated strings are numbers into strings.

const (
	header     = "HFCI\x01"
	maxBody    = 64 << 20
	maxStrings = 2 << 20
	maxEntries = 256 << 10
	maxRows    = 512 << 10
)

var (
	errCorrupt  = errors.New("it is not a segment of an index")
	errTooLarge = errors.New("it is more than a segment of an index may hold")
)

// Entry is the content of a folder of backups.
type Entry struct {
	StoreName string
	// Stamp identifies the objects beside the folder, for the index's writer.
	Stamp   string
	Content catalog.Content
}

// column is a field of catalog.Volume. Numbers are never reused.
type column struct {
	number uint64
	append func(*encoder, []byte, *catalog.Volume) []byte
	read   func(*cursor, *catalog.Volume) error
}

var columns = []column{
	text(1, func(v *catalog.Volume) *string { return &v.Namespace }),
	text(2, func(v *catalog.Volume) *string { return &v.NamespaceUID }),
	text(3, func(v *catalog.Volume) *string { return &v.ClaimName }),
	text(4, func(v *catalog.Volume) *string { return &v.PodName }),
	text(5, func(v *catalog.Volume) *string { return &v.PodVolume }),
	text(6, func(v *catalog.Volume) *string { return &v.Node }),
	digest(7, func(v *catalog.Volume) *string { return &v.SnapshotID }),
	text(8, func(v *catalog.Volume) *string { return &v.Message }),
	number(9, func(v *catalog.Volume) *int64 { return &v.SizeBytes }),
	number(10, func(v *catalog.Volume) *int64 { return &v.BytesDone }),
	number(11, func(v *catalog.Volume) *int64 { return &v.IncrementalBytes }),
	instant(12, func(v *catalog.Volume) *metav1.Time { return &v.Start }),
	instant(13, func(v *catalog.Volume) *metav1.Time { return &v.Completion }),
	text(14, func(v *catalog.Volume) *string { return &v.State }),
	text(15, func(v *catalog.Volume) *string { return &v.VolumeName }),
	text(16, func(v *catalog.Volume) *string { return &v.BackupName }),
	text(17, func(v *catalog.Volume) *string { return &v.SnapshotName }),
	text(18, func(v *catalog.Volume) *string { return (*string)(&v.Labels) }),
	number(19, func(v *catalog.Volume) *int64 { return &v.VolumeSize }),
	instant(20, func(v *catalog.Volume) *metav1.Time { return &v.Created }),
	instant(21, func(v *catalog.Volume) *metav1.Time { return &v.SnapshotCreated }),
	instant(22, func(v *catalog.Volume) *metav1.Time { return &v.VolumeCreated }),
	text(23, func(v *catalog.Volume) *string { return &v.Method }),
}

func text(number uint64, field func(*catalog.Volume) *string) column {
	return column{number,
		func(e *encoder, to []byte, v *catalog.Volume) []byte { return e.appendString(to, *field(v)) },
		func(c *cursor, v *catalog.Volume) (err error) { *field(v), err = c.string(); return err },
	}
}

func digest(number uint64, field func(*catalog.Volume) *string) column {
	return column{number,
		func(_ *encoder, to []byte, v *catalog.Volume) []byte {
			s := *field(v)
			if packed, ok := pack(s); ok {
				return append(binary.AppendUvarint(to, uint64(len(packed))<<1|1), packed...)
			}
			return append(binary.AppendUvarint(to, uint64(len(s))<<1), s...)
		},
		func(c *cursor, v *catalog.Volume) error {
			n, err := c.uvarint()
			if err != nil {
				return err
			}
			raw, err := c.take(n >> 1)
			if err != nil {
				return err
			}
			if n&1 == 1 {
				*field(v) = hex.EncodeToString(raw)
			} else {
				*field(v) = string(raw)
			}
			return nil
		},
	}
}

func number(number uint64, field func(*catalog.Volume) *int64) column {
	return column{number,
		func(_ *encoder, to []byte, v *catalog.Volume) []byte { return binary.AppendVarint(to, *field(v)) },
		func(c *cursor, v *catalog.Volume) (err error) { *field(v), err = c.varint(); return err },
	}
}

// instant is a column of times: 0 for none, else the difference to the one before, plus 1, and
// nanoseconds.
func instant(number uint64, field func(*catalog.Volume) *metav1.Time) column {
	return column{number,
		func(e *encoder, to []byte, v *catalog.Volume) []byte {
			at := field(v)
			if at.IsZero() {
				return append(to, 0)
			}
			seconds := at.Unix()
			to = binary.AppendUvarint(to, zigzag(seconds-e.previous[number])+1)
			e.previous[number] = seconds
			return binary.AppendUvarint(to, uint64(at.Nanosecond()))
		},
		func(c *cursor, v *catalog.Volume) error {
			difference, err := c.uvarint()
			if err != nil || difference == 0 {
				*field(v) = metav1.Time{}
				return err
			}
			c.previous += unzigzag(difference - 1)
			nanoseconds, err := c.uvarint()
			if err != nil || nanoseconds >= 1e9 {
				return errCorrupt
			}
			*field(v) = metav1.Unix(c.previous, int64(nanoseconds))
			return nil
		},
	}
}

func zigzag(n int64) uint64   { return uint64(n<<1) ^ uint64(n>>63) }
func unzigzag(n uint64) int64 { return int64(n>>1) ^ -int64(n&1) }

func pack(s string) ([]byte, bool) {
	if len(s)%2 != 0 {
		return nil, false
	}
	packed := make([]byte, len(s)/2)
	for i := range packed {
		high, low := digit(s[2*i]), digit(s[2*i+1])
		if high > 15 || low > 15 {
			return nil, false
		}
		packed[i] = high<<4 | low
	}
	return packed, true
}

func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

type encoder struct {
	strings  []byte
	numbers  map[string]uint64
	entries  []byte
	columns  [][]byte
	previous map[uint64]int64
	count    int
	rows     int
}

func newEncoder() *encoder {
	return &encoder{numbers: map[string]uint64{}, previous: map[uint64]int64{}, columns: make([][]byte, len(columns))}
}

func (e *encoder) size() int {
	size := len(e.strings) + len(e.entries)
	for _, values := range e.columns {
		size += len(values)
	}
	return size
}

func (e *encoder) add(entry *Entry) error {
	rest, volumes := entry.Content, entry.Content.Volumes
	if rest.Packed.Len() > 0 {
		volumes = rest.Packed.Volumes()
	}
	rest.Volumes, rest.Packed = nil, catalog.Rows{}
	encoded, err := json.Marshal(rest)
	if err != nil {
		return fmt.Errorf("encode the backup %s: %w", entry.StoreName, err)
	}
	e.entries = e.appendString(e.entries, entry.StoreName)
	e.entries = e.appendString(e.entries, entry.Stamp)
	e.entries = binary.AppendUvarint(e.entries, uint64(len(volumes)))
	e.entries = append(binary.AppendUvarint(e.entries, uint64(len(encoded))), encoded...)
	for i := range volumes {
		for j := range columns {
			e.columns[j] = columns[j].append(e, e.columns[j], &volumes[i])
		}
	}
	e.count++
	e.rows += len(volumes)
	return nil
}

func (e *encoder) appendString(to []byte, s string) []byte {
	n, known := e.numbers[s]
	if !known {
		n = uint64(len(e.numbers))
		e.numbers[s] = n
		e.strings = append(binary.AppendUvarint(e.strings, uint64(len(s))), s...)
	}
	return binary.AppendUvarint(to, n)
}

func compressor() (*zstd.Encoder, error) { return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)) }

func decompressor() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBody), zstd.WithDecoderMaxWindow(maxBody))
}

func (e *encoder) segment() ([]byte, error) {
	body, err := e.body()
	if err != nil {
		return nil, err
	}
	z, err := compressor()
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return z.EncodeAll(body, []byte(header)), nil
}

func (e *encoder) body() ([]byte, error) {
	body := make([]byte, 0, e.size()+64)
	body = binary.AppendUvarint(body, uint64(len(e.numbers)))
	body = append(body, e.strings...)
	body = binary.AppendUvarint(body, uint64(e.count))
	body = append(body, e.entries...)
	body = binary.AppendUvarint(body, uint64(e.rows))
	body = binary.AppendUvarint(body, uint64(len(columns)))
	for i, values := range e.columns {
		body = binary.AppendUvarint(body, columns[i].number)
		body = append(binary.AppendUvarint(body, uint64(len(values))), values...)
	}
	if len(body) > maxBody || len(e.numbers) > maxStrings || e.count > maxEntries || e.rows > maxRows {
		return nil, errTooLarge
	}
	return body, nil
}

// Encode returns a segment.
func Encode(entries []Entry) ([]byte, error) {
	e := newEncoder()
	for i := range entries {
		if err := e.add(&entries[i]); err != nil {
			return nil, err
		}
	}
	return e.segment()
}

type cursor struct {
	left     []byte
	strings  []string
	previous int64
}

func (c *cursor) uvarint() (uint64, error) {
	if len(c.left) > 0 && c.left[0] < 0x80 {
		n := uint64(c.left[0])
		c.left = c.left[1:]
		return n, nil
	}
	n, size := binary.Uvarint(c.left)
	if size <= 0 {
		return 0, errCorrupt
	}
	c.left = c.left[size:]
	return n, nil
}

func (c *cursor) varint() (int64, error) {
	n, err := c.uvarint()
	return unzigzag(n), err
}

func (c *cursor) take(n uint64) ([]byte, error) {
	if n > uint64(len(c.left)) {
		return nil, errCorrupt
	}
	taken := c.left[:n]
	c.left = c.left[n:]
	return taken, nil
}

func (c *cursor) count(most uint64) (int, error) {
	n, err := c.uvarint()
	if err != nil || n > min(most, uint64(len(c.left))) {
		return 0, errCorrupt
	}
	return int(n), nil
}

func (c *cursor) bytes() ([]byte, error) {
	n, err := c.uvarint()
	if err != nil {
		return nil, err
	}
	return c.take(n)
}

func (c *cursor) string() (string, error) {
	n, err := c.uvarint()
	if err != nil || n >= uint64(len(c.strings)) {
		return "", errCorrupt
	}
	return c.strings[n], nil
}

// Segment is a segment with encoded contents.
type Segment struct {
	entries []encodedEntry
	columns []cursor
}

type encodedEntry struct {
	storeName, stamp string
	rows             int
	content          []byte
}

// Decode reads a segment in bounded memory.
func Decode(data []byte) (*Segment, error) {
	compressed, ok := bytes.CutPrefix(data, []byte(header))
	if !ok {
		return nil, errCorrupt
	}
	z, err := decompressor()
	if err != nil {
		return nil, err
	}
	defer z.Close()
	body, err := z.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return decodeBody(body)
}

func decodeBody(body []byte) (*Segment, error) {
	c := cursor{left: body}
	count, err := c.count(maxStrings)
	if err != nil {
		return nil, err
	}
	c.strings = make([]string, count)
	for i := range c.strings {
		s, err := c.bytes()
		if err != nil {
			return nil, err
		}
		c.strings[i] = unique.Make(string(s)).Value()
	}
	if count, err = c.count(maxEntries); err != nil {
		return nil, err
	}
	s := &Segment{entries: make([]encodedEntry, count)}
	rows := uint64(0)
	for i := range s.entries {
		if err := s.entries[i].read(&c); err != nil {
			return nil, err
		}
		rows += uint64(s.entries[i].rows)
	}
	if total, err := c.uvarint(); err != nil || total != rows || rows > maxRows {
		return nil, errCorrupt
	}
	if n, err := c.uvarint(); err != nil || n != uint64(len(columns)) {
		return nil, errCorrupt
	}
	for i := range columns {
		n, err := c.uvarint()
		if err != nil || n != columns[i].number {
			return nil, errCorrupt
		}
		values, err := c.bytes()
		if err != nil || uint64(len(values)) < rows {
			return nil, errCorrupt
		}
		s.columns = append(s.columns, cursor{left: values, strings: c.strings})
	}
	if len(c.left) > 0 {
		return nil, errCorrupt
	}
	return s, nil
}

func (e *encodedEntry) read(c *cursor) (err error) {
	if e.storeName, err = c.string(); err != nil {
		return err
	}
	if e.stamp, err = c.string(); err != nil {
		return err
	}
	rows, err := c.uvarint()
	if err != nil || rows > maxRows {
		return errCorrupt
	}
	e.rows = int(rows)
	e.content, err = c.bytes()
	return err
}

// Names yields the store names and stamps of all entries.
func (s *Segment) Names() iter.Seq2[string, string] {
	return func(yield func(name, stamp string) bool) {
		for i := range s.entries {
			if !yield(s.entries[i].storeName, s.entries[i].stamp) {
				return
			}
		}
	}
}

// Entries decodes the wanted entries in order. An error comes last; earlier entries are valid.
func (s *Segment) Entries(want func(storeName string) bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var volumes []catalog.Volume
		for entry, err := range s.entriesInto(&volumes, want) {
			volumes = nil // the entry owns them
			if !yield(entry, err) {
				return
			}
		}
	}
}

func (s *Segment) entriesInto(volumes *[]catalog.Volume, want func(storeName string) bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		cursors := append([]cursor(nil), s.columns...)
		for i := range s.entries {
			encoded := &s.entries[i]
			wanted := want(encoded.storeName)
			entry := Entry{StoreName: encoded.storeName, Stamp: encoded.stamp}
			if wanted {
				if err := json.Unmarshal(encoded.content, &entry.Content); err != nil {
					yield(Entry{}, fmt.Errorf("%w: the backup %s: %w", errCorrupt, encoded.storeName, err))
					return
				}
				entry.Content.Volumes = nil
				if encoded.rows > 0 {
					*volumes = slices.Grow((*volumes)[:0], encoded.rows)
					entry.Content.Volumes = (*volumes)[:encoded.rows]
				}
			}
			var skipped catalog.Volume
			for row := range encoded.rows {
				v := &skipped
				if wanted {
					v = &entry.Content.Volumes[row]
				}
				for j := range columns {
					if err := columns[j].read(&cursors[j], v); err != nil {
						yield(Entry{}, err)
						return
					}
				}
			}
			if !wanted {
				continue
			}
			if !yield(entry, nil) {
				return
			}
		}
	}
}

func (s *Segment) all(want func(storeName string) bool) ([]Entry, error) {
	var entries []Entry
	for entry, err := range s.Entries(want) {
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
