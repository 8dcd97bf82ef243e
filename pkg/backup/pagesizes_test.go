// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// serveSized serves so many ConfigMaps of one size, and returns the limits that it was asked for. A
// server that is deaf sends all at once.
func (f *fixture) serveSized(objects, size int, deaf bool) (limits func() []string) {
	var mu sync.Mutex
	var asked []string
	text := strings.Repeat("x", size)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != configMaps {
			return false
		}
		mu.Lock()
		asked = append(asked, r.URL.Query().Get("limit"))
		mu.Unlock()
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to := min(from+limit, objects)
		if deaf {
			to = objects
		}
		metadata := ""
		if to < objects {
			metadata = fmt.Sprintf(`"continue":"%d"`, to)
		}
		fmt.Fprintf(w, `{"kind":"List","metadata":{%s},"items":[`, metadata)
		for i := from; i < to; i++ {
			fmt.Fprintf(w, `%s{"metadata":{"name":"c-%05d","namespace":"shop"},"data":{"x":%q}}`, strings.Repeat(",", min(i-from, 1)), i, text)
		}
		fmt.Fprint(w, `]}`)
		return true
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(asked)
	}
}

// What the first page of a list costs the server: as little as a hundred objects of a kind of
// which nothing is known, and a page's bytes of others.
func TestFirstPages(t *testing.T) {
	defer func(was int64) { pageBytes = was }(pageBytes)
	pageBytes = 256 << 10
	const large = 26_000 // of which some 40 are four pages' bytes, and 10 one page's
	for name, test := range map[string]struct {
		objects, size int
		deaf          bool
		known         [][2]int64 // objects and bytes of earlier lists
		limits        string
		visits        int
	}{
		"a few":                               {5, 1000, false, nil, "100", 5},
		"as many as an unknown page has":      {100, 1000, false, nil, "100", 100},
		"more":                                {700, 100, false, nil, "100 500 500", 700},
		"known ones":                          {700, 100, false, [][2]int64{{sampled, sampled * 100}}, "500 500", 700},
		"too few to know them":                {700, 100, false, [][2]int64{{1, 250 << 10}}, "100 500 500", 700},
		"large ones":                          {60, large, false, nil, "100 10 10 10 10 10 10", 60 + 41},
		"large ones that are known":           {60, large, false, [][2]int64{{sampled, sampled * large}}, "20 10 10 10 10", 60},
		"large ones where small ones were":    {60, large, false, [][2]int64{{sampled, sampled * 100}}, "500 10 10 10 10 10 10", 60 + 41},
		"a few where large ones were":         {5, 1000, false, [][2]int64{{sampled, sampled * large}}, "20", 5},
		"small ones where large ones were":    {60, 1000, false, [][2]int64{{sampled, sampled * large}}, "20 40", 60},
		"many where large ones were":          {700, 1000, false, [][2]int64{{sampled, sampled * large}}, "20 40 80 160 245 245", 700},
		"a few that fill more than a page":    {19, 60_000, false, [][2]int64{{sampled, sampled * 60_070}}, "17 4", 19},
		"small ones soon after large ones":    {60, 1000, false, [][2]int64{{sampled, sampled * large}, {sampled, sampled * 100}}, "20 40", 60},
		"small ones long after large ones":    {60, 1000, false, append([][2]int64{{sampled, sampled * large}}, slices.Repeat([][2]int64{{sampled, sampled * 100}}, 40)...), "500", 60},
		"large ones of a server that is deaf": {60, large, true, nil, "100 10", 60 + 41},
	} {
		f := newFixture(t, v1alpha1.BackupSpec{})
		limits := f.serveSized(test.objects, test.size, test.deaf)
		sizes := &PageSizes{}
		for _, list := range test.known {
			sizes.learn(schema.GroupResource{Resource: "configmaps"}, list[0], list[1])
		}
		l := &lister{client: f.deps.Client, retry: f.deps.Retry, sizes: sizes}
		q := query{namespace: "shop", resource: newResource(schema.GroupVersion{Version: "v1"}, &metav1.APIResource{Name: "configmaps", Namespaced: true})}
		visits, different := 0, map[string]bool{}
		err := l.list(t.Context(), q, visitor{page: func(int64) {}, object: func(raw []byte) error {
			visits++
			different[string(raw[:40])] = true
			return nil
		}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(limits(), " "); got != test.limits {
			t.Errorf("%s: asked for pages of %s objects, want %s", name, got, test.limits)
		}
		// What is read twice are the objects of the page that was given up.
		if visits != test.visits || len(different) != test.objects {
			t.Errorf("%s: read %d objects, %d different ones, want %d and %d", name, visits, len(different), test.visits, test.objects)
		}
	}
}

// A backup has each object of a page that was given up once, and the next one of the process
// knows how large they are.
func TestPagesAreGivenUp(t *testing.T) {
	defer func(was int64) { pageBytes = was }(pageBytes)
	pageBytes = 256 << 10
	sizes := &PageSizes{}
	for _, want := range []string{"100", "20"} {
		f := shopOf(t, 0)
		f.deps.PageSizes = sizes
		limits := f.serveSized(60, 26_000, false)
		if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
			t.Errorf("got %+v: %+v", outcome.Status, f.results(t))
		}
		f.wantConfigMaps(t, 60)
		if got := limits(); got[0] != want {
			t.Errorf("asked for pages of %q objects, and the first one should have %s", got, want)
		}
	}
}
