// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// TermDuration is how long replicas respect an unchanged Lease. A dead replica is replaced within
	// that time and twice RetryPeriod.
	TermDuration = 13 * time.Second
	// Validity is how long a replica serves without a renewal: an etcd that stops for 8 s ends no term.
	// The 2 s until TermDuration cover delays and different clocks.
	Validity = 11 * time.Second
	// RenewPeriod is the time between renewals, each a write even in an idle cluster.
	RenewPeriod = 2 * time.Second
	// RetryPeriod is how often a candidate reads the Lease.
	RetryPeriod = 500 * time.Millisecond

	drainLimit = 2 * time.Second

	// ceilingAnnotation exceeds all versions issued before the next renewal.
	ceilingAnnotation = "holdfast.io/versions-below"
	// headroom exceeds what Validity allows to issue.
	headroom = 1 << 26
)

// ElectionConfig has an Election's settings.
type ElectionConfig struct {
	Leases coordinationclient.LeaseInterface
	Name   string
	// Identity is this process's. A restart needs another.
	Identity string
	Clock    clock.WithDelayedExecution
	Issued   func() uint64
	// Begin is called before a term's requests: no lower version may be issued.
	Begin func(version uint64)
	// Lead, if not nil, is called in a term, with its context.
	Lead func(ctx context.Context, term *Term)
}

// Election makes one of several replicas serve, for a Term.
//
//  1. At most one replica admits requests and writes answers: for Validity after it sent its last renewal.
//  2. A paused replica notices: each request and each piece of an answer checks the clocks.
//  3. A stopping replica admits none, waits for the admitted ones, and gives the Lease back.
//  4. Versions of a term exceed all earlier ones: an annotation of the Lease does, too.
//
// After a manual change of the Lease, two may serve until the next renewal; after a deletion only
// clocks separate the versions.
type Election struct {
	config  ElectionConfig
	current atomic.Pointer[Term]
}

// NewElection returns an Election, before it takes part.
func NewElection(config ElectionConfig) *Election { return &Election{config: config} }

// Enter admits a request, if this replica serves; the caller then calls Leave.
func (e *Election) Enter() (*Term, bool) {
	t := e.current.Load()
	if t == nil || !t.enter() {
		return nil, false
	}
	return t, true
}

// Run takes part in elections until ctx ends, and returns when the Lease is given back. The replica
// must be able to serve.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		term := newTerm(e.config)
		if err := term.lead(ctx, RetryPeriod, func(working context.Context) error {
			e.serve(ctx, working, term)
			return nil
		}); err != nil {
			klog.FromContext(ctx).Info("This replica has lost its term", "identity", e.config.Identity, "err", err)
		}
	}
}

func (e *Election) serve(ctx, working context.Context, term *Term) {
	logger := klog.FromContext(ctx)
	defer term.end()
	e.config.Begin(term.first)
	term.open()
	e.current.Store(term)
	logger.Info("This replica serves from now on", "identity", e.config.Identity, "versionsFrom", term.first)
	defer logger.Info("This replica does not serve any more", "identity", e.config.Identity)
	leading, stop := context.WithCancel(context.WithoutCancel(ctx))
	var lead sync.WaitGroup
	if e.config.Lead != nil {
		lead.Go(func() { e.config.Lead(leading, term) })
	}
	<-working.Done()
	if ctx.Err() != nil {
		term.drain(drainLimit)
	}
	term.end()
	stop()
	lead.Wait()
}

// Term is the time for which a replica serves.
type Term struct {
	*lease
	issued func() uint64
	first  uint64

	mu      sync.Mutex
	isOpen  bool
	inside  int
	closing chan struct{} // closed when no more are admitted
	idle    chan struct{} // closed when all have left after that
	ended   chan struct{} // closed when no answer may be written
}

func newTerm(config ElectionConfig) *Term {
	t := &Term{issued: config.Issued, closing: make(chan struct{}), idle: make(chan struct{}), ended: make(chan struct{})}
	t.lease = &lease{
		client: config.Leases, name: config.Name, identity: config.Identity, clock: config.Clock,
		duration: TermDuration, interval: RenewPeriod, deadline: Validity, annotate: t.annotate, stays: true,
	}
	return t
}

// annotate sets the ceiling of versions. Until the Lease is held it chooses the first.
func (t *Term) annotate(lease *coordinationv1.Lease) {
	issued := t.issued()
	if t.held == nil {
		t.first = max(ceiling(lease), issued, versionAt(t.clock.Now().Unix()))
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, ceilingAnnotation, strconv.FormatUint(max(issued, t.first)+headroom, 10))
}

func ceiling(lease *coordinationv1.Lease) uint64 {
	version, err := strconv.ParseUint(lease.Annotations[ceilingAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// versionAt returns the first version of a log that begins at a time (pkg/registry/logstore).
func versionAt(seconds int64) uint64 { return uint64(max(seconds, 0)) << 20 }

// Holds reports whether this replica may write an answer now.
func (t *Term) Holds() bool { return !isClosed(t.ended) && t.isValid() }

// Closing is closed before the term ends: long requests should leave.
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

func (t *Term) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isOpen = true
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
