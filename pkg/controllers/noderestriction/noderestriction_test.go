// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/noderestriction"
)

func init() {
	// The handlers behind the first one slow callers down by the time since the last
	// error: in a synctest bubble, where time starts anew, by decades.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}

const exposition = `
# HELP holdfast_node_restriction [ALPHA] Whether kube-apiserver has the admission plugin NodeRestriction, by state: On, Off, or Unknown, since the controller may not act as a node, or the answer does not tell.
# TYPE holdfast_node_restriction gauge
holdfast_node_restriction{state="Off"} 1
`

// gathered compares the metric with a state, or with its absence.
func gathered(t *testing.T, state noderestriction.State) {
	t.Helper()
	want := ""
	if state != "" {
		want = strings.Replace(exposition, `"Off"`, `"`+string(state)+`"`, 1)
	}
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_node_restriction"); err != nil {
		t.Error(err)
	}
}

// TestSaysThatThePluginIsOff: an event and the metric say so. It is asked at the start, and once a
// day; after a failure that may pass, more often. What is known ends with the controller's term.
func TestSaysThatThePluginIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		recorder := events.NewFakeRecorder(10)
		var mu sync.Mutex
		answer, failure, asked := noderestriction.On, error(nil), 0 // guarded by mu
		answers := func(state noderestriction.State, err error) {
			mu.Lock()
			defer mu.Unlock()
			answer, failure = state, err
		}
		c := New(Config{Namespace: "holdfast", Events: recorder, Clock: clock.RealClock{}, Check: func(context.Context) (noderestriction.State, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return answer, failure
		}})
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		after := func(passed time.Duration, wantAsked int, wantState noderestriction.State, wantEvents ...string) {
			t.Helper()
			time.Sleep(passed)
			synctest.Wait()
			mu.Lock()
			asked := asked
			mu.Unlock()
			if asked != wantAsked {
				t.Errorf("asked %d times, want %d", asked, wantAsked)
			}
			gathered(t, wantState)
			for _, want := range wantEvents {
				select {
				case got := <-recorder.Events:
					if !strings.Contains(got, want) {
						t.Errorf("got the event %q, want %q", got, want)
					}
				default:
					t.Errorf("no event %q", want)
				}
			}
			if len(recorder.Events) > 0 {
				t.Errorf("got the event %q too", <-recorder.Events)
			}
		}
		after(time.Second, 1, noderestriction.On)
		answers(noderestriction.Off, nil)
		after(24*time.Hour, 2, noderestriction.Off, "Warning NodeRestrictionOff kube-apiserver lacks the admission plugin NodeRestriction")
		after(48*time.Hour, 4, noderestriction.Off)

		answers(noderestriction.Unknown, fmt.Errorf("a pod: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "users"}, noderestriction.User, nil)))
		after(48*time.Hour, 6, noderestriction.Unknown)
		answers(noderestriction.Unknown, apierrors.NewServiceUnavailable("etcd is away"))
		after(24*time.Hour+20*time.Minute, 11, noderestriction.Unknown) // after 1, 2, 4 and 8 minutes again
		answers(noderestriction.On, nil)
		after(24*time.Hour, 12, noderestriction.On)
		cancel()
		running.Wait()
		gathered(t, "")
	})
}
