// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

var errBoom = errors.New("boom")

// Half a page is never taken for a whole one, however cleanly it ends, and nothing but
// the items of a list for its objects.
func TestDecodePage(t *testing.T) {
	for body, want := range map[string]string{
		`{"items":[],"metadata":{},"kind":"PodList"}`:                                                               "",
		`{"kind":"List","items":null}`:                                                                              "",
		`{"kind":"KList","items":[1,{"items":[2]}],"metadata":{"continue":"c"}}`:                                    `1 {"items":[2]} then c`,
		`{"metadata":{"continue":"c"},"other":{"items":[1],"metadata":{"continue":"d"}},"kind":"List","items":[2]}`: "2 then c",

		``:                      "EOF",
		`{`:                     "EOF",
		`{"items"`:              "EOF",
		`{"items":`:             "EOF",
		`{"items":[`:            "EOF",
		`{"items":[1`:           "EOF", // it may go on
		`{"items":[1,`:          "1 EOF",
		`{"items":[1,{"a":`:     "1 EOF",
		`{"items":[1]`:          "1 EOF",
		`{"items":[1],`:         "1 EOF",
		`{"items":[1],"other":`: "1 EOF",
		`{"items":[1],"metadata":{"continue":"c"}`: "1 EOF",

		`{}`:                    "malformed",
		`{"kind":"PodList"}`:    "malformed",
		`{"kind":"Pod"}`:        "malformed",
		`{"kind":7,"items":[]}`: "malformed",
		`{"items":[1]}`:         "1 malformed",
		`[]`:                    "malformed",
		`7`:                     "malformed",
		`{"items":7}`:           "malformed",
		`{"items":{"a":1}}`:     "malformed",
		`{"items":[1]]`:         "1 malformed",
		`{"items":[1,}`:         "1 malformed",
		`{7:1}`:                 "malformed",
		`<html>`:                "malformed",
		`{"metadata":7}`:        "malformed",
		`{"items":["refused"]}`: `"refused" boom`,
	} {
		var got []string
		var info pageInfo
		err := decodePage(strings.NewReader(body), &info, func(raw []byte) error {
			got = append(got, string(raw))
			if bytes.Contains(raw, []byte("refused")) {
				return errBoom
			}
			return nil
		})
		switch {
		case errors.Is(err, errBoom):
			got = append(got, "boom")
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			got = append(got, "EOF")
		case err != nil && !passing(err):
			got = append(got, "malformed")
		case err != nil:
			got = append(got, err.Error())
		case info.Continue != "":
			got = append(got, "then", info.Continue)
		}
		if diff := gocmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
}

// What may go better the next time.
func TestPassing(t *testing.T) {
	status := func(code int32, reason metav1.StatusReason) error {
		return fmt.Errorf("list: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason}})
	}
	for err, want := range map[error]bool{
		io.ErrUnexpectedEOF:                                              true,
		errors.New("connection refused"):                                 true,
		status(500, metav1.StatusReasonUnknown):                          true,
		status(502, metav1.StatusReasonUnknown):                          true,
		status(500, metav1.StatusReasonInternalError):                    true,
		status(500, metav1.StatusReasonServerTimeout):                    true,
		status(504, metav1.StatusReasonTimeout):                          true,
		status(429, metav1.StatusReasonTooManyRequests):                  true,
		status(503, metav1.StatusReasonServiceUnavailable):               true,
		status(499, metav1.StatusReasonUnknown):                          false,
		status(403, metav1.StatusReasonForbidden):                        false,
		status(410, metav1.StatusReasonExpired):                          false,
		apierrors.NewNotFound(schema.GroupResource{}, "a"):               false,
		fmt.Errorf("page: %w", errMalformed):                             false,
		fmt.Errorf("page: %w", json.Unmarshal([]byte("<"), &struct{}{})): false,
		fmt.Errorf("page: %w", json.Unmarshal([]byte("7"), &struct{}{})): false,
	} {
		if passing(err) != want {
			t.Errorf("passing(%v) is not %v", err, want)
		}
	}
}

// Each page has its own attempts, and an expired token its own offers: a long list in
// bad weather ends well.
func TestEachPageHasItsAttempts(t *testing.T) {
	const pages = 5
	for name, answer := range map[string]func(w http.ResponseWriter, page, try int) bool{
		"a server that fails often": func(w http.ResponseWriter, _, try int) bool {
			if try < 3 {
				writeStatus(w, metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable})
			}
			return try < 3
		},
		"tokens that expire": func(w http.ResponseWriter, page, try int) bool {
			expires := page > 0 && try < 2
			if expires {
				writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonGone, ListMeta: metav1.ListMeta{Continue: fmt.Sprint(page * pageSize)}})
			}
			return expires
		},
		"both": func(w http.ResponseWriter, page, try int) bool {
			switch {
			case page == 0 || try > 6:
				return false
			case try == 3:
				writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, ListMeta: metav1.ListMeta{Continue: fmt.Sprint(page * pageSize)}})
			default:
				writeStatus(w, metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable})
			}
			return true
		},
	} {
		f := shopOf(t, pages*pageSize)
		tries := map[int]int{}
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			for page := range pages {
				if isPage(r, page*pageSize) {
					tries[page]++
					return answer(w, page, tries[page]-1)
				}
			}
			return false
		}
		if outcome := f.run(t); outcome.Status.Errors != 0 {
			t.Errorf("%s: after %v tries: %+v", name, tries, f.results(t))
		}
	}
}

