// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// DefaultAgentTimeout is how long a node may lack an agent before its work is given up.
	DefaultAgentTimeout = 5 * time.Minute
	// MinAgentTimeout lets an agent without connection stop.
	MinAgentTimeout = 2 * time.Minute
	// HungAfter is how long an agent's work on a volume may take to stop before it is given up; it may
	// continue later.
	HungAfter    = 2 * time.Minute
	newNode      = 10 * time.Second
	forgetAgents = time.Hour
)

// Agents knows the nodes' agents from informers, and the work shown to it. It is safe for concurrent
// use.
type Agents struct {
	Activity
	clock  clock.Clock
	began  time.Time
	nodes  cache.Store
	synced []cache.InformerSynced

	mu      sync.Mutex
	seen    map[string]agent
	removed []func()
}

type agent struct {
	sighting
	limit int
}

// NewAgents takes the Leases with AgentLabels of the system namespace, and the nodes.
func NewAgents(leases, nodes cache.SharedIndexInformer, clock clock.Clock) (*Agents, error) {
	a := &Agents{clock: clock, began: clock.Now(), nodes: nodes.GetStore(), seen: map[string]agent{}}
	ofLeases, err := leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    a.renewed,
		UpdateFunc: func(_, obj any) { a.renewed(obj) },
	})
	if err != nil {
		return nil, err
	}
	ofNodes, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { a.nodeRemoved() }})
	if err != nil {
		return nil, err
	}
	a.synced = []cache.InformerSynced{ofLeases.HasSynced, ofNodes.HasSynced}
	return a, nil
}

// HasSynced reports whether nodes and agents are known.
func (a *Agents) HasSynced() bool {
	for _, synced := range a.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// OnNodeRemoved registers a function for each removed node.
func (a *Agents) OnNodeRemoved(call func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.removed = append(a.removed, call)
}

func (a *Agents) nodeRemoved() {
	a.mu.Lock()
	calls := a.removed
	a.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

func (a *Agents) renewed(obj any) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.seen[lease.Name].is(lease) {
		a.seen[lease.Name] = agent{sighting{uid: lease.UID, version: lease.ResourceVersion, at: a.clock.Now()}, limitOf(lease)}
	}
}

// limitOf returns how many volumes an agent moves at once, or 0. The API server shows an unreadable
// status.
func limitOf(lease *coordinationv1.Lease) int {
	var status v1alpha1.NodeAgentStatus
	if err := json.Unmarshal([]byte(lease.Annotations[StatusAnnotation]), &status); err != nil {
		return 0
	}
	return int(status.Limit)
}

// Limits returns how many volumes each living agent moves at once, or 0.
func (a *Agents) Limits() (limits []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, seen := range a.seen {
		if a.lives(seen) {
			limits = append(limits, seen.limit)
		}
	}
	return limits
}

func (a *Agents) lives(seen agent) bool { return a.clock.Since(seen.at) < agentLeaseDuration }

// Absence returns for how long a node's agent has shown no sign of life, at most since a time and this
// process's start. After MinAgentTimeout its work has stopped.
func (a *Agents) Absence(node string, since time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began.After(since) {
		since = a.began
	}
	if seen := a.seen[AgentLease(node)].at; seen.After(since) {
		since = seen
	}
	return a.clock.Since(since)
}

// NodeGone reports whether the node is missing, given its last mention.
func (a *Agents) NodeGone(node string, since time.Time) bool {
	_, exists, err := a.nodes.GetByKey(node)
	return err == nil && !exists && a.clock.Since(since) >= newNode
}

// Nodes counts the nodes with and without an agent.
func (a *Agents) Nodes() (with, without int) {
	for _, obj := range a.nodes.List() {
		node, err := meta.Accessor(obj)
		if err != nil {
			continue
		}
		a.mu.Lock()
		seen, ok := a.seen[AgentLease(node.GetName())]
		a.mu.Unlock()
		if ok && a.lives(seen) {
			with++
		} else {
			without++
		}
	}
	return with, without
}

// Run removes old agents' Leases, until ctx ends.
func (a *Agents) Run(ctx context.Context, leases coordinationclient.LeaseInterface) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(forgetAgents / 4):
		}
		a.forget(ctx, leases)
	}
}

func (a *Agents) forget(ctx context.Context, leases coordinationclient.LeaseInterface) {
	old := map[string]agent{}
	a.mu.Lock()
	for name, seen := range a.seen {
		if a.clock.Since(seen.at) >= forgetAgents {
			old[name] = seen
		}
	}
	a.mu.Unlock()
	for name, seen := range old {
		err := leases.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &seen.uid, ResourceVersion: &seen.version},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Info("Removing the Lease of an agent that is gone failed; it will be tried again", "lease", name, "err", err)
			continue
		}
		a.mu.Lock()
		if a.seen[name] == seen {
			delete(a.seen, name)
		}
		a.mu.Unlock()
	}
}
