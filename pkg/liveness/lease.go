// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package liveness tells whether a process may still be at work, by a Lease that it
// holds. Of all controllers the one that holds the Lease LeaderLease works. What that
// promises:
//
//  1. A process that has not renewed its Lease for 10 s stops its work for good.
//  2. Another one takes a Lease that it has seen unchanged for 15 s: a
//     compare-and-swap against the renewal. So whoever held it before has stopped, or
//     will the moment it looks at its clock.
//  3. A process that ends in the regular way gives the Lease back after its work has
//     ended, also what goes on for a while after it was told to end (Lasting). The next one
//     need not wait for it to expire.
//  4. A process leads once in its life. One that has lost its Lease never renews it,
//     nor makes it anew.
//
// No two clocks are compared, only durations are. A process measures its own by the
// wall clock, too, because the monotonic one stands still while a virtual machine
// sleeps; a wall clock that is put forward by more than 10 s stops it for nothing. It
// looks every 250 ms, which is how long it may work on after a sleep; what must not even be
// begun in that time asks Holds before. A process that is
// paused at any line can't tell whether another one leads, until it asks (Leads); see
// pkg/controllers/backupqueue for why its late writes do no harm. Who deletes the Lease
// by hand lets another one lead at once, while this one works for up to 2 s more.
//
// A node agent holds the Lease of its node, in the same way but for two things: an agent
// takes over that of the one before it, which then stops; and the times are longer, since
// a thousand agents renew theirs. An agent that has not renewed it for 90 s stops its
// work, and the controllers take it for absent later than that.
package liveness

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
)

const (
	// tryTimeout is how long one request about a Lease may take.
	tryTimeout = 10 * time.Second
	// lookInterval is how often a process looks whether it has slept.
	lookInterval = 250 * time.Millisecond
	// statusInterval is the shortest time between two writes of a status.
	statusInterval = 10 * time.Second
)

// ErrLost says that another process may be at work by now.
var ErrLost = errors.New("lost the Lease of this process; start again")

// lease is a Lease and the process that holds it.
type lease struct {
	client         coordinationclient.LeaseInterface
	name, identity string
	labels         map[string]string
	// duration is what the Lease says: how long others leave it alone that does not
	// change.
	duration time.Duration
	// interval is that between two renewals, and deadline how long the process works on
	// without one.
	interval, deadline time.Duration
	// remade is set if a Lease that somebody has deleted is made again.
	remade bool
	// status is what the Lease is to say of its process; nil if nothing.
	status func() string
	clock  clock.WithDelayedExecution

	held *coordinationv1.Lease // as it was written last
	// before is who held it before.
	before Predecessor
	// lost ends when the Lease is lost.
	lost context.Context
	// renewed is when the last renewal was sent that was answered.
	renewed atomic.Pointer[time.Time]
}

// sighting is when a version of a Lease was first seen.
type sighting struct {
	uid     types.UID
	version string
	at      time.Time
}

func (s sighting) is(lease *coordinationv1.Lease) bool {
	return s.uid == lease.UID && s.version == lease.ResourceVersion
}

// take takes the Lease in the version that was read, or makes it if there was none.
func (l *lease) take(ctx context.Context, current *coordinationv1.Lease, now time.Time) error {
	changed := current.DeepCopy()
	if changed == nil {
		changed = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name}}
	}
	for key, value := range l.labels {
		metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
	}
	l.annotate(changed)
	at, seconds := metav1.NewMicroTime(now), int32(l.duration/time.Second)
	changed.Spec = coordinationv1.LeaseSpec{HolderIdentity: &l.identity, LeaseDurationSeconds: &seconds, AcquireTime: &at, RenewTime: &at}
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

// annotate sets the status on a Lease that is to be written.
func (l *lease) annotate(lease *coordinationv1.Lease) {
	if l.status != nil {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, StatusAnnotation, l.status())
	}
}

