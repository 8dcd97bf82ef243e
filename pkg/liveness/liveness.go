// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package liveness tells whether a process may still be at work. Each controller
// process holds a Lease of its own, whose name is the process's identity. What it
// promises:
//
//  1. A process that has not renewed its Lease for 10 s stops its work for good.
//  2. A process counts as gone once its Lease does not exist. Whoever has seen a
//     Lease unchanged for 15 s may delete it, if it is unchanged still: a
//     compare-and-swap against the renewal.
//  3. A process creates its Lease once, before its work. One whose Lease was
//     deleted can't renew it, so that it never comes back to life.
//
// No two clocks are compared, only durations are. A process measures its own by the
// wall clock, too, because the monotonic one stands still while a virtual machine
// sleeps; a wall clock that is put forward by more than 10 s stops it for nothing. It
// looks every 250 ms, which is how long it may work on after a sleep. A process that is
// paused at any line stays harmless to the records, since it can't tell whether it was
// taken for dead; see pkg/controllers/backupqueue for what its late writes may do.
//
// A node agent holds the Lease of its node, in the same way but for two things: the
// Lease is found by the node's name, so that an agent takes over that of the one before
// it, which then stops; and the times are longer, since a thousand agents renew theirs.
// An agent that has not renewed it for 90 s stops its work, and the controllers take it
// for absent later than that.
package liveness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// renewInterval is how often a process renews its Lease.
	renewInterval = 2 * time.Second
	// renewDeadline is how long a process works on without a renewal.
	renewDeadline = 10 * time.Second
	// tryTimeout is how long one renewal may take.
	tryTimeout = 10 * time.Second
	// lookInterval is how often a process looks whether it has slept.
	lookInterval = 250 * time.Millisecond
	// LeaseDuration is how long a Lease is left alone that does not change.
	LeaseDuration = 15 * time.Second
	// WatchInterval is how often the Leases of others are looked at.
	WatchInterval = 5 * time.Second

	// label marks the Leases of processes, by their role.
	label     = "holdfast.io/process"
	role      = "controller"
	agentRole = "node-agent"
)

// ErrLost says that a process may have been taken for dead.
var ErrLost = errors.New("lost the Lease of this process; start again")

// Hold holds the Lease of a process while it works, and returns when the work has
// ended. The work's context ends with ctx, and when the Lease is lost: the error is
// then ErrLost, unless ctx has ended too.
func Hold(ctx context.Context, leases coordinationclient.LeaseInterface, identity string, clock clock.WithDelayedExecution, work func(context.Context) error) error {
	begin := clock.Now()
	lease, err := create(ctx, leases, identity, begin)
	if err != nil {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Renewing goes on until the work has stopped, whatever it was told.
	renewing, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	var holder sync.WaitGroup
	var lost error
	holder.Go(func() {
		once := func(ctx context.Context, now time.Time) error { return renewOnce(ctx, leases, lease, now) }
		if lost = (renewal{renewInterval, renewDeadline, once, clock}).run(renewing, begin); lost != nil {
			stop(lost)
		}
	})
	err = work(working)
	ended()
	holder.Wait()
	if lost != nil {
		if ctx.Err() == nil {
			return errors.Join(lost, err)
		}
		return err
	}
	deleting, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewDeadline)
	defer cancel()
	deleteErr := leases.Delete(deleting, identity, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID}})
	if deleteErr != nil && !apierrors.IsNotFound(deleteErr) {
		klog.FromContext(ctx).Info("Deleting the Lease of this process failed: its successor waits until it has expired", "err", deleteErr)
	}
	return err
}

func create(ctx context.Context, leases coordinationclient.LeaseInterface, identity string, now time.Time) (*coordinationv1.Lease, error) {
	at, seconds := metav1.NewMicroTime(now), int32(LeaseDuration/time.Second)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: identity, Labels: map[string]string{label: role}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &at, RenewTime: &at},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating the Lease %s of this process: %w", identity, err)
	}
	return lease, nil
}

// renewal is how a process renews its Lease.
type renewal struct {
	// interval between two of them, and deadline after which the Lease is lost.
	interval, deadline time.Duration
	// once renews the Lease. An ErrLost is final.
	once  func(ctx context.Context, now time.Time) error
	clock clock.WithDelayedExecution
}

// run renews a Lease until ctx ends. An error means that it is lost.
func (r renewal) run(ctx context.Context, renewed time.Time) error {
	tried := renewed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.clock.After(lookInterval):
		}
		// What counts is when the renewal was sent, since it may lie for a while.
		sent := r.clock.Now()
		age := elapsed(renewed, sent)
		if age >= r.deadline {
			return fmt.Errorf("%w: it was not renewed for %s", ErrLost, age.Round(time.Second))
		}
		if elapsed(tried, sent) < r.interval {
			continue
		}
		tried = sent
		trying, cancel := context.WithCancel(ctx)
		timer := r.clock.AfterFunc(min(r.deadline-age, tryTimeout), cancel)
		err := r.once(trying, sent)
		timer.Stop()
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLost):
			return err
		case err != nil:
			klog.FromContext(ctx).Info("Renewing the Lease of this process failed; it will be tried again", "err", err)
		default:
			renewed = sent
		}
	}
}

