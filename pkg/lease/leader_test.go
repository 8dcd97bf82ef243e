// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

// process holds a Lease until it is told to end.
type process struct {
	began   chan struct{}
	working context.Context // ends when it has to stop
	end     context.CancelFunc
	ended   chan error
}

// campaign lets a process lead, sooner or later.
func campaign(t *testing.T, leases coordinationclient.LeaseInterface, identity string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{began: make(chan struct{}), end: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- lease.Lead(ctx, leases, identity, clock.RealClock{}, func(ctx context.Context) error {
			p.working = ctx
			close(p.began)
			<-ctx.Done()
			return nil
		})
	}()
	synctest.Wait()
	return p
}

// leads reports whether a process works.
func (p *process) leads() bool {
	synctest.Wait()
	select {
	case <-p.began:
		return p.working.Err() == nil
	default:
		return false
	}
}

func (p *process) expectStopped(t *testing.T, stopped bool) {
	t.Helper()
	if p.leads() == stopped {
		t.Fatalf("stopped: %t, want %t", !stopped, stopped)
	}
}

func setUp() (*enginetest.Cluster, coordinationclient.LeaseInterface) {
	cluster := enginetest.New()
	return cluster, cluster.Kube.CoordinationV1().Leases("holdfast")
}

// leap is a clock that can be put forward while nobody of the process runs, as a pause does.
type leap struct {
	clock.RealClock
	by atomic.Int64
}

func (l *leap) Now() time.Time { return time.Now().Add(time.Duration(l.by.Load())) }

// A process that was paused knows before it does anything else.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		if !lease.Holds(t.Context()) {
			t.Error("without a Lease there is none to lose")
		}
		paused := &leap{}
		began, ended := make(chan context.Context), make(chan error, 1)
		go func() {
			ended <- lease.Lead(t.Context(), leases, "first", paused, func(ctx context.Context) error {
				began <- ctx
				<-ctx.Done()
				return nil
			})
		}()
		working := <-began
		if !lease.Holds(working) {
			t.Error("it has taken its Lease, and does not know")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !lease.Holds(working) || !lease.Holds(context.WithoutCancel(working)) {
			t.Error("it holds its Lease, and does not know")
		}
		paused.by.Add(int64(time.Hour))
		if working.Err() != nil || lease.Holds(working) {
			t.Error("it has slept for an hour, and takes its Lease for held")
		}
		if err := <-ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// What is nearly done may end after the process was told to stop, and nobody else leads before it
// has; but not without the Lease.
func TestLasting(t *testing.T) {
	const longer = 20 * time.Second
	for name, test := range map[string]struct {
		told, loses bool
		lasts       time.Duration
	}{
		"told to stop": {true, false, longer}, "the Lease is lost": {false, true, 0}, "told to stop, and the Lease is lost": {true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, leases := setUp()
				ctx, stop := context.WithCancel(t.Context())
				began, ended := make(chan context.Context), make(chan error, 1)
				go func() {
					ended <- lease.Lead(ctx, leases, "first", clock.RealClock{}, func(ctx context.Context) error {
						lasting, release := lease.Lasting(ctx, longer)
						defer release()
						began <- lasting
						<-lasting.Done()
						return nil
					})
				}()
				lasting := <-began
				second := campaign(t, leases, "second")
				time.Sleep(time.Minute)
				if lasting.Err() != nil || !lease.Holds(lasting) {
					t.Error("it has ended, and nobody has told it to")
				}
				begin := time.Now()
				if test.told {
					stop()
				}
				if test.loses {
					if err := leases.Delete(t.Context(), lease.LeaderLease, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				}
				for lasting.Err() == nil {
					if !test.loses && second.leads() {
						t.Fatal("another one leads before it has ended")
					}
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
				}
				// The loss of a Lease is seen when it is to be renewed.
				if took := time.Since(begin); took < test.lasts || took > test.lasts+3*time.Second {
					t.Errorf("it lasted %s, not %s", took, test.lasts)
				}
				if err := <-ended; errors.Is(err, lease.ErrLost) == test.told {
					t.Errorf("it ended with %v", err)
				}
				stop()
				time.Sleep(time.Minute)
				if !second.leads() {
					t.Error("nobody leads")
				}
				second.end()
				<-second.ended
			})
		})
	}
}

