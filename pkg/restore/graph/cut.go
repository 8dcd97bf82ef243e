// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"cmp"
	"container/heap"
	"slices"
)

func (b *builder) finish() *Graph {
	slices.SortFunc(b.edges, func(a, c edge) int {
		return cmp.Or(cmp.Compare(a.before, c.before), cmp.Compare(a.after, c.after), cmp.Compare(c.strength, a.strength))
	})
	// Of parallel edges the strongest counts.
	b.edges = slices.CompactFunc(b.edges, func(a, c edge) bool { return a.before == c.before && a.after == c.after })
	g := &Graph{Nodes: b.nodes}
	kept, cut := acyclic(len(b.nodes), b.edges)
	for _, e := range cut {
		before, after := b.nodes[e.before], b.nodes[e.after]
		if before.Item != nil && after.Item != nil && before.Wait == "" && after.Wait == "" {
			g.Cut = append(g.Cut, Cut{before.Item, after.Item, e.strength})
		}
	}
	g.first, g.out = adjacent(len(b.nodes), kept)
	g.in = make([]int32, len(b.nodes))
	for _, e := range kept {
		g.in[e.after]++
	}
	g.waves()
	return g
}

func (g *Graph) waves() {
	left := slices.Clone(g.in)
	var ready []int32
	for node := range g.Nodes {
		if left[node] == 0 {
			ready = append(ready, int32(node))
		}
	}
	for len(ready) > 0 {
		node := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		wave := g.Nodes[node].Wave
		if g.Nodes[node].Item != nil && g.Nodes[node].Wait == "" {
			wave++
		}
		for _, next := range g.After(node) {
			g.Nodes[next].Wave = max(g.Nodes[next].Wave, wave)
			if left[next]--; left[next] == 0 {
				ready = append(ready, next)
			}
		}
	}
}

// adjacent returns the successors of node n as out[first[n]:first[n+1]]. The edges are sorted by
// before.
func adjacent(nodes int, edges []edge) (first, out []int32) {
	first, out = make([]int32, nodes+1), make([]int32, len(edges))
	for i, e := range edges {
		first[e.before+1]++
		out[i] = e.after
	}
	for n := range nodes {
		first[n+1] += first[n]
	}
	return first, out
}

// acyclic cuts edges, sorted by before, until there is no cycle. It adds one strength after the
// other to the stronger edges, which have no cycle: nodes in a cycle get an order by the stronger
// edges, and new backward edges are cut.
func acyclic(nodes int, edges []edge) (kept, cut []edge) {
	component := components(nodes, edges)
	circular := func(e edge) bool { return component[e.before] == component[e.after] }
	if !slices.ContainsFunc(edges, circular) {
		return edges, nil
	}
	for strength := Needs; strength >= Rule; strength-- {
		// Only edges in cycles matter.
		var inside []edge
		for _, e := range edges {
			if circular(e) && e.strength >= strength {
				inside = append(inside, e)
			}
		}
		backward := backwards(nodes, inside, strength)
		if len(backward) == 0 {
			continue
		}
		edges = slices.DeleteFunc(slices.Clone(edges), func(e edge) bool { _, ok := backward[e]; return ok })
		for e := range backward {
			cut = append(cut, e)
		}
	}
	slices.SortFunc(cut, func(a, c edge) int { return cmp.Or(cmp.Compare(a.before, c.before), cmp.Compare(a.after, c.after)) })
	return edges, cut
}

// backwards returns the edges of one strength to cut.
func backwards(nodes int, edges []edge, strength Strength) map[edge]struct{} {
	component := components(nodes, edges)
	edges = slices.DeleteFunc(slices.Clone(edges), func(e edge) bool { return component[e.before] != component[e.after] })
	if len(edges) == 0 {
		return nil
	}
	// strong and weak count the unhandled edges to a node within its cycle. The next node has no
	// stronger edge, and the fewest weak ones, which are cut.
	strong, weak := make([]int32, nodes), make([]int32, nodes)
	inside := make([]bool, nodes)
	for _, e := range edges {
		inside[e.before], inside[e.after] = true, true
		if e.strength > strength {
			strong[e.after]++
		} else {
			weak[e.after]++
		}
	}
	first, _ := adjacent(nodes, edges)
	queue := &candidates{}
	for node := range int32(nodes) {
		if inside[node] && strong[node] == 0 {
			heap.Push(queue, candidate{weak[node], node})
		}
	}
	done := make([]bool, nodes)
	cut := map[edge]struct{}{}
	for queue.Len() > 0 {
		next := heap.Pop(queue).(candidate)
		if done[next.node] || next.weak != weak[next.node] {
			continue
		}
		done[next.node] = true
		for _, e := range edges[first[next.node]:first[next.node+1]] {
			switch {
			case done[e.after]:
				cut[e] = struct{}{}
				continue
			case e.strength > strength:
				strong[e.after]--
			default:
				weak[e.after]--
			}
			if strong[e.after] == 0 {
				heap.Push(queue, candidate{weak[e.after], e.after})
			}
		}
	}
	return cut
}

// candidate is a possible next node, with the number of edges to cut. Of equals the later is first:
// a joint rather loses an edge to it.
type candidate struct{ weak, node int32 }

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return c[i].weak < c[j].weak || c[i].weak == c[j].weak && c[i].node > c[j].node
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	old := *c
	x := old[len(old)-1]
	*c = old[:len(old)-1]
	return x
}

// components numbers the strongly connected components by Tarjan's algorithm, without recursion:
// chains of owners may be long.
func components(nodes int, edges []edge) []int32 {
	first, out := adjacent(nodes, edges)
	component, index, low := make([]int32, nodes), make([]int32, nodes), make([]int32, nodes)
	for i := range component {
		component[i] = -1
	}
	type frame struct{ node, next int32 }
	var stack []int32
	var frames []frame
	count, found := int32(0), int32(0)
	for root := range int32(nodes) {
		if index[root] != 0 {
			continue
		}
		frames = append(frames, frame{root, first[root]})
		for len(frames) > 0 {
			at := &frames[len(frames)-1]
			node := at.node
			if index[node] == 0 {
				count++
				index[node], low[node] = count, count
				stack = append(stack, node)
			}
			if at.next < first[node+1] {
				next := out[at.next]
				at.next++
				if index[next] == 0 {
					frames = append(frames, frame{next, first[next]})
				} else if component[next] < 0 {
					low[node] = min(low[node], index[next])
				}
				continue
			}
			if low[node] == index[node] {
				for {
					member := stack[len(stack)-1]
					stack = stack[:len(stack)-1]
					component[member] = found
					if member == node {
						break
					}
				}
				found++
			}
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				parent := frames[len(frames)-1].node
				low[parent] = min(low[parent], low[node])
			}
		}
	}
	return component
}
