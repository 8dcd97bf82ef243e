// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// reader is a client of the controller: what a tenant is forbidden, it may list.
func (s *fakeServer) reader(t *testing.T) rest.Interface {
	t.Helper()
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: s.server.URL, QPS: -1, UserAgent: "controller", ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestForbidden: what the requester of a tenant's restore may not read or write is nothing if it is
// there and equal, or if Kubernetes makes it; else it is counted in one warning, and an error only if
// it was asked for. The plan says the same.
func TestForbidden(t *testing.T) {
	role := func(name string, rules ...any) map[string]any {
		return obj("rbac.authorization.k8s.io/v1", "Role", "a", name, with(append([]any{}, rules...), "rules"))
	}
	set := obj("apps/v1", "StatefulSet", "a", "db")
	revision := obj("apps/v1", "ControllerRevision", "a", "db-1", ownedBy(set))
	selecting := obj("v1", "Service", "a", "web", with(map[string]any{"app": "web"}, "spec", "selector"))
	host := obj("v1", "Pod", "a", "host", with([]any{map[string]any{"name": "h", "hostPath": map[string]any{"path": "/"}}}, "spec", "volumes"))
	objects := []map[string]any{
		obj("v1", "ConfigMap", "a", "own"), set, revision, selecting, obj("v1", "Endpoints", "a", "web"), obj("v1", "Endpoints", "a", "alone"), host,
		role("equal", "x"), role("other", "x"), role("absent", "x"), obj("v1", "ResourceQuota", "a", "quota"), obj("v1", "Secret", "a", "limited"),
	}
	for name, test := range map[string]struct {
		spec  v1alpha1.RestoreSpec
		phase v1alpha1.RestorePhase
		texts []string
		want  map[string]string
	}{
		"all": {
			phase: v1alpha1.RestorePhasePartiallyFailed, // by the quota, which is no lack of rights
			texts: []string{"not as in the backup: 4 (1 endpoints, 1 resourcequotas, 2 roles.rbac.authorization.k8s.io)", "secrets a/limited: "},
			want: map[string]string{
				"ConfigMap a/own": "create", "StatefulSet a/db": "create", "ControllerRevision a/db-1": "skip", "Service a/web": "create", "Endpoints a/web": "skip", "Endpoints a/alone": "refused",
				"Pod a/host": "skip", "Role a/equal": "skip", "Role a/other": "refused", "Role a/absent": "refused", "ResourceQuota a/quota": "refused", "Secret a/limited": "error",
			},
		},
		"what may be written": {
			spec: v1alpha1.RestoreSpec{ExcludedResources: []string{"secrets"}}, phase: v1alpha1.RestorePhaseCompleted, texts: []string{"not as in the backup: 4"},
		},
		"a kind that is named": {
			spec: v1alpha1.RestoreSpec{IncludedResources: []string{"configmaps", "roles.rbac.authorization.k8s.io"}}, phase: v1alpha1.RestorePhasePartiallyFailed,
			texts: []string{"roles.rbac.authorization.k8s.io a/absent: the requester of the restore may not create it", "roles.rbac.authorization.k8s.io a/other: "},
			want:  map[string]string{"ConfigMap a/own": "create", "Role a/equal": "skip", "Role a/other": "refused", "Role a/absent": "refused"},
		},
		"an object that is named": {
			spec: v1alpha1.RestoreSpec{Objects: []v1alpha1.RestoreObject{{Resource: "resourcequotas", Namespace: "a", Name: "quota"}}}, phase: v1alpha1.RestorePhasePartiallyFailed,
			texts: []string{"resourcequotas a/quota: the requester of the restore may not create it"}, want: map[string]string{"ResourceQuota a/quota": "refused"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, planOnly := range []bool{true, false} {
				s := newFakeServer(t)
				s.kinds[0].APIResources = append(s.kinds[0].APIResources, metav1.APIResource{Name: "endpoints", Kind: "Endpoints", Namespaced: true}, metav1.APIResource{Name: "resourcequotas", Kind: "ResourceQuota", Namespaced: true})
				s.kinds = append(s.kinds, metav1.APIResourceList{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "statefulsets", Kind: "StatefulSet", Namespaced: true}, {Name: "controllerrevisions", Kind: "ControllerRevision", Namespaced: true}}},
					metav1.APIResourceList{GroupVersion: "rbac.authorization.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "roles", Kind: "Role", Namespaced: true}}})
				s.add("namespaces", obj("v1", "Namespace", "", "a"))
				s.add("roles.rbac.authorization.k8s.io", role("equal", "x"))
				s.add("roles.rbac.authorization.k8s.io", role("other", "x", "y"))
				s.add("pods", host)
				mayRead := func(resource string) bool { return resource != "roles" }
				mayWrite := func(resource string) bool {
					return resource == "configmaps" || resource == "statefulsets" || resource == "services" || resource == "secrets"
				}
				s.fault = func(r *http.Request) (int, bool) {
					if r.UserAgent() == "controller" {
						return 0, false
					}
					parts := strings.Split(r.URL.Path[strings.Index(r.URL.Path, "/namespaces/a")+1:], "/")
					switch {
					case len(parts) < 3, r.Method == http.MethodGet && mayRead(parts[2]):
						return 0, false
					case r.Method == http.MethodPost && mayWrite(parts[2]) && parts[2] != "secrets":
						return 0, false
					}
					return http.StatusForbidden, false
				}
				request := request("r", test.spec)
				request.Run.Spec.RestoreRef.Namespace = "a"
				request.Run.Spec.Restore.PlanOnly = planOnly
				wanted, phase, texts := test.want, test.phase, test.texts
				if planOnly && name == "all" { // only trying tells of the quota
					phase, texts = v1alpha1.RestorePhaseCompleted, texts[:1]
				}
				plan := want(t, s.run(t.Context(), backupOf(t, objects...), request, func(d *Dependencies) {
					d.Reader = s.reader(t)
					d.Allowed = func(_ context.Context, right Right) (bool, error) {
						switch right.Verb {
						case "get", "list":
							return mayRead(right.Resource), nil
						}
						return right.Resource == "restores" || mayWrite(right.Resource), nil
					}
				}), phase, texts...)
				got := actions(plan)
				if planOnly && got["Secret a/limited"] != "" {
					got["Secret a/limited"] = "error"
				}
				if wanted != nil {
					if diff := cmp.Diff(wanted, got); diff != "" {
						t.Errorf("plan only %v (-want +got):\n%s", planOnly, diff)
					}
				}
			}
		})
	}
}