func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		first, second := campaign(t, leases, "first"), campaign(t, leases, "second")
		for range 100 {
			if !first.leads() || second.leads() {
				t.Fatal("it is not the first one that leads, and it alone")
			}
			if first, second := lease.Leads(t.Context(), leases, "first"), lease.Leads(t.Context(), leases, "second"); first != nil || !errors.Is(second, lease.ErrLost) {
				t.Fatalf("asked, the cluster says %v and %v", first, second)
			}
			time.Sleep(3 * time.Second)
		}
		first.end()
		if err := <-first.ended; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // it need not wait until the Lease has expired
		if !second.leads() {
			t.Error("nobody leads")
		}
		if before := lease.Before(second.working); before != (lease.Predecessor{}) {
			t.Errorf("the one before gave its Lease back, and is known as %+v", before)
		}
		third := campaign(t, leases, "third")
		third.end()
		if err := <-third.ended; err != nil {
			t.Errorf("one that never led has ended with %v", err)
		}
	})
}

// The Lease is held until the work has ended.
func TestTheLeaseIsGivenBackAfterTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			_ = lease.Lead(ctx, leases, "first", clock.RealClock{}, func(context.Context) error { <-over; return nil })
		}()
		synctest.Wait()
		second := campaign(t, leases, "second")
		stop()
		time.Sleep(time.Minute)
		if second.leads() {
			t.Error("another one leads while it works")
		}
		close(over)
		time.Sleep(2 * time.Second)
		if !second.leads() {
			t.Error("nobody leads")
		}
	})
}

// Whatever happens to its renewals, a process has stopped before another one leads.
func TestALeaderStopsBeforeAnotherOneLeads(t *testing.T) {
	broken := errors.New("the connection broke")
	for name, fault := range map[string]enginetest.Fault{"refused": {Err: broken}, "answers are lost": {Err: broken, Lost: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, leases := setUp()
				first, second := campaign(t, leases, "first"), campaign(t, leases, "second")
				time.Sleep(5 * time.Second)
				cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.Matches("update", "leases") && first.working.Err() == nil {
						return fault
					}
					return enginetest.Fault{}
				})
				begin := time.Now()
				for first.leads() {
					if second.leads() {
						t.Fatal("two lead")
					}
					time.Sleep(100 * time.Millisecond)
				}
				if stopped := time.Since(begin); stopped > 12*time.Second {
					t.Errorf("it stopped after %s", stopped)
				}
				if err := <-first.ended; !errors.Is(err, lease.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
				time.Sleep(lease.LeaderDuration + 2*time.Second)
				if !second.leads() {
					t.Error("nobody leads")
				}
				if before := lease.Before(second.working); before.Identity != "first" || before.Renewed.Before(begin.Add(-5*time.Second)) || before.Renewed.After(begin.Add(12*time.Second)) {
					t.Errorf("the one before is known as %+v", before)
				}
			})
		})
	}
}

func TestAShortOutageStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		first, second := campaign(t, leases, "first"), campaign(t, leases, "second")
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("update", "leases") {
				return enginetest.Fault{Err: errors.New("the connection broke"), Lost: true}
			}
			return enginetest.Fault{}
		})
		time.Sleep(7 * time.Second)
		cluster.Fault(nil)
		time.Sleep(time.Minute)
		if !first.leads() || second.leads() {
			t.Error("another one leads")
		}
	})
}

// pausing is a client whose updates lie until they are let go.
type pausing struct {
	coordinationclient.LeaseInterface
	hold chan struct{}
}

func (p *pausing) Update(ctx context.Context, held *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	<-p.hold
	return p.LeaseInterface.Update(context.WithoutCancel(ctx), held, options)
}

