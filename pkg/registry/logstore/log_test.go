// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

func bornAt(t time.Time) logstore.Options {
	return logstore.Options{Clock: clocktesting.NewFakePassiveClock(t)}
}

func TestVersionsCountFromTheBirthOfTheLog(t *testing.T) {
	for _, tc := range []struct {
		name  string
		birth time.Time
		want  uint64
	}{
		{"a whole second", time.Unix(1_800_000_000, 0), 1_800_000_000 << 20},
		{"half a second", time.Unix(1_800_000_000, 500_000_000), 1_800_000_000<<20 + 1<<19},
		{"the epoch itself: 0 is no version", time.Unix(0, 0), 1},
		{"a clock before the epoch", time.Unix(-5, 0), 1},
	} {
		l := newPodLog(bornAt(tc.birth))
		if got := currentVersion(t, l); got != tc.want {
			t.Errorf("%s: the log begins at %d, want %d", tc.name, got, tc.want)
		}
		apply(t, l, pod("a", "p", "n"))
		if got, _ := l.GetObject("a", "p"); got.ResourceVersion != format(tc.want+1) {
			t.Errorf("%s: the first event has version %s, want %d", tc.name, got.ResourceVersion, tc.want+1)
		}
	}
}

func TestOldestAndNewestVersion(t *testing.T) {
	l := newPodLog(logstore.Options{HistoryEvents: 3})
	for _, node := range []string{"1", "2", "3", "4", "5"} {
		apply(t, l, pod("a", "p", node))
	}
	newest := currentVersion(t, l)
	oldest := newest - 3

	w := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(oldest)})
	for _, node := range []string{"3", "4", "5"} {
		if got := nextPod(t, w, watch.Modified).Spec.NodeName; got != node {
			t.Errorf("got node %s, want %s", got, node)
		}
	}
	w = watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(newest)})
	apply(t, l, pod("a", "q", "1"))
	if got := nextPod(t, w, watch.Added); got.Name != "q" {
		t.Errorf("a watch from the newest version began with %s", got.Name)
	}

	for rv, node := range map[uint64]string{newest - 2: "3", newest: "5"} {
		got, err := listAt(t, l, rv)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"a/p": node}, content(got)); diff != "" {
			t.Errorf("list at %d: %s", rv, diff)
		}
		if got.ResourceVersion != format(rv) {
			t.Errorf("list at %d says it is of %s", rv, got.ResourceVersion)
		}
	}
}

func TestVersionsNeverIssued(t *testing.T) {
	l := newPodLog(logstore.Options{HistoryEvents: 3})
	before := currentVersion(t, l)
	for _, node := range []string{"1", "2", "3", "4", "5"} {
		apply(t, l, pod("a", "p", node))
	}
	now := currentVersion(t, l)

	for _, rv := range []uint64{1, before, now - 4, now + 1, now + 1e9} {
		wantExpiredWatch(t, l, rv)
	}
	for _, rv := range []uint64{1, before, now - 4} {
		_, err := listAt(t, l, rv)
		wantExpired(t, err)
	}
	if _, err := listAt(t, l, now+1); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("exact list of the future: got %v, want 504 with cause ResourceVersionTooLarge", err)
	}
	if _, err := list(t, l, storage.ListOptions{ResourceVersion: format(now + 1)}); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("list not older than the future: got %v, want 504 with cause ResourceVersionTooLarge", err)
	}
	if err := l.Get(context.Background(), "/pods/a/p", storage.GetOptions{ResourceVersion: format(now + 1)}, newPod()); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("get not older than the future: got %v, want 504 with cause ResourceVersionTooLarge", err)
	}
	yes := true
	e := next(t, watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(now + 1), SendInitialEvents: &yes}))
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("WatchList not older than the future: got %s %v, want 504 with cause ResourceVersionTooLarge", e.Type, err)
	}
	for _, rv := range []string{"x", "-1", "1.5"} {
		if _, err := l.Watch(context.Background(), "/pods/", storage.ListOptions{ResourceVersion: rv}); !apierrors.IsBadRequest(err) {
			t.Errorf("watch from %q: got %v, want 400", rv, err)
		}
		if _, err := list(t, l, storage.ListOptions{ResourceVersion: rv}); !apierrors.IsBadRequest(err) {
			t.Errorf("list from %q: got %v, want 400", rv, err)
		}
		if err := l.Get(context.Background(), "/pods/a/p", storage.GetOptions{ResourceVersion: rv}, newPod()); !apierrors.IsBadRequest(err) {
			t.Errorf("get from %q: got %v, want 400", rv, err)
		}
	}
}

