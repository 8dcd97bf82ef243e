// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// fullPage is how many objects each of weathered's lists has on its first page, of two.
const fullPage = 2 * manyGets

// weathered is a cluster of which each list that a backup asks for has two pages.
func weathered(t *testing.T) *fixture {
	f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.objects = map[schema.GroupResource][]testObject{}
	f.pageSize = fullPage
	f.add("namespaces", namespace("shop", ""))
	f.add("serviceaccounts", named("shop", "web")...)
	f.add("clusterroles.rbac.authorization.k8s.io", named("", "reader")...)
	f.add("customresourcedefinitions.apiextensions.k8s.io", named("", "widgets.example.com")...)
	for i := range 2 * fullPage {
		name := fmt.Sprintf("o-%02d", i)
		f.add("configmaps", named("shop", name)...)
		f.add("widgets.example.com", named("shop", name)...)
		f.add("pods", fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop"},"spec":{"priorityClassName":%q}}`, name, name))
		f.add("priorityclasses.scheduling.k8s.io", named("", name)...)
		f.add("persistentvolumes", named("", name)...)
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop"},"spec":{"volumeName":%q},"status":{"phase":"Bound"}}`, name, name))
		f.add("clusterrolebindings.rbac.authorization.k8s.io", fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"ServiceAccount","namespace":"shop","name":"web"}]}`, name))
	}
	return f
}

// taken counts the objects in the backup, by their resource.
func (f *fixture) taken(t *testing.T) map[string]int {
	t.Helper()
	taken := map[string]int{}
	for _, item := range f.items(t) {
		resource, _, _ := strings.Cut(item, " ")
		taken[resource]++
	}
	return taken
}

// TestEachListFailsByItself: whichever list breaks after its first page, and however it does, what
// could be read of it is there, and all else, and one text says what is missing.
func TestEachListFailsByItself(t *testing.T) {
	const all, first = 2 * fullPage, fullPage
	whole := map[string]int{
		"namespaces": 1, "serviceaccounts": 1, "clusterroles.rbac.authorization.k8s.io": 1, "customresourcedefinitions.apiextensions.k8s.io": 1,
		"configmaps": all, "widgets.example.com": all, "pods": all, "priorityclasses.scheduling.k8s.io": all,
		"persistentvolumes": all, "persistentvolumeclaims": all, "clusterrolebindings.rbac.authorization.k8s.io": all,
	}
	f := weathered(t)
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("in good weather: %+v", outcome.Status)
	}
	if diff := gocmp.Diff(whole, f.taken(t)); diff != "" {
		t.Fatalf("in good weather (-want +got):\n%s", diff)
	}
	failure := func(code int, reason metav1.StatusReason) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			writeStatus(w, metav1.Status{Code: int32(code), Reason: reason, Message: "bad weather"})
		}
	}
	for resource, test := range map[string]struct {
		path string
		// with are those whose objects come along with those of the resource.
		with []string
		// replaced is true if what a list does not give is read one by one.
		replaced bool
	}{
		"pods":                   {path: "/api/v1/namespaces/shop/pods", with: []string{"priorityclasses.scheduling.k8s.io"}},
		"persistentvolumeclaims": {path: "/api/v1/namespaces/shop/persistentvolumeclaims", with: []string{"persistentvolumes"}},
		"persistentvolumes":      {path: "/api/v1/persistentvolumes", replaced: true},
		"clusterrolebindings.rbac.authorization.k8s.io": {path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"},
		"priorityclasses.scheduling.k8s.io":             {path: "/apis/scheduling.k8s.io/v1/priorityclasses"},
		"widgets.example.com":                           {path: "/apis/example.com/v1/namespaces/shop/widgets"},
		"configmaps":                                    {path: "/api/v1/namespaces/shop/configmaps"},
	} {
		for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
			"429":         failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests),
			"500":         failure(http.StatusInternalServerError, metav1.StatusReasonInternalError),
			"410":         failure(http.StatusGone, metav1.StatusReasonExpired),
			"404":         failure(http.StatusNotFound, metav1.StatusReasonNotFound),
			"half a page": nil,
		} {
			t.Run(resource+" "+name, func(t *testing.T) {
				f := weathered(t)
				f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != test.path || r.URL.Query().Get("continue") == "" {
						return false
					}
					if answer != nil {
						answer(w, r)
						return true
					}
					page := httptest.NewRecorder()
					f.serve(page, r)
					_, _ = w.Write(page.Body.Bytes()[:page.Body.Len()/2])
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				outcome := f.run(t)
				taken := f.taken(t)
				results := f.results(t)
				texts := slices.Concat(results.Errors.Velero, results.Errors.Cluster, results.Errors.Namespaces["shop"], results.Warnings.Velero, results.Warnings.Cluster, results.Warnings.Namespaces["shop"])
				if test.replaced {
					if outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || len(texts) > 0 {
						t.Errorf("%s with %q", outcome.Status.Phase, texts)
					}
				} else {
					if len(texts) != 1 || !strings.Contains(texts[0], strings.SplitN(resource, ".", 2)[0]) {
						t.Errorf("the results are %q", texts)
					}
					got := taken[resource]
					if name == "half a page" && (got <= first || got >= all) || name != "half a page" && got != first {
						t.Errorf("of %d objects there are %d", all, got)
					}
					for _, resource := range append(test.with, resource) {
						if taken[resource] != got {
							t.Errorf("of %s there are %d", resource, taken[resource])
						}
						taken[resource] = all
					}
				}
				if diff := gocmp.Diff(whole, taken); diff != "" {
					t.Errorf("of the others there is (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestListOfNamespacesFails after its first page, or for one of those that are named: what is in the
// namespaces that were read is there, and nothing of one that may have the label to leave it out.
func TestListOfNamespacesFails(t *testing.T) {
	for _, test := range []struct {
		included []string
		taken    []string
	}{
		{nil, []string{"a", "b"}},
		{[]string{"*", "d"}, []string{"a", "b"}},
		{[]string{"?", "d*"}, []string{"a", "b"}},
		{[]string{"a", "c", "d"}, []string{"a", "d"}},
	} {
		t.Run(strings.Join(test.included, ","), func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: test.included, IncludedResources: []string{"configmaps"}, OrderedResources: map[string]string{"configmaps": "c/kept"}})
			f.pageSize = 2
			for _, name := range []string{"a", "b", "c", "d"} {
				labels := ""
				if name == "c" {
					labels = `"velero.io/exclude-from-backup":"true"`
				}
				f.add("namespaces", namespace(name, labels))
				f.add("configmaps", named(name, "kept")...)
			}
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				query := r.URL.Query()
				fails := r.URL.Path == "/api/v1/namespaces" && (query.Get("continue") != "" || query.Get("fieldSelector") == "metadata.name=c")
				if fails {
					writeStatus(w, metav1.Status{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "bad weather"})
				}
				return fails
			}
			outcome := f.run(t)
			var want []string
			for _, name := range test.taken {
				want = append(want, "configmaps "+name+"/kept")
			}
			for _, name := range test.taken {
				want = append(want, "namespaces "+name)
			}
			if diff := gocmp.Diff(want, f.items(t)); diff != "" {
				t.Errorf("the backup has something else (-want +got):\n%s", diff)
			}
			results := f.results(t)
			if warnings := strings.Join(results.Warnings.Cluster, ""); strings.Contains(warnings, "no namespace matches") {
				t.Errorf("of namespaces that were not read: %s", warnings)
			}
			texts := slices.Concat(results.Errors.Velero, results.Errors.Cluster)
			if len(texts) != 1 || !strings.Contains(texts[0], "list the namespaces: bad weather; the backup has nothing of those") || outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed {
				t.Errorf("%s: %q", outcome.Status.Phase, texts)
			}
		})
	}
}

// TestObjectsThatComeAndGo between the pages of a list, and between an object and what it refers
// to: each that stays is there once, whatever the server says of the rest.
func TestObjectsThatComeAndGo(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"configmaps", "pods", "persistentvolumeclaims", "persistentvolumes"}})
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumeclaims",
		`{"metadata":{"name":"kept","namespace":"shop"},"spec":{"volumeName":"pv-kept"},"status":{"phase":"Bound"}}`,
		`{"metadata":{"name":"freed","namespace":"shop"},"spec":{"volumeName":"pv-gone"},"status":{"phase":"Bound"}}`)
	f.add("persistentvolumes", named("", "pv-kept")...)
	f.add("pods", podWith("p", "", `data "persistentVolumeClaim":{"claimName":"gone"}`))
	page := func(w http.ResponseWriter, token string, names ...string) {
		fmt.Fprintf(w, `{"kind":"List","metadata":{"continue":%q},"items":[%s]}`, token, strings.Join(named("shop", names...), ","))
	}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != configMaps {
			return false
		}
		switch r.URL.Query().Get("continue") {
		case "":
			page(w, "at-d", "a", "b", "c")
		case "at-d": // d is deleted, bb made, and what was to come is forgotten
			writeStatus(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, ListMeta: metav1.ListMeta{Continue: "after-c"}})
		case "after-c": // e was made anew
			page(w, "", "e", "f")
		}
		return true
	}
	outcome := f.run(t)
	want := []string{
		"configmaps shop/a", "configmaps shop/b", "configmaps shop/c", "configmaps shop/e", "configmaps shop/f", "namespaces shop",
		"persistentvolumeclaims shop/freed", "persistentvolumeclaims shop/kept", "persistentvolumes pv-kept", "pods shop/p",
	}
	if diff := gocmp.Diff(want, f.items(t)); diff != "" {
		t.Errorf("the tarball holds something else (-want +got):\n%s", diff)
	}
	results := f.results(t)
	texts := slices.Concat(results.Warnings.Cluster, results.Warnings.Namespaces["shop"])
	slices.Sort(texts)
	if diff := gocmp.Diff([]string{
		"persistentvolumeclaims shop/gone: another object refers to it, but it does not exist",
		"persistentvolumes pv-gone: another object refers to it, but it does not exist",
	}, texts); diff != "" || outcome.Status.Errors != 0 {
		t.Errorf("%d errors; warnings (-want +got):\n%s", outcome.Status.Errors, diff)
	}
}
