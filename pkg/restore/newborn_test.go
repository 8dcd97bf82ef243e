// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// managedBy says which manager has written which fields, as FieldsV1 has it.
func managedBy(managers ...any) func(map[string]any) {
	var entries []any
	for i := 0; i < len(managers); i += 2 {
		entries = append(entries, map[string]any{"manager": managers[i], "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": managers[i+1]})
	}
	return with(entries, "metadata", "managedFields")
}

func data(fields ...string) map[string]any {
	keys := map[string]any{}
	for _, field := range fields {
		keys["f:"+field] = map[string]any{}
	}
	return map[string]any{"f:data": keys}
}

// TestNewborn: pitfall 19. In a namespace that the restore makes, what controllers make there first gets what
// people had set in it, under any policy, and keeps what its controller writes. What has been set
// by others since, or is in a namespace that was there, stays.
func TestNewborn(t *testing.T) {
	names := func(names ...string) (list []any) {
		for _, name := range names {
			list = append(list, map[string]any{"name": name})
		}
		return list
	}
	backup := backupOf(t,
		obj("v1", "Namespace", "", "shop"),
		obj("v1", "ServiceAccount", "shop", "default", with(names("pull"), "imagePullSecrets"), with(false, "automountServiceAccountToken"),
			with("blue", "metadata", "labels", "team"), with("role", "metadata", "annotations", "eks.amazonaws.com/role-arn")),
		obj("v1", "ServiceAccount", "shop", "builder", with(names("builder-dockercfg-aaaaa", "mine"), "imagePullSecrets"),
			managedBy("openshift-controller-manager", map[string]any{"f:imagePullSecrets": map[string]any{`k:{"name":"builder-dockercfg-aaaaa"}`: map[string]any{}}})),
		obj("v1", "ConfigMap", "shop", "mesh-ca", with(map[string]any{"ca": "old", "note": "by a person"}, "data"), managedBy("mesh", data("ca"), "kubectl-edit", data("note"))),
		obj("v1", "ConfigMap", "shop", "only-ca", with(map[string]any{"ca": "old"}, "data"), managedBy("mesh", data("ca"))),
		obj("v1", "ConfigMap", "shop", "edited", with(map[string]any{"k": "old"}, "data"), managedBy("mesh", data("k"))),
		obj("v1", "ConfigMap", "shop", "theirs", with(map[string]any{"k": "old"}, "data"), managedBy("mesh", data("k"))),
	)
	newborn := func() map[string]map[string]any {
		return map[string]map[string]any{
			"serviceaccounts/shop/default": obj("v1", "ServiceAccount", "shop", "default"),
			"serviceaccounts/shop/builder": obj("v1", "ServiceAccount", "shop", "builder", with(names("builder-dockercfg-bbbbb"), "imagePullSecrets"),
				managedBy("openshift-controller-manager", map[string]any{"f:imagePullSecrets": map[string]any{`k:{"name":"builder-dockercfg-bbbbb"}`: map[string]any{}}})),
			"configmaps/shop/mesh-ca": obj("v1", "ConfigMap", "shop", "mesh-ca", with(map[string]any{"ca": "new"}, "data"), managedBy("mesh", data("ca"))),
			"configmaps/shop/only-ca": obj("v1", "ConfigMap", "shop", "only-ca", with(map[string]any{"ca": "new"}, "data"), managedBy("mesh", data("ca"))),
			"configmaps/shop/edited":  obj("v1", "ConfigMap", "shop", "edited", with(map[string]any{"k": "new"}, "data"), managedBy("kubectl-edit", data("k"))),
			"configmaps/shop/theirs":  obj("v1", "ConfigMap", "shop", "theirs", with(map[string]any{"k": "new"}, "data"), managedBy("another", data("k"))),
		}
	}
	server := newFakeServer(t)
	server.kinds = append(server.kinds, metav1.APIResourceList{GroupVersion: "image.openshift.io/v1", APIResources: []metav1.APIResource{{Name: "imagestreams", Kind: "ImageStream", Namespaced: true}}})
	server.fault = func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/namespaces") {
			for key, object := range newborn() {
				o := &unstructured.Unstructured{Object: object}
				o.SetUID("new-" + o.GetUID())
				o.SetResourceVersion("1")
				server.objects[key] = object
			}
		}
		return 0, false
	}
	want(t, server.run(t.Context(), backup, request("r1", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted,
		"configmaps shop/edited: it is there, and stays as it is", "configmaps shop/theirs: it is there, and stays as it is")
	check := func(resource, name string, want any, path ...string) {
		t.Helper()
		got, _, _ := unstructured.NestedFieldNoCopy(server.get(resource, "shop", name).Object, path...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s of %s: want -, got +:\n%s", strings.Join(path, "."), name, diff)
		}
	}
	check("serviceaccounts", "default", names("pull"), "imagePullSecrets")
	check("serviceaccounts", "default", false, "automountServiceAccountToken")
	check("serviceaccounts", "default", "blue", "metadata", "labels", "team")
	check("serviceaccounts", "default", "role", "metadata", "annotations", "eks.amazonaws.com/role-arn")
	check("serviceaccounts", "builder", names("builder-dockercfg-bbbbb", "mine"), "imagePullSecrets")
	check("configmaps", "mesh-ca", map[string]any{"ca": "new", "note": "by a person"}, "data")
	check("configmaps", "only-ca", map[string]any{"ca": "new"}, "data")
	check("configmaps", "edited", map[string]any{"k": "new"}, "data")
	check("configmaps", "theirs", map[string]any{"k": "new"}, "data")
	if results, _ := told(t, server.run(t.Context(), backup, request("r1", v1alpha1.RestoreSpec{}))); len(results.Errors.Namespaces) > 0 {
		t.Errorf("gone on with: %+v", results)
	}

	// The namespace was there, and so was the account.
	was := newFakeServer(t)
	was.add("namespaces", obj("v1", "Namespace", "", "shop"))
	was.add("serviceaccounts", obj("v1", "ServiceAccount", "shop", "default"))
	want(t, was.run(t.Context(), backup, request("r2", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted,
		"serviceaccounts shop/default: it is there, and stays as it is, though it differs: automountServiceAccountToken, imagePullSecrets, metadata")
}
