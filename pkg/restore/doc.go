// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore plans and carries out restores: for each object of a backup it decides
// what is to become of it, and does that, or only notes it.
//
// # Why nothing is doubled or lost
//
// A restore may be stopped at any line, gone on with by another process, and be executed by
// two for a while, of which one has not noticed yet that it leads no more. It holds because
//
//  1. an object is created by name, and bears the uid of the restore and the one that it had
//     in the backup. Whoever finds it there knows that it is done, and what it is called now.
//  2. what exists is changed or deleted in the version that was read, else it is decided
//     anew.
//  3. the results are what was found in the cluster, not what was remembered, so that
//     whoever ends the restore tells the same. The end is written into the store once, by
//     a conditional write, after all else.
//  4. a claim is marked from before the first of its data is written until the last is. So
//     what a restore was stopped over is taken for whole by no later one: see incomplete.go.
//
// An object comes when those before it in the graph are done: there, or given up with an
// error. What uses a claim whose data could not be brought back is given up, too.
//
// What remains: a process that was paused may have creations on their way, 16 at most, which
// arrive when it is woken; it begins no other ones, since it looks at the age of its Lease before
// each request. An object that somebody has deleted meanwhile is there again then. And that an object was updated, and not equal from the start, is not told if
// the process was stopped after it.
package restore
