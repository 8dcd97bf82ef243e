// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestVanished shows that the objects of a resource which discovery had, and which answers 404
// later, are not missing in silence. Only those of a definition that is gone are gone with it.
func TestVanished(t *testing.T) {
	const (
		lost = "widgets.example.com shop: the cluster served it when the backup began, and no longer does: the backup has none of its objects: no such resource"
		gone = "widgets.example.com shop: its definition was deleted while the backup was made, and all its objects with it"
	)
	definition := `{"metadata":{"name":"widgets.example.com"}}`
	service := func(spec string) string {
		return `{"metadata":{"name":"v1.example.com","labels":{"kube-aggregator.kubernetes.io/automanaged":"true"}},"spec":{` + spec + `}}`
	}
	for name, test := range map[string]struct {
		definition, service string
		servicesFail        bool
		errors, warnings    []string
	}{
		"its definition is gone":                  {"", service(""), false, nil, []string{gone}},
		"its definition and its service are gone": {"", "", false, nil, []string{gone}},
		"its version is no longer served":         {definition, service(""), false, []string{lost}, nil},
		"of an aggregated API":                    {"", service(`"service":{"name":"s"}`), false, []string{lost}, nil},
		"of a cluster without an answer":          {"", service(""), true, []string{lost}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: "apiregistration.k8s.io/v1", APIResources: []metav1.APIResource{
				{Name: "apiservices", SingularName: "apiservice", Kind: "APIService", Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
			}})
			f.add("namespaces", namespace("shop", ""))
			if test.definition != "" {
				f.add("customresourcedefinitions.apiextensions.k8s.io", test.definition)
			}
			if test.service != "" {
				f.add("apiservices.apiregistration.k8s.io", test.service)
			}
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case strings.HasSuffix(r.URL.Path, "/widgets"):
					writeStatus(w, metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no such resource"})
				case test.servicesFail && strings.HasSuffix(r.URL.Path, "/apiservices"):
					writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no rights"})
				default:
					return false
				}
				return true
			}
			status := f.run(t).Status
			results := f.results(t)
			if diff := gocmp.Diff(test.errors, results.Errors.Namespaces["shop"]); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(test.warnings, results.Warnings.Namespaces["shop"]); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if want := (v1alpha1.BackupProgress{TotalItems: 1 + int64(len(test.errors)), ItemsBackedUp: 1}); *status.Progress != want {
				t.Errorf("progress %+v, want %+v", *status.Progress, want)
			}
		})
	}
}

// TestAnswersThatAreNoList shows that an answer which is no list is an error, and not an empty
// list. One whose items are null is a list without objects.
func TestAnswersThatAreNoList(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"nothing":         {`{}`, `its kind is ""`},
		"another kind":    {`{"kind":"ConfigMap","apiVersion":"v1","items":[]}`, `its kind is "ConfigMap"`},
		"a status":        {`{"kind":"Status","apiVersion":"v1","status":"Success"}`, `its kind is "Status"`},
		"without items":   {`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{}}`, "the ConfigMapList has no items"},
		"a page for eyes": {"<!DOCTYPE html><html><body>Sign in</body></html>", "found '<'"},
		"items are null":  {`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":null}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.add("namespaces", namespace("shop", ""))
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/configmaps") {
					return false
				}
				fmt.Fprint(w, test.body)
				return true
			}
			status := f.run(t).Status
			got := f.results(t).Errors.Namespaces["shop"]
			switch {
			case test.want == "":
				if len(got) > 0 || status.Phase != v1alpha1.BackupPhaseCompleted {
					t.Errorf("a list without objects is %s: %v", status.Phase, got)
				}
			case len(got) != 1 || !strings.Contains(got[0], test.want) || status.Phase != v1alpha1.BackupPhasePartiallyFailed:
				t.Errorf("%s with the errors %v, want one with %q", status.Phase, got, test.want)
			case status.Progress.TotalItems != 2 || status.Progress.ItemsBackedUp != 1:
				t.Errorf("the progress hides what is missing: %+v", *status.Progress)
			}
		})
	}
}

// TestOwnEvents shows that a backup holds no events about backups, nor any that Holdfast reports.
func TestOwnEvents(t *testing.T) {
	core := []string{
		`{"metadata":{"namespace":"shop","name":"of-a-pod"},"involvedObject":{"apiVersion":"v1","kind":"Pod"},"source":{"component":"kubelet"}}`,
		`{"metadata":{"namespace":"shop","name":"of-a-backup"},"involvedObject":{"apiVersion":"holdfast.io/v1alpha1","kind":"Backup"}}`,
		`{"metadata":{"namespace":"shop","name":"of-a-record"},"involvedObject":{"apiVersion":"engine.holdfast.io/v1alpha1","kind":"BackupRun"}}`,
		`{"metadata":{"namespace":"shop","name":"by-an-agent"},"involvedObject":{"apiVersion":"v1","kind":"Pod"},"reportingComponent":"holdfast-node-agent"}`,
		`{"metadata":{"namespace":"shop","name":"by-the-controller"},"involvedObject":{"apiVersion":"v1","kind":"ConfigMap"},"source":{"component":"holdfast-controller"}}`,
	}
	newer := []string{
		`{"metadata":{"namespace":"shop","name":"of-a-pod"},"regarding":{"apiVersion":"v1","kind":"Pod"},"reportingController":"kubelet"}`,
		`{"metadata":{"namespace":"shop","name":"of-a-restore"},"regarding":{"apiVersion":"holdfast.io/v1alpha1","kind":"Restore"}}`,
		`{"metadata":{"namespace":"shop","name":"by-the-controller"},"regarding":{"apiVersion":"v1","kind":"Pod"},"reportingController":"holdfast-controller"}`,
	}
	for name, test := range map[string]struct {
		excluded []string
		want     string
	}{
		"in the first group":  {nil, "events shop/of-a-pod"},
		"in the second group": {[]string{"events"}, "events.events.k8s.io shop/of-a-pod"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, ExcludedResources: test.excluded})
			f.add("namespaces", namespace("shop", ""))
			f.add("events", core...)
			f.add("events.events.k8s.io", newer...)
			outcome := f.run(t)
			got := f.items(t)
			if want := []string{test.want, "namespaces shop"}; !slices.Equal(got, want) {
				t.Errorf("the backup holds %v, want %v", got, want)
			}
			if outcome.Status.Warnings+outcome.Status.Errors > 0 {
				t.Errorf("findings: %+v", f.results(t))
			}
		})
	}
}