// A log that follows another one, as after a restart of the server, knows none of
// its versions, whichever way the clock went.
func TestRestart(t *testing.T) {
	birth := time.Unix(1_800_000_000, 100_000_000)
	for name, rebirth := range map[string]time.Time{
		"an hour later":            birth.Add(time.Hour),
		"within the same second":   birth.Add(200 * time.Millisecond),
		"with a clock turned back": birth.Add(-time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			pods := []*example.Pod{pod("a", "p", "1"), pod("a", "q", "1"), pod("a", "r", "1")}
			first := newPodLog(bornAt(birth))
			apply(t, first, pods...)
			paged, err := list(t, first, storage.ListOptions{Predicate: limit(2, "")})
			if err != nil {
				t.Fatal(err)
			}

			second := loadingPodLog(bornAt(rebirth))
			apply(t, second, pods...)
			second.SetReady()
			for rv := currentVersion(t, first) - 3; rv <= currentVersion(t, first); rv++ {
				wantExpiredWatch(t, second, rv)
			}

			_, err = list(t, second, storage.ListOptions{Predicate: limit(2, paged.Continue)})
			wantExpired(t, err)
			rest, err := list(t, second, storage.ListOptions{Predicate: limit(2, err.(apierrors.APIStatus).Status().ListMeta.Continue)})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"a/r": "1"}, content(rest)); diff != "" {
				t.Errorf("the rest of the list: %s", diff)
			}
		})
	}
}

func limit(n int64, token string) storage.SelectionPredicate {
	p := storage.Everything
	p.Limit, p.Continue = n, token
	return p
}

func TestPagesShowOneVersion(t *testing.T) {
	l := newPodLog(logstore.Options{})
	apply(t, l, pod("a", "1", "x"), pod("a", "2", "x"), pod("a", "3", "x"), pod("a", "4", "x"))
	page, err := list(t, l, storage.ListOptions{Predicate: limit(2, "")})
	if err != nil {
		t.Fatal(err)
	}
	if page.RemainingItemCount == nil || *page.RemainingItemCount != 2 {
		t.Errorf("the first page says that %v items remain, want 2", page.RemainingItemCount)
	}
	l.Remove("a", "3")
	apply(t, l, pod("a", "4", "y"), pod("a", "5", "y"), pod("a", "1", "y"))

	rest, err := list(t, l, storage.ListOptions{Predicate: limit(0, page.Continue)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a/3": "x", "a/4": "x"}, content(rest)); diff != "" {
		t.Errorf("second page: %s", diff)
	}
	if rest.ResourceVersion != page.ResourceVersion {
		t.Errorf("pages of versions %s and %s", page.ResourceVersion, rest.ResourceVersion)
	}
	selected := onNode("y")
	selected.Limit = 1
	if got, err := list(t, l, storage.ListOptions{Predicate: selected}); err != nil || got.RemainingItemCount != nil {
		t.Errorf("a selected page says that %v items remain (%v), want no count", got.RemainingItemCount, err)
	}
}

func TestNotReady(t *testing.T) {
	birth := time.Unix(1_800_000_000, 0)
	clock := clocktesting.NewFakePassiveClock(birth)
	l := loadingPodLog(logstore.Options{Loading: "the catalogue of location default", Clock: clock})
	apply(t, l, pod("a", "p", "1"))
	loading := currentVersion(t, l)

	ctx := context.Background()
	_, listErr := list(t, l, storage.ListOptions{})
	_, watchErr := l.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	for verb, err := range map[string]error{
		"get":       l.Get(ctx, "/pods/a/p", storage.GetOptions{}, newPod()),
		"list":      listErr,
		"watch":     watchErr,
		"create":    l.Create(ctx, "/pods/a/q", pod("a", "q", "1"), nil, 0),
		"readiness": l.ReadinessCheck(),
	} {
		if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "the catalogue of location default") {
			t.Errorf("%s: got %v, want 429 that says what is loading", verb, err)
		}
	}
	for age, want := range map[time.Duration]int{0: 1, 5 * time.Second: 5, time.Hour: 10} {
		clock.SetTime(birth.Add(age))
		if got, _ := apierrors.SuggestsClientDelay(l.ReadinessCheck()); got != want {
			t.Errorf("Retry-After %d s after %v of loading, want %d s", got, age, want)
		}
	}
	if got, ok := l.GetObject("a", "p"); !ok || got.Spec.NodeName != "1" {
		t.Error("a projector can't read what it wrote before the log is ready")
	}

	l.SetReady()
	got, err := list(t, l, storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a/p": "1"}, content(got)); diff != "" {
		t.Error(diff)
	}
	if n := l.HistoryLen(); n != 0 {
		t.Errorf("%d events of the loading are remembered, which no client can ask for", n)
	}
	if l.CompactRevision() != 0 {
		t.Errorf("compacted up to %d, but clients have seen nothing before it", l.CompactRevision())
	}
	wantExpiredWatch(t, l, loading-1)
}

