// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package graph orders the objects of a restore: each comes when all that it needs exists.
//
// Edges have a Strength: namespaces and definitions before their objects; claims with data before
// their users and the users' owners; owners before dependents; references; rules of kinds. A rule
// between two sets of objects is one node without an object, so the graph has few edges. In a
// cycle, the weakest edges are cut. TestProperties checks:
//
//  1. Every object is a node, once, and there are no cycles.
//  2. Every edge that is not in Cut is respected.
//  3. A cut edge was on a cycle of edges at least as strong.
package graph
