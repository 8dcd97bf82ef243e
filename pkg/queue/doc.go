// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue decides which backup or restore runs next, and explains why each of
// the others waits.
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
//  2. The order of the queue is restores before backups, and within each class that
//     of the tickets. A position is the rank among the queued, from 1 without gaps.
//     It is computed and never stored.
//  3. ReadyToStart and InProgress runs use a slot of their class each, also when they
//     were told to stop. Each class has a number of slots, and takes none from the
//     other. If more are in use, after the number was lowered, none of it starts.
//  4. A queued run may start when its storage location is available, a slot of its
//     class is free, it overlaps no run that uses a slot, and it overlaps no queued
//     run ahead of it that is not held (rule 6). Of several, the one nearest the head
//     starts first; the next is then decided as if that one were ReadyToStart.
//  5. Two runs overlap when their namespaces do (selection.Overlaps), those that a
//     backup reads or a restore writes to, or when both touch cluster-scoped
//     resources.
//  6. A queued run whose storage location is unavailable is held: it keeps its place,
//     uses no slot, and reserves nothing. Every run behind it may pass it, also one
//     that overlaps it. Its ticket puts it ahead again when the location is back.
//  7. A restore that only plans writes nothing: it overlaps nothing, and uses no slot of the
//     restores, but one of PlanSlots.
//  8. Runs past InProgress hold nothing, nor does a queued run that is
//     cancelled: it has left the queue.
//
// So nothing of a class is overtaken by what overlaps it of the same, and as long as
// runs end and storage comes back, each restore gets its turn: it waits for what runs,
// and for restores that came before it, but for no backup that only waits, and no new
// backup of its namespaces starts meanwhile. A backup waits for what runs, for backups
// that came before it, and for restores of its namespaces, those that come later
// included. It gets its turn at the first moment at which none of those runs or waits: a
// stream of restores that never leaves such a moment holds it up for as long as the
// stream goes on. That is what restores being ahead means, and its message says so.
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
