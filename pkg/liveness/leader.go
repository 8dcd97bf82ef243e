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
	LeaderLease = "holdfast-controller"
	// LeaseDuration is how long an unchanged Lease is respected.
	LeaseDuration = 15 * time.Second
	renewInterval = 2 * time.Second
	// renewDeadline is how long the leader works without a renewal.
	renewDeadline = 10 * time.Second
)

// Lead waits until no other controller leads, and holds the Lease during work. It returns after the
// work, or when ctx ends before. The work's context ends with ctx, or when the Lease is lost: then
// the error is ErrLost.
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

// campaign takes a free Lease: without holder, or unchanged for LeaseDuration.
func (l *lease) campaign(ctx context.Context, seen *sighting, now time.Time) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := l.read(ctx)
	if err != nil {
		return false, err
	}
	// This process may hold it already, after a lost answer.
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

// Leads asks the cluster whether a process leads. An error is ErrLost, or that there was no answer.
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
