// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PageSizes remembers objects' sizes by resource, so that a list's first page does not overload an API
// server. The zero value is ready. It is safe for concurrent use, and shared by a process's backups.
type PageSizes struct {
	mu    sync.Mutex
	means map[schema.GroupResource]int64
}

func (s *PageSizes) first(gr schema.GroupResource) int64 {
	if s == nil {
		return unknownPage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mean, known := s.means[gr]
	if !known {
		return unknownPage
	}
	mean = max(mean, 1)
	// A page beyond four times pageBytes would be abandoned at each backup.
	return max(1, min(leastPage, 4*pageBytes/mean), min(pageSize, pageBytes/mean))
}

// learn records a list's size, except a few small objects. Larger ones count at once, as they do harm,
// smaller ones gradually.
func (s *PageSizes) learn(gr schema.GroupResource, objects, bytes int64) {
	if s == nil || objects == 0 || objects < sampled && bytes < pageBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.means == nil {
		s.means = map[schema.GroupResource]int64{}
	}
	mean := bytes / objects
	if was := s.means[gr]; mean < was {
		mean = was - (was-mean)/8
	}
	s.means[gr] = mean
}
