// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Objects of hostile backups have fields of any type: nothing of that stops a restore.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"sidecar.istio.io/status":"{}"}},"spec":{"containers":[{"name":"a","volumeMounts":[1]}],"volumes":[{"name":"kube-api-access-x","projected":{}}]}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","managedFields":[{"fieldsV1":{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{}}}}}]},"spec":{"ports":[{"port":80,"nodePort":30000}]}}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","labels":{"controller-uid":"x"}},"spec":{"template":{"metadata":{"labels":{}}}},"status":{"startTime":"x"}}`,
		`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"a","ownerReferences":[{"uid":"u"}]},"spec":{"volumeClaimTemplates":[{"spec":{"storageClassName":"old"}}]}}`,
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":[{"clientConfig":{"service":{"namespace":"shop"}},"sideEffects":"Some"}]}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"a","namespace":"shop"},"subjects":[{"namespace":"shop"},"x"]}`,
	} {
		f.Add([]byte(seed), []byte(seed))
	}
	modifiers, err := ParseModifiers(map[string]string{"a": `
version: v1
resourceModifierRules:
- {conditions: {groupResource: pods}, strategicPatches: [{patchData: '{"spec":{"containers":[{"name":"a","image":"b"}]}}'}]}
- {conditions: {groupResource: "*"}, mergePatches: [{patchData: '{"metadata":{"labels":{"a":"b"}}}'}]}
- {conditions: {groupResource: "*", matches: [{path: /spec/replicas, value: "1"}]}, patches: [{operation: remove, path: /spec/replicas}]}
`})
	if err != nil {
		f.Fatal(err)
	}
	resources := []string{"pods", "services", "persistentvolumeclaims", "persistentvolumes", "serviceaccounts", "secrets", "jobs.batch", "statefulsets.apps",
		"replicasets.apps", "namespaces", "customresourcedefinitions.apiextensions.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io", "apiservices.apiregistration.k8s.io", "widgets.example.com"}
	f.Fuzz(func(t *testing.T, one, other []byte) {
		decode := func(data []byte) *unstructured.Unstructured {
			o := &unstructured.Unstructured{}
			if utiljson.UnmarshalCaseSensitivePreserveInts(data, &o.Object) != nil || o.GetName() == "" || o.GetKind() == "" || o.GetAPIVersion() == "" {
				return nil
			}
			return o
		}
		spec := v1alpha1.RestoreSpec{
			NamespaceMapping: map[string]string{"shop": "copy"}, StorageClassMapping: map[string]string{"old": "new"},
			RestoreStatus: &v1alpha1.RestoreStatusSpec{},
		}
		rules, err := NewRules(&spec, modifiers, Facts{RestoreUID: "r"})
		if err != nil {
			t.Fatal(err)
		}
		live := decode(other)
		for _, name := range resources {
			o := decode(one)
			if o == nil {
				return
			}
			resource := schema.ParseGroupResource(name)
			rules.Skip(o, resource)
			rules.Status(o, resource)
			before := identityOf(o)
			desired, _, err := rules.Desired(t.Context(), o, resource, nil)
			if err != nil {
				continue
			}
			if desired.GetUID() != "" || desired.GetResourceVersion() != "" || desired.GetGenerateName() != "" || len(desired.GetFinalizers())+len(desired.GetManagedFields()) > 0 {
				t.Fatalf("the server's fields are there: %v", desired)
			}
			if after := identityOf(desired); after.kind != before.kind || after.namespace != rules.Namespace(before.namespace) {
				t.Fatalf("%v became %v", before, after)
			}
			if live != nil {
				Compare(live, desired, nil, v1alpha1.ExistingResourceUpdate)
				Compare(live, desired, live, v1alpha1.ExistingResourceRecreate)
			}
			if d := Compare(desired, desired, nil, v1alpha1.ExistingResourceUpdate); d.Action != Equal {
				t.Fatalf("it differs from itself: %q", d.Differs)
			}
		}
	})
}
