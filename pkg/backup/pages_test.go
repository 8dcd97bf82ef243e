// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const configMaps = "/api/v1/namespaces/shop/configmaps"

// shopOf is a backup of one namespace with some ConfigMaps.
func shopOf(t *testing.T, objects int) *fixture {
	t.Helper()
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"configmaps"}})
	f.add("namespaces", namespace("shop", ""))
	var names []string
	for i := range objects {
		names = append(names, fmt.Sprintf("c-%05d", i))
	}
	f.add("configmaps", named("shop", names...)...)
	return f
}

func (f *fixture) wantConfigMaps(t *testing.T, want int) {
	t.Helper()
	items := f.items(t)
	for i := range want {
		if name := fmt.Sprintf("configmaps shop/c-%05d", i); len(items) != want+1 || items[i] != name {
			t.Fatalf("%d items, and in the place of %s is %s", len(items), name, items[min(i, len(items)-1)])
		}
	}
}

func isPage(r *http.Request, from int) bool {
	at, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	return r.URL.Path == configMaps && at == from
}

// A list whose token has expired goes on where the server says, or else starts
// again, without an object twice.
func TestExpiredContinueToken(t *testing.T) {
	for name, test := range map[string]struct {
		reason   metav1.StatusReason
		offered  string
		requests int
	}{
		"with a token for the rest": {metav1.StatusReasonExpired, "1000", 4},
		"from the start":            {metav1.StatusReasonExpired, "", 6},
		"gone, from the start":      {metav1.StatusReasonGone, "", 6},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 1200)
			var once sync.Once
			f.intercept = func(w http.ResponseWriter, r *http.Request) (answered bool) {
				if isPage(r, 1000) {
					once.Do(func() {
						answered = true
						writeStatus(w, metav1.Status{
							Code: http.StatusGone, Reason: test.reason, Message: "too old",
							ListMeta: metav1.ListMeta{Continue: test.offered},
						})
					})
				}
				return answered
			}
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("the phase is %s: %+v", outcome.Status.Phase, f.results(t))
			}
			f.wantConfigMaps(t, 1200)
			if got := f.requested(configMaps); got != test.requests {
				t.Errorf("%d pages were requested", got)
			}
		})
	}
}

// Namespaces that come again are read once.
func TestExpiredTokenOfTheNamespaces(t *testing.T) {
	f := shopOf(t, 3)
	pages := 0
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/namespaces" {
			return false
		}
		switch pages++; pages {
		case 1:
			_, _ = w.Write([]byte(`{"kind":"List","metadata":{"continue":"1"},"items":[{"metadata":{"name":"shop"}}]}`))
		case 2:
			writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
		}
		return pages < 3
	}
	f.run(t)
	f.wantConfigMaps(t, 3)
	if lists := f.requested(configMaps); pages != 3 || lists != 1 {
		t.Errorf("after %d pages, %d lists", pages, lists)
	}
}

// Nothing has expired where nothing was continued: it is the server's last word.
func TestGoneAtTheFirstPage(t *testing.T) {
	f := shopOf(t, 3)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if !isPage(r, 0) {
			return false
		}
		writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
		return true
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || f.requested(configMaps) != 1 {
		t.Errorf("after %d requests: %+v", f.requested(configMaps), outcome.Status)
	}
}

// A single object is read again as pages are.
func TestSingleReadsAreTriedAgain(t *testing.T) {
	const volume = "/api/v1/persistentvolumes/pv-data"
	for name, test := range map[string]struct {
		code     int32
		failures int
		requests int
		phase    v1alpha1.BackupPhase
	}{
		"for a while":      {http.StatusServiceUnavailable, 2, 3, v1alpha1.BackupPhaseCompleted},
		"but not for ever": {http.StatusServiceUnavailable, 99, 4, v1alpha1.BackupPhasePartiallyFailed},
		"not if refused":   {http.StatusForbidden, 99, 1, v1alpha1.BackupPhasePartiallyFailed},
	} {
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedNamespaceScopedResources: []string{"pvc"}})
		f.story()
		var seen atomic.Int32
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != volume || int(seen.Add(1)) > test.failures {
				return false
			}
			writeStatus(w, metav1.Status{Code: test.code, Message: "not now"})
			return true
		}
		if outcome := f.run(t); outcome.Status.Phase != test.phase || f.requested(volume) != test.requests {
			t.Errorf("%s: after %d requests: %+v", name, f.requested(volume), outcome.Status)
		}
	}
}

