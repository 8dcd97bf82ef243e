// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"sort"
	"time"

	"github.com/holdfast-io/holdfast/pkg/footprint"
)

// event is one change of one object. was is nil for a new object, now for a removed one.
type event[T Object] struct {
	rv       uint64
	at       time.Time
	was, now *entry[T]
	bytes    int // of the new views in now; an earlier event counts was
}

func (e *event[T]) key() string {
	if e.now != nil {
		return e.now.key
	}
	return e.was.key
}

// history is a ring of the last events, bounded by age, count and size. The Log's mu guards it. Versions ascend by
// index; all events above oldest are held.
type history[T Object] struct {
	maxAge    time.Duration
	maxEvents int
	maxBytes  int

	ring   []event[T]
	head   int
	len    int
	bytes  int // of all events
	oldest uint64
}

func (h *history[T]) at(i int) *event[T] { return &h.ring[(h.head+i)%len(h.ring)] }

func (h *history[T]) add(e event[T]) {
	if e.now != nil && e.now.within.rv == e.rv {
		e.bytes = footprint.Of(e.now.within.obj)
	}
	if e.now != nil && e.now.over.rv == e.rv && !e.now.over.is(e.now.within) {
		e.bytes += footprint.Of(e.now.over.obj)
	}
	h.bytes += e.bytes
	for h.len > 0 && h.isFull(e.at) {
		h.drop()
	}
	if h.len == len(h.ring) {
		grown := make([]event[T], min(max(2*len(h.ring), 16), h.maxEvents))
		h.copyTo(grown, 0)
		h.ring, h.head = grown, 0
	}
	h.len++
	*h.at(h.len - 1) = e
}

// isFull reports whether a new event takes the first one's place.
func (h *history[T]) isFull(now time.Time) bool {
	age := now.Sub(h.at(0).at)
	return age > h.maxAge || h.len >= olderEvents && age > MinHistoryAge || h.len == h.maxEvents || h.bytes > h.maxBytes
}

func (h *history[T]) drop() {
	first := h.at(0)
	h.oldest = first.rv
	h.bytes -= first.bytes
	*first = event[T]{}
	h.head = (h.head + 1) % len(h.ring)
	h.len--
}

func (h *history[T]) forget(rv uint64) {
	for h.len > 0 && h.at(0).rv <= rv {
		h.drop()
	}
	h.oldest = max(h.oldest, rv)
}

// after appends up to limit events after version rv to buf, or reports false if some are forgotten.
func (h *history[T]) after(rv uint64, buf []event[T], limit int) ([]event[T], bool) {
	if rv < h.oldest {
		return buf, false
	}
	from := sort.Search(h.len, func(i int) bool { return h.at(i).rv > rv })
	n := min(h.len-from, limit)
	start := len(buf)
	buf = append(buf, make([]event[T], n)...)
	h.copyTo(buf[start:], from)
	return buf, true
}

func (h *history[T]) copyTo(dst []event[T], from int) {
	n := min(len(dst), h.len-from)
	if n <= 0 {
		return
	}
	first := (h.head + from) % len(h.ring)
	copied := copy(dst[:n], h.ring[first:])
	copy(dst[copied:n], h.ring)
}
