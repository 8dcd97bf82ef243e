// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
)

// cluster has one Lease, with the conflicts of a real one.
type cluster struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	writes  []write
}

// write is a change of the Lease.
type write struct {
	at      time.Time
	holder  string
	ceiling uint64
}

// replica is one process with its connection to the cluster.
type replica struct {
	*Election
	coordinationclient.LeaseInterface
	cluster *cluster
	stop    func()
	done    chan struct{}

	unreachable atomic.Bool   // the cluster, from this process
	paused      atomic.Bool   // the process, at its next request
	resume      chan struct{} // lets it go on

	mu     sync.Mutex
	begins []uint64
	issued uint64
}

func (r *replica) begin() {
	if r.paused.Load() {
		<-r.resume
	}
}

func (r *replica) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	r.begin()
	return r.cluster.change(r, nil)
}

func (r *replica) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	r.begin()
	return r.cluster.change(r, func(current *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		if current != nil {
			return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
		}
		lease = lease.DeepCopy()
		lease.UID = types.UID(fmt.Sprint(r.cluster.version))
		return lease, nil
	})
}

func (r *replica) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	r.begin()
	return r.cluster.change(r, func(current *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		if current == nil {
			return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), lease.Name)
		}
		if current.ResourceVersion != lease.ResourceVersion || current.UID != lease.UID {
			return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, errors.New("it has changed"))
		}
		return lease.DeepCopy(), nil
	})
}

// change stores what changed returns, or reads if that is nil.
func (c *cluster) change(r *replica, changed func(*coordinationv1.Lease) (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	if r.unreachable.Load() {
		return nil, errors.New("the cluster does not answer")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if changed != nil {
		lease, err := changed(c.lease)
		if err != nil {
			return nil, err
		}
		c.version++
		lease.ResourceVersion = strconv.Itoa(c.version)
		c.lease = lease
		c.writes = append(c.writes, write{at: time.Now(), holder: *lease.Spec.HolderIdentity, ceiling: ceiling(lease)})
	}
	if c.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "l")
	}
	return c.lease.DeepCopy(), nil
}

func (c *cluster) holder() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil || c.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *c.lease.Spec.HolderIdentity
}

// start starts a replica, until the test ends.
func (c *cluster) start(t *testing.T, name string) *replica {
	r := &replica{cluster: c, resume: make(chan struct{}), done: make(chan struct{})}
	r.Election = NewElection(ElectionConfig{
		Leases: r, Name: "l", Identity: name, Clock: clock.RealClock{},
		Issued: func() uint64 { r.mu.Lock(); defer r.mu.Unlock(); return r.issued },
		Begin: func(version uint64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if version < r.issued {
				t.Errorf("%s begins at %d, and has issued %d", name, version, r.issued)
			}
			r.begins, r.issued = append(r.begins, version), version
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		defer close(r.done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		if r.paused.Swap(false) {
			close(r.resume)
		}
		cancel()
		<-r.done
	})
	return r
}

// serves reports whether a replica would answer a request now.
func (r *replica) serves() bool {
	term, ok := r.Enter()
	if ok {
		defer term.Leave()
	}
	return ok && term.Holds()
}

// issue issues versions.
func (r *replica) issue(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.issued += n
}

func (r *replica) began() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begins[len(r.begins)-1]
}

// await polls until a condition holds, and returns how long that took.
func await(t *testing.T, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !condition() {
		if time.Since(begin) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(begin)
}

// two starts two replicas, of which the first serves.
func two(t *testing.T) (*cluster, *replica, *replica) {
	c := &cluster{}
	a := c.start(t, "a")
	await(t, time.Second, "the first one serves", a.serves)
	b := c.start(t, "b")
	time.Sleep(20 * time.Second)
	if !a.serves() || b.serves() {
		t.Fatalf("after a while, a serves: %t, b serves: %t", a.serves(), b.serves())
	}
	return c, a, b
}

func TestOneServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := two(t)
		if want := versionAt(time.Now().Add(-20 * time.Second).Unix()); a.began() != want {
			t.Errorf("the first term begins at %d, want that of the clock, %d", a.began(), want)
		}
	})
}

// TestNothingHappens: a replica writes once in RenewPeriod, however often it looks.
func TestNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, _ := two(t)
		c.mu.Lock()
		before := len(c.writes)
		c.mu.Unlock()
		time.Sleep(time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.writes) - before; n > int(time.Minute/RenewPeriod) || !a.serves() {
			t.Errorf("%d writes in a minute", n)
		}
	})
}

// TestTheStoreOfTheClusterStandsStill: for 8 s, at any moment, no request is answered. The term
// goes on.
func TestTheStoreOfTheClusterStandsStill(t *testing.T) {
	for moment := time.Duration(0); moment < RenewPeriod; moment += RenewPeriod / 20 {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := two(t)
			time.Sleep(moment)
			a.paused.Store(true) // so are its requests
			for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if !a.serves() || b.serves() {
					t.Fatalf("the first one serves: %t, the second one: %t", a.serves(), b.serves())
				}
			}
			a.paused.Store(false)
			close(a.resume)
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if !a.serves() || b.serves() {
					t.Fatalf("after it the first one serves: %t, the second one: %t", a.serves(), b.serves())
				}
			}
		})
	}
}

// TestKilledIsReplaced lets the first replica vanish at any moment of its life.
func TestKilledIsReplaced(t *testing.T) {
	for moment := time.Duration(0); moment < RenewPeriod; moment += RenewPeriod / 20 {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := two(t)
			time.Sleep(moment)
			a.unreachable.Store(true)
			took := await(t, 16*time.Second, "the second one serves", func() bool {
				if a.serves() && b.serves() {
					t.Fatal("both serve")
				}
				return b.serves()
			})
			if took < TermDuration-Validity {
				t.Errorf("the second one serves after %s", took)
			}
			if a.serves() {
				t.Error("the first one still serves")
			}
		})
	}
}

