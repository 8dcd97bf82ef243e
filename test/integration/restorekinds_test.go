// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	restoring "github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/runlog"
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
	mustHaveAll(t, parseAll(t, text)...)
}

// mustHaveAll fails the test unless each object is there with all fields that it has here.
func mustHaveAll(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
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

// restoredFrom restores the objects of a YAML text, as a backup of another cluster may hold them. It
// gives how that ended, and its log.
func restoredFrom(t *testing.T, text string, spec v1alpha1.RestoreSpec, mutate ...func(*restoring.Dependencies)) (*restoring.Ended, string) {
	t.Helper()
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("from")
	run := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: name, UID: types.UID(name)}}
	run.Spec.RestoreRef = v1alpha1.BackupReference{Namespace: labtest.System, Name: name}
	run.Spec.Restore = spec
	log := runlog.New(clock.RealClock{})
	with := restoring.Dependencies{
		Backup: backupHolding(t, parseAll(t, text)...), Writer: client, Reader: client, Discovery: discovery.ToServerResourcesInterfaceWithContext(lab.Kube.Discovery()), Clock: clock.RealClock{}, Log: log,
	}
	for _, m := range mutate {
		m(&with)
	}
	ended := restoring.Run(t.Context(), restoring.Request{Run: run, SystemNamespace: labtest.System}, with)
	compressed, err := gzip.NewReader(bytes.NewReader(log.End()))
	if err != nil {
		t.Fatal(err)
	}
	told, err := io.ReadAll(compressed)
	if err != nil {
		t.Fatal(err)
	}
	return ended, string(told)
}

// mustTell fails the test unless a restore has ended in a phase, and told these.
func mustTell(t *testing.T, ended *restoring.Ended, told string, phase v1alpha1.RestorePhase, texts ...string) {
	t.Helper()
	if ended.Status.Phase != phase {
		t.Fatalf("it is %+v\n%s", ended.Status, told)
	}
	for _, text := range texts {
		if !strings.Contains(told, text) {
			t.Errorf("%q is not told:\n%s", text, told)
		}
	}
}