// A process that wakes up after another one could be elected does not come back.
func TestAPausedLeaderStaysDead(t *testing.T) {
	for name, replaced := range map[string]bool{"replaced": true, "not noticed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, leases := setUp()
				paused := &pausing{LeaseInterface: leases, hold: make(chan struct{})}
				first := campaign(t, paused, "first")
				if replaced {
					second := campaign(t, leases, "second")
					time.Sleep(lease.LeaderDuration - time.Second)
					if second.leads() {
						t.Fatal("it has led too early")
					}
					time.Sleep(3 * time.Second)
					if !second.leads() {
						t.Fatal("it does not lead")
					}
					defer func() {
						if !second.leads() {
							t.Error("it leads no more")
						}
					}()
				} else {
					time.Sleep(time.Hour)
				}
				close(paused.hold)
				time.Sleep(5 * time.Second)
				first.expectStopped(t, true)
				if err := <-first.ended; !errors.Is(err, lease.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

// sleepy is the clock of a virtual machine that has slept: its wall clock went on, and
// its monotonic one did not.
type sleepy struct {
	clock.RealClock
	// origin was taken outside of the bubble, where there is a monotonic clock, and
	// begin within.
	origin, begin time.Time
	slept         atomic.Int64 // seconds
}

func (s *sleepy) Now() time.Time {
	now := s.origin.Add(time.Since(s.begin))
	// There is no other way to move one of the two clocks in a Time.
	wall := (*uint64)(unsafe.Pointer(&now))
	*wall += uint64(s.slept.Load()) << 30
	return now
}

func TestAProcessThatSleptStopsAtOnce(t *testing.T) {
	origin := time.Now()
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		asleep := &sleepy{origin: origin, begin: time.Now()}
		ended := make(chan error, 1)
		var working context.Context
		go func() {
			ended <- lease.Lead(t.Context(), leases, "first", asleep, func(ctx context.Context) error {
				working = ctx
				<-ctx.Done()
				return nil
			})
		}()
		time.Sleep(time.Minute + 100*time.Millisecond) // between two looks at the clock
		synctest.Wait()
		before := asleep.Now()
		asleep.slept.Store(int64(time.Hour / time.Second))
		if now := asleep.Now(); now.Sub(before) != 0 || now.Round(0).Sub(before.Round(0)) != time.Hour {
			t.Fatalf("this is no sleep: %s, %s", now.Sub(before), now.Round(0).Sub(before.Round(0)))
		}
		if working.Err() != nil {
			t.Fatal("it stopped before")
		}
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if working.Err() == nil {
			t.Fatal("it works on")
		}
		if err := <-ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The renewal and the take-over meet: one of them fails.
func TestALeaseThatIsRenewedAtTheLastMomentStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		other := "other"
		if _, err := leases.Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: lease.LeaderLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &other},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var tries atomic.Int32
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if !action.Matches("update", "leases") {
				return enginetest.Fault{}
			}
			if tries.Add(1) > 1 {
				return enginetest.Fault{}
			}
			obj, err := cluster.Kube.Tracker().Get(action.GetResource(), "holdfast", lease.LeaderLease)
			if err != nil {
				t.Error(err)
				return enginetest.Fault{}
			}
			renewed := obj.(*coordinationv1.Lease)
			renewed.ResourceVersion = "1000"
			if err := cluster.Kube.Tracker().Update(action.GetResource(), renewed, "holdfast"); err != nil {
				t.Error(err)
			}
			return enginetest.Fault{}
		})
		p := campaign(t, leases, "first")
		time.Sleep(lease.LeaderDuration + 3*time.Second)
		if p.leads() || tries.Load() != 1 {
			t.Errorf("it leads after %d tries", tries.Load())
		}
		time.Sleep(lease.LeaderDuration + 3*time.Second)
		if !p.leads() {
			t.Error("it does not lead when that has expired, too")
		}
	})
}

// One whose Lease was deleted does not make it anew.
func TestALeaderWhoseLeaseIsDeletedStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		p := campaign(t, leases, "first")
		if err := leases.Delete(t.Context(), lease.LeaderLease, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		p.expectStopped(t, true)
		if err := <-p.ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestAnErrorIsNoElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		cluster.Fault(func(clienttesting.Action) enginetest.Fault { return enginetest.Fault{Err: errors.New("forbidden")} })
		if err := lease.Leads(t.Context(), leases, "first"); err == nil || errors.Is(err, lease.ErrLost) {
			t.Errorf("it leads: %v", err)
		}
		p := campaign(t, leases, "first")
		time.Sleep(time.Minute)
		if p.leads() {
			t.Error("it works without a Lease")
		}
		cluster.Fault(nil)
		time.Sleep(2 * time.Second)
		if !p.leads() {
			t.Error("it has given up")
		}
	})
}

// meddling is a client with whose requests something happens.
type meddling struct {
	coordinationclient.LeaseInterface
	// remove, if not nil, is called before each Delete, which fails as it does.
	remove func() error
	// hangs is set while no update is answered.
	hangs atomic.Bool
}

func (m *meddling) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	if m.remove != nil {
		if err := m.remove(); err != nil {
			return err
		}
	}
	return m.LeaseInterface.Delete(ctx, name, options)
}

func (m *meddling) Update(ctx context.Context, held *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if m.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return m.LeaseInterface.Update(ctx, held, options)
}

