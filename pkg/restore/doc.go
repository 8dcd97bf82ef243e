// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore plans and executes restores: it decides for each object of a backup, and carries
// the decision out or only notes it.
//
// A restore may stop at any line and be continued by another process; two may execute it for a
// while. Nothing is doubled or lost, because
//
//  1. objects are created by name and carry the uids of the restore and of the backed-up object;
//  2. existing objects are changed only in the version that was read;
//  3. results come from the cluster, and the end is stored once, last, by a conditional write;
//  4. a claim carries a mark while its data is incomplete (incomplete.go).
//
// Up to 16 creations of a paused process may arrive when it wakes: an object that a user has
// deleted meanwhile appears again.
package restore
