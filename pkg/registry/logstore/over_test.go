// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// listIn lists the pods of a namespace, or of all if it is empty, exactly as of a version.
func listIn(t *testing.T, l *podLog, namespace string, rv uint64, selector storage.SelectionPredicate) *example.PodList {
	t.Helper()
	key := "/pods/"
	if namespace != "" {
		key += namespace + "/"
	}
	opts := storage.ListOptions{Recursive: true, Predicate: selector}
	if rv > 0 {
		opts.ResourceVersion, opts.ResourceVersionMatch = format(rv), "Exact"
	}
	out := &example.PodList{}
	if err := l.GetList(context.Background(), key, opts, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// shownAs maps pods to what is shown of them, and at which version.
func shownAs(pods *example.PodList) map[string]string {
	m := map[string]string{}
	for _, p := range pods.Items {
		m[p.Namespace+"/"+p.Name] = p.Spec.NodeName + " at " + p.ResourceVersion
	}
	return m
}

// TestRequestsOverAllNamespacesAreShownMore: a list, a get and a watch within a namespace show one
// thing, those over all namespaces another, and a change of the one is none of the other.
func TestRequestsOverAllNamespacesAreShownMore(t *testing.T) {
	l := newPodLog(logstore.Options{})
	apply(t, l, pod("b", "other", "1"))
	within := watchFrom(t, l, "/pods/a/", storage.ListOptions{ResourceVersion: format(currentVersion(t, l))})
	over := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(currentVersion(t, l))})
	set := func(node, named string, events int) {
		t.Helper()
		n, err := l.Update([]*example.Pod{pod("a", "p", node)}, nil, pod("a", "p", named))
		if err != nil || n != events {
			t.Fatalf("%d events, want %d: %v", n, events, err)
		}
	}
	set("another", "secret-1", 1)
	first := currentVersion(t, l)
	set("another", "secret-1", 0)
	set("another", "secret-2", 1)
	set("none", "none", 1)
	last := currentVersion(t, l)
	for _, want := range []struct {
		kind watch.EventType
		node string
		rv   uint64
	}{{watch.Added, "secret-1", first}, {watch.Modified, "secret-2", first + 1}, {watch.Modified, "none", last}} {
		if p := nextPod(t, over, want.kind); p.Spec.NodeName != want.node || p.ResourceVersion != format(want.rv) {
			t.Errorf("over all namespaces: %s at %s, want %s at %d", p.Spec.NodeName, p.ResourceVersion, want.node, want.rv)
		}
	}
	if p := nextPod(t, within, watch.Added); p.Spec.NodeName != "another" || p.ResourceVersion != format(first) {
		t.Errorf("within: %s at %s", p.Spec.NodeName, p.ResourceVersion)
	}
	if p := nextPod(t, within, watch.Modified); p.Spec.NodeName != "none" || p.ResourceVersion != format(last) {
		t.Errorf("within, the change of what is not shown there: %s at %s", p.Spec.NodeName, p.ResourceVersion)
	}

	// In between, each list has what its watch had.
	if diff := cmp.Diff(map[string]string{"a/p": "another at " + format(first)}, shownAs(listIn(t, l, "a", first+1, storage.Everything))); diff != "" {
		t.Error(diff)
	}
	if got := shownAs(listIn(t, l, "", first+1, storage.Everything))["a/p"]; got != "secret-2 at "+format(first+1) {
		t.Errorf("the list over all namespaces has %s", got)
	}
	set("another", "secret-3", 1)
	got := newPod()
	if err := l.Get(context.Background(), "/pods/a/p", storage.GetOptions{}, got); err != nil || got.Spec.NodeName != "another" {
		t.Errorf("got %s, %v", got.Spec.NodeName, err)
	}
	// Nobody finds out by a selector what is not shown.
	if found := listIn(t, l, "a", 0, onNode("secret-3")); len(found.Items) != 0 {
		t.Errorf("a selector within the namespace finds %v", shownAs(found))
	}
	if found := listIn(t, l, "", 0, onNode("secret-3")); len(found.Items) != 1 {
		t.Errorf("a selector over all namespaces finds %v", shownAs(found))
	}
	l.Remove("a", "p")
	nextPod(t, over, watch.Modified)
	if p := nextPod(t, over, watch.Deleted); p.Spec.NodeName != "secret-3" {
		t.Errorf("over all namespaces, %s is deleted", p.Spec.NodeName)
	}
	nextPod(t, within, watch.Modified)
	if p := nextPod(t, within, watch.Deleted); p.Spec.NodeName != "another" {
		t.Errorf("within the namespace, %s is deleted", p.Spec.NodeName)
	}
}

// TestWatchesAgreeWithListsOfTheirScope changes what is shown within namespaces and over all of them
// at random. What a watch has told is what a list of its scope shows, at the same versions, whenever
// the log says so; and no watch tells twice of what it shows.
func TestWatchesAgreeWithListsOfTheirScope(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newPodLog(logstore.Options{})
		first := currentVersion(t, l)
		nodes := rapid.SampledFrom([]string{"1", "2"})
		versions := []uint64{first}
		for range rapid.IntRange(1, 30).Draw(rt, "changes") {
			namespace, name := rapid.SampledFrom([]string{"a", "ab"}).Draw(rt, "namespace"), rapid.SampledFrom([]string{"p", "q"}).Draw(rt, "name")
			node := nodes.Draw(rt, "within")
			changed := pod(namespace, name, node)
			changed.UID = types.UID(rapid.SampledFrom([]string{"u", "v"}).Draw(rt, "uid"))
			more := changed.DeepCopy()
			more.Spec.NodeName = nodes.Draw(rt, "over")
			var err error
			switch rapid.IntRange(0, 4).Draw(rt, "how") {
			case 0:
				l.Remove(namespace, name)
			case 1:
				_, err = l.Apply(changed)
			case 2:
				_, err = l.Replace([]*example.Pod{changed}, more)
			default:
				_, err = l.Update([]*example.Pod{changed}, nil, more)
			}
			if err != nil {
				rt.Fatal(err)
			}
			for rv := versions[len(versions)-1]; rv < currentVersion(t, l); {
				rv++
				versions = append(versions, rv)
			}
		}
		for _, namespace := range []string{"", "a", "ab"} {
			key, known := "/pods/"+namespace, map[string]string{}
			w, err := l.Watch(t.Context(), key, storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: format(first)})
			if err != nil {
				rt.Fatal(err)
			}
			for _, rv := range versions[1:] {
				want := shownAs(listIn(t, l, namespace, rv, storage.Everything))
				if maps.Equal(want, known) {
					continue // no event is due
				}
				e := next(t, w)
				p := e.Object.(*example.Pod)
				if p.ResourceVersion != format(rv) {
					rt.Fatalf("in %q at version %d: an event of version %s", namespace, rv, p.ResourceVersion)
				}
				if known[p.Namespace+"/"+p.Name] = p.Spec.NodeName + " at " + p.ResourceVersion; e.Type == watch.Deleted {
					delete(known, p.Namespace+"/"+p.Name)
				}
				if diff := cmp.Diff(want, known); diff != "" {
					rt.Fatalf("in %q at version %d: %s", namespace, rv, diff)
				}
			}
			if got := len(w.ResultChan()); got != 0 {
				rt.Fatalf("in %q: %d events too many", namespace, got)
			}
			w.Stop()
		}
	})
}
