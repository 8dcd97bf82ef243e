// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue decides which backup or restore runs next, and explains why the others wait:
// docs/design/queue.md.
//
// A Planner is told of each change of the records. The same records give the same Plan, in any order of
// changes, without client, clock and lock. So the controller and the API server compute the same plan,
// and a restart changes nothing. The words of a selection decide overlap. Existing namespaces only
// describe conflicts.
package queue
