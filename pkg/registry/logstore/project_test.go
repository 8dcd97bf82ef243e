// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

func TestApplyCommitsDifferences(t *testing.T) {
	l := newPodLog(logstore.Options{})
	if n := apply(t, l, pod("a", "p", "1"), pod("a", "q", "1"), pod("b", "p", "1")); n != 3 {
		t.Errorf("%d events for 3 new pods", n)
	}
	before := currentVersion(t, l)
	w := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(before)})

	stale := pod("a", "p", "1")
	stale.ResourceVersion = "7" // the log's own business
	stale.Annotations = map[string]string{}
	if n := apply(t, l, stale, pod("a", "q", "1")); n != 0 {
		t.Errorf("%d events for no change", n)
	}
	if n := apply(t, l); n != 0 {
		t.Errorf("%d events for nothing", n)
	}
	if n, err := l.Replace([]*example.Pod{pod("b", "p", "1"), pod("a", "p", "1"), pod("a", "q", "1")}); n != 0 || err != nil {
		t.Errorf("replaced by the same: %d events, %v", n, err)
	}
	if l.Remove("a", "none") {
		t.Error("removed what is not there")
	}
	same := func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) { return in, nil, nil }
	if err := l.GuaranteedUpdate(context.Background(), "/pods/a/p", newPod(), false, nil, same, nil); err != nil {
		t.Error(err)
	}
	if got := currentVersion(t, l); got != before {
		t.Errorf("version %d after no change, was %d", got, before)
	}

	if n := apply(t, l, pod("a", "p", "1"), pod("a", "q", "2"), pod("a", "r", "2")); n != 2 {
		t.Errorf("%d events for one changed and one new pod", n)
	}
	if got := nextPod(t, w, watch.Modified); got.Name != "q" || got.ResourceVersion != format(before+1) {
		t.Errorf("got %s at %s", got.Name, got.ResourceVersion)
	}
	if got := nextPod(t, w, watch.Added); got.Name != "r" || got.ResourceVersion != format(before+2) {
		t.Errorf("got %s at %s", got.Name, got.ResourceVersion)
	}

	if n, err := l.Replace([]*example.Pod{pod("a", "q", "2"), pod("a", "r", "3"), pod("c", "s", "3")}); n != 4 || err != nil {
		t.Errorf("replaced: %d events, %v", n, err)
	}
	var got []string
	for range 4 {
		e := next(t, w)
		p := e.Object.(*example.Pod)
		got = append(got, string(e.Type)+" "+p.Namespace+"/"+p.Name)
	}
	if diff := cmp.Diff([]string{"MODIFIED a/r", "ADDED c/s", "DELETED a/p", "DELETED b/p"}, got); diff != "" {
		t.Error(diff)
	}
	if !l.Remove("c", "s") || l.Remove("c", "s") {
		t.Error("an object can be removed once")
	}
}

// An object of the same name with another uid is another object: clients that keep
// something by uid must hear that the first one is gone.
func TestAnotherUIDIsAnotherObject(t *testing.T) {
	l := newPodLog(logstore.Options{})
	with := func(uid types.UID, node string) *example.Pod {
		p := pod("a", "p", node)
		p.UID = uid
		return p
	}
	for name, store := range map[string]func(*example.Pod) (int, error){
		"apply":   func(p *example.Pod) (int, error) { return l.Apply(p) },
		"replace": func(p *example.Pod) (int, error) { return l.Replace([]*example.Pod{p}) },
	} {
		apply(t, l, with("first", "1"))
		w := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(currentVersion(t, l))})
		if n, err := store(with("second", "2")); n != 2 || err != nil {
			t.Errorf("%s: %d events, %v", name, n, err)
		}
		if got := nextPod(t, w, watch.Deleted); got.UID != "first" {
			t.Errorf("%s: %s is deleted", name, got.UID)
		}
		if got := nextPod(t, w, watch.Added); got.UID != "second" || got.Spec.NodeName != "2" {
			t.Errorf("%s: %s is added", name, got.UID)
		}
	}
}