func TestTokenThatAlwaysExpiresEndsTheList(t *testing.T) {
	f := shopOf(t, 600)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if !isPage(r, 500) {
			return false
		}
		writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
		return true
	}
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != 1 {
		t.Errorf("got %+v", outcome.Status)
	}
	f.wantConfigMaps(t, 500)
	if !bytes.Equal(f.read(t, format.CopyKey("b")), f.read(t, format.MetadataKey("b"))) {
		t.Error("what can be restored in part has no copy of its metadata")
	}
	// It says how many were announced, and did not come.
	if want := (v1alpha1.BackupProgress{TotalItems: 601, ItemsBackedUp: 501}); *outcome.Status.Progress != want {
		t.Errorf("its progress is %+v", *outcome.Status.Progress)
	}
}

// A connection that breaks in the middle of a page costs that page again, as
// long as it gets further each time.
func TestBrokenPageIsReadAgain(t *testing.T) {
	f := shopOf(t, 700)
	const breaks = 10
	var broken atomic.Int32
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if !isPage(r, 500) || broken.Add(1) > breaks {
			return false
		}
		whole := httptest.NewRecorder()
		f.serve(whole, r)
		body := whole.Body.Bytes()
		_, _ = w.Write(body[:len(body)*int(broken.Load())/(breaks+1)])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("the phase is %s: %+v", outcome.Status.Phase, f.results(t))
	}
	f.wantConfigMaps(t, 700)
}

// A list ends, whatever the server does.
func TestListsEnd(t *testing.T) {
	half := func(t *testing.T, f *fixture, w http.ResponseWriter, r *http.Request, cut func(body []byte) int) {
		t.Helper()
		whole := httptest.NewRecorder()
		f.serve(whole, r)
		_, _ = w.Write(whole.Body.Bytes()[:cut(whole.Body.Bytes())])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, test := range map[string]struct {
		answer   func(t *testing.T, f *fixture, w http.ResponseWriter, r *http.Request)
		requests int // of the page at 500
		text     string
	}{
		"a page that always breaks after its first objects": {
			answer: func(t *testing.T, f *fixture, w http.ResponseWriter, r *http.Request) {
				half(t, f, w, r, func(body []byte) int { return len(body) / 2 })
			},
			requests: 4, text: "unexpected EOF",
		},
		"what is no JSON": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"items":[<html>`))
			},
			requests: 1, text: "it is no JSON",
		},
		"what is no list": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"items":{"a":1}}`))
			},
			requests: 1, text: errMalformed.Error(),
		},
		"metadata that is none": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"metadata":{"continue":7},"items":[]}`))
			},
			requests: 1, text: "cannot unmarshal",
		},
		"a page that is followed by itself": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"kind":"List","metadata":{"continue":"500"},"items":[]}`))
			},
			requests: 1, text: errMalformed.Error(),
		},
		"tokens that expire, and pages that have come before, in turn": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, r *http.Request) {
				token := r.URL.Query().Get("continue")
				if offer, expired := strings.CutPrefix(token, "expired-"); expired {
					writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, ListMeta: metav1.ListMeta{Continue: offer}})
					return
				}
				fmt.Fprintf(w, `{"kind":"List","items":[%s],"metadata":{"continue":"expired-%s+"}}`, named("shop", "c-00003")[0], token)
			},
			requests: 3, text: errMalformed.Error(),
		},
		"empty pages, each followed by another": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, `{"kind":"List","items":[],"metadata":{"continue":"%s+"}}`, r.URL.Query().Get("continue"))
			},
			requests: maxIdle, text: errMalformed.Error(),
		},
		"empty pages and tokens that expire, in turn": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, r *http.Request) {
				token := r.URL.Query().Get("continue")
				if offer, expired := strings.CutPrefix(token, "expired-"); expired {
					writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old", ListMeta: metav1.ListMeta{Continue: offer}})
					return
				}
				fmt.Fprintf(w, `{"kind":"List","items":[],"metadata":{"continue":"expired-%s+"}}`, token)
			},
			requests: 2 * (maxRestarts + 1), text: "too old",
		},
		"pages that follow each other in a circle": {
			answer: func(_ *testing.T, _ *fixture, w http.ResponseWriter, r *http.Request) {
				after := map[string]string{"500": "a", "a": "b", "b": "c", "c": "a"}
				token := r.URL.Query().Get("continue")
				fmt.Fprintf(w, `{"kind":"List","items":[%s],"metadata":{"continue":%q}}`, named("shop", fmt.Sprintf("c-%05d", token[0]))[0], after[token])
			},
			requests: 6, text: errMalformed.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 700)
			var requests atomic.Int32
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != configMaps || r.URL.Query().Get("continue") == "" {
					return false
				}
				if requests.Add(1) > 2*maxIdle {
					w.WriteHeader(http.StatusTeapot)
					return true
				}
				test.answer(t, f, w, r)
				return true
			}
			outcome := f.run(t)
			if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed {
				t.Errorf("the phase is %s", outcome.Status.Phase)
			}
			if got := f.results(t).Errors.Namespaces["shop"]; len(got) != 1 || !strings.Contains(got[0], test.text) {
				t.Errorf("the errors are %q", got)
			}
			if got := int(requests.Load()); got != test.requests {
				t.Errorf("%d requests, want %d", got, test.requests)
			}
		})
	}
}

