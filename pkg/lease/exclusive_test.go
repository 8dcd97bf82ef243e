// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

// work is what process does, until it is told to end.
func work(t *testing.T, leases coordinationclient.LeaseInterface, identity string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{began: make(chan struct{}), end: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- lease.Exclusively(ctx, leases, "some-work", identity, clock.RealClock{}, func(ctx context.Context) error {
			p.working = ctx
			close(p.began)
			<-ctx.Done()
			return nil
		})
	}()
	synctest.Wait()
	return p
}

func TestOneIsAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		first := work(t, leases, "first")
		if held, err := leases.Get(t.Context(), "some-work", metav1.GetOptions{}); err != nil || *held.Spec.LeaseDurationSeconds != 60 {
			t.Errorf("the Lease is %v, %v", held, err)
		}
		for range 10 {
			second := work(t, leases, "second")
			time.Sleep(3 * time.Minute)
			if !first.leads() || second.leads() {
				t.Fatal("it is not the first one that works, and it alone")
			}
			if err := <-second.ended; !errors.Is(err, lease.ErrHeld) {
				t.Fatalf("the second one ended with %v", err)
			}
		}
		first.end()
		if err := <-first.ended; err != nil {
			t.Error(err)
		}
		if _, err := leases.Get(t.Context(), "some-work", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease is still there: %v", err)
		}
		third := work(t, leases, "third")
		third.expectStopped(t, false)
		third.end()
		<-third.ended
	})
}

// One that has died is replaced once its Lease has not changed for a minute. Until then it
// has stopped, if it was only cut off.
func TestWorkOfADeadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		first := work(t, leases, "first")
		time.Sleep(time.Minute)
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("update", "leases") {
				return enginetest.Fault{Err: errors.New("the connection broke")}
			}
			return enginetest.Fault{}
		})
		second := work(t, leases, "second")
		for first.leads() {
			if second.leads() {
				t.Fatal("two are at work")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := <-first.ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("the first one ended with %v", err)
		}
		cluster.Fault(func(clienttesting.Action) enginetest.Fault { return enginetest.Fault{} })
		time.Sleep(time.Minute)
		second.expectStopped(t, false)
		second.end()
		<-second.ended
	})
}

// Who waits to see whether another one is alive can be told to stop.
func TestOneThatWaitsIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		first, second := work(t, leases, "first"), work(t, leases, "second")
		second.end()
		if err := <-second.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		first.expectStopped(t, false)
		first.end()
		<-first.ended
	})
}

// Work begins with the Lease in hand and not before, and short work costs no renewal.
func TestWorkWhoseLeaseCannotBeTaken(t *testing.T) {
	resource := coordinationv1.Resource("leases")
	denied := errors.New("it is denied")
	for name, c := range map[string]struct {
		verb string
		err  error
		want error
	}{
		"all is well":              {"none", nil, nil},
		"another one was faster":   {"create", apierrors.NewAlreadyExists(resource, "some-work"), nil},
		"its own answer was lost":  {"create", denied, denied},
		"it can't be read":         {"get", denied, denied},
		"it is being written into": {"update", apierrors.NewConflict(resource, "some-work", errors.New("changed")), nil},
		"it goes away":             {"update", apierrors.NewNotFound(resource, "some-work"), nil},
		"it can't be taken":        {"update", denied, denied},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, leases := setUp()
				if c.verb == "update" { // it was let go
					if _, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "some-work"}}, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				failed := false
				cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
					if !action.Matches(c.verb, "leases") || failed {
						return enginetest.Fault{}
					}
					failed = true
					return enginetest.Fault{Err: c.err, Lost: name == "its own answer was lost"}
				})
				worked := 0
				exclusively := func() error {
					return lease.Exclusively(t.Context(), leases, "some-work", "first", clock.RealClock{}, func(context.Context) error {
						worked++
						time.Sleep(10 * time.Second)
						return nil
					})
				}
				err := exclusively()
				if !errors.Is(err, c.want) || (worked == 1) != (c.want == nil) {
					t.Errorf("it worked %d times, %v", worked, err)
				}
				if writes := len(cluster.Writes("leases")); c.verb == "none" && writes != 2 {
					t.Errorf("%d writes", writes)
				}
				if begin := time.Now(); c.want != nil { // and what is its own is free to it
					if err := exclusively(); err != nil || time.Since(begin) > 11*time.Second {
						t.Errorf("the second time it takes %s, %v", time.Since(begin), err)
					}
				}
			})
		})
	}
}
