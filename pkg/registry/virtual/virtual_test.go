// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

const groupPath = "/apis/example.apiserver.k8s.io/v1"

// request sends a request and returns the response with its whole body.
func (s *server) request(t *testing.T, method, path, accept string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+groupPath+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func (s *server) verbs(t *testing.T) metav1.APIResource {
	t.Helper()
	_, body := s.request(t, http.MethodGet, "", "application/json")
	var resources metav1.APIResourceList
	if err := json.Unmarshal([]byte(body), &resources); err != nil || len(resources.APIResources) != 1 {
		t.Fatalf("discovery: %v, %s", err, body)
	}
	return resources.APIResources[0]
}

func TestFacesHaveExactlyTheirVerbs(t *testing.T) {
	l := newPodLog(logstore.Options{})
	l.SetReady()
	listOnly, err := podResource.ListOnly(l)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		face  rest.Storage
		verbs []string
	}{
		"read only": {readOnly(t, l), []string{"get", "list", "watch"}},
		"list only": {listOnly, []string{"get", "list"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, tc.face)
			got := s.verbs(t)
			if diff := cmp.Diff(tc.verbs, []string(got.Verbs)); diff != "" {
				t.Errorf("verbs: %s", diff)
			}
			if diff := cmp.Diff([]string{"po"}, got.ShortNames); diff != "" {
				t.Errorf("short names: %s", diff)
			}
			if diff := cmp.Diff([]string{"all-virtual"}, got.Categories); diff != "" {
				t.Errorf("categories: %s", diff)
			}
			if got.SingularName != "pod" || !got.Namespaced {
				t.Errorf("got %+v", got)
			}
			for _, refused := range []struct{ method, path string }{
				{http.MethodPost, "/namespaces/a/pods"},
				{http.MethodPut, "/namespaces/a/pods/p"},
				{http.MethodPatch, "/namespaces/a/pods/p"},
				{http.MethodDelete, "/namespaces/a/pods/p"},
				{http.MethodDelete, "/namespaces/a/pods"},
			} {
				if resp, body := s.request(t, refused.method, refused.path, "application/json"); resp.StatusCode != http.StatusMethodNotAllowed {
					t.Errorf("%s %s: %d %s", refused.method, refused.path, resp.StatusCode, body)
				}
			}
			if !slices.Contains(tc.verbs, "watch") {
				if resp, body := s.request(t, http.MethodGet, "/pods?watch=1", "application/json"); resp.StatusCode != http.StatusMethodNotAllowed {
					t.Errorf("watch: %d %s", resp.StatusCode, body)
				}
			}
		})
	}
}

func TestFaceNeedsItsParts(t *testing.T) {
	for part, without := range map[string]func(r *virtual.Resource[*examplev1.Pod]){
		"qualified resource": func(r *virtual.Resource[*examplev1.Pod]) { r.GroupResource = schema.GroupResource{} },
		"Columns":            func(r *virtual.Resource[*examplev1.Pod]) { r.Columns = nil },
	} {
		r := podResource
		without(&r)
		if _, err := r.ReadOnly(newPodLog(logstore.Options{})); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want an error that says %q", err, part)
		}
	}
}

func TestReads(t *testing.T) {
	l := newPodLog(logstore.Options{OnRead: func(ctx context.Context) { warning.AddWarning(ctx, "", "12m old") }})
	s := newServer(t, readOnly(t, l))

	// While the log is loading, discovery answers and reads are refused.
	if got := s.verbs(t); len(got.Verbs) != 3 {
		t.Errorf("discovery of a resource that is loading: %+v", got)
	}
	for _, path := range []string{"/pods", "/namespaces/a/pods/p", "/pods?watch=1"} {
		resp, body := s.request(t, http.MethodGet, path, "application/json")
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s while loading: %d, Retry-After %q, %s", path, resp.StatusCode, resp.Header.Get("Retry-After"), body)
		}
	}
	l.SetReady()

	const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	_, body := s.request(t, http.MethodGet, "/pods", asTable)
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil || len(table.ColumnDefinitions) == 0 || table.ResourceVersion == "" {
		t.Errorf("the table of nothing has no columns or no version: %v, %s", err, body)
	}

	if _, err := l.Apply(pod("a", "p", "1"), pod("a", "q", "2"), pod("ab", "r", "1")); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string][]string{
		"/pods":                                      {"p", "q", "r"},
		"/namespaces/a/pods":                         {"p", "q"},
		"/pods?fieldSelector=spec.nodeName%3D1":      {"p", "r"},
		"/pods?labelSelector=node%3D2":               {"q"},
		"/namespaces/a/pods?limit=1":                 {"p"},
		"/pods?fieldSelector=metadata.name%3Dr":      {"r"},
		"/pods?fieldSelector=metadata.namespace%3Da": {"p", "q"},
	} {
		resp, body := s.request(t, http.MethodGet, query, "application/json")
		var list examplev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatalf("%s: %v, %s", query, err, body)
		}
		var got []string
		for _, p := range list.Items {
			got = append(got, p.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
		if w := resp.Header.Get("Warning"); !strings.Contains(w, "12m old") {
			t.Errorf("%s: warning %q", query, w)
		}
	}
	for query, want := range map[string]int{
		"/pods?fieldSelector=spec.none%3D1":                  http.StatusBadRequest,
		"/pods?resourceVersion=x":                            http.StatusBadRequest,
		"/pods?watch=1&resourceVersion=x":                    http.StatusBadRequest,
		"/pods?resourceVersion=1&resourceVersionMatch=Exact": http.StatusGone,
		"/pods?resourceVersion=9007199254740991":             http.StatusGatewayTimeout,
		"/pods?continue=nonsense":                            http.StatusBadRequest,
		"/namespaces/ab/pods/p":                              http.StatusNotFound,
	} {
		if resp, body := s.request(t, http.MethodGet, query, "application/json"); resp.StatusCode != want {
			t.Errorf("%s: got %d, want %d: %s", query, resp.StatusCode, want, body)
		}
	}
}

// The raw stream of a namespace has no byte of another one.
func TestWatchStreamOfOneNamespace(t *testing.T) {
	l := newPodLog(logstore.Options{})
	l.SetReady()
	s := newServer(t, readOnly(t, l))
	if _, err := l.Apply(pod("tenant", "mine", "0"), pod("tenant2", "secret", "secret")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+groupPath+
		"/namespaces/tenant/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	expect := func(parts ...string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		for _, part := range parts {
			if !strings.Contains(lines.Text(), part) {
				t.Errorf("got %s, want %s", lines.Text(), part)
			}
		}
		if strings.Contains(lines.Text(), "secret") || strings.Contains(lines.Text(), "tenant2") {
			t.Errorf("the stream of another namespace has %s", lines.Text())
		}
	}
	expect("ADDED", "mine")
	expect("BOOKMARK", metav1.InitialEventsAnnotationKey)
	if _, err := l.Apply(pod("tenant2", "secret", "secret2"), pod("tenant", "mine", "1")); err != nil {
		t.Fatal(err)
	}
	expect("MODIFIED", `"nodeName":"1"`)
	l.Remove("tenant2", "secret")
	l.Remove("tenant", "mine")
	expect("DELETED", "mine")
}