// A server that answers every token with another one that has expired as well.
func TestOfferedTokensThatAlwaysExpire(t *testing.T) {
	f := shopOf(t, 600)
	var requests atomic.Int32
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != configMaps || isPage(r, 0) {
			return false
		}
		n := requests.Add(1)
		if n > 20 {
			w.WriteHeader(http.StatusTeapot)
			return true
		}
		writeStatus(w, metav1.Status{
			Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old",
			ListMeta: metav1.ListMeta{Continue: strconv.Itoa(500 + int(n))},
		})
		return true
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != 1 {
		t.Errorf("got %+v", outcome.Status)
	}
	if got := requests.Load(); got != maxRestarts+1 {
		t.Errorf("%d requests for the rest", got)
	}
	f.wantConfigMaps(t, 500)
}

func TestPassingErrorsAreTriedAgain(t *testing.T) {
	f := shopOf(t, 10)
	var failures atomic.Int32
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != configMaps || failures.Add(1) > 3 {
			return false
		}
		writeStatus(w, metav1.Status{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "etcd has no leader"})
		return true
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("the phase is %s", outcome.Status.Phase)
	}
	f.wantConfigMaps(t, 10)
}

// What one resource refuses does not keep the others from being backed up.
func TestListErrors(t *testing.T) {
	for name, test := range map[string]struct {
		status   metav1.Status
		phase    v1alpha1.BackupPhase
		requests int
		text     string
	}{
		"forbidden": {
			metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no rights"},
			v1alpha1.BackupPhasePartiallyFailed, 1, "configmaps shop: list it: no rights",
		},
		"always down": {
			metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: "down"},
			v1alpha1.BackupPhasePartiallyFailed, 4, "configmaps shop: list it: down",
		},
		"gone since discovery": {
			metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no such resource"},
			v1alpha1.BackupPhasePartiallyFailed, 1, "configmaps shop: the cluster served it when the backup began, and no longer does: the backup has none of its objects: no such resource",
		},
		"not to be listed since discovery": {
			metav1.Status{Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed, Message: "no list"},
			v1alpha1.BackupPhasePartiallyFailed, 1, "configmaps shop: the cluster served it when the backup began, and no longer does: the backup has none of its objects: no list",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.story()
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != configMaps {
					return false
				}
				writeStatus(w, test.status)
				return true
			}
			outcome := f.run(t)
			if outcome.Status.Phase != test.phase {
				t.Errorf("the phase is %s", outcome.Status.Phase)
			}
			results := f.results(t)
			messages := append(results.Errors.Namespaces["shop"], results.Warnings.Namespaces["shop"]...)
			if len(messages) != 1 || messages[0] != test.text {
				t.Errorf("got %q", messages)
			}
			if got := f.requested(configMaps); got != test.requests {
				t.Errorf("%d requests", got)
			}
			if items := strings.Join(f.items(t), "\n"); !strings.Contains(items, "deployments.apps shop/web") || strings.Contains(items, "configmaps") {
				t.Errorf("the tarball holds\n%s", items)
			}
		})
	}
}