// TestPausedDoesNotServe pauses the first replica at a renewal. When it goes on, it
// must know at once, and its late renewal must not take anything from the second one.
func TestPausedDoesNotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := two(t)
		term, ok := a.Enter()
		if !ok {
			t.Fatal("the first one lets nobody in")
		}
		a.paused.Store(true)
		await(t, 16*time.Second, "the second one serves", b.serves)
		// The clocks have gone on for it, and that is all that it knows of.
		if a.serves() || term.Holds() {
			t.Error("the first one serves after a pause")
		}
		a.paused.Store(false)
		close(a.resume)
		await(t, time.Second, "those who are in are told to leave", func() bool { return isClosed(term.Closing()) })
		term.Leave()
		time.Sleep(20 * time.Second)
		if c.holder() != "b" || !b.serves() || a.serves() {
			t.Errorf("%s holds the Lease; a serves: %t, b serves: %t", c.holder(), a.serves(), b.serves())
		}
	})
}

// TestWallClock: a machine that slept has a monotonic clock that did not go on.
func TestWallClock(t *testing.T) {
	wall := &passive{now: time.Unix(1000, 0)} // without a monotonic reading
	term := newTerm(ElectionConfig{Clock: wall})
	sent := wall.now
	term.renewed.Store(&sent)
	if wall.now = wall.now.Add(Validity - 1); !term.Holds() {
		t.Error("the term is over too early")
	}
	if wall.now = wall.now.Add(1); term.Holds() {
		t.Error("the term goes on")
	}
}

type passive struct {
	clock.WithDelayedExecution
	now time.Time
}

func (p *passive) Now() time.Time { return p.now }

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := two(t)
		term, _ := a.Enter()
		a.stop()
		synctest.Wait()
		if !isClosed(term.Closing()) {
			t.Error("those who are in are not told to leave")
		}
		if _, ok := a.Enter(); ok {
			t.Error("somebody is let in")
		}
		if !term.Holds() || c.holder() != "a" {
			t.Error("those who are in can't finish")
		}
		time.Sleep(time.Second)
		if !term.Holds() || c.holder() != "a" {
			t.Error("those who are in can't finish for a second")
		}
		term.Leave()
		synctest.Wait()
		if term.Holds() || c.holder() == "a" {
			t.Error("the Lease is not given back")
		}
		if took := await(t, 3*RetryPeriod, "the second one serves", b.serves); took > RetryPeriod*22/10 {
			t.Errorf("the second one serves after %s", took)
		}
		<-a.done
		c.mu.Lock()
		defer c.mu.Unlock()
		if got := c.lease.Spec.LeaseTransitions; got == nil || *got != 1 {
			t.Errorf("the Lease counts %v transitions, want 1", got)
		}
	})
}

// TestHandOverDoesNotWaitForEver: of one who does not leave, nothing is sent any more.
func TestHandOverDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := two(t)
		term, _ := a.Enter()
		a.stop()
		await(t, drainLimit+3*RetryPeriod, "the second one serves", func() bool {
			if b.serves() && term.Holds() {
				t.Fatal("both serve")
			}
			return b.serves()
		})
	})
}

// TestTheClusterIsAway: nobody serves, and afterwards somebody does again, without a
// restart.
func TestTheClusterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := two(t)
		a.unreachable.Store(true)
		b.unreachable.Store(true)
		await(t, Validity, "nobody serves", func() bool { return !a.serves() && !b.serves() })
		time.Sleep(time.Minute)
		a.unreachable.Store(false)
		await(t, 16*time.Second, "the first one serves again", a.serves)
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.begins) != 2 || a.begins[1] <= a.begins[0] {
			t.Errorf("its terms began at %v", a.begins)
		}
	})
}

// TestVersionsOfTerms: whatever the clocks say, no term issues what another has issued.
func TestVersionsOfTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := two(t)
		// More than the clock could account for, and at once: 1,000 terms' worth.
		for range 40 {
			a.issue(headroom / 8)
			time.Sleep(2 * RetryPeriod)
		}
		a.issue(headroom - 1)
		last := a.Election.config.Issued()
		a.unreachable.Store(true)
		await(t, 16*time.Second, "the second one serves", b.serves)
		if b.began() <= last {
			t.Errorf("the second one's term begins at %d, and the first one has issued %d", b.began(), last)
		}
		before := uint64(0)
		for _, w := range c.writes {
			if w.ceiling < before {
				t.Errorf("the ceiling fell from %d to %d", before, w.ceiling)
			}
			before = w.ceiling
		}
	})
}

// TestLeaseOfAnotherHand: what administrators may do to a Lease ends in one that serves.
func TestLeaseOfAnotherHand(t *testing.T) {
	for name, meddle := range map[string]func(*cluster){
		"deleted":  func(c *cluster) { c.lease = nil },
		"emptied":  func(c *cluster) { c.lease.Spec = coordinationv1.LeaseSpec{}; c.lease.Annotations = nil },
		"nonsense": func(c *cluster) { c.lease.Annotations[ceilingAnnotation] = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, a, b := two(t)
				c.mu.Lock()
				meddle(c)
				if c.version++; c.lease != nil {
					c.lease.ResourceVersion = strconv.Itoa(c.version)
				}
				c.mu.Unlock()
				time.Sleep(TermDuration)
				if a.serves() == b.serves() {
					t.Errorf("a serves: %t, b serves: %t", a.serves(), b.serves())
				}
			})
		})
	}
}
