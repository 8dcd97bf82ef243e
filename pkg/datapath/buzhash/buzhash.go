// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buzhash cuts a stream where its content says so, at exactly the places where
// Kopia's splitter of the name Name does, in a sixth of its time: what either has stored, the
// other finds again.
//
// A cut follows the first byte, from half of the average size on, at which the hash of the
// last 64 bytes ends in as many zero bits as make the average; at twice the average at the
// latest. The hash is a cyclic polynomial (https://en.wikipedia.org/wiki/Rolling_hash): a
// word that is rotated by a bit for each byte, to which the word of the byte that enters is
// added, and that of the byte that leaves. As a word has 32 bits and the window 64 bytes, the
// one that leaves has come round to where it was, and the hash is that of the window alone,
// whatever was before it. So two stretches of the stream are hashed at once, as a processor
// would wait for the hash of one byte before it can add the next.
package buzhash

import (
	"math/bits"

	"github.com/chmduquesne/rollinghash/buzhash32"
)

// Name is that of Kopia's splitter, its own default and Velero's.
const Name = "DYNAMIC-4M-BUZHASH"

const (
	average = 4 << 20
	least   = average / 2
	// Most is how many bytes a piece has at the most.
	Most   = average * 2
	mask   = average - 1
	window = 64
	// stretch is how many bytes are hashed at a time beside as many others: twice two of them,
	// and the first window, are the 64 KiB that Kopia's uploader writes at a time.
	stretch = (64<<10 - window) / 4
)

var words = buzhash32.GenerateHashes(1)

// Splitter cuts one stream. The zero value is at its beginning.
type Splitter struct {
	length int          // of the piece so far
	tail   [window]byte // of the piece: its last bytes, when it has as many
}

// NextSplitPoint takes the next bytes of the stream and returns how many of them end a piece;
// the rest is to be given again. If none do, it returns -1 and has taken all.
func (s *Splitter) NextSplitPoint(b []byte) int {
	from, to := max(least-1-s.length, 0), min(Most-s.length, len(b))
	at := -1
	if from < min(window, to) {
		// The window of these bytes begins in what was given before.
		var seam [2 * window]byte
		copy(seam[:], s.tail[:])
		end := window + copy(seam[window:], b[:to])
		if at = find(seam[:], window+from, end); at >= 0 {
			at -= window
		}
		from = window
	}
	if at < 0 && from < to {
		at = find(b, from, to)
	}
	if at < 0 && s.length+to == Most {
		at = to - 1
	}
	if at >= 0 {
		s.length = 0
		return at + 1
	}
	s.length += len(b)
	kept := copy(s.tail[:], s.tail[min(len(b), window):])
	copy(s.tail[kept:], b[max(len(b)-window, 0):])
	return -1
}

// find returns the first place in b from from, which is at least window, up to before to, after
// which to cut, or -1.
func find(b []byte, from, to int) int {
	for ; from+2*stretch <= to; from += 2 * stretch {
		// As arrays, since nothing in the loop then has to be checked against their ends.
		left, right := (*[stretch + window]byte)(b[from-window:]), (*[stretch + window]byte)(b[from+stretch-window:])
		l, r, found := hash(left[:window]), hash(right[:window]), -1
		for i := range stretch {
			l = bits.RotateLeft32(l, 1) ^ (words[left[i]] ^ words[left[i+window]])
			r = bits.RotateLeft32(r, 1) ^ (words[right[i]] ^ words[right[i+window]])
			if l&mask == 0 {
				return from + i
			}
			if r&mask == 0 && found < 0 {
				found = from + stretch + i
			}
		}
		if found >= 0 {
			return found
		}
	}
	if from >= to {
		return -1
	}
	h := hash(b[from-window : from])
	leaving := b[from-window : to-window]
	for i, entering := range b[from:to] {
		h = bits.RotateLeft32(h, 1) ^ (words[leaving[i]] ^ words[entering])
		if h&mask == 0 {
			return from + i
		}
	}
	return -1
}

// hash returns that of a whole window.
func hash(b []byte) (h uint32) {
	for _, c := range b {
		h = bits.RotateLeft32(h, 1) ^ words[c]
	}
	return h
}
