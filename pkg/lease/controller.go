// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"time"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
)

const (
	// LeaderLease is the controller's Lease.
	LeaderLease = "holdfast-controller"
	// LeaderDuration is how long an unchanged controller's Lease is respected.
	LeaderDuration = 15 * time.Second
	renewInterval  = 2 * time.Second
	renewDeadline  = 10 * time.Second
)

// Lead waits until no other controller leads, and holds the Lease during work. It returns after the
// work, or when ctx ends before. The work's context ends with ctx, or with the Lease: then the error is
// ErrLost.
func Lead(ctx context.Context, client coordinationclient.LeaseInterface, identity string, clock clock.WithDelayedExecution, work func(context.Context) error) error {
	l := &lease{
		client: client, name: LeaderLease, identity: identity, duration: LeaderDuration,
		interval: renewInterval, deadline: renewDeadline, clock: clock,
	}
	return l.lead(ctx, renewInterval, work)
}

// Leads asks the cluster whether a process leads. It fails with ErrLost, or without an answer.
func Leads(ctx context.Context, client coordinationclient.LeaseInterface, identity string) error {
	current, err := (&lease{client: client, name: LeaderLease}).read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("asking who leads: %w", err)
	case !isHolder(current, identity):
		return ErrLost
	}
	return nil
}
