// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
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
)

// AgentLabels select the Leases of the node agents.
const AgentLabels = label + "=" + agentRole

// AgentLease is the name of the Lease of a node's agent.
func AgentLease(node string) string {
	return "holdfast-node-agent-" + enginev1alpha1.NodeLabel(node)
}

// HoldNode holds the Lease of a node's agent while it works, and returns when the work
// has ended. Whoever held it before loses it at once. The work's context ends with ctx,
// and when the Lease is lost: the error is then ErrLost, unless ctx has ended too.
func HoldNode(ctx context.Context, leases coordinationclient.LeaseInterface, node, identity string, clock clock.WithDelayedExecution, work func(context.Context) error) error {
	a := &agent{leases: leases, node: node, identity: identity}
	begin := clock.Now()
	if err := a.take(ctx, begin); err != nil {
		return fmt.Errorf("taking the Lease %s of the agent of node %s: %w", AgentLease(node), node, err)
	}
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Renewing goes on until the work has stopped, whatever it was told.
	renewing, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	var holder sync.WaitGroup
	var lost error
	holder.Go(func() {
		if lost = (renewal{agentRenewInterval, agentRenewDeadline, a.renew, clock}).run(renewing, begin); lost != nil {
			stop(lost)
		}
	})
	err := work(working)
	ended()
	holder.Wait()
	if lost != nil {
		if ctx.Err() == nil {
			return errors.Join(lost, err)
		}
		return err
	}
	deleting, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	deleteErr := leases.Delete(deleting, a.lease.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &a.lease.UID, ResourceVersion: &a.lease.ResourceVersion},
	})
	if deleteErr != nil && !apierrors.IsNotFound(deleteErr) && !apierrors.IsConflict(deleteErr) {
		klog.FromContext(ctx).Info("Deleting the Lease of this agent failed", "err", deleteErr)
	}
	return err
}

// agent is a process that holds the Lease of its node.
type agent struct {
	leases         coordinationclient.LeaseInterface
	node, identity string
	lease          *coordinationv1.Lease
}

// take takes the Lease, whoever holds it: there is one agent for each node, and the
// one before notices that it holds it no more.
func (a *agent) take(ctx context.Context, now time.Time) error {
	for {
		lease, err := a.leases.Get(ctx, AgentLease(a.node), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			lease, err = a.leases.Create(ctx, a.held(&coordinationv1.Lease{}, now), metav1.CreateOptions{})
		case err == nil:
			lease, err = a.leases.Update(ctx, a.held(lease, now), metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			a.lease = lease
			return nil
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err), ctx.Err() != nil:
			return err
		}
	}
}

// held is a Lease as it is when this agent has just taken it.
func (a *agent) held(lease *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	lease.Name = AgentLease(a.node)
	if lease.Labels == nil {
		lease.Labels = map[string]string{}
	}
	lease.Labels[label], lease.Labels[enginev1alpha1.LabelNode] = agentRole, enginev1alpha1.NodeLabel(a.node)
	at, seconds := metav1.NewMicroTime(now), int32(agentLeaseDuration/time.Second)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &a.identity, &seconds
	lease.Spec.AcquireTime, lease.Spec.RenewTime = &at, &at
	return lease
}

// renew renews the Lease while this agent holds it. One that somebody has deleted is
// made again.
func (a *agent) renew(ctx context.Context, now time.Time) error {
	at := metav1.NewMicroTime(now)
	changed := a.lease.DeepCopy()
	changed.Spec.RenewTime = &at
	updated, err := a.leases.Update(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) { // an answer was lost, or another agent has taken it
		var current *coordinationv1.Lease
		if current, err = a.leases.Get(ctx, changed.Name, metav1.GetOptions{}); err == nil {
			if holder := current.Spec.HolderIdentity; holder == nil || *holder != a.identity {
				return fmt.Errorf("%w: another agent has taken that of node %s", ErrLost, a.node)
			}
			current.Spec.RenewTime = &at
			updated, err = a.leases.Update(ctx, current, metav1.UpdateOptions{})
		}
	}
	if apierrors.IsNotFound(err) {
		updated, err = a.leases.Create(ctx, a.held(&coordinationv1.Lease{}, now), metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	a.lease = updated
	return nil
}
