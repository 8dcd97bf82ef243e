// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// Strength is how much an edge counts.
type Strength int8

// The strengths, the weakest first.
const (
	// Rule: objects of one kind should precede another's.
	Rule Strength = iota
	// Refers: the later object names the earlier.
	Refers
	// Owns: the earlier object owns the later.
	Owns
	// Data: the later object uses the data of the earlier claim.
	Data
	// Needs: the later object can't be created without the earlier.
	Needs
)

// Wait is a condition on a restored object for the creation of its successors.
type Wait string

const (
	// WaitServed: the CustomResourceDefinition's kind or the APIService's version is served.
	WaitServed Wait = "Served"
	// WaitReady: the Service has a ready endpoint.
	WaitReady Wait = "Ready"
)

// Node is a point of the order.
type Node struct {
	// Item is the object to restore or to wait for; nil for a joint.
	Item *manifest.Item
	Wait Wait
	// Wave is the length of the longest path to it, for users; edges decide.
	Wave int
}

// Cut is an edge that was removed to break a cycle.
type Cut struct {
	Before, After *manifest.Item
	// Strength is Rule, Refers or Owns. With Owns, After gets its owner reference later.
	Strength Strength
}

// Graph is the order. It does not change.
type Graph struct {
	Nodes []Node
	Cut   []Cut

	first, out []int32
	in         []int32
}

// After returns the successors of a node.
func (g *Graph) After(node int32) []int32 { return g.out[g.first[node]:g.first[node+1]] }

// Progress walks a graph. It is not safe for concurrent use.
type Progress struct {
	graph *Graph
	left  []int32
	done  int
}

// Start returns the nodes without predecessors.
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

// Done marks a node as done or given up, once, and returns the nodes that waited for nothing else.
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

// pass skips a joint. Two rarely follow each other.
func (p *Progress) pass(ready []int32, node int32) []int32 {
	if p.graph.Nodes[node].Item == nil {
		return p.release(ready, node)
	}
	return append(ready, node)
}
