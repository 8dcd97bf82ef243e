// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue decides which backup runs next, and explains why each of the
// others waits.
//
// A Planner is told of each change of the records, and says at any time what follows
// from them as they are then: whatever it was told before and in whatever order, the
// same records give the same Plan. It has no client, no clock and no lock, so that
// the controller that acts and the API server that shows the queue come to the same
// plan, and a restart changes nothing.
//
// # Rules
//
//  1. A run in phase New gets a ticket, once, when it becomes Queued. Tickets
//     are given in order of creation, within a second by the records' versions,
//     then of name, and only ever grow.
//  2. The order of the queue is that of the tickets. A position is the rank
//     among the queued, from 1 without gaps. It is computed and never stored.
//  3. ReadyToStart and InProgress runs use a slot each, also when they were told
//     to stop. There are Limit slots. If more are in use, after the limit was
//     lowered, nothing starts.
//  4. A queued run may start when its storage location is available, a slot is
//     free, it overlaps no run that uses a slot, and it overlaps no queued run
//     ahead of it. Of several, the one nearest the head starts first; the next
//     is then decided as if that one were ReadyToStart.
//  5. Two runs overlap when their namespaces do (selection.Overlaps), or when
//     both touch cluster-scoped resources.
//  6. A run whose storage location is unavailable is held: it keeps its place,
//     uses no slot, and lets those pass that do not overlap it.
//  7. Runs past InProgress hold nothing, nor does a queued run that is
//     cancelled: it has left the queue.
//
// So nothing is overtaken by what overlaps it, and as long as runs end and
// storage comes back, the head of the queue always gets its turn.
//
// Overlap is decided on the words of a selection. The namespaces that exist
// only serve to say what is in conflict: one that appears or disappears never
// changes a decision.
//
// # Cost
//
// A decision walks the queue once, in its order, until the slots are used up, and notes
// for each namespace that is named, and each selection with patterns, who was the first
// to use it. So it takes a few nanoseconds for each name on the way, and no memory:
// milliseconds for 10,000 runs of 50 names each if all have to be looked at, and
// microseconds if one near the head may start. An entry takes the walk up to its place,
// which is the same for all entries until something changes.
//
// A run that comes costs its names, and each that nobody has named a look at the
// distinct selections with patterns. A new one of those is compared with the others and
// with all names.
package queue