// hasNews reports whether the status is another one than was written last.
func (l *lease) hasNews() bool {
	return l.status != nil && l.status() != l.held.Annotations[StatusAnnotation]
}

// read is the Lease as it is, or nil if there is none.
func (l *lease) read(ctx context.Context) (*coordinationv1.Lease, error) {
	current, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

// isHolder reports whether a Lease is held by a process.
func isHolder(lease *coordinationv1.Lease, identity string) bool {
	return lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == identity
}

// hold holds a Lease, taken at some time, while its process works, and returns when the
// work has ended. The work's context ends with ctx, and when the Lease is lost: the error
// is then ErrLost, unless ctx has ended too.
func (l *lease) hold(ctx context.Context, taken time.Time, work func(context.Context) error) error {
	l.renewed.Store(&taken)
	lost, lose := context.WithCancelCause(context.Background())
	defer lose(nil)
	l.lost = lost
	working, stop := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, l))
	defer stop(nil)
	// Renewing goes on until the work has stopped, whatever it was told.
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

// keep renews the Lease until ctx ends. An error means that it is lost.
func (l *lease) keep(ctx context.Context, renewed time.Time) error {
	tried := renewed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.clock.After(lookInterval):
		}
		// What counts is when the renewal was sent, since it may lie for a while.
		sent := l.clock.Now()
		age := elapsed(renewed, sent)
		if age >= l.deadline {
			return fmt.Errorf("%w: it was not renewed for %s", ErrLost, age.Round(time.Second))
		}
		if since := elapsed(tried, sent); since < l.interval && (since < statusInterval || !l.hasNews()) {
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

// leaseKey is where the context of a work has the Lease that is held for it.
type leaseKey struct{}

// Holds reports whether the Lease is still held, by the clock of this process, for which the
// work goes on that a context is of. A process that was paused, and has just been woken, may
// ask before it has noticed. Without a Lease it is true.
func Holds(ctx context.Context) bool {
	l, ok := ctx.Value(leaseKey{}).(*lease)
	return !ok || elapsed(*l.renewed.Load(), l.clock.Now()) < l.deadline
}

// Predecessor is the process that has led before this one.
type Predecessor struct {
	// Identity is empty if none did, or it gave the Lease back.
	Identity string
	// Renewed is when it renewed the Lease last, by its own clock.
	Renewed time.Time
}

// Before is who led before the process for whose work a context is.
func Before(ctx context.Context) Predecessor {
	if l, ok := ctx.Value(leaseKey{}).(*lease); ok {
		return l.before
	}
	return Predecessor{}
}

// Lasting is a context for what is nearly done when ctx ends: it ends so much later, but at once
// when the Lease is lost that is held for the work. That is not given back before the work has
// ended, so nobody else has begun it meanwhile. The caller ends it when all is done.
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

// elapsed is the time between two looks at the clock of this process: the longer one
// of what its monotonic and its wall clock say.
func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// renew renews the Lease, if it is held still.
func (l *lease) renew(ctx context.Context, now time.Time) error {
	at := metav1.NewMicroTime(now)
	renewed := l.held.DeepCopy()
	renewed.Spec.RenewTime = &at
	l.annotate(renewed)
	renewed, err := l.client.Update(ctx, renewed, metav1.UpdateOptions{})
	if err == nil {
		l.held = renewed
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	// An answer was lost, somebody annotated or deleted it, or another one has taken it.
	current, err := l.read(ctx)
	switch {
	case err != nil:
		return err
	case current == nil && !l.remade, current != nil && !isHolder(current, l.identity):
		return fmt.Errorf("%w: another process has taken or deleted it", ErrLost)
	}
	return l.take(ctx, current, now)
}

// giveBack removes the Lease, unless another one has it.
func (l *lease) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := l.read(ctx)
	if err != nil || !isHolder(current, l.identity) {
		return err
	}
	err = l.client.Delete(ctx, l.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return err
}
