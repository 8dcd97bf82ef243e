// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// needing is a cluster whose namespace shop needs things of cluster scope.
func needing(t *testing.T, spec v1alpha1.BackupSpec) *fixture {
	f := newFixture(t, spec)
	for _, served := range []struct {
		gv, resource, kind string
		namespaced         bool
	}{
		{"v1", "serviceaccounts", "ServiceAccount", true},
		{"rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", true},
		{"rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", false},
		{"rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", false},
		{"scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", false},
		{"node.k8s.io/v1", "runtimeclasses", "RuntimeClass", false},
		{"storage.k8s.io/v1", "storageclasses", "StorageClass", false},
	} {
		f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: served.gv, APIResources: []metav1.APIResource{
			{Name: served.resource, SingularName: strings.ToLower(served.kind), Kind: served.kind, Namespaced: served.namespaced, Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
		}})
	}
	f.add("namespaces", namespace("shop", ""), namespace("other", ""))
	f.add("serviceaccounts", named("shop", "web")...)
	f.add("serviceaccounts", named("other", "web")...)
	f.add("pods", `{"metadata":{"name":"p","namespace":"shop"},"spec":{"priorityClassName":"high","runtimeClassName":"kata"}}`)
	f.add("persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"storageClassName":"fast"}}`)
	f.add("persistentvolumeclaims", `{"metadata":{"name":"data","namespace":"shop"},"spec":{"volumeName":"pv","storageClassName":"fast"},"status":{"phase":"Bound"}}`)
	binding := func(name, role, kind, namespace string) string {
		return `{"metadata":{"name":"` + name + `"},"roleRef":{"kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"ada"},{"kind":"` + kind + `","namespace":"` + namespace + `","name":"web"}]}`
	}
	f.add("clusterrolebindings.rbac.authorization.k8s.io", binding("ours", "reader", "ServiceAccount", "shop"),
		binding("others", "writer", "ServiceAccount", "other"), binding("of-a-user", "writer", "User", "shop"))
	f.add("rolebindings.rbac.authorization.k8s.io", `{"metadata":{"name":"rb","namespace":"shop"},"roleRef":{"kind":"ClusterRole","name":"viewer"}}`)
	f.add("clusterroles.rbac.authorization.k8s.io", named("", "reader", "viewer", "writer")...)
	f.add("priorityclasses.scheduling.k8s.io", named("", "high", "low")...)
	f.add("runtimeclasses.node.k8s.io", named("", "kata", "other")...)
	f.add("storageclasses.storage.k8s.io", named("", "fast", "slow")...)
	return f
}

// TestBindingsOfAccounts: a service account is bound by its kind, as a user or with those of its
// namespace; what binds all accounts or all users is not about it.
func TestBindingsOfAccounts(t *testing.T) {
	for subject, want := range map[string]string{
		`"kind":"ServiceAccount","namespace":"shop","name":"web"`:  "the service account shop/web",
		`"kind":"User","name":"system:serviceaccount:shop:web"`:    "the service account shop/web",
		`"kind":"Group","name":"system:serviceaccounts:shop"`:      "the service accounts of shop",
		`"kind":"ServiceAccount","namespace":"other","name":"web"`: "",
		`"kind":"User","name":"system:serviceaccount:other:web"`:   "",
		`"kind":"User","name":"system:serviceaccounts:shop"`:       "",
		`"kind":"User","name":"shop:web"`:                          "",
		`"kind":"Group","name":"system:serviceaccounts:sho"`:       "",
		`"kind":"Group","name":"system:serviceaccount:shop:web"`:   "",
		`"kind":"Group","name":"system:serviceaccounts"`:           "",
		`"kind":"Group","name":"system:authenticated"`:             "",
		`"kind":"Group","name":"shop"`:                             "",
	} {
		for _, excluded := range [][]string{nil, {"clusterrolebindings"}} {
			f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, ExcludedResources: excluded})
			f.add("clusterrolebindings.rbac.authorization.k8s.io", `{"metadata":{"name":"one"},"roleRef":{"kind":"ClusterRole","name":"writer"},"subjects":[{`+subject+`}]}`)
			f.run(t)
			binding, role := "it binds "+want, "the ClusterRoleBinding one refers to it"
			if excluded != nil {
				binding, role = "", "it is bound to "+want
			}
			if want == "" {
				binding, role = "", ""
			}
			if needed := f.needed(t); needed["ClusterRoleBinding one"] != binding || needed["ClusterRole writer"] != role {
				t.Errorf("%s without %v: %v", subject, excluded, needed)
			}
		}
	}
}

