// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

// The upstream suite needs what etcd does on its own.

// Advance moves the version on without an event.
func (l *Log[T]) Advance() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rv++
	return l.rv
}

// Compact forgets everything up to version rv.
func (l *Log[T]) Compact(rv uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.forget(rv)
	l.wakeLocked()
}

// HistoryLen returns the number of events that are remembered.
func (l *Log[T]) HistoryLen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.history.len
}
