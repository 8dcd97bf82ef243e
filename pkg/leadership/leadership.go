// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leadership makes one of several replicas serve, by a Lease for a term.
//
//  1. At most one replica admits requests and writes answers: for Validity after it sent its last
//     successful renewal. Another takes over LeaseDuration after seeing that renewal; the 2 s
//     between cover delays and clocks of different speed.
//  2. A paused replica notices: each request and each piece of an answer checks the monotonic and
//     the wall clock. Clocks of machines are not compared.
//  3. A stopping replica admits none, waits for the admitted ones, and gives the Lease back.
//  4. Versions of a term exceed all earlier ones: an annotation of the Lease is above all issued
//     versions, and a new term begins there, or at its clock.
//
// A machine whose clocks both stopped notices at its next renewal. A manual change of the Lease
// lets two serve until then; after a deletion only clocks separate the versions.
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
	// LeaseDuration is how long an unchanged Lease is respected. A dead replica is replaced within
	// 15.2 s, after that and up to 4.4 RetryPeriods.
	LeaseDuration = 13 * time.Second
	// Validity is how long a replica serves without a renewal: an etcd that stops for 8 s ends no
	// term.
	Validity = 11 * time.Second
	// RenewPeriod is the time between renewals, each a write even in an idle cluster.
	RenewPeriod = 2 * time.Second
	// RetryPeriod is how often the Lease is read, and a failed renewal repeated.
	RetryPeriod = 500 * time.Millisecond

	// drainLimit bounds the wait for admitted requests at the end of a term.
	drainLimit = 2 * time.Second
)

// Config is what a Leader needs.
type Config struct {
	Leases coordinationclient.LeaseInterface
	Name   string
	// Identity is this process's. A restarted process needs another.
	Identity string
	Clock    clock.PassiveClock
	Issued   func() uint64
	// Begin is called at the start of a term, before any request: the replica must issue no version
	// below the given one.
	Begin func(version uint64)
	// Lead is called in a term, with a context that ends with it. May be nil.
	Lead func(ctx context.Context, term *Term)
}

// Leader takes part in the election of one replica.
type Leader struct {
	config  Config
	current atomic.Pointer[Term]
}

// New returns a Leader that does not take part yet.
func New(config Config) *Leader { return &Leader{config: config} }

// Enter admits a request, if this replica serves; the caller then calls Leave.
func (l *Leader) Enter() (*Term, bool) {
	t := l.current.Load()
	if t == nil || !t.enter() {
		return nil, false
	}
	return t, true
}

// Run takes part in elections until ctx ends, and returns when the Lease is given back. The replica
// must be able to serve.
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
	// The Lease is renewed until all admitted requests have left.
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
	// renewed is when the last successful renewal was sent.
	renewed atomic.Pointer[time.Time]

	mu      sync.Mutex
	isOpen  bool
	inside  int
	closing chan struct{} // closed when no more are admitted
	idle    chan struct{} // closed when all have left after that
	ended   chan struct{} // closed when no answer may be written
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

// Closing is closed before the end of the term: long requests should leave.
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

func (t *Term) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(t.closing) {
		return false
	}
	t.isOpen = true
	return true
}

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
