// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Version is the document's version.
const Version = 1

const (
	// memberBytes is about a gzip member, which is read to find an item.
	memberBytes  = 64 << 10
	maxItemBytes = 32 << 10
	// tightItemBytes applies above three quarters of a budget.
	tightItemBytes = 1 << 10
	// heldBudget bounds the compressed items. Further ones have only identity, digest and place.
	heldBudget = 128 << 20
	// plainBudget and indexBudget are parts of readers' bounds. The rest suffices for a million
	// identities.
	plainBudget = MaxBytes / 2
	indexBudget = maxIndexBytes / 2
)

// Writer collects a backup's items, compressed, in bounded memory: docs/format.md ("The manifest").
// Beyond that an item keeps its identity. It is not safe for concurrent use.
type Writer struct {
	// Comment goes into the header of the first gzip member.
	Comment string

	budget             int64
	held, index, plain int64

	sections   map[string]*section
	compressor *gzip.Writer
	line       bytes.Buffer
}

type section struct {
	members   []member
	open      bytes.Buffer
	first     string
	last      string
	count     int
	unordered bool
}

type member struct {
	first      string
	compressed []byte
}

// compressors are reused: one is larger than most manifests.
var compressors = sync.Pool{New: func() any {
	compressor, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	return compressor
}}

// Add adds an item with a new identity. An item whose JSON exceeds 32 KiB is shortened until it fits.
// First it loses annotations (Unannotated), then labels, owners, references and images (Shortened),
// last the original, which exists nowhere else. Above three quarters of a budget, the limit is 1 KiB;
// beyond it, every item is shortened.
func (w *Writer) Add(item *Item) error {
	if w.sections == nil {
		w.sections = map[string]*section{}
		w.compressor = compressors.Get().(*gzip.Writer)
	}
	kind := item.GroupKind()
	s := w.sections[kind]
	if s == nil {
		s = &section{}
		w.sections[kind] = s
	}
	limit := w.limit()
	line, err := w.encode(item)
	if err == nil && len(line) > limit {
		line, err = w.shorten(item, limit)
	}
	if err != nil {
		return err
	}
	w.plain += int64(len(separator) + len(line))
	key := item.key()
	s.unordered = s.unordered || s.count > 0 && key <= s.last
	s.last = key
	s.count++
	return w.append(s, key, line)
}

func (w *Writer) limit() int {
	used := max(float64(w.held)/float64(cmp.Or(w.budget, heldBudget)), float64(w.plain)/plainBudget, float64(w.index)/indexBudget)
	switch {
	case used < 0.75:
		return maxItemBytes
	case used < 1:
		return tightItemBytes
	}
	return 0
}

// shorten omits the parts that exceed the limit.
func (w *Writer) shorten(item *Item, limit int) ([]byte, error) {
	short := *item
	short.Annotations, short.Unannotated = nil, len(item.Annotations) > 0
	line, err := w.encode(&short)
	if err != nil || len(line) <= limit {
		return line, err
	}
	short.Shortened = len(item.Labels)+len(item.OwnerUIDs)+len(item.References)+len(item.Images) > 0
	short.Labels, short.OwnerUIDs, short.References, short.Images = nil, nil, nil, ""
	line, err = w.encode(&short)
	if err != nil || len(line) <= limit || item.Original == nil {
		return line, err
	}
	short.Original, short.Shortened = nil, true
	return w.encode(&short)
}

