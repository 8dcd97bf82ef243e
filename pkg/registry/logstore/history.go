// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"sort"
	"time"
)

// event is one change of one object. At least one of was and now is set:
// was is nil when the object appears, now is nil when it goes away.
type event[T Object] struct {
	rv       uint64
	at       time.Time
	was, now *entry[T]
}

func (e *event[T]) key() string {
	if e.now != nil {
		return e.now.key
	}
	return e.was.key
}

// history is a ring of the most recent events, bounded by age and by count.
// The Log's mu guards it.
//
// Invariants: versions ascend by index; every event with a version above oldest
// is held.
type history[T Object] struct {
	maxAge    time.Duration
	maxEvents int

	ring   []event[T] // grows by doubling up to maxEvents
	head   int        // position of the first event in ring
	len    int
	oldest uint64 // versions below this one are forgotten
}

func (h *history[T]) at(i int) *event[T] { return &h.ring[(h.head+i)%len(h.ring)] }

// add appends an event and forgets those that are too old or too many.
func (h *history[T]) add(e event[T]) {
	for h.len > 0 && (h.len == h.maxEvents || e.at.Sub(h.at(0).at) > h.maxAge) {
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

// drop forgets the first event and releases its objects.
func (h *history[T]) drop() {
	first := h.at(0)
	h.oldest = first.rv
	*first = event[T]{}
	h.head = (h.head + 1) % len(h.ring)
	h.len--
}

// forget drops every event up to and including version rv.
func (h *history[T]) forget(rv uint64) {
	for h.len > 0 && h.at(0).rv <= rv {
		h.drop()
	}
	h.oldest = max(h.oldest, rv)
}

// after appends up to limit events that follow version rv to buf. It reports
// false when some of them are already forgotten.
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

// copyTo fills dst with the events from index from on, as far as there are any.
func (h *history[T]) copyTo(dst []event[T], from int) {
	n := min(len(dst), h.len-from)
	if n <= 0 {
		return
	}
	first := (h.head + from) % len(h.ring)
	copied := copy(dst[:n], h.ring[first:])
	copy(dst[copied:n], h.ring)
}