// isTold reports whether the log of a restore tells something of an object.
func isTold(log, object, text string) bool {
	for line := range strings.SplitSeq(log, "\n") {
		if strings.Contains(line, `object="`+object+`"`) && strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// mustTellOf fails the test unless the log of a restore tells all of these, by the objects that they are of.
func mustTellOf(t *testing.T, log string, texts map[string]string) {
	t.Helper()
	for object, text := range texts {
		if !isTold(log, object, text) {
			t.Errorf("%q is not told of %s:\n%s", text, object, log)
		}
	}
}

// dropKinds deletes definitions with the test.
func dropKinds(t *testing.T, names ...string) {
	t.Helper()
	t.Cleanup(func() {
		client := dynamicClient(t).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		for _, name := range names {
			if err := client.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
}

// TestNamesOfMappedNamespaces: bindings to the accounts of a namespace, by whatever name, webhooks and
// selectors follow it. What is outside of all namespaces, and exists, serves both, or is told of. So
// the accounts of the first namespace have no rights in the second one.
func TestNamesOfMappedNamespaces(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "names")
	target := lab.Namespace(t, "names-copy")
	other := lab.Namespace(t, "names-other")
	words := []string{"NS", namespace, "TARGET", target, "OTHER", other}
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
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: guests, namespace: OTHER}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccounts:NS"}]
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: address, namespace: NS}, data: {url: "postgres://db.NS:5432/app"}}`, words...))
	name := labtest.Name("names")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace, other}, IncludedClusterScopedResources: []string{"clusterrolebindings", "validatingwebhookconfigurations"}})
	backup := lab.AwaitCompleted(t, name)
	spec := v1alpha1.RestoreSpec{
		NamespaceMapping: map[string]string{namespace: target}, IncludedNamespaces: []string{namespace, other}, IncludeClusterResources: new(true), ExcludedResources: []string{"namespaces"},
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
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: guests, namespace: OTHER}
subjects: [{kind: Group, name: "system:serviceaccounts:NS"}, {kind: Group, name: "system:serviceaccounts:TARGET"}]
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

// TestStatusThatIsAField: the status of a kind without that subresource comes back with the object,
// required or not, and a value that differs is one like any. That of a kind with the subresource comes
// back only if it is asked for.
func TestStatusThatIsAField(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "status")
	words := []string{"NS", namespace}
	kind := func(name, required, subresources string) string {
		return strings.NewReplacer("KIND", name, "REQUIRED", required, "SUB", subresources).Replace(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: KINDs.NS.example.com}
spec: {group: NS.example.com, scope: Namespaced, names: {plural: KINDs, kind: KIND, listKind: KINDList}, versions: [{name: v1, served: true, storage: true, subresources: {SUB},
  schema: {openAPIV3Schema: {type: object, required: [REQUIRED], properties: {spec: {type: object, properties: {owner: {type: string}}}, status: {type: object, properties: {balance: {type: integer}}}}}}}]}
---
`)
	}
	object := func(name string, balance string) string {
		return strings.NewReplacer("KIND", name, "BALANCE", balance).Replace(`{apiVersion: NS.example.com/v1, kind: KIND, metadata: {name: a, namespace: NS}, spec: {owner: desk}, status: {balance: BALANCE}}`)
	}
	createAll(t, ofOne(kind("ledger", "spec", "")+kind("account", "spec, status", "")+kind("watched", "spec", "status: {}")+
		strings.Join([]string{object("ledger", "42"), object("account", "7"), object("watched", "3")}, "\n---\n"), words...))
	watched := parseAll(t, ofOne(object("watched", "3"), words...))[0]
	status := func() any {
		found, err := at(t, watched).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Object["status"]
	}
	if _, err := at(t, watched).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"balance":3}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("status")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	back := strings.Join([]string{object("ledger", "42"), object("account", "7")}, "\n---\n")
	restore := func(prefix string, spec v1alpha1.RestoreSpec, texts ...string) {
		t.Helper()
		want(t, restored(t, restoreRun(backup, labtest.Name(prefix), spec)), v1alpha1.RestorePhaseCompleted, texts...)
	}

	lose(t, namespace)
	restore("lost", v1alpha1.RestoreSpec{})
	mustHave(t, ofOne(back, words...))
	if found := status(); found != nil {
		t.Errorf("the status with a subresource is %v", found)
	}

	ledger := parseAll(t, ofOne(object("ledger", "43"), words...))[0]
	if _, err := at(t, ledger).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"balance":43}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	restore("kept", v1alpha1.RestoreSpec{}, "a: it is there, and stays as it is, though it differs: status.balance")
	restore("updated", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})
	mustHave(t, ofOne(back, words...))

	lose(t, namespace)
	restore("asked", v1alpha1.RestoreSpec{RestoreStatus: &v1alpha1.RestoreStatusSpec{IncludedResources: []string{"*"}}})
	mustHave(t, ofOne(back+"\n---\n"+object("watched", "3"), words...))

	// Their definitions come with them.
	for _, kind := range []string{"ledger", "account", "watched"} {
		crd := parseAll(t, ofOne(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: KINDs.NS.example.com}}`, "KIND", kind, "NS", namespace))[0]
		if err := at(t, crd).Delete(t.Context(), crd.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the end of "+crd.GetName(), func() error {
			if _, err := at(t, crd).Get(t.Context(), crd.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.New("it is there")
			}
			return nil
		})
	}
	restore("defined", v1alpha1.RestoreSpec{})
	mustHave(t, ofOne(back, words...))
}

// TestDefinitionsOfOlderVersions: what a definition of v1beta1 preserves comes back: fields that its
// schema does not name, at any depth, without a schema, and with one that v1 does not know.
func TestDefinitionsOfOlderVersions(t *testing.T) {
	t.Parallel()
	group := labtest.Name("kitchen") + ".example.com"
	namespace := labtest.Name("kitchen-ns")
	words := []string{"GROUP", group, "NS", namespace}
	definition := func(name, versions string) string {
		return strings.NewReplacer("KIND", name, "VERSIONS", versions).Replace(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: KINDs.GROUP}
spec: {group: GROUP, scope: Namespaced, preserveUnknownFields: true, conversion: {strategy: None}, names: {plural: KINDs, singular: KIND, kind: KIND, listKind: KINDList}, versions: VERSIONS}
---
`)
	}
	dropKinds(t, "recipes."+group, "spices."+group, "herbs."+group, "roots."+group)
	const objects = `{apiVersion: GROUP/v1, kind: recipe, metadata: {name: soup, namespace: NS}, spec: {title: soup, steps: [{do: chop, with: {tool: knife}}], salt: {grams: 5}}}
---
{apiVersion: GROUP/v1, kind: spice, metadata: {name: cumin, namespace: NS}, spec: {hot: false}}
---
{apiVersion: GROUP/v1, kind: herb, metadata: {name: dill, namespace: NS}, spec: {size: "3", extra: {a: 1}}}
---
{apiVersion: GROUP/v1, kind: root, metadata: {name: beet, namespace: NS}, spec: {red: true}}`
	text := definition("recipe", `[{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {properties: {title: {type: string}, steps: {type: array, items: {type: object, properties: {do: {type: string}}}}}}}}}}]`) +
		definition("spice", `[{name: v1, served: true, storage: true}]`) +
		definition("herb", `[{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {properties: {spec: {properties: {size: {oneOf: [{type: string}, {type: integer}]}}}}}}}]`) +
		`{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, metadata: {name: roots.GROUP}, spec: {group: GROUP, version: v1, scope: Namespaced, names: {plural: roots, singular: root, kind: root, listKind: rootList},
  validation: {openAPIV3Schema: {properties: {spec: {properties: {size: {type: integer}}}}}}, additionalPrinterColumns: [{name: Red, type: boolean, JSONPath: .spec.red}]}}
---
` +
		"{apiVersion: v1, kind: Namespace, metadata: {name: NS}}\n---\n" + objects
	t.Cleanup(func() {
		_ = lab.Kube.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	})
	ended, told := restoredFrom(t, ofOne(text, words...), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted, "herbs."+group, "the cluster refuses its schema, which is of an older version of the API")
	mustHave(t, ofOne(objects, words...))
	if ended.Status.Warnings != 2 { // and that one was written in v1
		t.Errorf("%d warnings:\n%s", ended.Status.Warnings, told)
	}
}