func (w *Writer) encode(item *Item) ([]byte, error) {
	w.line.Reset()
	encoder := json.NewEncoder(&w.line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(item); err != nil {
		return nil, fmt.Errorf("encode the item %s: %w", item, err)
	}
	return bytes.TrimSuffix(w.line.Bytes(), []byte("\n")), nil
}

func (w *Writer) append(s *section, key string, line []byte) error {
	if s.open.Len() == 0 {
		s.first = key
	}
	if s.open.Len() > 0 || len(s.members) > 0 {
		s.open.WriteString(separator)
	}
	s.open.Write(line)
	if s.open.Len() < memberBytes {
		return nil
	}
	return w.finish(s)
}

func (w *Writer) finish(s *section) error {
	if s.open.Len() == 0 {
		return nil
	}
	compressed, err := w.compress(gzip.Header{}, s.open.Bytes())
	if err != nil {
		return err
	}
	s.members = append(s.members, member{s.first, compressed})
	w.held += int64(len(compressed))
	w.index += int64(len(s.first)) + 100
	s.open.Reset()
	return nil
}

func (w *Writer) compress(header gzip.Header, plain []byte) ([]byte, error) {
	var compressed bytes.Buffer
	w.compressor.Reset(&compressed)
	w.compressor.Header = header
	w.compressor.OS = 255 // unknown, as the default: equal items give equal bytes
	if _, err := w.compressor.Write(plain); err != nil {
		return nil, err
	}
	if err := w.compressor.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(compressed.Bytes()), nil
}

const mergeWidth = 64

func (w *Writer) sort(s *section) error {
	var runs []run
	for i := range s.members {
		lines, err := linesOf(s.members[i].compressed)
		if err != nil {
			return err
		}
		s.members[i].compressed = nil
		slices.SortFunc(lines, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
		sorted := &section{}
		for _, line := range lines {
			if err := w.append(sorted, line.key, line.line); err != nil {
				return err
			}
		}
		if err := w.finish(sorted); err != nil {
			return err
		}
		// Most sections out of order are a few sorted lists.
		last := lines[len(lines)-1].key
		if n := len(runs); n > 0 && runs[n-1].last < lines[0].key {
			runs[n-1] = run{append(runs[n-1].members, sorted.members...), last}
		} else {
			runs = append(runs, run{sorted.members, last})
		}
	}
	s.members = nil
	for len(runs) > mergeWidth {
		var merged []run
		for some := range slices.Chunk(runs, mergeWidth) {
			of, err := w.merge(some)
			if err != nil {
				return err
			}
			merged = append(merged, run{of.members, of.last})
		}
		runs = merged
	}
	sorted, err := w.merge(runs)
	if err != nil {
		return err
	}
	sorted.count = s.count
	*s = *sorted
	return nil
}

type run struct {
	members []member
	last    string
}

type keyed struct {
	key  string
	line []byte
}

func (w *Writer) merge(runs []run) (*section, error) {
	merged := &section{}
	lines := make([][]keyed, len(runs))
	for {
		first := -1
		for i := range runs {
			if len(lines[i]) == 0 && len(runs[i].members) > 0 {
				var err error
				if lines[i], err = linesOf(runs[i].members[0].compressed); err != nil {
					return nil, err
				}
				runs[i].members[0].compressed = nil
				runs[i].members = runs[i].members[1:]
			}
			if len(lines[i]) > 0 && (first < 0 || lines[i][0].key < lines[first][0].key) {
				first = i
			}
		}
		if first < 0 {
			return merged, w.finish(merged)
		}
		merged.last = lines[first][0].key
		if err := w.append(merged, merged.last, lines[first][0].line); err != nil {
			return nil, err
		}
		lines[first] = lines[first][1:]
	}
}

// linesOf returns a member's items; it is not empty.
func linesOf(compressed []byte) ([]keyed, error) {
	plain, err := decompress(compressed)
	if err != nil {
		return nil, err
	}
	var lines []keyed
	for line := range bytes.SplitSeq(plain, []byte("\n")) {
		if line = bytes.TrimSuffix(line, []byte(",")); len(line) == 0 {
			continue
		}
		var item struct{ Namespace, Name string }
		if err := json.Unmarshal(line, &item); err != nil {
			return nil, err
		}
		lines = append(lines, keyed{item.Namespace + "/" + item.Name, line})
	}
	return lines, nil
}

func decompress(compressed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// The document is one JSON value in several gzip members (docs/format.md, "The manifest"):
//
//	{"version":1,"items":[
//	ITEM,            a line for each, in order, in members of 64 KiB
//	...
//	],"index":[{"kind":KIND,"first":NAMESPACE/NAME,"at":OFFSET,"size":BYTES}, ...]}
//
// The last member is empty; its header's extra field has the position of the index, as eStargz's footer
// (github.com/containerd/stargz-snapshotter, docs/estargz.md).
const (
	separator = ",\n"
	itemsEnd  = "],\"index\":"
)

type indexEntry struct {
	Kind  string `json:"kind"`
	First string `json:"first"`
	At    int64  `json:"at"`
	Size  int64  `json:"size"`
}

// footerBytes has ten bytes of header, two for the extra field's length, twelve of extra field, five of
// an empty block, eight of trailer.
const footerBytes = 10 + 2 + footerExtra + 5 + 8

// footerExtra is an identifier and a length of two bytes each, and the offset.
const footerExtra = 2 + 2 + 8

// footerID identifies the field: RFC 1952, section 2.3.1.1.
var footerID = [2]byte{'H', 'F'}

// Size estimates the document's size for a buffer.
func (w *Writer) Size() int {
	size := int(w.held + w.index)
	for _, s := range w.sections {
		size += s.open.Len() + len(s.first) + 100
	}
	return size + memberBytes
}

// WriteTo writes the document, which is then final. It fails if readers would refuse it, for too many
// long names.
func (w *Writer) WriteTo(to io.Writer) (int64, error) {
	if w.compressor == nil {
		w.compressor = compressors.Get().(*gzip.Writer)
	}
	defer func() {
		w.compressor.Reset(io.Discard)
		compressors.Put(w.compressor)
		w.compressor = nil
	}()
	out := &counter{w: to}
	write := func(compressed []byte, err error) error {
		if err == nil {
			_, err = out.Write(compressed)
		}
		return err
	}
	if err := write(w.compress(gzip.Header{Comment: w.Comment}, fmt.Appendf(nil, "{\"version\":%d,\"items\":[\n", Version))); err != nil {
		return out.n, err
	}
	var index []indexEntry
	for _, kind := range sortedKeys(w.sections) {
		s := w.sections[kind]
		if err := w.finish(s); err != nil {
			return out.n, err
		}
		if s.unordered {
			if err := w.sort(s); err != nil {
				return out.n, fmt.Errorf("sort the manifest's items of %s: %w", kind, err)
			}
		}
		if len(index) > 0 {
			if err := write(w.compress(gzip.Header{}, []byte(separator))); err != nil {
				return out.n, err
			}
		}
		for _, m := range s.members {
			index = append(index, indexEntry{kind, m.first, out.n, int64(len(m.compressed))})
			if err := write(m.compressed, nil); err != nil {
				return out.n, err
			}
		}
		delete(w.sections, kind)
	}
	encoded, err := json.Marshal(append([]indexEntry{}, index...))
	if err != nil {
		return out.n, err
	}
	end := fmt.Appendf(nil, "\n%s%s}\n", itemsEnd, encoded)
	if len(end)+footerBytes > maxIndexBytes || w.plain+int64(len(end))+memberBytes > MaxBytes {
		return out.n, fmt.Errorf("it would be larger than what is read, with items of %d bytes and an index of %d: back up fewer namespaces or resources at a time", w.plain, len(end))
	}
	at := out.n
	if err := write(w.compress(gzip.Header{}, end)); err != nil {
		return out.n, err
	}
	return out.n, write(footer(at), nil)
}

func footer(at int64) []byte {
	b := make([]byte, 0, footerBytes)
	b = append(b, 0x1f, 0x8b, 8, 4 /* there is an extra field */, 0, 0, 0, 0, 0, 255)
	b = binary.LittleEndian.AppendUint16(b, footerExtra)
	b = append(b, footerID[0], footerID[1])
	b = binary.LittleEndian.AppendUint16(b, 8)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, 1, 0, 0, 0xff, 0xff)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