// The next page is asked for while one is read, if the server says in time where it begins.
func TestTheNextPageIsAskedFor(t *testing.T) {
	rendered := pages(3 * pageSize)
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.add("namespaces", namespace("shop", ""))
	asked := map[string]chan struct{}{"": make(chan struct{}), "500": make(chan struct{}), "1000": make(chan struct{})}
	after := map[string]string{"": "500", "500": "1000"}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/namespaces/shop/configmaps" {
			return false
		}
		token := r.URL.Query().Get("continue")
		close(asked[token])
		from, _ := strconv.Atoi(token)
		page := rendered[from/pageSize]
		_, _ = w.Write(page[:len(page)/2])
		w.(http.Flusher).Flush()
		if next, more := after[token]; more {
			select {
			case <-asked[next]:
			case <-time.After(time.Minute):
				t.Errorf("the page after %q was not asked for in time", token)
			}
		}
		_, _ = w.Write(page[len(page)/2:])
		return true
	}
	if got := f.run(t).Status.Progress.ItemsBackedUp; got != 3*pageSize+1 {
		t.Errorf("backed up %d objects", got)
	}
}

// A page of large objects has fewer of them.
func TestPagesAreSizedByBytes(t *testing.T) {
	const objects, size = 60, 100_000
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.add("namespaces", namespace("shop", ""))
	var mu sync.Mutex
	var limits []string
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/namespaces/shop/configmaps" {
			return false
		}
		mu.Lock()
		limits = append(limits, r.URL.Query().Get("limit"))
		mu.Unlock()
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		metadata := fmt.Sprintf(`"continue":"%d"`, from+objects)
		if from > 0 {
			metadata = ""
		}
		fmt.Fprintf(w, `{"kind":"List","metadata":{%s},"items":[`, metadata)
		for i := range objects {
			fmt.Fprintf(w, `%s{"metadata":{"name":"c-%05d","namespace":"shop"},"data":{"x":%q}}`, strings.Repeat(",", min(i, 1)), from+i, strings.Repeat("x", size))
		}
		fmt.Fprint(w, `]}`)
		return true
	}
	f.run(t)
	f.wantConfigMaps(t, 2*objects)
	if want := []string{"500", fmt.Sprint(pageBytes / (size + 64))}; !slices.Equal(limits, want) {
		t.Errorf("asked for pages of %q objects, want %q", limits, want)
	}
}

// Who waits for the next attempt stops at once when the backup is cancelled.
func TestCancelBetweenAttempts(t *testing.T) {
	unavailable := func(f *fixture, hit func()) {
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			defer hit()
			writeStatus(w, metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable})
			return true
		}
	}
	for name, do := range map[string]func(ctx context.Context, f *fixture, hit func()) error{
		"a list": func(ctx context.Context, f *fixture, hit func()) error {
			unavailable(f, hit)
			l := &lister{client: f.deps.Client, retry: f.deps.Retry}
			return l.list(ctx, query{}, visitor{})
		},
		"an object": func(ctx context.Context, f *fixture, hit func()) error {
			unavailable(f, hit)
			l := &lister{client: f.deps.Client, retry: f.deps.Retry}
			_, err := l.get(ctx, resource{}, "shop", "a")
			return err
		},
		"the store": func(ctx context.Context, f *fixture, hit func()) error {
			return newExecution(ctx, f.request, f.deps).retry(ctx, func() error { hit(); return store.ErrUnavailable })
		},
	} {
		f := shopOf(t, 3)
		f.deps.Retry = wait.Backoff{Duration: time.Hour, Steps: 4}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hit := func() { time.AfterFunc(20*time.Millisecond, cancel) }
		done := make(chan error, 1)
		go func() { done <- do(ctx, f, hit) }()
		select {
		case err := <-done:
			if err == nil || ctx.Err() == nil { // the cancellation may also cut an answer short
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s goes on", name)
		}
	}
}

// An error of the visitor ends the list, and is told from one of the server.
func TestVisitorsErrorEndsTheList(t *testing.T) {
	f := shopOf(t, 3)
	l := &lister{client: f.deps.Client, retry: f.deps.Retry}
	q := query{namespace: "shop", resource: newResource(schema.GroupVersion{Version: "v1"}, &metav1.APIResource{Name: "configmaps", Namespaced: true})}
	var fatal visitError
	seen := 0
	err := l.list(t.Context(), q, visitor{page: func(int64) {}, object: func([]byte) error { seen++; return errBoom }})
	if !errors.As(err, &fatal) || !errors.Is(fatal.error, errBoom) || seen != 1 {
		t.Errorf("after %d objects: %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = l.list(ctx, q, visitor{object: func([]byte) error { cancel(); return nil }, page: func(int64) {}})
	if err == nil {
		err = l.list(ctx, q, visitor{})
	}
	if err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

// Objects get what the items of a list lack, once.
func TestContent(t *testing.T) {
	r := newResource(schema.GroupVersion{Group: "apps", Version: "v1"}, &metav1.APIResource{Name: "deployments", Kind: "Deployment"})
	for raw, want := range map[string]string{
		`{"metadata":{}}`:                                              `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{}}`,
		`{"kind":"Other","metadata":{}}`:                               `{"apiVersion":"apps/v1","kind":"Other","metadata":{}}`,
		`{"apiVersion":"apps/v2","metadata":{}}`:                       `{"kind":"Deployment","apiVersion":"apps/v2","metadata":{}}`,
		"{\"kind\":\"Other\",\n \"apiVersion\":\"apps/v2\",\"a\":1}\n": `{"kind":"Other","apiVersion":"apps/v2","a":1}`,
	} {
		h, err := headOf([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := appendContent(nil, []byte(raw), h, r); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", raw, got, err)
		}
	}
}
