// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import "k8s.io/apimachinery/pkg/types"

// Assignment is a ticket for a run.
type Assignment struct {
	UID    types.UID
	Ticket int64
}

// Decision is what to do now. It guarantees:
//  1. No two runs of Start overlap, and none overlaps a run with a slot, or a queued run ahead of
//     it whose storage is available.
//  2. No start makes a class exceed its limit, or exceed it further.
type Decision struct {
	Tickets []Assignment
	// Start has the queued runs that may all become ReadyToStart now, in order.
	Start []types.UID
	// InUse counts runs with a slot, and those starting now.
	InUse  Slots
	Limits Slots
}

// Plan is a Decision and its explanation. It depends only on the records, not on their order. It also
// guarantees:
//  1. The positions of the queued entries are 1..n, in the order of Entries.
//  2. Each queued entry has a reason; NextToStart exactly if it is in Start.
type Plan struct {
	Decision
	// Entries has the runs with a slot or in the queue: running, ready, queued, each in order.
	Entries []Entry
}
