// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// someFail are the kinds of a server of which one group can't be discovered.
type someFail struct{ *fakeServer }

func (s someFail) ServerGroupsAndResourcesWithContext(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, lists, _ := s.fakeServer.ServerGroupsAndResourcesWithContext(ctx)
	return groups, lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "broken.example.com", Version: "v1"}: errors.New("its server does not answer")}}
}

// TestMissingVersions: proof 15. What the cluster serves in another version only is written in
// that, if all of its fields are known there; else the object is an error, as is one of a kind
// that is not served, and of a group whose server is broken, and each of them only itself. The
// plan says the same.
func TestMissingVersions(t *testing.T) {
	for _, planOnly := range []bool{true, false} {
		s := newFakeServer(t)
		s.kinds = append(s.kinds, metav1.APIResourceList{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing", Namespaced: true}}})
		strict := 0
		s.fault = func(r *http.Request) (int, bool) {
			if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/things") {
				if r.URL.Query().Get("fieldValidation") != "Strict" {
					t.Errorf("it is not validated: %s", r.URL)
				}
				if strict++; strict == 1 {
					return http.StatusUnprocessableEntity, false
				}
			}
			return 0, false
		}
		backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("example.com/v1", "Thing", "a", "one"), obj("example.com/v1", "Thing", "a", "two"),
			obj("gone.example.com/v1", "Thing", "a", "gone"), obj("broken.example.com/v1", "Thing", "a", "broken"), obj("v1", "ConfigMap", "a", "well"))
		texts := []string{"the cluster does not serve gone.example.com/v1/Thing: install what defines it", "broken.example.com/v1/Thing can't be found out: its server does not answer",
			"its fields are all known in example.com/v2"}
		if !planOnly {
			texts = append(texts, "refuses it in example.com/v2: convert it by hand")
		}
		plan := want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{PlanOnly: planOnly}), func(d *Dependencies) { d.Discovery = someFail{s}; d.Workers = 1 }), v1alpha1.RestorePhasePartiallyFailed, texts...)
		got := map[string]int{}
		for _, o := range plan.Items {
			got[o.Kind+" "+o.Action]++
		}
		created := 2
		if !planOnly {
			created = 1
			if s.get("configmaps", "a", "well") == nil {
				t.Error("what has nothing to do with it is not there")
			}
		}
		if got["Thing create"] != created || got["Thing error"] != 4-created || got["ConfigMap create"] != 1 {
			t.Errorf("planned only: %t: %v", planOnly, got)
		}
	}
}

// TestRemovedKinds: what Kubernetes has removed is no matter of an installation: the error names what
// came after it.
func TestRemovedKinds(t *testing.T) {
	s := newFakeServer(t)
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("extensions/v1beta1", "Ingress", "a", "i"), obj("extensions/v1beta1", "Deployment", "a", "d"),
		obj("policy/v1beta1", "PodSecurityPolicy", "", "p"), obj("batch/v2alpha1", "CronJob", "a", "c"))
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhasePartiallyFailed,
		"extensions/v1beta1/Ingress, which Kubernetes has removed; its successor is networking.k8s.io/v1 Ingress: convert it by hand", "its successor is apps/v1 Deployment",
		"its successor is Pod Security admission", "batch/v2alpha1/CronJob, which its version of Kubernetes has in no version")
}

// TestScopeOfKinds: where a definition has another scope than in the backup, its objects are errors,
// in the plan too, and nothing is written to where they do not belong.
func TestScopeOfKinds(t *testing.T) {
	for _, planOnly := range []bool{true, false} {
		s := newFakeServer(t)
		s.kinds = append(s.kinds, metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "walls", Kind: "Wall"}, {Name: "gates", Kind: "Gate", Namespaced: true}}})
		s.fault = func(r *http.Request) (int, bool) {
			if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "example.com") {
				t.Errorf("%s is written", r.URL)
			}
			return 0, false
		}
		backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("example.com/v1", "Wall", "a", "w"), obj("example.com/v1", "Gate", "", "g"))
		ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{PlanOnly: planOnly}))
		want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "the cluster has walls.example.com outside of all namespaces, and the backup holds it in a", "the cluster has gates.example.com in namespaces, and the backup holds it outside of all")
		if ended.Status.Errors != 2 {
			t.Errorf("%+v", ended.Status)
		}
	}
}

// TestBestVersion: what a backup holds in several versions is restored in its own if that is
// served, else in the one that the cluster prefers.
func TestBestVersion(t *testing.T) {
	k := &kinds{
		served: map[schema.GroupKind][]*kind{{Group: "g", Kind: "Thing"}: {{version: "v2"}, {version: "v1"}}},
		failed: map[schema.GroupVersion]error{{Group: "g", Version: "v0"}: errors.New("no answer")},
	}
	for _, c := range []struct {
		of   string
		also []string
		want string
	}{
		{"v1", []string{"v2"}, ""},
		{"v1beta1", []string{"v1", "v2"}, "v2"},
		{"v1beta1", []string{"v1"}, "v1"},
		{"v1beta1", []string{"v1beta2"}, ""},
		{"v0", []string{"v1"}, ""},
	} {
		if got := k.best(&manifest.Item{APIGroup: "g", KindName: "Thing", APIVersion: c.of}, c.also); got != c.want {
			t.Errorf("of %s, there in %v too, %q is taken", c.of, c.also, got)
		}
	}
}
