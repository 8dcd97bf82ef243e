// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/liveness"
)

// work is what process does, until it is told to end.
func work(t *testing.T, leases coordinationclient.LeaseInterface, identity string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{began: make(chan struct{}), end: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- liveness.Exclusively(ctx, leases, "some-work", identity, clock.RealClock{}, func(ctx context.Context) error {
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
		for range 10 {
			second := work(t, leases, "second")
			time.Sleep(3 * time.Minute)
			if !first.leads() || second.leads() {
				t.Fatal("it is not the first one that works, and it alone")
			}
			if err := <-second.ended; !errors.Is(err, liveness.ErrHeld) {
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
		if err := <-first.ended; !errors.Is(err, liveness.ErrLost) {
			t.Errorf("the first one ended with %v", err)
		}
		cluster.Fault(func(clienttesting.Action) enginetest.Fault { return enginetest.Fault{} })
		time.Sleep(time.Minute)
		second.expectStopped(t, false)
		second.end()
		<-second.ended
	})
}
