// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/lease"
)

const resources = "/apis/holdfast.io/v1alpha1/namespaces/shop/backups"

// fenced is a server behind a fence, with a Lease that it holds until it is paused.
type fenced struct {
	*httptest.Server
	leader *lease.Election
	clock  *clocktesting.FakeClock
	kube   *kubefake.Clientset
	paused atomic.Bool
	// handle answers those who are let in.
	handle http.HandlerFunc
}

func newFenced(t *testing.T) *fenced {
	f := &fenced{clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), kube: kubefake.NewClientset()}
	f.kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return f.paused.Load(), nil, errors.New("the process is paused")
	})
	f.leader = lease.NewElection(lease.ElectionConfig{
		Leases: f.kube.CoordinationV1().Leases("holdfast"), Name: serviceName, Identity: "this", Clock: f.clock,
		Issued: func() uint64 { return 0 }, Begin: func(uint64) {},
	})
	var handler http.Handler = &fence{
		handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.handle(w, r) }),
		enter:       f.leader.Enter,
		longRunning: genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString()),
		serializer:  Codecs,
	}
	handler = genericapifilters.WithRequestInfo(handler, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()})
	f.Server = httptest.NewUnstartedServer(handler)
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// lead makes the server hold the Lease, until the test ends or stop is called.
func (f *fenced) lead(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.leader.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, func() bool {
		term, ok := f.leader.Enter()
		if ok {
			term.Leave()
		}
		return ok
	})
	return cancel
}

// pause lets the clock go on as it does while a process is paused: without renewals.
func (f *fenced) pause() {
	f.paused.Store(true)
	f.clock.SetTime(f.clock.Now().Add(lease.Validity))
}

func (f *fenced) get(t *testing.T, path string) (*http.Response, string, error) {
	t.Helper()
	response, err := f.Client().Get(f.URL + path)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
		return condition(), nil
	}); err != nil {
		t.Fatal(err)
	}
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func TestStandbyRefuses(t *testing.T) {
	f := newFenced(t)
	f.handle = say("from the log")
	for _, path := range []string{resources, resources + "?watch=true", resources + "/b", resources + "/b/cancel"} {
		response, body, err := f.get(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: status %d, Retry-After %q, want 503 and 1", path, response.StatusCode, response.Header.Get("Retry-After"))
		}
		if response.ProtoMajor != 2 || strings.Contains(body, "log") || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%s: by HTTP/%d, %s", path, response.ProtoMajor, body)
		}
	}
	for _, path := range []string{"/readyz", "/apis", "/apis/holdfast.io/v1alpha1", "/openapi/v3"} {
		if response, body, err := f.get(t, path); err != nil || response.StatusCode != http.StatusOK || body != "from the log" {
			t.Errorf("%s: %v %s %v, want an answer", path, response, body, err)
		}
	}
	f.lead(t)
	if _, body, err := f.get(t, resources); err != nil || body != "from the log" {
		t.Errorf("the one that serves says %q %v", body, err)
	}
}

// TestRefusalsCloseTheConnection: kube-apiserver would keep it, past the Service.
func TestRefusalsCloseTheConnection(t *testing.T) {
	f := newFenced(t)
	connections := sets.New[string]()
	inner := f.Config.Handler
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connections.Insert(r.RemoteAddr)
		inner.ServeHTTP(w, r)
	})
	const n = 3
	for range n {
		if _, _, err := f.get(t, resources); err != nil {
			t.Fatal(err)
		}
	}
	if connections.Len() != n {
		t.Errorf("%d requests came over %d connections", n, connections.Len())
	}
}

// TestPausedAnswersNothing pauses a server at each point of an answer.
func TestPausedAnswersNothing(t *testing.T) {
	for name, handle := range map[string]func(pause func()) http.HandlerFunc{
		"before the first byte": func(pause func()) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { pause(); _, _ = io.WriteString(w, "late") }
		},
		"before the status": func(pause func()) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { pause(); w.WriteHeader(http.StatusNoContent) }
		},
		"in the middle": func(pause func()) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "in time")
				w.(http.Flusher).Flush()
				pause()
				_, _ = io.WriteString(w, "late")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFenced(t)
			f.lead(t)
			f.handle = handle(f.pause)
			response, body, err := f.get(t, resources)
			if err == nil || strings.Contains(body, "late") {
				t.Errorf("%v %q, want a connection that breaks off", response, body)
			}
			f.handle = say("late")
			if response, _, err := f.get(t, resources); err != nil || response.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("the next request: %v %v, want 503", response, err)
			}
		})
	}
}

// TestHandOverEndsWatches: watches end as they end when their time is over, and other
// requests are finished.
func TestHandOverEndsWatches(t *testing.T) {
	f := newFenced(t)
	stop := f.lead(t)
	inside, finish := make(chan string, 2), make(chan struct{})
	f.handle = func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		inside <- r.URL.RawQuery
		if r.URL.RawQuery != "" {
			<-r.Context().Done()
		} else {
			<-finish
		}
		_, _ = io.WriteString(w, "whole")
	}
	type answer struct {
		body string
		err  error
	}
	ask := func(path string) <-chan answer {
		answered := make(chan answer, 1)
		go func() {
			_, body, err := f.get(t, path)
			answered <- answer{body, err}
		}()
		<-inside
		return answered
	}
	watch, list := ask(resources+"?watch=true"), ask(resources)
	stop()
	if got := <-watch; got.err != nil || got.body != "whole" {
		t.Errorf("the watch ended with %q %v", got.body, got.err)
	}
	close(finish)
	if got := <-list; got.err != nil || got.body != "whole" {
		t.Errorf("the list ended with %q %v", got.body, got.err)
	}
}
