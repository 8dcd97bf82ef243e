// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

// States are the states of all locations, by name.
func (r *Refresher) States() map[string]State { return r.states() }
