// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness

import (
	"context"
	"fmt"
	"time"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// LeaderLease is the name of the Lease of the controller that works.
	LeaderLease = "holdfast-controller"
	// LeaseDuration is how long it is left alone when it does not change.
	LeaseDuration = 15 * time.Second
	// renewInterval is how often the leader renews it, and the others look at it.
	renewInterval = 2 * time.Second
	// renewDeadline is how long the leader works on without a renewal.
	renewDeadline = 10 * time.Second
)

// Lead waits until no other controller leads, and holds the Lease while it works. It
// returns when the work has ended, or when ctx ends before. The work's context ends
// with ctx, and when the Lease is lost: the error is then ErrLost, unless ctx has ended
// too.
func Lead(ctx context.Context, client coordinationclient.LeaseInterface, identity string, clock clock.WithDelayedExecution, work func(context.Context) error) error {
	l := &lease{
		client: client, name: LeaderLease, identity: identity, duration: LeaseDuration,
		interval: renewInterval, deadline: renewDeadline, clock: clock,
	}
	var seen sighting
	for {
		now := clock.Now()
		taken, err := l.campaign(ctx, &seen, now)
		switch {
		case ctx.Err() != nil:
			return nil
		case taken:
			return l.hold(ctx, now, work)
		case err != nil:
			klog.FromContext(ctx).Info("Taking the Lease failed; it will be tried again", "lease", l.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-clock.After(renewInterval):
		}
	}
}

// campaign takes the Lease if it is free: if nobody has it, or it has not changed for
// LeaseDuration since it was seen.
func (l *lease) campaign(ctx context.Context, seen *sighting, now time.Time) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := l.read(ctx)
	if err != nil {
		return false, err
	}
	// An answer may have been lost, so that this process has it.
	if current != nil && current.Spec.HolderIdentity != nil && !isHolder(current, "") && !isHolder(current, l.identity) {
		if !seen.is(current) {
			*seen = sighting{uid: current.UID, version: current.ResourceVersion, at: now}
		}
		if now.Sub(seen.at) < LeaseDuration {
			return false, nil
		}
		l.before = Predecessor{Identity: *current.Spec.HolderIdentity}
		if renewed := current.Spec.RenewTime; renewed != nil {
			l.before.Renewed = renewed.Time
		}
	}
	err = l.take(ctx, current, now)
	return err == nil, err
}

// Leads asks the cluster whether a process leads. An answer other than nil is ErrLost, or
// that there was none.
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
