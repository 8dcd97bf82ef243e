// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"iter"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// entry is a stored object. A change makes a new entry, so the pointer identifies the version.
type entry[T Object] struct {
	key string
	// Requests within the object's namespace see within, others over. If both are equal and changed last at once,
	// they are one object.
	within, over view[T]
}

type view[T Object] struct {
	rv  uint64
	obj T
}

func (v view[T]) is(other view[T]) bool { return any(v.obj) == any(other.obj) }

func (e *entry[T]) in(sc scope) view[T] {
	if sc.all {
		return e.over
	}
	return e.within
}

type state[T Object] struct {
	tree *btree.BTree[*entry[T]]
}

func newState[T Object]() state[T] {
	const degree = 16 // small nodes: a change after a snapshot copies one path of them
	return state[T]{btree.New(degree, func(a, b *entry[T]) bool { return a.key < b.key })}
}

// snapshot returns an independent copy in constant time: nodes are shared until a side changes them. Don't take
// two concurrently.
func (s state[T]) snapshot() state[T] { return state[T]{s.tree.Clone()} }

func (s state[T]) get(key string) *entry[T] {
	e, _ := s.tree.Get(&entry[T]{key: key})
	return e
}

func (s state[T]) set(e *entry[T]) *entry[T] {
	was, _ := s.tree.ReplaceOrInsert(e)
	return was
}

func (s state[T]) remove(key string) *entry[T] {
	was, _ := s.tree.Delete(&entry[T]{key: key})
	return was
}

// undo takes back a state's newest events, so that the history needs no snapshots.
func (s state[T]) undo(events []event[T]) {
	for i := len(events) - 1; i >= 0; i-- {
		if e := &events[i]; e.was != nil {
			s.set(e.was)
		} else {
			s.remove(e.now.key)
		}
	}
}

func (s state[T]) len() int { return s.tree.Len() }

func (s state[T]) scan(sc scope, from string) iter.Seq[*entry[T]] {
	return func(yield func(*entry[T]) bool) {
		s.tree.AscendGreaterOrEqual(&entry[T]{key: max(from, sc.key)}, func(e *entry[T]) bool {
			return sc.contains(e.key) && yield(e)
		})
	}
}

// scope is the keys that a request may see: one, or all below a prefix with a trailing slash. all is every key.
type scope struct {
	key            string
	recursive, all bool
}

func (sc scope) contains(key string) bool {
	if sc.recursive {
		return strings.HasPrefix(key, sc.key)
	}
	return key == sc.key
}