// needed are the objects of cluster scope in the backup, with the reasons.
func (f *fixture) needed(t *testing.T) map[string]string {
	t.Helper()
	needed := map[string]string{}
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Namespace == "" && item.KindName != "Namespace" {
			needed[item.KindName+" "+item.Name] = item.Reason
		}
	}
	return needed
}

// TestWhatObjectsNeedComesAlong: of cluster scope only what objects of the backup need, with
// the reason, in the manifest and the log.
func TestWhatObjectsNeedComesAlong(t *testing.T) {
	f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("the backup is %+v", outcome.Status)
	}
	want := map[string]string{
		"ClusterRoleBinding ours": "it binds the service account shop/web",
		"ClusterRole reader":      "the ClusterRoleBinding ours refers to it",
		"ClusterRole viewer":      "the RoleBinding shop/rb refers to it",
		"PriorityClass high":      "the Pod shop/p refers to it",
		"RuntimeClass kata":       "the Pod shop/p refers to it",
		"StorageClass fast":       "the PersistentVolumeClaim shop/data refers to it",
		"PersistentVolume pv":     "the claim shop/data is bound to it",
	}
	if diff := gocmp.Diff(want, f.needed(t)); diff != "" {
		t.Errorf("of cluster scope (-want +got):\n%s", diff)
	}
	if log := f.text(t, format.LogKey("b")); !strings.Contains(log, `name=high reason="the Pod shop/p refers to it"`) {
		t.Error("the log does not say why an object was taken")
	}
}

func TestWhatIsExcludedDoesNotComeAlong(t *testing.T) {
	no := false
	for name, spec := range map[string]v1alpha1.BackupSpec{
		"all":                 {IncludeClusterResources: &no},
		"by lists":            {ExcludedClusterScopedResources: []string{"clusterroles", "clusterrolebindings", "priorityclasses", "runtimeclasses", "storageclasses", "persistentvolumes"}},
		"by what is included": {IncludedResources: []string{"pods", "serviceaccounts", "persistentvolumeclaims"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec.IncludedNamespaces = []string{"shop"}
			f := needing(t, spec)
			f.run(t)
			if got := f.needed(t); len(got) > 0 {
				t.Errorf("of cluster scope: %v", got)
			}
		})
	}
}

// TestRolesWithoutBindings: what a service account may do comes along though nothing else that
// is in the backup names it.
func TestRolesWithoutBindings(t *testing.T) {
	f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"serviceaccounts", "clusterroles"}})
	f.run(t)
	want := map[string]string{"ClusterRole reader": "it is bound to the service account shop/web"}
	if diff := gocmp.Diff(want, f.needed(t)); diff != "" {
		t.Errorf("of cluster scope (-want +got):\n%s", diff)
	}
}

// TestNothingIsLookedForTwice: a backup of everything asks for each kind once.
func TestNothingIsLookedForTwice(t *testing.T) {
	f := needing(t, v1alpha1.BackupSpec{})
	f.run(t)
	for _, path := range []string{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/scheduling.k8s.io/v1/priorityclasses"} {
		if n := f.requested(path); n != 1 {
			t.Errorf("%s was asked for %d times", path, n)
		}
	}
	if got := f.needed(t); got["ClusterRole writer"] != "" || len(got) < 10 {
		t.Errorf("of cluster scope: %v", got)
	}
	without := needing(t, v1alpha1.BackupSpec{ExcludedClusterScopedResources: []string{"clusterrolebindings"}, IncludedClusterScopedResources: []string{"*"}})
	without.run(t)
	if n := without.requested("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"); n != 0 {
		t.Errorf("bindings, which are excluded, were asked for %d times though all roles are there", n)
	}
}

func TestWhatIsNeededAndCannotBeListed(t *testing.T) {
	f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/priorityclasses") {
			return false
		}
		writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no"})
		return true
	}
	outcome := f.run(t)
	errs := f.results(t).Errors.Cluster
	if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || !slices.Equal(errs, []string{"priorityclasses.scheduling.k8s.io: look for what objects in the backup need of it: list it: no"}) {
		t.Errorf("%s with %q", outcome.Status.Phase, errs)
	}
}
