// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease tells by Leases whether a process may still work: the controller, a node's agent, a
// repository's maintenance, the serving replica of the API server. See docs/design/fences.md.
//
//  1. A process stops when its deadline has passed without a renewal. Another takes a Lease that it has
//     seen unchanged for longer, by an update of that version.
//  2. A process gives its Lease back after its work, also Lasting work.
//  3. A process never renews or recreates a lost Lease.
//
// Only durations are compared, by the monotonic and the wall clock: the former stops in a sleeping
// machine. A jump of the latter stops a process needlessly. A process checks every 250 ms; Holds
// checks at once, Leads asks the cluster. After a manual deletion, two work until the next renewal.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const (
	tryTimeout = 10 * time.Second
	// lookInterval bounds work after the machine has slept.
	lookInterval   = 250 * time.Millisecond
	statusInterval = 10 * time.Second // the least between writes of a status
)

// ErrLost means that another process may work now.
var ErrLost = errors.New("lost the Lease of this process; start again")

type lease struct {
	client             coordinationclient.LeaseInterface
	name, identity     string
	labels             map[string]string
	duration           time.Duration // for which others respect an unchanged Lease
	interval, deadline time.Duration // between renewals; of work without one
	// remade recreates a deleted Lease.
	remade bool
	// stays keeps the Lease, without holder.
	stays bool
	// annotate changes the Lease before each write; may be nil.
	annotate func(*coordinationv1.Lease)
	// hasNews reports whether annotate would change the held Lease; may be nil.
	hasNews func() bool
	clock   clock.WithDelayedExecution

	held   *coordinationv1.Lease
	before Predecessor
	lost   context.Context
	// renewed is when the last successful renewal was sent.
	renewed atomic.Pointer[time.Time]
}

type sighting struct {
	uid     types.UID
	version string
	at      time.Time
}

func (s sighting) is(lease *coordinationv1.Lease) bool {
	return s.uid == lease.UID && s.version == lease.ResourceVersion
}

func (l *lease) take(ctx context.Context, current *coordinationv1.Lease, now time.Time) error {
	changed := current.DeepCopy()
	if changed == nil {
		changed = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name}}
	}
	for key, value := range l.labels {
		metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
	}
	if l.annotate != nil {
		l.annotate(changed)
	}
	at, seconds := metav1.NewMicroTime(now), int32(l.duration/time.Second)
	// As in client-go, to show changes of the holder.
	transitions := ptr.Deref(changed.Spec.LeaseTransitions, 0)
	if current != nil && !isHolder(current, l.identity) {
		transitions++
	}
	changed.Spec = coordinationv1.LeaseSpec{HolderIdentity: &l.identity, LeaseDurationSeconds: &seconds, AcquireTime: &at, RenewTime: &at, LeaseTransitions: &transitions}
	var err error
	if current == nil {
		changed, err = l.client.Create(ctx, changed, metav1.CreateOptions{})
	} else {
		changed, err = l.client.Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err == nil {
		l.held = changed
	}
	return err
}

func (l *lease) read(ctx context.Context) (*coordinationv1.Lease, error) {
	current, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

func isHolder(lease *coordinationv1.Lease, identity string) bool {
	return lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == identity
}

// hold holds a taken Lease during work, and returns after it. The work's context ends as in Lead.
func (l *lease) hold(ctx context.Context, taken time.Time, work func(context.Context) error) error {
	l.renewed.Store(&taken)
	lost, lose := context.WithCancelCause(context.Background())
	defer lose(nil)
	l.lost = lost
	working, stop := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, l))
	defer stop(nil)
	// Renewals continue until the work has stopped.
	renewing, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	var holder sync.WaitGroup
	var failure error
	holder.Go(func() {
		if failure = l.keep(renewing, taken); failure != nil {
			lose(failure)
			stop(failure)
		}
	})
	err := work(working)
	ended()
	holder.Wait()
	if failure != nil {
		if ctx.Err() == nil {
			return errors.Join(failure, err)
		}
		return err
	}
	if failure := l.giveBack(context.WithoutCancel(ctx)); failure != nil {
		klog.FromContext(ctx).Info("Giving the Lease back failed: others wait until it has expired", "lease", l.name, "err", failure)
	}
	return err
}

