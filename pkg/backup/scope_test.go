// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestFewOfManyNamespacesAreReadByThemselves: a kind of which the cluster has far more than the
// chosen namespaces is not read for all of them, and one whose lists they fill is.
func TestFewOfManyNamespacesAreReadByThemselves(t *testing.T) {
	const each = 100 // 30,000 in all, 60 pages
	for chosen, want := range map[int]int{
		11: 1 + 11, 150: 60, 300: 60,
	} {
		f := newFixture(t, v1alpha1.BackupSpec{})
		f.serveMany(1, each)
		for i := range chosen {
			f.request.Backup.Spec.IncludedNamespaces = append(f.request.Backup.Spec.IncludedNamespaces, fmt.Sprintf("team-%03d", i*everyNamespaces/chosen))
		}
		var mu sync.Mutex
		lists, serve := map[string]int{}, f.intercept
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			lists[path.Base(r.URL.Path)]++
			mu.Unlock()
			return serve(w, r)
		}
		outcome := f.run(t)
		if got, want := outcome.Status.Progress, int64(chosen*(each+1)); got.TotalItems != want || got.ItemsBackedUp != want {
			t.Errorf("%d namespaces: %+v, want %+v", chosen, got, want)
		}
		if got := lists["kind00s"]; got != want {
			t.Errorf("%d namespaces: %d lists, want %d", chosen, got, want)
		}
	}
}

func TestMostlyOthers(t *testing.T) {
	existing := map[string]types.UID{}
	for i := range 300 {
		existing[fmt.Sprint(i)] = ""
	}
	for _, test := range []struct {
		chosen           int
		remaining, limit int64
		want             bool
	}{
		{11, 11_000, 500, false}, {11, 11_001, 500, true}, {11, 441, 20, true}, {11, 0, 500, false},
		{11, 11_000, unknownPage, false}, {150, 150_001, 500, true}, {151, 1_000_000, 500, false},
	} {
		c := collector{chosen: make([]string, test.chosen), existing: existing}
		if got := c.mostlyOthers(test.remaining, test.limit); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}

// TestAListIsGivenUpBeforeItsFirstObjectOnly: what has been visited would be read twice.
func TestAListIsGivenUpBeforeItsFirstObjectOnly(t *testing.T) {
	const objects = everyNamespaces * 5 // three pages
	f := newFixture(t, v1alpha1.BackupSpec{})
	f.serveMany(1, 5)
	l := &lister{client: f.deps.Client, retry: f.deps.Retry}
	q := query{resource: newResource(schema.GroupVersion{Group: "apps", Version: "v1"}, &metav1.APIResource{Name: "kind00s", Namespaced: true})}
	asked, visited, refuse := 0, 0, false
	visit := visitor{
		object:  func([]byte) error { visited++; return nil },
		page:    func(int64) {},
		tooLong: func(int64, int64) bool { asked++; return refuse },
	}
	if err := l.list(t.Context(), q, visit); err != nil || asked != 1 || visited != objects {
		t.Errorf("asked %d times, %d objects, %v", asked, visited, err)
	}
	refuse, visited = true, 0
	if err := l.list(t.Context(), q, visit); !errors.Is(err, errOthers) || visited != 0 {
		t.Errorf("given up after %d objects: %v", visited, err)
	}
}
