// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// parseAll reads the objects of a YAML text.
func parseAll(t *testing.T, text string) (objects []*unstructured.Unstructured) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		encoded, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		objects = append(objects, unstructuredOf(t, string(encoded)))
	}
	return objects
}

// at is where an object lies, or is to, once its kind is served.
func at(t *testing.T, o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	var found dynamic.ResourceInterface
	labtest.Eventually(t, o.GetKind()+" to be served", func() error {
		groups, err := restmapper.GetAPIGroupResources(lab.Kube.Discovery())
		if err != nil {
			return err
		}
		gvk := o.GroupVersionKind()
		mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return err
		}
		found = dynamicClient(t).Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			found = dynamicClient(t).Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		return nil
	})
	return found
}

// createAll creates the objects of a YAML text. Those outside of all namespaces go with the test.
func createAll(t *testing.T, text string) {
	t.Helper()
	for _, o := range parseAll(t, text) {
		client := at(t, o)
		labtest.Eventually(t, "the creation of "+o.GetKind()+" "+o.GetName(), func() error {
			_, err := client.Create(t.Context(), o, metav1.CreateOptions{})
			return err
		})
		if o.GetNamespace() == "" {
			t.Cleanup(func() {
				if err := client.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			})
		}
	}
}

// mustHave fails the test unless each object of a YAML text is there with all fields that the text
// has.
func mustHave(t *testing.T, text string) {
	t.Helper()
	for _, o := range parseAll(t, text) {
		live, err := at(t, o).Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if path := lacks("", o.Object, live.Object); path != "" {
			encoded, _ := yaml.Marshal(live.Object)
			t.Errorf("%s %s differs at %s:\n%s", o.GetKind(), o.GetName(), path, encoded)
		}
	}
}

// lacks is where a value lacks what is wanted, or "". Lists must be as long as wanted.
func lacks(path string, wanted, live any) string {
	switch wanted := wanted.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		if !ok {
			return path
		}
		for field, value := range wanted {
			if found := lacks(path+"."+field, value, live[field]); found != "" {
				return found
			}
		}
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) != len(wanted) {
			return path
		}
		for i := range wanted {
			if found := lacks(path+"[]", wanted[i], live[i]); found != "" {
				return found
			}
		}
	default:
		if wanted != live {
			return path
		}
	}
	return ""
}

// ofOne has words for the names of a test that others must not have.
func ofOne(text string, words ...string) string { return strings.NewReplacer(words...).Replace(text) }

// TestNamesOfMappedNamespaces: bindings to the accounts of a namespace, by whatever name, webhooks and
// selectors follow it. What is outside of all namespaces, and exists, serves both, or is told of. So
// the accounts of the first namespace have no rights in the second one.
func TestNamesOfMappedNamespaces(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "names")
	target := lab.Namespace(t, "names-copy")
	words := []string{"NS", namespace, "TARGET", target}
	createAll(t, ofOne(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot, namespace: NS}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: NS}, rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: readers, namespace: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccounts:NS"}
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccount:NS:robot"}
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccount:NS-other:robot"}
- {kind: ServiceAccount, name: robot, namespace: NS}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewers-of-NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccounts:NS"}
- {kind: ServiceAccount, name: robot, namespace: NS}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook-of-NS, annotations: {cert-manager.io/inject-ca-from: NS/hook}}
webhooks:
- {name: check.example.com, failurePolicy: Ignore, sideEffects: None, admissionReviewVersions: [v1], namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [NS]}]},
   clientConfig: {service: {name: hook, namespace: NS}}, rules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [widgets]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: NS}
spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}}]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: NS}, spec: {type: ExternalName, externalName: db.NS.svc.cluster.local}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: address, namespace: NS}, data: {url: "postgres://db.NS:5432/app"}}`, words...))
	name := labtest.Name("names")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, IncludedClusterScopedResources: []string{"clusterrolebindings", "validatingwebhookconfigurations"}})
	backup := lab.AwaitCompleted(t, name)
	spec := v1alpha1.RestoreSpec{
		NamespaceMapping: map[string]string{namespace: target}, IncludedNamespaces: []string{namespace}, IncludeClusterResources: new(true), ExcludedResources: []string{"namespaces"},
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("mapped"), spec)), v1alpha1.RestorePhaseCompleted,
		ofOne("clusterrolebindings.rbac.authorization.k8s.io viewers-of-NS: it is there, and stays as it is, though it differs: subjects", words...),
		ofOne("validatingwebhookconfigurations.admissionregistration.k8s.io hook-of-NS: it is there, and serves the namespace of the backup, at webhooks[check.example.com].clientConfig.service.namespace: it stays so", words...),
		ofOne("configmaps TARGET/address: it is restored into the namespace TARGET, and still names NS, at data.url", words...))
	mustHave(t, ofOne(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: readers, namespace: TARGET}
subjects:
- {kind: Group, name: "system:serviceaccounts:TARGET"}
- {kind: User, name: "system:serviceaccount:TARGET:robot"}
- {kind: User, name: "system:serviceaccount:NS-other:robot"}
- {kind: ServiceAccount, name: robot, namespace: TARGET}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: TARGET}
spec: {ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: TARGET}}}]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: TARGET}, spec: {externalName: db.TARGET.svc.cluster.local}}`, words...))

	// With an update they serve both, and a second one finds nothing to do.
	spec.ExistingResourcePolicy = v1alpha1.ExistingResourceUpdate
	want(t, restored(t, restoreRun(backup, labtest.Name("updated"), spec)), v1alpha1.RestorePhaseCompleted)
	both := ofOne(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewers-of-NS}
subjects:
- {kind: Group, name: "system:serviceaccounts:NS"}
- {kind: ServiceAccount, name: robot, namespace: NS}
- {kind: Group, name: "system:serviceaccounts:TARGET"}
- {kind: ServiceAccount, name: robot, namespace: TARGET}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook-of-NS, annotations: {cert-manager.io/inject-ca-from: NS/hook}}
webhooks:
- {name: check.example.com, clientConfig: {service: {namespace: NS}}, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [NS, TARGET]}]}}`, words...)
	mustHave(t, both)
	for _, o := range want(t, restored(t, restoreRun(backup, labtest.Name("again"), spec)), v1alpha1.RestorePhaseCompleted).Items {
		if (o.Kind == "ClusterRoleBinding" || o.Kind == "ValidatingWebhookConfiguration") && strings.HasSuffix(o.Name, namespace) && o.Action != "skip" {
			t.Errorf("%s: %s: %s", o.Name, o.Action, o.Reason)
		}
	}

	// Where they are not there any more they serve the second namespace.
	for _, o := range parseAll(t, both) {
		if err := at(t, o).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the end of "+o.GetName(), func() error {
			if _, err := at(t, o).Get(t.Context(), o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.New("it is there")
			}
			return nil
		})
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("anew"), spec)), v1alpha1.RestorePhaseCompleted)
	mustHave(t, ofOne(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewers-of-NS}
subjects:
- {kind: Group, name: "system:serviceaccounts:TARGET"}
- {kind: ServiceAccount, name: robot, namespace: TARGET}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook-of-NS, annotations: {cert-manager.io/inject-ca-from: TARGET/hook}}
webhooks:
- {name: check.example.com, clientConfig: {service: {namespace: TARGET}}, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [TARGET]}]}}`, words...))
}
