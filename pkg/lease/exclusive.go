// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
)

const (
	exclusiveDuration = 60 * time.Second
	// exclusiveInterval is long: short work needs no renewal.
	exclusiveInterval = 20 * time.Second
	exclusiveDeadline = 45 * time.Second
	exclusiveLook     = 5 * time.Second
)

// ErrHeld means that another process works.
var ErrHeld = errors.New("another process is at it")

// Exclusively works while it holds a Lease, and returns after the work. A live holder causes ErrHeld; a
// dead one's Lease is taken after a minute without change. The work's context ends as in Lead.
func Exclusively(ctx context.Context, client coordinationclient.LeaseInterface, name, identity string, clock clock.WithDelayedExecution, work func(context.Context) error) error {
	l := &lease{
		client: client, name: name, identity: identity, duration: exclusiveDuration,
		interval: exclusiveInterval, deadline: exclusiveDeadline, clock: clock,
	}
	var seen sighting
	for {
		now := clock.Now()
		current, err := l.read(ctx)
		if err != nil {
			return fmt.Errorf("reading the Lease %s: %w", name, err)
		}
		if current == nil || current.Spec.HolderIdentity == nil || isHolder(current, "") || isHolder(current, identity) || seen.is(current) && now.Sub(seen.at) >= exclusiveDuration {
			err = l.take(ctx, current, now)
			switch {
			case err == nil:
				return l.hold(ctx, now, work)
			case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
				return fmt.Errorf("taking the Lease %s: %w", name, err)
			}
			continue
		}
		switch {
		case seen.uid == "":
			seen = sighting{uid: current.UID, version: current.ResourceVersion, at: now}
		case !seen.is(current):
			return fmt.Errorf("%w: the Lease %s is held by %s", ErrHeld, name, *current.Spec.HolderIdentity)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-clock.After(exclusiveLook):
		}
	}
}