func (l *lease) keep(ctx context.Context, renewed time.Time) error {
	tried := renewed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.clock.After(lookInterval):
		}
		// Sending counts, since a request may be delayed.
		sent := l.clock.Now()
		age := elapsed(renewed, sent)
		if age >= l.deadline {
			return fmt.Errorf("%w: it was not renewed for %s", ErrLost, age.Round(time.Second))
		}
		if since := elapsed(tried, sent); since < l.interval && (since < statusInterval || l.hasNews == nil || !l.hasNews()) {
			continue
		}
		tried = sent
		trying, cancel := context.WithCancel(ctx)
		timer := l.clock.AfterFunc(min(l.deadline-age, tryTimeout), cancel)
		err := l.renew(trying, sent)
		timer.Stop()
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLost):
			return err
		case err != nil:
			klog.FromContext(ctx).Info("Renewing the Lease of this process failed; it will be tried again", "lease", l.name, "err", err)
		default:
			renewed = sent
			l.renewed.Store(&sent)
		}
	}
}

type leaseKey struct{}

// Holds reports whether the Lease of a work's context is valid now by this process's clock, also after
// a pause. It is true without a Lease.
func Holds(ctx context.Context) bool {
	l, ok := ctx.Value(leaseKey{}).(*lease)
	return !ok || l.isValid()
}

func (l *lease) isValid() bool {
	renewed := l.renewed.Load()
	return renewed != nil && elapsed(*renewed, l.clock.Now()) < l.deadline
}

// Predecessor is the process that led before.
type Predecessor struct {
	// Identity is empty if there was none, or it gave the Lease back.
	Identity string
	// Renewed is its last renewal, by its clock.
	Renewed time.Time
}

// Before returns the predecessor of the process that works with ctx.
func Before(ctx context.Context) Predecessor {
	if l, ok := ctx.Value(leaseKey{}).(*lease); ok {
		return l.before
	}
	return Predecessor{}
}

// Lasting returns a context that outlasts ctx by longer, but ends with the Lease, which is given back
// later. So no other process has begun. The caller cancels it.
func Lasting(ctx context.Context, longer time.Duration) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := []func() bool{context.AfterFunc(ctx, func() { time.AfterFunc(longer, cancel) })}
	if l, ok := ctx.Value(leaseKey{}).(*lease); ok {
		forget = append(forget, context.AfterFunc(l.lost, cancel))
	}
	return lasting, func() {
		for _, forget := range forget {
			forget()
		}
		cancel()
	}
}

func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

func (l *lease) renew(ctx context.Context, now time.Time) error {
	at := metav1.NewMicroTime(now)
	renewed := l.held.DeepCopy()
	renewed.Spec.RenewTime = &at
	if l.annotate != nil {
		l.annotate(renewed)
	}
	renewed, err := l.client.Update(ctx, renewed, metav1.UpdateOptions{})
	if err == nil {
		l.held = renewed
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	// An answer was lost, or the Lease was changed, deleted or taken.
	current, err := l.read(ctx)
	switch {
	case err != nil:
		return err
	case current == nil && !l.remade, current != nil && !isHolder(current, l.identity):
		return fmt.Errorf("%w: another process has taken or deleted it", ErrLost)
	}
	return l.take(ctx, current, now)
}

func (l *lease) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := l.read(ctx)
	if err != nil || !isHolder(current, l.identity) {
		return err
	}
	if l.stays {
		if l.annotate != nil {
			l.annotate(current)
		}
		current.Spec.HolderIdentity = new("")
		_, err = l.client.Update(ctx, current, metav1.UpdateOptions{})
	} else {
		err = l.client.Delete(ctx, l.name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion},
		})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return err
}

// lead waits for a free Lease, looking once in every poll, and holds it during work.
func (l *lease) lead(ctx context.Context, poll time.Duration, work func(context.Context) error) error {
	var seen sighting
	for {
		now := l.clock.Now()
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
		case <-l.clock.After(poll):
		}
	}
}

func (l *lease) campaign(ctx context.Context, seen *sighting, now time.Time) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := l.read(ctx)
	if err != nil {
		return false, err
	}
	// A lost answer may have made this process the holder.
	if current != nil && current.Spec.HolderIdentity != nil && !isHolder(current, "") && !isHolder(current, l.identity) {
		if !seen.is(current) {
			*seen = sighting{uid: current.UID, version: current.ResourceVersion, at: now}
		}
		if now.Sub(seen.at) < l.duration {
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
