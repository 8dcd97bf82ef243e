// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/volumefiles/reader"
)

// sleeper is the clock of a process that may have been paused, and has not noticed: no timer
// has fired.
type sleeper struct {
	*clocktesting.FakeClock
	slept atomic.Bool
}

func (s *sleeper) Now() time.Time {
	if s.slept.Load() {
		return s.FakeClock.Now().Add(time.Hour)
	}
	return s.FakeClock.Now()
}

// sent counts requests. Only which version the cluster has is answered, which client-go asks
// without a context.
type sent struct{ requests int }

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/version" {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"major": "1", "minor": "36"}`)), Request: r}, nil
	}
	s.requests++
	return nil, errors.New("there is no cluster")
}

// What package backup says of its fence rests on this: of all that the controllers would send,
// nothing leaves a process that was paused for so long that another one may work.
func TestAPausedControllerSendsNothing(t *testing.T) {
	options := &controllerOptions{client: clientOptions{namespace: "holdfast"}}
	clock := &sleeper{FakeClock: clocktesting.NewFakeClock(time.Now())}
	leases := kubefake.NewClientset().CoordinationV1().Leases("holdfast")
	err := lease.Lead(t.Context(), leases, "this process", clock, func(ctx context.Context) error {
		work := func() (requests int, err error) {
			network := &sent{}
			err = options.work(ctx, &rest.Config{Host: "https://cluster.invalid", Transport: network}, "this process", nil, &runlog.Logs{}, remote.NewPlanServer(nil), &reader.Server{})
			return network.requests, err
		}
		if requests, err := work(); err == nil || requests == 0 {
			t.Errorf("while it leads, it has sent %d requests: %v", requests, err)
		}
		clock.slept.Store(true)
		if requests, err := work(); !errors.Is(err, lease.ErrLost) || requests != 0 {
			t.Errorf("after its sleep it has sent %d requests: %v", requests, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