func TestApplyRefusesTheWholeBatch(t *testing.T) {
	l := newPodLog(logstore.Options{})
	for want, bad := range map[string][]*example.Pod{
		"set metadata.namespace": {pod("", "p", "1")},
		"invalid name":           {pod("a", "x/y", "1")},
		"given twice":            {pod("a", "p", "1"), pod("a", "p", "2")},
	} {
		batch := append([]*example.Pod{pod("a", "good", "1")}, bad...)
		if _, err := l.Apply(batch...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply: got %v, want %q", err, want)
		}
		if _, err := l.Replace(batch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("replace: got %v, want %q", err, want)
		}
	}
	if _, ok := l.GetObject("a", "good"); ok {
		t.Error("part of a refused batch was stored")
	}
}

func TestClusterScoped(t *testing.T) {
	l := logstore.New(newPod, logstore.Options{Resource: schema.GroupResource{Group: "g.io", Resource: "nodes"}})
	l.SetReady()
	if _, err := l.Apply(pod("a", "p", "1")); err == nil {
		t.Error("stored an object with a namespace")
	}
	apply(t, l, pod("", "p", "1"))
	got := newPod()
	if err := l.Get(context.Background(), "/g.io/nodes/p", storage.GetOptions{}, got); err != nil || got.Spec.NodeName != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	if !l.Remove("", "p") {
		t.Error("not removed")
	}
}

