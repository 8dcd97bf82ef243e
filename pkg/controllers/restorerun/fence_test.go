// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

// leap is a clock that is put forward as if the process had been paused.
type leap struct {
	clock.RealClock
	by atomic.Int64
}

func (l *leap) Now() time.Time { return time.Now().Add(time.Duration(l.by.Load())) }

// counted counts what is sent.
type counted int

func (c *counted) RoundTrip(*http.Request) (*http.Response, error) {
	*c++
	return &http.Response{StatusCode: http.StatusOK}, nil
}

// TestFenced: what a restore writes goes out while this process holds its Lease, and not when it
// was paused for longer than that is good for, though it has not noticed yet.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, paused := counted(0), &leap{}
		send := func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://cluster.example.com/api/v1/namespaces", nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = lease.Fence(&sent).RoundTrip(r)
			return err
		}
		leases := enginetest.New().Kube.CoordinationV1().Leases(system)
		err := lease.Lead(t.Context(), leases, identity, paused, func(ctx context.Context) error {
			if err := send(ctx); err != nil {
				t.Error(err)
			}
			paused.by.Add(int64(time.Minute))
			// A command is not run, for which there is no client either.
			if _, err := (&runHooks{}).Exec(ctx, enginev1alpha1.PodReference{}, "db", nil); !errors.Is(err, lease.ErrLost) {
				t.Errorf("a command of a hook: %v", err)
			}
			if err := send(ctx); ctx.Err() != nil || !errors.Is(err, lease.ErrLost) {
				t.Errorf("%v, %v", err, ctx.Err())
			}
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, lease.ErrLost) || sent != 1 {
			t.Errorf("%v, and %d requests were sent", err, sent)
		}
	})
}

// TestLostIsNoEnd: a run whose execution ends since the Lease may be lost has not ended, nor is
// anything stopped that another process may have begun.
func TestLostIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paused := &leap{}
		w := &work{execute: func(context.Context) error {
			paused.by.Add(int64(time.Minute))
			return lease.ErrLost
		}}
		h := newHarness(t, w)
		controller := h.controller()
		leases := enginetest.New().Kube.CoordinationV1().Leases(system)
		err := lease.Lead(t.Context(), leases, identity, paused, func(ctx context.Context) error {
			controller.Start("undo")
			controller.Run(ctx)
			return nil
		})
		if !errors.Is(err, lease.ErrLost) || w.executed != 1 || w.stops != 0 || len(w.stored) != 0 {
			t.Errorf("%v, executed %d times, stopped %d times, stored %v", err, w.executed, w.stops, w.stored)
		}
		if phase := h.run().Status.Phase; phase != v1alpha1.RestorePhaseInProgress {
			t.Errorf("it is %s", phase)
		}
	})
}
