// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PageSizes remembers how large objects are, by their resource, so that the first page of a list
// has no more of them than an API server can hold at once without harm. The zero value knows
// nothing. It is safe for concurrent use: all backups of a process share one.
type PageSizes struct {
	mu sync.Mutex
	// means are the bytes of an object, as the lists that were read last had them.
	means map[schema.GroupResource]int64
}

// first is how many objects the first page of a list is to have.
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
	// A page that is given up would be so at every backup: no more than it may have then.
	return max(1, min(leastPage, 4*pageBytes/mean), min(pageSize, pageBytes/mean))
}

// learn takes what a list had. A few small objects tell nothing of others. Of objects that are
// larger than those before it learns at once, since they do harm, and of smaller ones by and by.
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
