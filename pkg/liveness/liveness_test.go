// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness_test

import (
	"context"
	"errors"
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
	"github.com/holdfast-io/holdfast/pkg/liveness"
)

const self = "holdfast-controller-11111111"

// process holds a Lease until it is told to end.
type process struct {
	working context.Context // ends when it has to stop
	end     context.CancelFunc
	ended   chan error
}

func hold(t *testing.T, leases coordinationclient.LeaseInterface) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{end: cancel, ended: make(chan error, 1)}
	began := make(chan struct{})
	go func() {
		p.ended <- liveness.Hold(ctx, leases, self, clock.RealClock{}, func(ctx context.Context) error {
			p.working = ctx
			close(began)
			<-ctx.Done()
			return nil
		})
	}()
	<-began
	return p
}

func (p *process) expectStopped(t *testing.T, stopped bool) {
	t.Helper()
	synctest.Wait()
	if (p.working.Err() != nil) != stopped {
		t.Fatalf("stopped: %t, want %t", !stopped, stopped)
	}
}

func setUp() (*enginetest.Cluster, coordinationclient.LeaseInterface, *liveness.Monitor) {
	cluster := enginetest.New()
	leases := cluster.Kube.CoordinationV1().Leases("holdfast")
	return cluster, leases, liveness.NewMonitor(leases, "another", clock.RealClock{})
}

func expectGone(t *testing.T, monitor *liveness.Monitor, identity string, want bool) {
	t.Helper()
	if gone, err := monitor.Gone(t.Context(), identity); err != nil || gone != want {
		t.Fatalf("%s is gone: %t, %v; want %t", identity, gone, err, want)
	}
}

func TestAProcessLivesWhileItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases, monitor := setUp()
		expectGone(t, monitor, self, true)
		p := hold(t, leases)
		for range 100 {
			expectGone(t, monitor, self, false)
			time.Sleep(3 * time.Second)
		}
		p.expectStopped(t, false)
		p.end()
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
		expectGone(t, monitor, self, true) // at once
		expectGone(t, monitor, "", true)
		expectGone(t, monitor, "another", false) // whatever its Lease says
	})
}

// Whatever happens to its renewals, a process has stopped before it counts as gone.
func TestAProcessStopsBeforeItIsGone(t *testing.T) {
	broken := errors.New("the connection broke")
	for name, fault := range map[string]enginetest.Fault{"refused": {Err: broken}, "answers are lost": {Err: broken, Lost: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, leases, monitor := setUp()
				p := hold(t, leases)
				time.Sleep(5 * time.Second)
				cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.Matches("update", "leases") {
						return fault
					}
					return enginetest.Fault{}
				})
				begin := time.Now()
				for p.working.Err() == nil {
					expectGone(t, monitor, self, false)
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
				}
				if stopped := time.Since(begin); stopped > 12*time.Second {
					t.Errorf("it stopped after %s", stopped)
				}
				if err := <-p.ended; !errors.Is(err, liveness.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
				for range 10 {
					monitor.Gone(t.Context(), self) //nolint:errcheck // only the last answer counts
					time.Sleep(2 * time.Second)
				}
				expectGone(t, monitor, self, true)
			})
		})
	}
}

func TestAShortOutageStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases, monitor := setUp()
		p := hold(t, leases)
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("update", "leases") {
				return enginetest.Fault{Err: errors.New("the connection broke"), Lost: true}
			}
			return enginetest.Fault{}
		})
		time.Sleep(7 * time.Second)
		cluster.Fault(nil)
		for range 20 {
			time.Sleep(2 * time.Second)
			expectGone(t, monitor, self, false)
		}
		p.expectStopped(t, false)
	})
}

// pausing is a client whose updates lie until they are let go.
type pausing struct {
	coordinationclient.LeaseInterface
	hold chan struct{}
}

func (p *pausing) Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	<-p.hold
	return p.LeaseInterface.Update(context.WithoutCancel(ctx), lease, options)
}

// A process that wakes up after it was taken for dead does not come back.
func TestAPausedProcessStaysDead(t *testing.T) {
	for name, taken := range map[string]bool{"taken for dead": true, "not noticed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, leases, monitor := setUp()
				paused := &pausing{LeaseInterface: leases, hold: make(chan struct{})}
				p := hold(t, paused)
				if taken {
					expectGone(t, monitor, self, false)
					time.Sleep(liveness.LeaseDuration - time.Second)
					expectGone(t, monitor, self, false)
					time.Sleep(time.Second)
					expectGone(t, monitor, self, true)
				} else {
					time.Sleep(time.Hour)
				}
				close(paused.hold)
				time.Sleep(5 * time.Second)
				p.expectStopped(t, true)
				if err := <-p.ended; !errors.Is(err, liveness.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
				_, err := leases.Get(t.Context(), self, metav1.GetOptions{})
				if taken && !apierrors.IsNotFound(err) {
					t.Errorf("its Lease is back: %v", err)
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
		_, leases, _ := setUp()
		asleep := &sleepy{origin: origin, begin: time.Now()}
		ended := make(chan error, 1)
		var working context.Context
		go func() {
			ended <- liveness.Hold(t.Context(), leases, self, asleep, func(ctx context.Context) error {
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
		if err := <-ended; !errors.Is(err, liveness.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The renewal and the deletion meet: one of them fails.
func TestALeaseThatIsRenewedAtTheLastMomentStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases, monitor := setUp()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: self}}
		if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expectGone(t, monitor, self, false)
		time.Sleep(liveness.LeaseDuration)
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("delete", "leases") {
				obj, err := cluster.Kube.Tracker().Get(action.GetResource(), "holdfast", self)
				if err != nil {
					t.Error(err)
					return enginetest.Fault{}
				}
				renewed := obj.(*coordinationv1.Lease)
				renewed.ResourceVersion = "1000"
				if err := cluster.Kube.Tracker().Update(action.GetResource(), renewed, "holdfast"); err != nil {
					t.Error(err)
				}
			}
			return enginetest.Fault{}
		})
		expectGone(t, monitor, self, false)
	})
}

func TestLeasesOfDeadProcessesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases, monitor := setUp()
		paused := &pausing{LeaseInterface: leases, hold: make(chan struct{})}
		hold(t, paused)
		defer close(paused.hold)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go monitor.Run(ctx)
		foreign := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}
		if _, err := leases.Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(liveness.LeaseDuration + liveness.WatchInterval)
		synctest.Wait()
		// Nobody has to wait for it any more.
		expectGone(t, monitor, self, true)
		if _, err := leases.Get(t.Context(), self, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("its Lease is still there: %v", err)
		}
		if _, err := leases.Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil {
			t.Errorf("a Lease of somebody else: %v", err)
		}
	})
}

func TestAnErrorIsNotTheEndOfAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases, monitor := setUp()
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("get", "leases") {
				return enginetest.Fault{Err: errors.New("forbidden")}
			}
			return enginetest.Fault{}
		})
		if gone, err := monitor.Gone(t.Context(), self); err == nil || gone {
			t.Errorf("it is gone: %t, %v", gone, err)
		}
		cluster.Fault(func(clienttesting.Action) enginetest.Fault { return enginetest.Fault{Err: errors.New("forbidden")} })
		err := liveness.Hold(t.Context(), leases, self, clock.RealClock{}, func(context.Context) error {
			t.Error("it works without a Lease")
			return nil
		})
		if err == nil {
			t.Error("there is no error")
		}
	})
}
