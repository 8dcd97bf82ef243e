// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"container/heap"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const blockBytes = 64 << 10

const blockMemory = 64

var (
	packer = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(blockBytes), zstd.WithEncoderCRC(false))
	})
	unpacker = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	})
)

// packed has lines in the order of their paths, in separately compressed blocks. A line is a path,
// a zero, the value and a zero; neither contains zeros.
type packed struct {
	blocks []packedBlock
	bytes  int64
	count  int
	open   []byte
}

type packedBlock struct {
	first string
	line  int
	data  []byte
}

func appendLine(b []byte, path string, known []byte) []byte {
	return append(append(append(append(b, path...), 0), known...), 0)
}

func cutLine(lines []byte) (path, known, rest []byte) {
	path, rest, _ = bytes.Cut(lines, []byte{0})
	known, rest, _ = bytes.Cut(rest, []byte{0})
	return path, known, rest
}

// add adds the next line, whose path must be greater. finish must follow the last.
func (p *packed) add(path string, known []byte) error {
	if len(p.open) == 0 {
		p.blocks = append(p.blocks, packedBlock{first: strings.Clone(path), line: p.count})
	}
	p.open = appendLine(p.open, path, known)
	p.count++
	if len(p.open) < blockBytes {
		return nil
	}
	return p.finish()
}

func (p *packed) finish() error {
	if len(p.open) == 0 {
		return nil
	}
	with, err := packer()
	if err != nil {
		return err
	}
	last := &p.blocks[len(p.blocks)-1]
	last.data = bytes.Clone(with.EncodeAll(p.open, nil))
	p.bytes += int64(len(last.data) + len(last.first) + blockMemory)
	p.open = p.open[:0]
	return nil
}

// packedReader reads lines, fast in order. It is not safe for concurrent use; several may read the
// same lines.
type packedReader struct {
	of    *packed
	data  []byte
	block int // number plus one
	left  []byte
	line  int
	asked string
}

func (r *packedReader) begin(block int) error {
	if block != r.block-1 {
		with, err := unpacker()
		if err != nil {
			return err
		}
		if r.data, err = with.DecodeAll(r.of.blocks[block].data, nil); err != nil {
			return fmt.Errorf("unpack what was kept in memory: %w", err)
		}
		r.block = block + 1
	}
	r.left, r.line = r.data, r.of.blocks[block].line
	return nil
}

// next returns the next line; no path at the end. A reader uses either next or find.
func (r *packedReader) next() (path, known []byte, err error) {
	if len(r.left) == 0 {
		if r.block == len(r.of.blocks) {
			return nil, nil, nil
		}
		if err := r.begin(r.block); err != nil {
			return nil, nil, err
		}
	}
	path, known, r.left = cutLine(r.left)
	r.line++
	return path, known, nil
}

// find returns a path's value and line; nil if there is none.
func (r *packedReader) find(path string) (known []byte, line int, err error) {
	block := sort.Search(len(r.of.blocks), func(i int) bool { return r.of.blocks[i].first > path }) - 1
	if block < 0 {
		return nil, 0, nil
	}
	if block != r.block-1 || path <= r.asked {
		if err := r.begin(block); err != nil {
			return nil, 0, err
		}
	}
	r.asked = path
	for len(r.left) > 0 {
		at, known, rest := cutLine(r.left)
		if order := strings.Compare(string(at), path); order == 0 {
			return known, r.line, nil
		} else if order > 0 {
			break
		}
		r.left = rest
		r.line++
	}
	return nil, 0, nil
}

func (r *packedReader) path(line int) (string, error) {
	block := sort.Search(len(r.of.blocks), func(i int) bool { return r.of.blocks[i].line > line }) - 1
	if block != r.block-1 || line < r.line {
		if err := r.begin(block); err != nil {
			return "", err
		}
	}
	for ; r.line < line; r.line++ {
		_, _, r.left = cutLine(r.left)
	}
	path, _, _ := cutLine(r.left)
	r.asked = string(path)
	return r.asked, nil
}

// merge calls do with the lines of all runs by path; of equal paths, with the last run's. It needs
// blockBytes for each run.
func merge(runs []*packed, do func(path, known []byte) error) error {
	var heads heads
	for i, run := range runs {
		h := &head{packedReader: packedReader{of: run}, run: i}
		if more, err := h.advance(); err != nil {
			return err
		} else if more {
			heads = append(heads, h)
		}
	}
	heap.Init(&heads)
	for len(heads) > 0 {
		h := heads[0]
		path, known := h.at, h.known
		if more, err := h.advance(); err != nil {
			return err
		} else if more {
			heap.Fix(&heads, 0)
		} else {
			heap.Pop(&heads)
		}
		if len(heads) > 0 && bytes.Equal(heads[0].at, path) {
			continue
		}
		if err := do(path, known); err != nil {
			return err
		}
	}
	return nil
}

type head struct {
	packedReader
	run       int
	at, known []byte
}

func (h *head) advance() (more bool, err error) {
	h.at, h.known, err = h.next()
	return len(h.at) > 0, err
}

type heads []*head

func (h heads) Len() int      { return len(h) }
func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h heads) Less(i, j int) bool {
	return cmp.Or(bytes.Compare(h[i].at, h[j].at), cmp.Compare(h[i].run, h[j].run)) < 0
}
func (h *heads) Push(x any) { *h = append(*h, x.(*head)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
