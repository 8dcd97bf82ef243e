// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	// agentRenewInterval is how often an agent renews the Lease of its node.
	agentRenewInterval = 20 * time.Second
	// agentRenewDeadline is how long an agent works on without a renewal.
	agentRenewDeadline = 90 * time.Second
	// agentLeaseDuration is what its Lease says about that.
	agentLeaseDuration = 2 * time.Minute

	// label marks the Leases of agents.
	label     = "holdfast.io/process"
	agentRole = "node-agent"
)

// StatusAnnotation holds what an agent says of itself, on its Lease: so that costs no object,
// and hardly a write of its own.
const StatusAnnotation = "holdfast.io/agent-status"

// AgentLabels select the Leases of the node agents.
const AgentLabels = label + "=" + agentRole

// AgentLease is the name of the Lease of a node's agent.
func AgentLease(node string) string {
	return "holdfast-node-agent-" + enginev1alpha1.NodeLabel(node)
}

// HoldNode holds the Lease of a node's agent while it works, and returns when the work
// has ended. Whoever held it before loses it at once. The work's context ends with ctx,
// and when the Lease is lost: the error is then ErrLost, unless ctx has ended too.
//
// What status returns is written to StatusAnnotation: by each renewal, and when it has
// changed at most every 10 s. It is called often, and by one goroutine at a time.
func HoldNode(ctx context.Context, client coordinationclient.LeaseInterface, node, identity string, clock clock.WithDelayedExecution, status func() string, work func(context.Context) error) error {
	l := &lease{
		client: client, name: AgentLease(node), identity: identity, duration: agentLeaseDuration,
		labels:   map[string]string{label: agentRole, enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(node)},
		interval: agentRenewInterval, deadline: agentRenewDeadline, clock: clock,
		// There is one agent for each node, whatever becomes of its Lease.
		remade: true,
		status: status,
	}
	for {
		begin := clock.Now()
		current, err := l.read(ctx)
		if err == nil {
			err = l.take(ctx, current, begin)
		}
		switch {
		case err == nil:
			return l.hold(ctx, begin, work)
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err), ctx.Err() != nil:
			return fmt.Errorf("taking the Lease %s of the agent of node %s: %w", l.name, node, err)
		}
	}
}
