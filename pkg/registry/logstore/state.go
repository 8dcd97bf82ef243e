// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"iter"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// entry is one stored object. It is immutable: a change makes a new entry, so
// the pointer identifies the object's version.
type entry[T Object] struct {
	key string
	// Requests within the object's namespace see within, and requests over all namespaces see
	// over. If both changed last at the same version, and are alike, they are one object.
	within, over view[T]
}

// view is the object that some requests see, with the version of its last change. A change of
// the other view is no change for them.
type view[T Object] struct {
	rv  uint64
	obj T
}

// is reports whether two views have the same object, and so the same version.
func (v view[T]) is(other view[T]) bool { return any(v.obj) == any(other.obj) }

// in returns the view of a request of a scope.
func (e *entry[T]) in(sc scope) view[T] {
	if sc.all {
		return e.over
	}
	return e.within
}

// state holds the objects by key, in the order of their keys.
type state[T Object] struct {
	tree *btree.BTree[*entry[T]]
}

func newState[T Object]() state[T] {
	const degree = 16 // small nodes: a change after a snapshot copies one path of them
	return state[T]{btree.New(degree, func(a, b *entry[T]) bool { return a.key < b.key })}
}

// snapshot returns an independent copy of the state in constant time: nodes are
// shared until either side changes them. Two snapshots must not be taken at once.
func (s state[T]) snapshot() state[T] { return state[T]{s.tree.Clone()} }

func (s state[T]) get(key string) *entry[T] {
	e, _ := s.tree.Get(&entry[T]{key: key})
	return e
}

// set stores e and returns what it replaces, or nil.
func (s state[T]) set(e *entry[T]) *entry[T] {
	was, _ := s.tree.ReplaceOrInsert(e)
	return was
}

// remove returns what it removed, or nil.
func (s state[T]) remove(key string) *entry[T] {
	was, _ := s.tree.Delete(&entry[T]{key: key})
	return was
}

// undo takes back events, the newest of which must be the last change of the
// state. It turns a state into an earlier one, so that the history need not keep
// a snapshot for every event.
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

// scan yields the entries in sc whose key is at least from, in order.
func (s state[T]) scan(sc scope, from string) iter.Seq[*entry[T]] {
	return func(yield func(*entry[T]) bool) {
		s.tree.AscendGreaterOrEqual(&entry[T]{key: max(from, sc.key)}, func(e *entry[T]) bool {
			return sc.contains(e.key) && yield(e)
		})
	}
}

// scope is the set of keys that a request may see: one key, or all keys below a
// prefix that ends with a slash. all is true if that is every key of the log.
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
