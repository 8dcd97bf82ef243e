// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package opener

// Users is how many use the repository of a record, or wait for it.
func (s *Shared) Users(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[name]; o != nil {
		return o.users
	}
	return 0
}