// elapsed is the time between two looks at the clock of this process: the longer one
// of what its monotonic and its wall clock say.
func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// renewOnce never renews another Lease of the same name, nor creates one.
func renewOnce(ctx context.Context, leases coordinationclient.LeaseInterface, lease *coordinationv1.Lease, now time.Time) error {
	at := metav1.NewMicroTime(now)
	changed := lease.DeepCopy()
	changed.Spec.RenewTime = &at
	updated, err := leases.Update(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) { // an answer was lost, or somebody annotated it
		var current *coordinationv1.Lease
		current, err = leases.Get(ctx, lease.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w: another process has deleted it", ErrLost)
		}
		if err != nil {
			return err
		}
		if current.UID != lease.UID {
			return fmt.Errorf("%w: another process has replaced it", ErrLost)
		}
		current.Spec.RenewTime = &at
		updated, err = leases.Update(ctx, current, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: another process has deleted it", ErrLost)
	}
	if err != nil {
		return err
	}
	*lease = *updated
	return nil
}

// Monitor watches the Leases of other processes. It is safe for concurrent use.
type Monitor struct {
	leases coordinationclient.LeaseInterface
	self   string
	clock  clock.Clock

	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is when a version of a Lease was first seen.
type sighting struct {
	uid     types.UID
	version string
	at      time.Time
}

// NewMonitor returns a Monitor for the process self.
func NewMonitor(leases coordinationclient.LeaseInterface, self string, clock clock.Clock) *Monitor {
	return &Monitor{leases: leases, self: self, clock: clock, seen: map[string]sighting{}}
}

// Run looks at the Leases now and then until ctx ends, and deletes those of dead
// processes. Whoever runs it before its work has not to wait for them then.
func (m *Monitor) Run(ctx context.Context) {
	for {
		if err := m.look(ctx); err != nil && ctx.Err() == nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Looking at the Leases of other processes failed; it will be tried again")
		}
		select {
		case <-ctx.Done():
			return
		case <-m.clock.After(WatchInterval):
		}
	}
}

func (m *Monitor) look(ctx context.Context) error {
	list, err := m.leases.List(ctx, metav1.ListOptions{LabelSelector: label + "=" + role})
	if err != nil {
		return err
	}
	listed := sets.New[string]()
	var errs []error
	for i := range list.Items {
		listed.Insert(list.Items[i].Name)
		if list.Items[i].Name != m.self {
			_, err := m.end(ctx, &list.Items[i])
			errs = append(errs, err)
		}
	}
	m.mu.Lock()
	maps.DeleteFunc(m.seen, func(name string, _ sighting) bool { return !listed.Has(name) })
	m.mu.Unlock()
	return errors.Join(errs...)
}

// Gone reports whether a process has ended for good, so that it neither works nor
// will. It does as soon as its Lease has not changed for LeaseDuration; ask again.
func (m *Monitor) Gone(ctx context.Context, identity string) (bool, error) {
	switch identity {
	case m.self:
		return false, nil
	case "":
		return true, nil // there never was such a process
	}
	lease, err := m.leases.Get(ctx, identity, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.forget(identity)
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the Lease of the controller %s: %w", identity, err)
	}
	return m.end(ctx, lease)
}

// end deletes a Lease that has expired, and reports whether it is gone.
func (m *Monitor) end(ctx context.Context, lease *coordinationv1.Lease) (bool, error) {
	if !m.expired(lease) {
		return false, nil
	}
	err := m.leases.Delete(ctx, lease.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
	})
	switch {
	case apierrors.IsConflict(err):
		return false, nil // renewed after all
	case err != nil && !apierrors.IsNotFound(err):
		return false, fmt.Errorf("deleting the expired Lease of the controller %s: %w", lease.Name, err)
	}
	m.forget(lease.Name)
	klog.FromContext(ctx).Info("Another controller is gone: its Lease has expired", "controller", lease.Name)
	return true, nil
}

func (m *Monitor) expired(lease *coordinationv1.Lease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	known, ok := m.seen[lease.Name]
	if !ok || known.uid != lease.UID || known.version != lease.ResourceVersion {
		m.seen[lease.Name] = sighting{uid: lease.UID, version: lease.ResourceVersion, at: now}
		return false
	}
	return now.Sub(known.at) >= LeaseDuration
}

func (m *Monitor) forget(identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, identity)
}
