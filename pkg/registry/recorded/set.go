// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"iter"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/holdfast-io/holdfast/pkg/clustercache"
)

// rememberedDeletions is the number of deleted records that a Set still refuses.
const rememberedDeletions = 1000

// Set keeps the newest known version of each record, by a key, from an informer and from answers to own writes, in
// any order. It ignores deleted ones. The caller guards it by a lock.
type Set[K comparable, R metav1.Object] struct {
	key     func(R) K
	records map[K]R
	deleted *lru.Cache // uids of the last deleted records
}

// NewSet returns an empty Set.
func NewSet[K comparable, R metav1.Object](key func(R) K) *Set[K, R] {
	return &Set[K, R]{key: key, records: map[K]R{}, deleted: lru.New(rememberedDeletions)}
}

// Get returns the record of a key, or nil.
func (s *Set[K, R]) Get(key K) R { return s.records[key] }

// All returns the records with their keys.
func (s *Set[K, R]) All() iter.Seq2[K, R] { return maps.All(s.records) }

// Len returns the number of records.
func (s *Set[K, R]) Len() int { return len(s.records) }

// Known returns the newest known version of a record, or nil, also for another record with the same key.
func (s *Set[K, R]) Known(record R) (known R) {
	if found, ok := s.records[s.key(record)]; ok && found.GetUID() == record.GetUID() {
		return found
	}
	return known
}

// Observe keeps a record, unless it was deleted or a newer version is known. It returns the version before, or
// nil, and whether it kept the record.
func (s *Set[K, R]) Observe(record R) (before R, kept bool) {
	found, exists := s.records[s.key(record)]
	if exists && found.GetUID() == record.GetUID() {
		before = found
		order, err := utilresourceversion.CompareResourceVersion(record.GetResourceVersion(), before.GetResourceVersion())
		if err == nil && order <= 0 {
			return before, false
		}
	}
	if _, deleted := s.deleted.Get(record.GetUID()); deleted {
		return before, false
	}
	s.records[s.key(record)] = record
	return before, true
}

// Delete forgets a deleted record, and reports whether it was known.
func (s *Set[K, R]) Delete(record R) bool {
	s.deleted.Add(record.GetUID(), nil)
	key := s.key(record)
	found, exists := s.records[key]
	if !exists || found.GetUID() != record.GetUID() {
		return false
	}
	delete(s.records, key)
	return true
}

// Rekey moves the records with changed keys, and returns them by their former keys.
func (s *Set[K, R]) Rekey() map[K]R {
	moved := map[K]R{}
	for key, record := range s.records {
		if s.key(record) != key {
			moved[key] = record
		}
	}
	for key := range moved {
		delete(s.records, key)
	}
	for _, record := range moved {
		s.records[s.key(record)] = record
	}
	return moved
}

// Handler passes an informer's events to functions that keep a Set. After missed events an informer reports a
// deleted record and its successor as one change.
func Handler[R metav1.Object](observe, deleted func(R)) cache.ResourceEventHandlerFuncs {
	handler := clustercache.Handler(observe, deleted)
	handler.UpdateFunc = func(before, after any) {
		was, is := before.(R), after.(R)
		if was.GetUID() != is.GetUID() {
			deleted(was)
		}
		observe(is)
	}
	return handler
}
