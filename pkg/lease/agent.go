// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	agentRenewInterval = 20 * time.Second
	agentRenewDeadline = 90 * time.Second
	agentLeaseDuration = 2 * time.Minute

	label     = "holdfast.io/process"
	agentRole = "node-agent"
)

// StatusAnnotation has an agent's status on its Lease, to save writes.
const StatusAnnotation = "holdfast.io/agent-status"

// AgentLabels select the agents' Leases.
const AgentLabels = label + "=" + agentRole

// AgentLease returns the name of an agent's Lease.
func AgentLease(node string) string {
	return "holdfast-node-agent-" + enginev1alpha1.NodeLabel(node)
}

// HoldNode holds the Lease of a node's agent during work, and returns after it. The former holder loses
// it at once. The work's context ends with ctx, or with the Lease: then the error is ErrLost. Renewals
// write status to StatusAnnotation, changes at most every 10 s. status is called often, never
// concurrently.
func HoldNode(ctx context.Context, client coordinationclient.LeaseInterface, node, identity string, clock clock.WithDelayedExecution, status func() string, work func(context.Context) error) error {
	l := &lease{
		client: client, name: AgentLease(node), identity: identity, duration: agentLeaseDuration,
		labels:   map[string]string{label: agentRole, enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(node)},
		interval: agentRenewInterval, deadline: agentRenewDeadline, clock: clock,
		// A node always has one agent.
		remade: true,
		annotate: func(lease *coordinationv1.Lease) {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, StatusAnnotation, status())
		},
	}
	l.hasNews = func() bool { return status() != l.held.Annotations[StatusAnnotation] }
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
