// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clustercache

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// server serves documents of discovery.
type server struct {
	// core and groups are what it serves: RESOURCE, and GROUP/RESOURCE; a group without a resource
	// can't be discovered.
	core, groups []string
	// once is served once in place of groups.
	once []string
	// untagged is true if it gives no tags, broken if it answers with an error.
	untagged, broken bool
	// sent and unchanged count the answers.
	sent, unchanged int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var items []string
	resource := func(name string) string {
		return fmt.Sprintf(`{"resource":%q,"responseKind":{"group":"","version":"v1","kind":"K"},"scope":"Namespaced","verbs":["list"]}`, name)
	}
	switch r.URL.Path {
	case "/api":
		for _, name := range s.core {
			items = append(items, fmt.Sprintf(`{"metadata":{},"versions":[{"version":"v1","freshness":"Current","resources":[%s]}]}`, resource(name)))
		}
	case "/apis":
		groups := s.groups
		if s.once != nil {
			groups, s.once = s.once, nil
		}
		for _, name := range groups {
			group, name, _ := strings.Cut(name, "/")
			version := `{"version":"v1","freshness":"Stale"}`
			if name != "" {
				version = fmt.Sprintf(`{"version":"v1","freshness":"Current","resources":[%s]}`, resource(name))
			}
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"versions":[%s]}`, group, version))
		}
	default:
		http.NotFound(w, r)
		return
	}
	if s.broken {
		http.Error(w, "broken", http.StatusForbidden)
		return
	}
	body := fmt.Sprintf(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[%s]}`, strings.Join(items, ","))
	tag := fmt.Sprintf("%q", fmt.Sprintf("%x", body))
	if !s.untagged {
		w.Header().Set("ETag", tag)
	}
	if !s.untagged && r.Header.Get("If-None-Match") == tag {
		s.unchanged++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.sent++
	w.Header().Set("Content-Type", discovery.AcceptV2)
	_, _ = w.Write([]byte(body))
}

func names(lists []*metav1.APIResourceList) []string {
	var all []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			all = append(all, list.GroupVersion+"/"+r.Name)
		}
	}
	slices.Sort(all)
	return all
}

// TestWhatChanges: whatever the server has served before, each discovery tells what it serves
// now; and what has not changed since the last one is not sent again.
func TestWhatChanges(t *testing.T) {
	s := &server{core: []string{"pods"}, groups: []string{"apps/deployments"}}
	listener := httptest.NewServer(s)
	defer listener.Close()
	resources, err := NewResources(&rest.Config{Host: listener.URL})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		change          func()
		want            []string
		failed, err     bool
		sent, unchanged int
	}{
		{want: []string{"apps/v1/deployments", "v1/pods"}, sent: 2},
		{want: []string{"apps/v1/deployments", "v1/pods"}, unchanged: 2},
		{want: []string{"apps/v1/deployments", "v1/pods"}, unchanged: 2},
		// One of two has changed: what is not sent of the other one is not taken for all of it.
		{change: func() { s.groups = append(s.groups, "own.io/things") }, want: []string{"apps/v1/deployments", "own.io/v1/things", "v1/pods"}, sent: 3, unchanged: 1},
		{want: []string{"apps/v1/deployments", "own.io/v1/things", "v1/pods"}, unchanged: 2},
		{change: func() { s.core = []string{"secrets"} }, want: []string{"apps/v1/deployments", "own.io/v1/things", "v1/secrets"}, sent: 3, unchanged: 1},
		// Both have, and back again.
		{change: func() { s.core, s.groups = []string{"pods"}, []string{"apps/deployments"} }, want: []string{"apps/v1/deployments", "v1/pods"}, sent: 2},
		// A group that can't be discovered is told each time.
		{change: func() { s.groups = append(s.groups, "away.io") }, want: []string{"apps/v1/deployments", "v1/pods"}, failed: true, sent: 6, unchanged: 2},
		{want: []string{"apps/v1/deployments", "v1/pods"}, failed: true, unchanged: 2},
		// An error is no answer, and nothing to remember.
		{change: func() { s.broken = true }, err: true},
		{change: func() { s.broken = false }, want: []string{"apps/v1/deployments", "v1/pods"}, failed: true, unchanged: 2},
		// A server without tags is asked for all each time.
		{change: func() { s.untagged = true }, want: []string{"apps/v1/deployments", "v1/pods"}, failed: true, sent: 4},
		{change: func() { s.groups = s.groups[:1] }, want: []string{"apps/v1/deployments", "v1/pods"}, sent: 2},
		{change: func() { s.core = nil }, want: []string{"apps/v1/deployments"}, sent: 2},
		// A group that is found when discovery asks again, which has the rest unchanged twice then.
		{change: func() { s.core, s.untagged = []string{"pods"}, false }, want: []string{"apps/v1/deployments", "v1/pods"}, sent: 3, unchanged: 1},
		{change: func() { s.groups, s.once = append(s.groups, "own.io/things"), []string{"own.io"} }, want: []string{"apps/v1/deployments", "own.io/v1/things", "v1/pods"}, sent: 4, unchanged: 2},
	} {
		s.sent, s.unchanged = 0, 0
		if step.change != nil {
			step.change()
		}
		lists, err := resources.ServerPreferredResourcesWithContext(t.Context())
		switch {
		case step.err:
			if err == nil || discovery.IsGroupDiscoveryFailedError(err) {
				t.Errorf("step %d: no error but %v", i, err)
			}
			continue
		case discovery.IsGroupDiscoveryFailedError(err) != step.failed || err != nil && !step.failed:
			t.Errorf("step %d: %v", i, err)
		}
		if got := names(lists); !slices.Equal(got, step.want) {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
		}
		if s.sent != step.sent || s.unchanged != step.unchanged {
			t.Errorf("step %d: %d answers were sent and %d unchanged, want %d and %d", i, s.sent, s.unchanged, step.sent, step.unchanged)
		}
	}
}
