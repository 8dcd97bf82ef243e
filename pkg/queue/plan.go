// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import "k8s.io/apimachinery/pkg/types"

// Assignment is a ticket for a run.
type Assignment struct {
	UID    types.UID
	Ticket int64
}

// Decision is what to do now.
//
// Guarantees:
//  1. No two runs of Start overlap, and none overlaps a run that uses a slot or
//     a queued run ahead of it whose storage location is available.
//  2. Of each class, no more are in use than the limit, unless the runs that use a
//     slot are more; then Start has none of it.
type Decision struct {
	// Tickets are for the New runs to become Queued with, in increasing order.
	Tickets []Assignment
	// Start holds the uids of the queued runs that may become ReadyToStart now,
	// in order. All may, together.
	Start []types.UID
	// InUse counts the runs that use a slot, and those that start now.
	InUse Slots
	// Limits are the numbers of slots.
	Limits Slots
}

// Plan is what to do now, and the explanation of what is not done yet. It
// depends on nothing but the records, not even on their order.
//
// Guarantees, besides those of Decision:
//  1. The positions of the queued entries are 1..n, in the order of Entries.
//  2. Each queued entry has a reason; NextToStart exactly if it is in Start.
type Plan struct {
	Decision
	// Entries has one entry for each run that uses a slot or is queued: running
	// ones first, then ready ones, then the queue, each in its order.
	Entries []Entry
}