// TestVersionsThatAreGone: an object of a version that is not served means in a later one what it
// meant, and of a removed one the error names its successor.
func TestVersionsThatAreGone(t *testing.T) {
	t.Parallel()
	namespace := labtest.Name("gone")
	words := []string{"NS", namespace}
	t.Cleanup(func() {
		_ = lab.Kube.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
		_ = lab.Kube.NodeV1().RuntimeClasses().Delete(context.Background(), namespace, metav1.DeleteOptions{})
		_ = lab.Kube.FlowcontrolV1().PriorityLevelConfigurations().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	})
	ended, told := restoredFrom(t, ofOne(`{apiVersion: v1, kind: Namespace, metadata: {name: NS}}
---
{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: some, namespace: NS}, spec: {minAvailable: 1, selector: {matchLabels: {app: x}}}}
---
{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: none, namespace: NS}, spec: {minAvailable: 1, selector: {}}}
---
{apiVersion: networking.k8s.io/v1beta1, kind: Ingress, metadata: {name: known, namespace: NS}, spec: {rules: [{host: a.example.com, http: {paths: [{path: /, backend: {serviceName: site, servicePort: 80}}]}}]}}
---
{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: outside, namespace: NS}, addressType: IPv4, endpoints: [{addresses: [192.0.2.5], topology: {kubernetes.io/hostname: n1}}], ports: [{port: 80, protocol: TCP}]}
---
{apiVersion: autoscaling/v2beta1, kind: HorizontalPodAutoscaler, metadata: {name: older, namespace: NS}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3,
  metrics: [{type: Resource, resource: {name: cpu, targetAverageUtilization: 60}}, {type: Object, object: {metricName: hits, target: {apiVersion: v1, kind: Service, name: s}, targetValue: "7"}}, {type: External, external: {metricName: e, metricSelector: {matchLabels: {c: d}}, targetAverageValue: "9"}}]}}
---
{apiVersion: autoscaling/v2beta2, kind: HorizontalPodAutoscaler, metadata: {name: old, namespace: NS}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}}
---
{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: nightly, namespace: NS}, spec: {schedule: "CRON_TZ=Europe/Paris 5 1 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}}}
---
{apiVersion: node.k8s.io/v1alpha1, kind: RuntimeClass, metadata: {name: NS}, spec: {runtimeHandler: kata, overhead: {podFixed: {cpu: 10m}}}}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1beta1, kind: PriorityLevelConfiguration, metadata: {name: NS}, spec: {type: Limited, limited: {assuredConcurrencyShares: 7, limitResponse: {type: Reject}}}}
---
{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: extensions/v1beta1, kind: Ingress, metadata: {name: site, namespace: NS}, spec: {}}
---
{apiVersion: policy/v1beta1, kind: PodSecurityPolicy, metadata: {name: NS}, spec: {privileged: false}}`, words...), v1alpha1.RestoreSpec{IncludeClusterResources: new(true)})
	mustTell(t, ended, told, v1alpha1.RestorePhasePartiallyFailed, "its successor is apps/v1 Deployment", "its successor is networking.k8s.io/v1 Ingress", "its successor is Pod Security admission")
	if ended.Status.Errors != 3 {
		t.Errorf("%d errors:\n%s", ended.Status.Errors, told)
	}
	mustHave(t, ofOne(`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: some, namespace: NS}, spec: {minAvailable: 1, selector: {matchLabels: {app: x}}}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: none, namespace: NS}, spec: {minAvailable: 1, selector: {matchExpressions: [{key: pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match, operator: Exists}]}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: known, namespace: NS}, spec: {rules: [{host: a.example.com, http: {paths: [{path: /, pathType: ImplementationSpecific, backend: {service: {name: site, port: {number: 80}}}}]}}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: outside, namespace: NS}, endpoints: [{addresses: [192.0.2.5], nodeName: n1}]}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: older, namespace: NS}, spec: {maxReplicas: 3, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}},
  {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: s}, metric: {name: hits}, target: {type: Value, value: "7"}}}, {type: External, external: {metric: {name: e, selector: {matchLabels: {c: d}}}, target: {type: AverageValue, averageValue: "9"}}}]}}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: old, namespace: NS}, spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: NS}, spec: {schedule: "5 1 * * *", timeZone: Europe/Paris}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: NS}, handler: kata, overhead: {podFixed: {cpu: 10m}}}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, metadata: {name: NS}, spec: {limited: {nominalConcurrencyShares: 7}}}`, words...))
}

