// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leadership makes one of several replicas the one that serves, by a Lease
// that it holds for a term. What it promises:
//
//  1. Of all replicas at most one lets requests in, and at most one writes answers. A
//     replica may do so for Validity after it has sent the last renewal that
//     succeeded. Another one takes over no earlier than LeaseDuration after it has
//     seen that renewal, which is later. The difference, 2 s, is the margin for what
//     lies between the check and the network, and for clocks of different speed.
//  2. A replica that was paused at any line notices before it answers: each request
//     asks when it begins, and each piece of an answer before it is written. Both
//     the monotonic clock and the wall clock are asked, since the former stands still
//     while a machine sleeps. No clock is compared with another machine's.
//  3. A replica that is told to stop lets nobody in any more, waits for those who are
//     in, and only then gives the Lease back. The next one need not wait for it to
//     expire.
//  4. The versions of a term are above those of all terms before. The Lease has an
//     annotation above every version that may have been issued, which each renewal
//     raises; whoever takes over begins there, or at its clock if that is ahead.
//
// What remains: a virtual machine whose clocks both stood still while it was paused
// has nothing to notice by until its next renewal, RenewPeriod later, is refused. Until
// then it answers those whose connections outlived the pause. And whoever deletes the
// Lease, or writes another holder into it, makes another replica serve at once while
// the first one does until its next renewal; after a deletion the versions of the terms
// are told apart by the clocks alone.
package leadership

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// LeaseDuration is how long a Lease is left alone that does not change. A replica
	// that dies is replaced after that and at most 4.4 RetryPeriods, which is 15.2 s.
	LeaseDuration = 13 * time.Second
	// Validity is how long a replica serves without a renewal: an etcd that stands still for 8 s
	// ends no term.
	Validity = 11 * time.Second
	// RenewPeriod is how often the Lease is renewed. Each renewal is a write, also in a cluster
	// in which nothing happens.
	RenewPeriod = 2 * time.Second
	// RetryPeriod is how often the Lease is looked at, and a renewal tried again that failed.
	RetryPeriod = 500 * time.Millisecond

	// drainLimit is how long the end of a term waits for those who are let in.
	drainLimit = 2 * time.Second
)

// Config is what a Leader needs.
type Config struct {
	Leases coordinationclient.LeaseInterface
	// Name is the name of the Lease.
	Name string
	// Identity is this process's. A restarted one must have another.
	Identity string
	Clock    clock.PassiveClock
	// Issued returns the highest version that this replica has issued.
	Issued func() uint64
	// Begin is called at the beginning of a term, before anybody is let in: from then on
	// the replica issues no version below the given one.
	Begin func(version uint64)
	// Lead is called in a term, and ends with its context. Nil does nothing.
	Lead func(ctx context.Context, term *Term)
}

// Leader takes part in the election of one replica.
type Leader struct {
	config  Config
	current atomic.Pointer[Term]
}

// New returns a Leader that does not take part yet.
func New(config Config) *Leader { return &Leader{config: config} }

// Enter lets a request in, if this replica serves. Whoever was let in must leave.
func (l *Leader) Enter() (*Term, bool) {
	t := l.current.Load()
	if t == nil || !t.enter() {
		return nil, false
	}
	return t, true
}

// Run takes part until ctx ends, and returns when the Lease is given back. It must be
// called once the replica could serve.
func (l *Leader) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := l.campaign(ctx); err != nil {
			return err
		}
	}
	return nil
}

// campaign waits for a term, and returns at its end.
func (l *Leader) campaign(ctx context.Context) error {
	term := &Term{clock: l.config.Clock, closing: make(chan struct{}), idle: make(chan struct{}), ended: make(chan struct{})}
	// The Lease is held, and renewed, until those who were let in have left.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lock := &lock{config: l.config, term: term, stop: stop}
	began := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   LeaseDuration,
		RenewDeadline:   Validity,
		RetryPeriod:     RetryPeriod,
		ReleaseOnCancel: true,
		Name:            l.config.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				defer close(began)
				l.config.Begin(lock.first)
				if !term.open() {
					return
				}
				l.current.Store(term)
				klog.FromContext(ctx).Info("This replica serves from now on", "identity", l.config.Identity, "versionsFrom", lock.first)
				if l.config.Lead != nil {
					l.config.Lead(leading, term)
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		term.drain(drainLimit)
		stop()
	})()
	elector.Run(electing)
	term.end()
	if lock.acquired {
		<-began
		klog.FromContext(ctx).Info("This replica does not serve any more", "identity", l.config.Identity)
	}
	return nil
}

// Term is the time for which a replica serves.
type Term struct {
	clock clock.PassiveClock
	// renewed is when the last renewal was sent that succeeded.
	renewed atomic.Pointer[time.Time]

	mu      sync.Mutex
	isOpen  bool
	inside  int           // those who were let in and have not left
	closing chan struct{} // closed when nobody is let in any more
	idle    chan struct{} // closed when all have left after that
	ended   chan struct{} // closed when nothing may be answered any more
}

// Holds reports whether this replica may write an answer now.
func (t *Term) Holds() bool {
	select {
	case <-t.ended:
		return false
	default:
	}
	sent := t.renewed.Load()
	if sent == nil {
		return false
	}
	now := t.clock.Now()
	return now.Sub(*sent) < Validity && now.Round(0).Sub(sent.Round(0)) < Validity
}

// isFresh reports whether the Lease needs no renewal yet.
func (t *Term) isFresh() bool {
	sent := t.renewed.Load()
	if sent == nil {
		return false
	}
	now := t.clock.Now()
	wall := now.Round(0).Sub(sent.Round(0))
	return now.Sub(*sent) < RenewPeriod && wall >= 0 && wall < RenewPeriod
}

// Closing is closed when the term is about to end: whoever may stay for long should leave.
func (t *Term) Closing() <-chan struct{} { return t.closing }

// Leave takes back one Enter.
func (t *Term) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside--
	t.checkIdleLocked()
}

func (t *Term) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isOpen || !t.Holds() {
		return false
	}
	t.inside++
	return true
}

// open lets requests in, unless the term is over already.
func (t *Term) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(t.closing) {
		return false
	}
	t.isOpen = true
	return true
}

// drain lets nobody in any more, and waits for those who are in.
func (t *Term) drain(limit time.Duration) {
	t.close()
	select {
	case <-t.idle:
	case <-t.ended:
	case <-time.After(limit):
	}
}

func (t *Term) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !isClosed(t.closing) {
		t.isOpen = false
		close(t.closing)
		t.checkIdleLocked()
	}
}

// end lets nothing be answered any more.
func (t *Term) end() {
	t.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !isClosed(t.ended) {
		close(t.ended)
	}
}

func (t *Term) checkIdleLocked() {
	if t.inside == 0 && isClosed(t.closing) && !isClosed(t.idle) {
		close(t.idle)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
