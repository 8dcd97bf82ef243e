// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// TestTwoLogsAreNotConfused has two replicas that were born a millisecond apart, and
// filled their logs alike: without terms, each takes the other's versions for its own.
func TestTwoLogsAreNotConfused(t *testing.T) {
	birth := time.Unix(1_800_000_000, 0)
	first, second := newPodLog(bornAt(birth)), newPodLog(bornAt(birth.Add(time.Millisecond)))
	for i := range 3000 {
		for _, l := range []*podLog{first, second} {
			apply(t, l, pod("a", "p", fmt.Sprint(i)))
		}
	}
	issued := currentVersion(t, first)
	const ceiling = 1_800_000_100 << 20
	second.Begin(ceiling)

	for rv := issued - 3000; rv <= issued; rv += 100 {
		wantExpiredWatch(t, second, rv)
		_, err := listAt(t, second, rv)
		wantExpired(t, err)
	}
	if got := currentVersion(t, second); got != ceiling {
		t.Errorf("the term begins at %d, want %d", got, uint64(ceiling))
	}
	if second.Begin(ceiling - 1); currentVersion(t, second) <= ceiling {
		t.Errorf("the next term begins at %d, which the one before has issued", currentVersion(t, second))
	}
}

// TestATermKeepsWhatIsStored: objects stay, and none looks older than the term, whose
// clients have seen later versions of them at another replica.
func TestATermKeepsWhatIsStored(t *testing.T) {
	l := newPodLog(logstore.Options{})
	apply(t, l, pod("a", "p", "1"), pod("a", "q", "1"))
	old := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(currentVersion(t, l))})
	begin := currentVersion(t, l) + 1<<20
	l.Begin(begin)
	if e := next(t, old); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("a watch from before the term got %s %v, want 410", e.Type, e.Object)
	}

	all, err := list(t, l, storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 2 || all.ResourceVersion != format(begin) {
		t.Errorf("the list has %d items and version %s, want 2 and %d", len(all.Items), all.ResourceVersion, begin)
	}
	wantVersion := func(how string, got metav1.Object, want uint64) {
		t.Helper()
		if got.GetResourceVersion() != format(want) {
			t.Errorf("%s: version %s, want %d", how, got.GetResourceVersion(), want)
		}
	}
	for i := range all.Items {
		wantVersion("list", &all.Items[i], begin)
	}
	got := newPod()
	if err := l.Get(context.Background(), "/pods/a/p", storage.GetOptions{}, got); err != nil {
		t.Fatal(err)
	}
	wantVersion("get", got, begin)
	w := watchFrom(t, l, "/pods/", storage.ListOptions{})
	wantVersion("watch", nextPod(t, w, watch.Added), begin)
	wantVersion("watch", nextPod(t, w, watch.Added), begin)

	if apply(t, l, pod("a", "p", "1")) != 0 {
		t.Error("the term made a difference")
	}
	apply(t, l, pod("a", "p", "2"))
	wantVersion("change", nextPod(t, w, watch.Modified), begin+1)
	w = watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(begin)})
	wantVersion("watch from the beginning of the term", nextPod(t, w, watch.Modified), begin+1)
}