// TestScopeThatChanged: an object of a namespace is an error where its kind is outside of all by now.
func TestScopeThatChanged(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "scope")
	words := []string{"NS", namespace}
	createAll(t, ofOne(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: walls.NS.example.com}
spec: {group: NS.example.com, scope: Cluster, names: {plural: walls, kind: Wall, listKind: WallList}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object}}}}}]}`, words...))
	wall := parseAll(t, ofOne(`{apiVersion: NS.example.com/v1, kind: Wall, metadata: {name: a, namespace: NS}, spec: {}}`, words...))[0]
	client := at(t, wall) // when it is served
	encoded, err := yaml.Marshal(wall.Object)
	if err != nil {
		t.Fatal(err)
	}
	ended, told := restoredFrom(t, string(encoded), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhasePartiallyFailed, "outside of all namespaces, and the backup holds it in "+namespace)
	if _, err := client.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("one outside of all namespaces is there: %v", err)
	}
}

// TestPodOfAMesh: the API server takes a pod without the sidecar that it had, with its own probes.
func TestPodOfAMesh(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "mesh")
	words := []string{"NS", namespace}
	createAll(t, ofOne(`
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: NS, labels: {app: app, security.istio.io/tlsMode: istio, service.istio.io/canonical-name: app}, annotations: {istio.io/rev: default, prometheus.io/path: /stats/prometheus, prometheus.io/port: "15020",
  sidecar.istio.io/status: '{"initContainers":["istio-init"],"containers":["istio-proxy"],"volumes":["istio-envoy"],"imagePullSecrets":null}'}}
