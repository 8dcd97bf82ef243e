// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import "k8s.io/apimachinery/pkg/types"

// Snapshot is all that a Planner is told of, and what the oracle needs besides.
type Snapshot struct {
	// Runs in any order and any phase. Finished ones matter only by their tickets.
	Runs []Run
	// Namespaces that exist, in any order.
	Namespaces []string
	// Locations by name. A run whose location is missing here is held.
	Locations map[string]LocationState
	// Limit is the number of slots.
	Limit int
	// LastTicket is the greatest ticket that is remembered; 0 for nothing.
	LastTicket int64

	// Words by the uids of the runs. Only the oracle reads them.
	Words map[types.UID]*words
}

// decide is what a new Planner says of a snapshot.
func decide(s Snapshot) (Plan, error) {
	p, err := NewPlanner(s.Limit)
	if err != nil {
		return Plan{}, err
	}
	p.SetNamespaces(s.Namespaces)
	p.SetLocations(s.Locations)
	p.Remember(s.LastTicket)
	for _, r := range s.Runs {
		p.Update(r)
	}
	return p.Plan(), nil
}