func TestHistoryIsBounded(t *testing.T) {
	t.Run("by count", func(t *testing.T) {
		l := newPodLog(logstore.Options{HistoryEvents: 20})
		for i := range uint64(100) {
			apply(t, l, pod("a", "p", format(i)))
			if got, want := l.HistoryLen(), int(min(i+1, 20)); got != want {
				t.Fatalf("after %d events %d are remembered, want %d", i+1, got, want)
			}
		}
	})
	t.Run("by age", func(t *testing.T) {
		birth := time.Unix(1_800_000_000, 0)
		for age, want := range map[time.Duration]time.Duration{
			time.Second:      logstore.MinHistoryAge, // clients rely on more
			10 * time.Minute: 10 * time.Minute,
			0:                5 * time.Minute,
		} {
			clock := clocktesting.NewFakePassiveClock(birth)
			l := newPodLog(logstore.Options{Clock: clock, HistoryAge: age})
			before := currentVersion(t, l)
			apply(t, l, pod("a", "p", "1"))
			clock.SetTime(birth.Add(want))
			apply(t, l, pod("a", "p", "2"))
			if got := nextPod(t, watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(before)}), watch.Added); got.Spec.NodeName != "1" {
				t.Errorf("history of %v: began at %s", age, got.Spec.NodeName)
			}
			clock.SetTime(birth.Add(want + 1))
			apply(t, l, pod("a", "p", "3"))
			wantExpiredWatch(t, l, before)
			if got := l.HistoryLen(); got != 2 {
				t.Errorf("history of %v: %d events are remembered after %v, want 2", age, got, want)
			}
		}
	})
}

func TestOnRead(t *testing.T) {
	type key struct{}
	var seen []any
	l := loadingPodLog(logstore.Options{OnRead: func(ctx context.Context) { seen = append(seen, ctx.Value(key{})) }})
	apply(t, l, pod("a", "p", "1"))
	ctx := context.WithValue(context.Background(), key{}, "request")
	read := func() {
		_ = l.Get(ctx, "/pods/a/p", storage.GetOptions{}, newPod())
		_ = l.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	}
	read()
	if len(seen) != 0 {
		t.Errorf("a request that was refused is taken for a read: %v", seen)
	}
	l.SetReady()
	read()
	if diff := cmp.Diff([]any{"request", "request"}, seen); diff != "" {
		t.Error(diff)
	}
}

// TestAFullRateIsRememberedForItsTime: the queue sends 1,000 events a second at most.
func TestAFullRateIsRememberedForItsTime(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	l := newPodLog(logstore.Options{Clock: now})
	const rate = 1000
	var begun uint64
	for i := range 100 * rate {
		if i == 25*rate {
			begun = currentVersion(t, l)
		}
		apply(t, l, pod("a", "p", fmt.Sprint(i)))
		now.SetTime(now.Now().Add(time.Second / rate))
	}
	if kept := l.HistoryLen(); kept > 80*rate {
		t.Errorf("%d events are remembered, which is more than %s", kept, logstore.MinHistoryAge)
	}
	w := watchFrom(t, l, "/pods/", storage.ListOptions{ResourceVersion: format(begun)})
	if got := nextPod(t, w, watch.Modified); got.Spec.NodeName != fmt.Sprint(25*rate) {
		t.Errorf("a watch from 75 s ago begins with event %s", got.Spec.NodeName)
	}
}

// TestLargeObjectsAreForgottenSooner: a client that makes large objects change can't
// fill the memory.
func TestLargeObjectsAreForgottenSooner(t *testing.T) {
	const size = 1 << 10
	l := newPodLog(logstore.Options{HistoryBytes: 100 * size})
	for i := range 1000 {
		p := pod("a", "p", fmt.Sprint(i))
		p.Annotations = map[string]string{"large": strings.Repeat("x", size/2), "slow": strings.Repeat("x", size/2)}
		apply(t, l, p)
	}
	if kept := l.HistoryLen(); kept > 100 || kept < 30 {
		t.Errorf("%d events of more than %d bytes are remembered, in %d bytes", kept, size, 100*size)
	}
	for range 1000 {
		apply(t, l, pod("a", "q", "1"))
		l.Remove("a", "q")
	}
	if kept := l.HistoryLen(); kept < 100 {
		t.Errorf("%d events of small objects are remembered", kept)
	}
}
