// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package graph puts the objects of a restore in order: each comes when all that it needs
// is there, and whatever needs nothing of each other comes at the same time.
//
// The edges are of several strengths. A namespace comes before what is in it, a
// CustomResourceDefinition before objects of its kind; a claim with data before all that
// uses it, up the chain of their owners, also where the pods themselves are not restored;
// an owner before what it owns; what is referred to before what refers to it; and by rules
// of kinds, service accounts, secrets, quotas and the like of a namespace before its
// workloads, and webhooks last. Rules that hold between all objects of one sort and all of
// another lead through one node without an object, so that the graph has a few edges per
// object.
//
// Where the edges go round in a circle, the weakest of them are cut. Guarantees, which
// TestProperties compares with a naive computation:
//
//  1. Every object is a node, once, and there are no circles.
//  2. Every edge that is not in Cut is respected.
//  3. What is cut lay on a circle of edges at least as strong.
package graph
