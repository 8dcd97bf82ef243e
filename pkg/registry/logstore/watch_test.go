// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

func TestSlowWatcherFallsOffTheLog(t *testing.T) {
	l := newPodLog(logstore.Options{HistoryEvents: 100})
	start := currentVersion(t, l)
	slow := watchFrom(t, l, "/pods/", storage.ListOptions{})
	for i := range uint64(1000) { // no writer waits for the watcher
		apply(t, l, pod("a", "p", format(i)))
	}
	seen := start
	for e := range slow.ResultChan() {
		if e.Type == watch.Error {
			wantExpired(t, apierrors.FromObject(e.Object))
			if seen == start+1000 {
				t.Error("410 after the last event")
			}
			return
		}
		seen++
		if got := e.Object.(*example.Pod).ResourceVersion; got != format(seen) {
			t.Fatalf("event %s follows %d: one was lost", got, seen-1)
		}
	}
	t.Error("the watch ended without 410")
}

func TestSelectorTransitions(t *testing.T) {
	l := newPodLog(logstore.Options{})
	w := watchFrom(t, l, "/pods/", storage.ListOptions{Predicate: onNode("here")})

	apply(t, l, pod("a", "p", "there")) // unseen
	apply(t, l, pod("a", "p", "here"))
	if got := nextPod(t, w, watch.Added); got.ResourceVersion != format(currentVersion(t, l)) {
		t.Errorf("added at %s", got.ResourceVersion)
	}
	annotated := pod("a", "p", "here")
	annotated.Annotations = map[string]string{"k": "v"}
	apply(t, l, annotated)
	nextPod(t, w, watch.Modified)

	apply(t, l, pod("a", "p", "there"))
	gone := nextPod(t, w, watch.Deleted)
	if gone.Spec.NodeName != "here" || gone.Annotations["k"] != "v" {
		t.Errorf("deleted with content that the client must not see: %v", gone)
	}
	if gone.ResourceVersion != format(currentVersion(t, l)) {
		t.Errorf("deleted at %s, want the version of the change, %d", gone.ResourceVersion, currentVersion(t, l))
	}

	apply(t, l, pod("a", "p", "elsewhere")) // unseen
	apply(t, l, pod("a", "p", "here"))
	nextPod(t, w, watch.Added)
	l.Remove("a", "p")
	if got := nextPod(t, w, watch.Deleted); got.ResourceVersion != format(currentVersion(t, l)) {
		t.Errorf("deleted at %s, want %d", got.ResourceVersion, currentVersion(t, l))
	}
}

// A namespace's clients never get a byte of another one's, also if one name
// begins with the other.
func TestNamespacesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPodLog(logstore.Options{})
		secret := func(i int) *example.Pod {
			p := pod("tenant2", fmt.Sprintf("secret-%d", i), "secret")
			p.Annotations = map[string]string{"note": "secret"}
			return p
		}
		apply(t, l, secret(0), pod("tenant", "mine", "0"))

		yes := true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		everything := storage.Everything
		everything.AllowWatchBookmarks = true
		w, err := l.Watch(ctx, "/pods/tenant", storage.ListOptions{Recursive: true, Predicate: everything, SendInitialEvents: &yes})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for i := range 50 {
				if _, err := l.Apply(secret(i), pod("tenant", "mine", fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
				l.Remove("tenant2", fmt.Sprintf("secret-%d", i))
			}
		}()
		count := map[watch.EventType]int{}
		for e := range w.ResultChan() {
			count[e.Type]++
			if bytes := asJSON(t, e); strings.Contains(bytes, "secret") || strings.Contains(bytes, "tenant2") {
				t.Fatalf("the watcher of another namespace got %s", bytes)
			}
		}
		if count[watch.Added] != 1 || count[watch.Modified] != 49 || count[watch.Bookmark] < 10 {
			t.Errorf("got %v, want 1 added, 49 modified and the bookmarks of 10 minutes", count)
		}

		out := &example.PodList{}
		one := storage.Everything
		one.Limit = 1
		if err := l.GetList(t.Context(), "/pods/tenant", storage.ListOptions{Recursive: true, Predicate: one}, out); err != nil {
			t.Fatal(err)
		}
		if len(out.Items) != 1 || out.Continue != "" || out.RemainingItemCount != nil {
			t.Errorf("the list shows that there is more than the namespace: %+v", out.ListMeta)
		}
	})
}

func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPodLog(logstore.Options{})
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+30*time.Second)
		defer cancel()
		selected := onNode("here")
		selected.AllowWatchBookmarks = true
		w, err := l.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: selected, ResourceVersion: format(currentVersion(t, l))})
		if err != nil {
			t.Fatal(err)
		}
		apply(t, l, pod("a", "p", "there")) // unseen, but a bookmark passes it
		var at []time.Duration
		for e := range w.ResultChan() {
			at = append(at, time.Since(begin))
			b, ok := e.Object.(*example.Pod)
			if !ok || e.Type != watch.Bookmark {
				t.Fatalf("got %v", e)
			}
			if b.ResourceVersion != format(currentVersion(t, l)) {
				t.Errorf("bookmark at %s, want %d", b.ResourceVersion, currentVersion(t, l))
			}
			if diff := cmp.Diff(&example.Pod{}, func() *example.Pod { b.ResourceVersion = ""; return b }()); diff != "" {
				t.Errorf("a bookmark has nothing but a version: %s", diff)
			}
		}
		want := []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3*time.Minute + 28*time.Second}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("bookmarks: %s", diff)
		}
	})
}

// TestWatchesEnd relies on synctest, which fails when a goroutine is left over.
func TestWatchesEnd(t *testing.T) {
	for name, end := range map[string]func(w watch.Interface, cancel func()){
		"stopped":       func(w watch.Interface, _ func()) { w.Stop(); w.Stop() },
		"context ended": func(_ watch.Interface, cancel func()) { cancel() },
	} {
		for _, pods := range []int{0, 1000} { // idle, and stuck with a client that doesn't read
			t.Run(fmt.Sprintf("%s with %d pods", name, pods), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newPodLog(logstore.Options{})
					for i := range pods {
						apply(t, l, pod("a", fmt.Sprint(i), "n"))
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w, err := l.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					end(w, cancel)
					synctest.Wait()
					received := 0
					for range w.ResultChan() { // ends, since the channel is closed
						received++
					}
					if received > 100 {
						t.Errorf("the watch went on until its client had read %d events", received)
					}
				})
			})
		}
	}
}