// Pitfall 30: no more than a batch of objects waits in memory: of a list at most one page is asked for while the one
// before it is read, and no more lists are open than there are workers.
func TestMemoryDoesNotFollowTheNumberOfObjects(t *testing.T) {
	f := shopOf(t, 3000)
	f.request.Backup.Spec.IncludedResources = nil
	f.deps.Workers = 2
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if from, _ := strconv.Atoi(r.URL.Query().Get("continue")); r.URL.Path == configMaps {
			if written := f.deps.Progress.Objects().ItemsBackedUp; written < int64(from-2*pageSize) {
				t.Errorf("page %d was requested with %d objects written", from/pageSize, written)
			}
		}
		return false
	}
	f.run(t)
	f.wantConfigMaps(t, 3000)
	if f.peak > 2*f.deps.Workers {
		t.Errorf("%d pages were open at once", f.peak)
	}
}

// What is remembered to tell objects apart ends with their list, but for those
// that others refer to.
func TestNamesOfOneListAtATime(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{})
	f.story()
	e := newExecution(t.Context(), f.request, f.deps)
	c, err := e.newCollector(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.NewWriter(io.Discard, start, "b")
	if err != nil {
		t.Fatal(err)
	}
	c.sink = newSink(w, &manifest.Writer{}, e.log, e.Progress)
	if _, err := c.collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	for gr := range c.sink.seen {
		if !related.Has(gr) {
			t.Errorf("the names of %s are kept", gr)
		}
	}
}