spec:
  initContainers: [{name: istio-init, image: example.com/proxy}]
  containers:
  - {name: app, image: example.com/app, readinessProbe: {httpGet: {path: /app-health/app/readyz, port: 15020, scheme: HTTP}}, livenessProbe: {httpGet: {path: /app-health/app/livez, port: 15020, scheme: HTTP}}}
  - name: istio-proxy
    image: example.com/proxy
    env: [{name: ISTIO_KUBE_APP_PROBERS, value: '{"/app-health/app/livez":{"tcpSocket":{"port":8080}},"/app-health/app/readyz":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP"},"timeoutSeconds":1}}'}]
    volumeMounts: [{name: istio-envoy, mountPath: /etc/istio/proxy}]
  volumes: [{name: istio-envoy, emptyDir: {medium: Memory}}]`, words...))
	name := labtest.Name("mesh")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("mesh"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	pod, err := lab.Kube.CoreV1().Pods(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	container := pod.Spec.Containers[0]
	if len(pod.Spec.Containers)+len(pod.Spec.InitContainers) != 1 || container.ReadinessProbe.HTTPGet.Path != "/ready" || container.ReadinessProbe.HTTPGet.Port.IntValue() != 8080 ||
		container.LivenessProbe.HTTPGet != nil || container.LivenessProbe.TCPSocket.Port.IntValue() != 8080 {
		t.Errorf("the pod has %+v", pod.Spec)
	}
	for _, name := range []string{"security.istio.io/tlsMode", "service.istio.io/canonical-name", "istio.io/rev", "prometheus.io/path", "prometheus.io/port", "sidecar.istio.io/status"} {
		if pod.Labels[name]+pod.Annotations[name] != "" {
			t.Errorf("the pod has %s", name)
		}
	}
}

// TestWordsForResources: any name of a resource is understood wherever a spec takes one, and a word
// that applies to nothing is told.
func TestWordsForResources(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "words")
	if _, err := lab.Kube.AppsV1().Deployments(namespace).Create(t.Context(), deployment("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitSettled(t, namespace, "web")
	name := labtest.Name("words")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
		IncludedNamespaces: []string{namespace}, IncludedNamespaceScopedResources: []string{"DEPLOY", "configmap", "Secrets.", "ClusterRole"}, ExcludedNamespaceScopedResources: []string{"secrts"},
		Hooks: v1alpha1.BackupHooks{Resources: []v1alpha1.BackupResourceHookSpec{{Name: "freeze", IncludedResources: []string{"deployments"}, Pre: []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"sync"}}}}}}},
	})
	backup := lab.AwaitCompleted(t, name)
	if backup.Status.Warnings != 3 {
		t.Errorf("the backup is %+v", backup.Status)
	}
	for _, text := range []string{`"ClusterRole", which is cluster-scoped`, `excludes "secrts", which the cluster does not serve`, `"deployments" in includedResources, which applies to nothing`} {
		if !strings.Contains(backup.Status.Message, text) {
			t.Errorf("%q is not told: %s", text, backup.Status.Message)
		}
	}
	modifiers, err := lab.Kube.CoreV1().ConfigMaps(labtest.System).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"rules": `{version: v1, resourceModifierRules: [
		{conditions: {groupResource: deploy}, patches: [{operation: replace, path: /spec/replicas, value: '1'}]}, {conditions: {groupResource: nosuch.example.com}, patches: [{operation: remove, path: /spec}]}]}`}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Kube.CoreV1().ConfigMaps(labtest.System).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	lose(t, namespace)
	run := restored(t, restoreRun(backup, labtest.Name("words"), v1alpha1.RestoreSpec{
		IncludedResources: []string{"deploy", "NS"}, ExcludedResources: []string{"CM", "hpa"}, ResourceModifier: &v1alpha1.RestoreModifier{Kind: "ConfigMap", Name: modifiers.Name},
		RestoreStatus: &v1alpha1.RestoreStatusSpec{IncludedResources: []string{"deploy", "svc"}},
	}))
	want(t, run, v1alpha1.RestorePhaseCompleted, "the backup holds no hpa, so that this leaves nothing out", `restoreStatus.includedResources has \"svc\", which applies to nothing`,
		`resourceModifierRules[1] has \"nosuch.example.com\" in groupResource, which applies to nothing`)
	if run.Status.Warnings != 3 {
		t.Errorf("there are %d warnings", run.Status.Warnings)
	}
	found, err := lab.Kube.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *found.Spec.Replicas != 1 {
		t.Errorf("the Deployment is %+v: %v", found.Spec, err)
	}
}

// TestWebhookForAMomentAway: what a webhook refuses since it does not answer for a moment, as in a
// rollout, is written when it does.
func TestWebhookForAMomentAway(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "hooked")
	name := labtest.Name("hooked")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	for _, kind := range []string{"configmaps", "secrets"} {
		client := dynamicClient(t).Resource(corev1.SchemeGroupVersion.WithResource(kind)).Namespace(namespace)
		if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}); err != nil {
			t.Fatal(err)
		}
	}
	var asked atomic.Int32
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if asked.Add(1) <= 5 || json.NewDecoder(r.Body).Decode(&review) != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	createAll(t, ofOne(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: NAME}
webhooks:
- {name: check.example.com, failurePolicy: Fail, sideEffects: None, admissionReviewVersions: [v1], timeoutSeconds: 2, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}},
   clientConfig: {url: "URL/", caBundle: CA}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps, secrets]}]}`, "NAME", name, "NS", namespace, "URL", hook.URL, "CA", authority))
	labtest.Eventually(t, "the webhook to be asked", func() error {
		_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || asked.Load() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	asked.Store(0)
	run := restored(t, restoreRun(backup, labtest.Name("hooked"), v1alpha1.RestoreSpec{}))
	want(t, run, v1alpha1.RestorePhaseCompleted)
	if n := asked.Load(); n <= 5 || run.Status.Progress.ItemsCreated < 1 {
		t.Errorf("it was asked %d times: %+v", n, run.Status.Progress)
	}
}
