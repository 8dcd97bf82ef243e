// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

type podLog = logstore.Log[*example.Pod]

func newPod() *example.Pod { return &example.Pod{} }

// newPodLog returns a log of pods that is ready, with keys below /pods/.
func newPodLog(options logstore.Options) *podLog {
	l := loadingPodLog(options)
	l.SetReady()
	return l
}

func loadingPodLog(options logstore.Options) *podLog {
	options.Resource = schema.GroupResource{Resource: "pods"}
	options.Namespaced = true
	return logstore.New(newPod, options)
}

// pod makes a pod whose node stands for its content.
func pod(namespace, name, node string) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"node": node}},
		Spec:       example.PodSpec{NodeName: node},
	}
}

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	p, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("not a pod: %T", obj)
	}
	return p.Labels, fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName}, nil
}

func onNode(node string) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label:    labels.Everything(),
		Field:    fields.OneTermEqualSelector("spec.nodeName", node),
		GetAttrs: podAttrs,
	}
}

func apply(t testing.TB, l *podLog, pods ...*example.Pod) int {
	t.Helper()
	n, err := l.Apply(pods...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func currentVersion(t testing.TB, l *podLog) uint64 {
	t.Helper()
	rv, err := l.GetCurrentResourceVersion(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return rv
}

func format(rv uint64) string { return strconv.FormatUint(rv, 10) }

func list(t testing.TB, l *podLog, opts storage.ListOptions) (*example.PodList, error) {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		opts.Predicate.Label, opts.Predicate.Field = labels.Everything(), fields.Everything()
	}
	out := &example.PodList{}
	return out, l.GetList(context.Background(), "/pods/", opts, out)
}

func listAt(t testing.TB, l *podLog, rv uint64) (*example.PodList, error) {
	t.Helper()
	return list(t, l, storage.ListOptions{ResourceVersion: format(rv), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
}

// content maps the pods of a list to their nodes.
func content(l *example.PodList) map[string]string {
	m := map[string]string{}
	for _, p := range l.Items {
		m[p.Namespace+"/"+p.Name] = p.Spec.NodeName
	}
	return m
}

// watchFrom watches everything below prefix. The watch ends with the test.
func watchFrom(t testing.TB, l *podLog, prefix string, opts storage.ListOptions) watch.Interface {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		opts.Predicate.Label, opts.Predicate.Field = labels.Everything(), fields.Everything()
	}
	w, err := l.Watch(context.Background(), prefix, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(wait.ForeverTestTimeout):
		t.Fatal("no event")
	}
	return watch.Event{}
}

// nextPod returns the next event's pod and fails unless the event is of the type wanted.
func nextPod(t testing.TB, w watch.Interface, wanted watch.EventType) *example.Pod {
	t.Helper()
	e := next(t, w)
	if e.Type != wanted {
		t.Fatalf("got %s %v, want %s", e.Type, e.Object, wanted)
	}
	return e.Object.(*example.Pod)
}

func wantExpired(t testing.TB, err error) {
	t.Helper()
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v, want 410 Expired", err)
	}
}

// wantExpiredWatch fails unless a watch from rv ends at once with 410.
func wantExpiredWatch(t testing.TB, l *podLog, rv uint64) {
	t.Helper()
	w := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(rv)})
	e := next(t, w)
	if e.Type != watch.Error {
		t.Fatalf("watch from %d: got %s, want ERROR", rv, e.Type)
	}
	wantExpired(t, apierrors.FromObject(e.Object))
	if _, open := <-w.ResultChan(); open {
		t.Error("the watch goes on after an error")
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