// What a server announces counts as found, as far as it may be wanted, until it comes.
func TestProgressCountsWhatIsAnnounced(t *testing.T) {
	left := fmt.Sprintf("%q:%q", format.LabelExclude, "true")
	for name, test := range map[string]struct {
		prepare func(f *fixture)
		want    []int64 // before each page
	}{
		"of one namespace": {func(*fixture) {}, []int64{0, 1200, 1200}},
		"of all namespaces": {func(f *fixture) {
			f.request.Backup.Spec.IncludedNamespaces = nil
		}, []int64{0, 1200, 1200}},
		// Nobody knows how many of the others a list of the cluster holds.
		"of many namespaces": {func(f *fixture) {
			for i := range maxNamespaceLists {
				name := fmt.Sprintf("quiet-%d", i)
				f.add("namespaces", namespace(name, ""))
				f.request.Backup.Spec.IncludedNamespaces = append(f.request.Backup.Spec.IncludedNamespaces, name)
			}
		}, []int64{0, 500, 1000}},
		"and left out then": {func(f *fixture) {
			for i := range 100 {
				f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"a-%05d","namespace":"shop","labels":{%s}}}`, i, left))
			}
		}, []int64{0, 1200, 1200}},
	} {
		f := shopOf(t, 1200)
		test.prepare(f)
		var seen []int64
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/configmaps") {
				// A page is asked for while the one before it is read.
				total := func() int64 { return f.deps.Progress.Objects().TotalItems }
				now := total() // one less for the moment between an object's arrival and its count
				for end := time.Now().Add(time.Minute); len(seen) < len(test.want) && now != test.want[len(seen)] && time.Now().Before(end); now = total() {
					time.Sleep(time.Millisecond)
				}
				seen = append(seen, now)
			}
			return false
		}
		f.run(t)
		if !slices.Equal(seen, test.want) {
			t.Errorf("%s: the totals were %v, not %v", name, seen, test.want)
		}
		// The namespace comes last.
		if got, want := f.deps.Progress.Objects(), (v1alpha1.BackupProgress{TotalItems: 1201, ItemsBackedUp: 1201}); got != want {
			t.Errorf("%s: at the end: %+v", name, got)
		}
	}
}

// What comes was announced, and is not counted twice until the next page says so.
func TestWhatComesWasAnnounced(t *testing.T) {
	f := shopOf(t, 0)
	e := newExecution(t.Context(), f.request, f.deps)
	c, err := e.newCollector(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.sink = newSink(nil, nil, e.log, e.Progress)
	v := c.counted(t.Context(), query{namespace: "shop"}, func(context.Context, resource, *head, []byte) error { return nil })
	v.page(2)
	for i, want := range []int64{1, 0, 0} { // the third one is new
		if err := v.object([]byte(named("shop", fmt.Sprint(i))[0])); err != nil || e.Progress.found.Load() != want {
			t.Errorf("after %d, %d are to come, %v", i+1, e.Progress.found.Load(), err)
		}
	}
}

// places are the paths that a backup of everywhere reads one after the other.
var places = []string{"/api/v1/namespaces", "/api/v1/pods", "/api/v1/configmaps",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", "/api/v1/namespaces/shop"}

// everywhere is a backup that lists by a label, and to which others come along. What is
// read at one of the places has a content.
func everywhere(t *testing.T, place, content string) *fixture {
	t.Helper()
	f := newFixture(t, v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}})
	const labelled = `"name":"one","namespace":"shop","labels":{"app":"db"}`
	for i, object := range []struct{ resource, metadata string }{
		{"widgets.example.com", labelled}, {"pods", labelled}, {"configmaps", labelled},
		{"customresourcedefinitions.apiextensions.k8s.io", `"name":"widgets.example.com"`}, {"namespaces", `"name":"shop"`},
	} {
		text := ""
		if place == places[i] {
			text = content
		}
		f.add(object.resource, fmt.Sprintf(`{"metadata":{%s},"data":%q}`, object.metadata, text))
	}
	return f
}

// Cancelled while it reads, a backup ends at once and leaves nothing.
func TestCancelWhileReading(t *testing.T) {
	for _, place := range places {
		f := everywhere(t, place, "")
		ctx, cancel := context.WithCancel(t.Context())
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != place {
				return false
			}
			cancel()
			<-r.Context().Done() // the server never answers
			return true
		}
		outcome, err := Run(ctx, f.request, f.deps)
		if err != context.Canceled || outcome.Stored || outcome.Status.Errors > 0 {
			t.Errorf("%s: got %+v, %v", place, outcome, err)
		}
		if keys := f.keys(t); !slices.Equal(keys, []string{format.OwnerKey("b")}) {
			t.Errorf("%s: %v is in the store", place, keys)
		}
		cancel()
	}
}

// deaf is a store whose writes go on when their context has ended, as those do that
// have left already.
type deaf struct{ Store }

func (d deaf) Create(ctx context.Context, key string, content []byte) error {
	return d.Store.Create(context.WithoutCancel(ctx), key, content)
}

func (d deaf) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	return d.Store.NewWriter(context.WithoutCancel(ctx), key)
}

// The same while it waits for volumes: then all objects are read already. And from then
// on nothing is written any more: who cancelled may be cleaning up.
func TestCancelWhileVolumesUpload(t *testing.T) {
	for name, answer := range map[string]error{"and that fails": context.Canceled, "and all have ended": nil} {
		f := shopOf(t, 3)
		f.deps.Store = deaf{f.store}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f.volumes.wait = func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return answer
		}
		outcome, err := Run(ctx, f.request, f.deps)
		if err != context.Canceled || outcome.Stored || outcome.Status.Phase != v1alpha1.BackupPhaseFailed {
			t.Fatalf("%s: got %+v, %v", name, outcome, err)
		}
		if keys := f.keys(t); !slices.Equal(keys, []string{format.OwnerKey("b")}) {
			t.Errorf("%s: %v is in the store", name, keys)
		}
	}
}

// refusing is a store that takes no metadata, and does something then.
type refusing struct {
	Store
	do func()
}

func (r refusing) Create(ctx context.Context, key string, content []byte) error {
	if key == format.MetadataKey("b") {
		r.do()
		return store.ErrDenied
	}
	return r.Store.Create(ctx, key, content)
}

// Cancelled at its last step, a backup has ended as its metadata says, and not at all
// without.
func TestCancelAtTheEnd(t *testing.T) {
	for name, created := range map[string]bool{"after its metadata": true, "before": false} {
		f := shopOf(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if created {
			f.deps.Store = &losing{Store: deaf{f.store}, key: format.MetadataKey("b"), do: cancel}
		} else {
			f.deps.Store = refusing{f.store, cancel}
		}
		outcome, err := Run(ctx, f.request, f.deps)
		switch {
		case outcome.Stored != created || created && (err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted):
			t.Errorf("%s: got %+v, %v", name, outcome, err)
		case !created && (err != context.Canceled || outcome.Status.Phase != v1alpha1.BackupPhaseFailed):
			t.Errorf("%s: got %+v, %v", name, outcome, err)
		}
	}
}

// Somebody else has ended it, which decides, or has even removed it since.
func TestABackupThatOthersHaveEnded(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*testing.T, *fixture)
		phase     v1alpha1.BackupPhase
		stored    bool
	}{
		"cancelled": {func(t *testing.T, f *fixture) {
			if _, err := f.abandon(t, v1alpha1.BackupPhaseCancelled, "cancelled"); err != nil {
				t.Fatal(err)
			}
		}, v1alpha1.BackupPhaseCancelled, true},
		"cancelled and deleted": {func(t *testing.T, f *fixture) {
			if _, err := f.abandon(t, v1alpha1.BackupPhaseCancelled, "cancelled"); err != nil {
				t.Fatal(err)
			}
			storetest.Empty(t, f.store, format.BackupPrefix("b"))
		}, v1alpha1.BackupPhaseFailed, false},
		"and another one runs": {func(t *testing.T, f *fixture) {
			storetest.Empty(t, f.store, format.BackupPrefix("b"))
			if err := f.store.Create(t.Context(), format.OwnerKey("b"), []byte(`{"uid":"another"}`)); err != nil {
				t.Fatal(err)
			}
		}, v1alpha1.BackupPhaseFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			f.volumes.wait = func(context.Context) error { test.meanwhile(t, f); return nil }
			outcome, err := Run(t.Context(), f.request, f.deps)
			if outcome.Stored != test.stored || outcome.Status.Phase != test.phase || (err == nil) != test.stored {
				t.Errorf("got %+v, %v", outcome, err)
			}
			if exists := slices.Contains(f.keys(t), format.MetadataKey("b")); exists != test.stored {
				t.Errorf("in the store is %v", f.keys(t))
			}
		})
	}
}

// beaten is a store in which somebody else is faster with an object.
type beaten struct {
	Store
	key string
	by  func()
}

func (b *beaten) Create(ctx context.Context, key string, content []byte) error {
	if key == b.key {
		b.by()
	}
	return b.Store.Create(ctx, key, content)
}

// Of a backup that somebody else has ended nothing is read.
func TestABackupThatEndsAsItBegins(t *testing.T) {
	f := shopOf(t, 3)
	others := f.deps
	f.deps.Store = &beaten{f.store, format.OwnerKey("b"), func() {
		if _, err := Abandon(t.Context(), f.request, others, f.store, v1alpha1.BackupPhaseCancelled, "cancelled"); err != nil {
			t.Error(err)
		}
	}}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCancelled || f.requested("/api") > 0 {
		t.Errorf("got %+v after %d requests", outcome.Status, f.requested("/api"))
	}
}

// What a backup asks of its store.
func TestRequestsToTheStore(t *testing.T) {
	f := shopOf(t, 3)
	f.run(t)
	counts := f.store.Counts()
	delete(counts, storetest.Write)
	want := map[storetest.Operation]int{
		storetest.Get:       2,         // for the metadata, and at the end for the owner
		storetest.Create:    6 + 2 + 3, // the side files with the manifest, the results and the log; the owner, the metadata and its copy
		storetest.NewWriter: 1, storetest.Commit: 1,
		storetest.List: 1,
	}
	if !maps.Equal(counts, want) {
		t.Errorf("requests to the store: %v, want %v", counts, want)
	}
}

// What was stored is looked for before the backup is made to exist: another's
// clean-up, of a version that knew no owners, or a hand may have removed it.
func TestABackupThatLostItsTarball(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *fixture){
		"and all else": func(t *testing.T, f *fixture) {
			storetest.Empty(t, f.store, format.BackupPrefix("b"))
			if err := f.store.Create(t.Context(), format.OwnerKey("b"), []byte(`{"uid":"11111111-2222-3333-4444-555555555555"}`)); err != nil {
				t.Fatal(err)
			}
		},
		// What else lies there does not make up for it.
		"alone": func(t *testing.T, f *fixture) {
			tarball, err := f.store.Attributes(t.Context(), format.TarballKey("b"))
			if err == nil {
				err = f.store.Delete(t.Context(), tarball)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			f.deps.Store = &losing{Store: &breaking{Store: f.store}, key: format.VolumeInfoKey("b"), do: func() { lose(t, f) }}
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "not in the store") {
				t.Errorf("got %+v", outcome)
			}
		})
	}
}

// breaking is a store whose first listing breaks off. What it has listed does not count
// twice.
type breaking struct {
	Store
	broken bool
}

func (b *breaking) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	if b.broken {
		return b.Store.List(ctx, folder, options)
	}
	b.broken = true
	return func(yield func(store.Object, error) bool) {
		for object, err := range b.Store.List(ctx, folder, options) {
			if !yield(object, err) {
				return
			}
		}
		yield(store.Object{}, store.ErrUnavailable)
	}
}

// losing does something when an object is created.
type losing struct {
	Store
	key string
	do  func()
}

func (l *losing) Create(ctx context.Context, key string, content []byte) error {
	err := l.Store.Create(ctx, key, content)
	if key == l.key {
		l.do()
	}
	return err
}

// An object that lies there already is the backup's own, or not: then it is not
// published.
func TestObjectsOfOthersAreNotPublished(t *testing.T) {
	whole := shopOf(t, 3)
	whole.run(t)
	for _, key := range []string{format.TarballKey("b"), format.ResourceListKey("b")} {
		// Also when only the digest tells.
		same := whole.read(t, key)
		same[len(same)-1] ^= 1
		for _, content := range []string{"another's", string(same)} {
			f := shopOf(t, 3)
			if err := f.store.Put(t.Context(), key, []byte(content)); err != nil {
				t.Fatal(err)
			}
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, key+" holds what") {
				t.Errorf("%s: got %+v", key, outcome)
			}
			if got := string(f.read(t, key)); got != content {
				t.Errorf("%s was replaced", key)
			}
		}
	}
	t.Run("nobody knows whose it is", func(t *testing.T) {
		f := shopOf(t, 3)
		if err := f.store.Put(t.Context(), format.TarballKey("b"), []byte("another's")); err != nil {
			t.Fatal(err)
		}
		f.store.Inject(storetest.Fault{Operation: storetest.Get, Key: format.TarballKey("b"), Err: store.ErrDenied})
		if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || outcome.Status.FailureReason != store.ErrDenied.Error() {
			t.Errorf("got %+v", outcome)
		}
	})
}

// The metadata says what the backup consists of.
func TestContentsAreThoseOfTheStore(t *testing.T) {
	f := shopOf(t, 3)
	f.run(t)
	stored := f.stored(t)
	contents, err := format.TakeContents(stored)
	if err != nil || len(contents) != 9 {
		t.Fatalf("got %v, %v", contents, err)
	}
	for _, key := range f.keys(t) {
		want, known := contents.Of(key)
		switch key {
		case format.OwnerKey("b"), format.MetadataKey("b"), format.CopyKey("b"):
			if known {
				t.Errorf("%s is among the contents", key)
			}
		default:
			if got := format.NewContent(f.read(t, key)); got != want {
				t.Errorf("%s: %+v is stored, and %+v is said", key, got, want)
			}
		}
	}
	if !bytes.Equal(f.read(t, format.CopyKey("b")), f.read(t, format.MetadataKey("b"))) {
		t.Error("the copy of the metadata is another one")
	}
}

func TestIndentedObjectsAreStoredCompact(t *testing.T) {
	f := shopOf(t, 0)
	f.add("configmaps", "{\n  \"metadata\": {\n    \"name\": \"c-00000\",\n    \"namespace\": \"shop\"\n  },\n  \"data\": {\"text\": \"a\\nb\"}\n}")
	f.run(t)
	f.wantConfigMaps(t, 1)
	const want = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-00000","namespace":"shop"},"data":{"text":"a\nb"}}`
	if listing := tarListing(t, f.read(t, format.TarballKey("b"))); strings.Count(listing, want) != 2 {
		t.Errorf("the tarball holds\n%s", listing)
	}
}

// An object that no path can name, as an aggregated API might serve, is one
// error.
func TestObjectsThatCannotBeNamed(t *testing.T) {
	f := shopOf(t, 2)
	f.add("configmaps", named("shop", "../../etc/passwd")...)
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != 1 {
		t.Errorf("got %+v", outcome.Status)
	}
	f.wantConfigMaps(t, 2)
}

// Of a few namespaces that are named each is asked for by itself: what others a cluster has
// costs the backup nothing. Of more of them, and of patterns, one list finds all.
func TestFewNamespacesAreAskedForByName(t *testing.T) {
	var many []string
	for i := range maxNamespaceLists {
		many = append(many, fmt.Sprintf("shop-%02d", i))
	}
	for name, test := range map[string]struct{ included, excluded, want []string }{
		"one":            {[]string{"shop"}, nil, []string{"metadata.name=shop"}},
		"two":            {[]string{"shop", "bank"}, nil, []string{"metadata.name=bank", "metadata.name=shop"}},
		"one is left":    {[]string{"shop", "bank"}, []string{"ba*"}, []string{"metadata.name=shop"}},
		"more than few":  {append([]string{"shop"}, many...), nil, []string{""}},
		"a pattern too":  {[]string{"shop", "ba*"}, nil, []string{""}},
		"all":            {nil, nil, []string{""}},
		"all but one":    {nil, []string{"bank"}, []string{""}},
		"one is missing": {[]string{"shop", "gone"}, nil, []string{"metadata.name=gone", "metadata.name=shop"}},
	} {
		f := shopOf(t, 3)
		for _, other := range append(many, "bank") {
			f.add("namespaces", namespace(other, ""))
		}
		f.request.Backup.Spec.IncludedNamespaces, f.request.Backup.Spec.ExcludedNamespaces = test.included, test.excluded
		var asked []string
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/api/v1/namespaces" {
				asked = append(asked, r.URL.Query().Get("fieldSelector"))
			}
			return false
		}
		outcome := f.run(t)
		f.wantConfigMaps(t, 3)
		if !slices.Equal(asked, test.want) {
			t.Errorf("%s: asked for the namespaces with %q, not %q", name, asked, test.want)
		}
		if missing := name == "one is missing"; missing != (outcome.Status.Errors == 1) {
			t.Errorf("%s: %+v", name, outcome.Status)
		}
	}
}