// Readers see all of a batch or nothing of it.
func TestBatchesAreAtomic(t *testing.T) {
	l := newPodLog(logstore.Options{})
	generation := func(n string) []*example.Pod {
		return []*example.Pod{pod("a", "p", n), pod("a", "q", n), pod("b", "r", n)}
	}
	apply(t, l, generation("0")...)
	done := make(chan error)
	go func() {
		for i := range uint64(500) {
			if _, err := l.Replace(generation(format(i))); err != nil {
				done <- err
				return
			}
		}
		close(done)
	}()
	for {
		got, err := list(t, l, storage.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nodes := slices.Collect(maps.Values(content(got)))
		if len(nodes) != 3 || len(slices.Compact(nodes)) != 1 {
			t.Fatalf("a list shows parts of two batches: %v", content(got))
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// What goes in and what comes out can be changed at will.
func TestStoredObjectsAreNeverChanged(t *testing.T) {
	l := newPodLog(logstore.Options{})
	spoil := func(o runtime.Object) {
		p := o.(*example.Pod)
		p.Labels["node"], p.Spec.NodeName = "spoilt", "spoilt"
	}
	w := watchFrom(t, l, "/pods/", storage.ListOptions{})
	in := pod("a", "p", "good")
	apply(t, l, in)
	spoil(in)
	created := pod("a", "q", "good")
	out := newPod()
	if err := l.Create(context.Background(), "/pods/a/q", created, out, 0); err != nil {
		t.Fatal(err)
	}
	spoil(created)
	spoil(out)
	spoil(nextPod(t, w, watch.Added))
	nextPod(t, w, watch.Added)
	apply(t, l, pod("a", "q", "better"))
	spoil(nextPod(t, w, watch.Modified))
	got, _ := l.GetObject("a", "p")
	spoil(got)
	if err := l.Get(context.Background(), "/pods/a/p", storage.GetOptions{}, out); err != nil {
		t.Fatal(err)
	}
	spoil(out)
	all, err := list(t, l, storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		spoil(&all.Items[i])
	}
	initial := watchFrom(t, l, "/pods/", storage.ListOptions{})
	spoil(nextPod(t, initial, watch.Added))
	failed := func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		spoil(in)
		return nil, nil, apierrors.NewBadRequest("no")
	}
	if err := l.GuaranteedUpdate(context.Background(), "/pods/a/p", newPod(), false, nil, failed, nil); !apierrors.IsBadRequest(err) {
		t.Fatal(err)
	}

	all, err = list(t, l, storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := asJSON(t, all); strings.Contains(text, "spoilt") {
		t.Errorf("a stored object was changed from outside: %s", text)
	}
}

// TestAgainstOracle applies random changes to a log and to a map that is copied
// at every version. Exact lists, pages and watches must agree with the copies.
func TestAgainstOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newPodLog(logstore.Options{HistoryEvents: 24})
		first := currentVersion(t, l)
		past := []map[string]string{{}} // by version - first
		record := func(after map[string]string) { past = append(past, after) }
		names := rapid.SampledFrom([]string{"p", "q", "r", "s"})
		namespaces := rapid.SampledFrom([]string{"a", "ab"})
		nodes := rapid.SampledFrom([]string{"1", "2"})

		for range rapid.IntRange(1, 60).Draw(rt, "changes") {
			now := maps.Clone(past[len(past)-1])
			namespace, name, node := namespaces.Draw(rt, "namespace"), names.Draw(rt, "name"), nodes.Draw(rt, "node")
			key := namespace + "/" + name
			if rapid.Bool().Draw(rt, "remove") {
				if _, ok := now[key]; ok != l.Remove(namespace, name) {
					rt.Fatalf("removing %s: it is there: %v", key, ok)
				} else if ok {
					delete(now, key)
					record(now)
				}
				continue
			}
			if apply(t, l, pod(namespace, name, node)) == 1 {
				if now[key] == node {
					rt.Fatalf("an event for no change")
				}
				now[key] = node
				record(now)
			}
		}
		if got := currentVersion(t, l) - first; got != uint64(len(past)-1) {
			rt.Fatalf("%d events, want %d", got, len(past)-1)
		}

		last := len(past) - 1
		for i, want := range past {
			rv := first + uint64(i)
			got, err := listAt(t, l, rv)
			if i < last-24 {
				if !apierrors.IsResourceExpired(err) {
					rt.Fatalf("list at forgotten version %d of %d: %v", i, last, err)
				}
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want, content(got)); diff != "" {
				rt.Fatalf("list at version %d of %d: %s", i, last, diff)
			}
			checkPages(t, rt, l, rv, want)
			checkWatch(t, rt, l, rv, maps.Clone(want), past[i:])
		}
	})
}

func checkPages(t *testing.T, rt *rapid.T, l *podLog, rv uint64, want map[string]string) {
	got := map[string]string{}
	opts := storage.ListOptions{ResourceVersion: format(rv), ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: limit(2, "")}
	for {
		page, err := list(t, l, opts)
		if err != nil {
			rt.Fatal(err)
		}
		maps.Copy(got, content(page))
		if page.Continue == "" {
			break
		}
		opts = storage.ListOptions{Predicate: limit(2, page.Continue)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		rt.Fatalf("pages at version %d: %s", rv, diff)
	}
}

// checkWatch replays a watch from version rv upon state, which must then pass
// through every later state.
func checkWatch(t *testing.T, rt *rapid.T, l *podLog, rv uint64, state map[string]string, later []map[string]string) {
	w, err := l.Watch(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: format(rv)})
	if err != nil {
		rt.Fatal(err)
	}
	defer w.Stop()
	for i, want := range later[1:] {
		e := next(t, w)
		p := e.Object.(*example.Pod)
		if p.ResourceVersion != format(rv+uint64(i)+1) {
			rt.Fatalf("event %d after %d has version %s", i+1, rv, p.ResourceVersion)
		}
		if e.Type == watch.Deleted {
			delete(state, p.Namespace+"/"+p.Name)
		} else {
			state[p.Namespace+"/"+p.Name] = p.Spec.NodeName
		}
		if diff := cmp.Diff(want, state); diff != "" {
			rt.Fatalf("watch from %d after %d events: %s", rv, i+1, diff)
		}
	}
}