// takeOver makes a Lease another process's.
func takeOver(t *testing.T, leases coordinationclient.LeaseInterface, name string) {
	t.Helper()
	held, err := leases.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	another := "another"
	held.Spec.HolderIdentity = &another
	if _, err := leases.Update(t.Context(), held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// What is given back is one's own: a Lease that another one has taken stays, also if it takes
// it at that moment.
func TestNobodyGivesBackWhatIsAnothers(t *testing.T) {
	for name, atThatMoment := range map[string]bool{"before": false, "at that moment": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, leases := setUp()
				client := &meddling{LeaseInterface: leases}
				p := campaign(t, client, "first")
				if atThatMoment {
					client.remove = func() error { takeOver(t, leases, lease.LeaderLease); return nil }
				} else {
					takeOver(t, leases, lease.LeaderLease)
				}
				p.end()
				if err := <-p.ended; err != nil {
					t.Error(err)
				}
				held, err := leases.Get(t.Context(), lease.LeaderLease, metav1.GetOptions{})
				if err != nil || *held.Spec.HolderIdentity != "another" {
					t.Errorf("the other's Lease is %v, %v", held, err)
				}
			})
		})
	}
}

// A renewal that is not answered does not hold its process up: it stops when it would without.
func TestARenewalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		client := &meddling{LeaseInterface: leases}
		p := campaign(t, client, "first")
		time.Sleep(time.Minute)
		synctest.Wait()
		client.hangs.Store(true)
		held, err := leases.Get(t.Context(), lease.LeaderLease, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for p.leads() {
			if age := time.Since(held.Spec.RenewTime.Time); age > 11*time.Second {
				t.Fatalf("it works %s after its last renewal", age)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := <-p.ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The Lease says who holds it, since when and until when, and each renewal changes it: an API
// server gives no new version to what stays the same.
func TestWhatALeaseSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		begin := time.Now()
		p := campaign(t, leases, "first")
		get := func() coordinationv1.LeaseSpec {
			t.Helper()
			held, err := leases.Get(t.Context(), lease.LeaderLease, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return held.Spec
		}
		for range 3 {
			spec := get()
			if *spec.HolderIdentity != "first" || *spec.LeaseDurationSeconds != int32(lease.LeaderDuration/time.Second) || !spec.AcquireTime.Time.Equal(begin) || time.Since(spec.RenewTime.Time) > 3*time.Second {
				t.Errorf("it says %+v", spec)
			}
			time.Sleep(time.Minute)
		}
		p.end()
		<-p.ended
	})
}

// Of a Lease whose making was not answered its process knows when it looks again.
func TestALeaseWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("create", "leases") {
				return enginetest.Fault{Err: errors.New("the connection broke"), Lost: true}
			}
			return enginetest.Fault{}
		})
		p := campaign(t, leases, "first")
		p.expectStopped(t, true)
		time.Sleep(3 * time.Second)
		p.expectStopped(t, false)
		// Neither does it take a moment for the end when it can't see who has written into its Lease.
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			switch {
			case action.Matches("update", "leases"):
				return enginetest.Fault{Err: apierrors.NewConflict(coordinationv1.Resource("leases"), lease.LeaderLease, errors.New("annotated"))}
			case action.Matches("get", "leases"):
				return enginetest.Fault{Err: errors.New("the connection broke")}
			}
			return enginetest.Fault{}
		})
		time.Sleep(5 * time.Second)
		cluster.Fault(nil)
		time.Sleep(time.Minute)
		p.expectStopped(t, false)
	})
}

// sent counts requests.
type sent struct{ atomic.Int32 }

func (s *sent) RoundTrip(*http.Request) (*http.Response, error) {
	s.Add(1)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// After a pause nothing is sent any more, though the work has not been told yet.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		paused := &leap{}
		began, ended := make(chan context.Context), make(chan error, 1)
		go func() {
			ended <- lease.Lead(t.Context(), leases, "first", paused, func(ctx context.Context) error {
				began <- ctx
				<-ctx.Done()
				return nil
			})
		}()
		working := <-began
		requests := &sent{}
		fenced := lease.Fence(requests)
		ask := func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://cluster/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := fenced.RoundTrip(request)
			if err == nil {
				_ = response.Body.Close()
			}
			return err
		}
		if err := ask(working); err != nil || requests.Load() != 1 {
			t.Errorf("%d requests, %v", requests.Load(), err)
		}
		paused.by.Add(int64(time.Hour))
		if err := ask(working); !errors.Is(err, lease.ErrLost) || requests.Load() != 1 {
			t.Errorf("after a pause: %d requests, %v", requests.Load(), err)
		}
		if err := ask(t.Context()); err != nil || requests.Load() != 2 {
			t.Errorf("without a Lease: %d requests, %v", requests.Load(), err)
		}
		<-ended
	})
}
