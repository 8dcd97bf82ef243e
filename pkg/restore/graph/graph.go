// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// Strength is how much an edge counts.
type Strength int8

// The strengths, from the weakest.
const (
	// Rule: objects of the one kind are better there before those of the other.
	Rule Strength = iota
	// Refers: the later object refers to the earlier one by name.
	Refers
	// Owns: the later object names the earlier one as its owner, by uid.
	Owns
	// Data: the later object uses the data of the earlier one, which is a claim.
	Data
	// Needs: without the earlier object, the later one can't be created.
	Needs
)

// Wait is what must have come true before the objects behind it are created, of an object
// that has been restored.
type Wait string

const (
	// WaitServed: the kind that the CustomResourceDefinition, or the version that the
	// APIService, stands for is served.
	WaitServed Wait = "Served"
	// WaitReady: the Service has a ready endpoint.
	WaitReady Wait = "Ready"
)

// Node is a point of the order.
type Node struct {
	// Item is the object to restore; or, with Wait, what is waited for. It is nil for a
	// node that only joins others.
	Item *manifest.Item
	Wait Wait
	// Wave is the number of objects that come before it, one after the other, at the
	// longest. It is for people; the order is that of the edges.
	Wave int
}

// Cut is an edge that is left out, since there is a circle.
type Cut struct {
	// Before should come before After.
	Before, After *manifest.Item
	// Strength is Rule, Refers or, if After is to be given its owner reference later, Owns.
	Strength Strength
}

// Graph is the order. It does not change.
type Graph struct {
	Nodes []Node
	// Cut has the edges between objects that are not respected.
	Cut []Cut

	// out are the nodes behind each node: those from first[n] to first[n+1].
	first, out []int32
	// in is how many nodes each one waits for.
	in []int32
}

// After are the nodes that wait for one.
func (g *Graph) After(node int32) []int32 { return g.out[g.first[node]:g.first[node+1]] }

// Progress walks along a graph. It is not safe for concurrent use.
type Progress struct {
	graph *Graph
	left  []int32
	done  int
}

// Start begins, and gives the nodes that wait for nothing.
func (g *Graph) Start() (*Progress, []int32) {
	p := &Progress{graph: g, left: append([]int32(nil), g.in...)}
	var ready []int32
	for node := range g.Nodes {
		if g.in[node] == 0 {
			ready = p.pass(ready, int32(node))
		}
	}
	return p, ready
}

// Done says that a node's object is there, or will never be, and gives the nodes that
// waited for nothing else. Each node must be done once.
func (p *Progress) Done(node int32) []int32 { return p.release(nil, node) }

// Finished reports whether all nodes are done.
func (p *Progress) Finished() bool { return p.done == len(p.graph.Nodes) }

func (p *Progress) release(ready []int32, node int32) []int32 {
	p.done++
	for _, next := range p.graph.After(node) {
		if p.left[next]--; p.left[next] == 0 {
			ready = p.pass(ready, next)
		}
	}
	return ready
}

// pass goes through a node that has nothing to do. No two of them follow each other often.
func (p *Progress) pass(ready []int32, node int32) []int32 {
	if p.graph.Nodes[node].Item == nil {
		return p.release(ready, node)
	}
	return append(ready, node)
}
