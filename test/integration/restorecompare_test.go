// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/hack/kinds"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestRestoreRemovesWhatWasAdded: pitfall 10. A bad upgrade has added fields, elements and keys.
// The policy none names them, update removes them, and what is there is then as it was.
func TestRestoreRemovesWhatWasAdded(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "extras")
	client := dynamicClient(t)
	core, apps, access, network := lab.Kube.CoreV1(), lab.Kube.AppsV1(), lab.Kube.RbacV1(), lab.Kube.NetworkingV1()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	app := metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	front := metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}
	container := corev1.Container{Name: "app", Image: "example.com/app:1", Args: []string{"--serve"}, Env: []corev1.EnvVar{{Name: "MODE", Value: "good"}}, Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}
	for _, err := range []error{
		second(apps.Deployments(namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &app,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app.MatchLabels}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}}}, metav1.CreateOptions{})),
		second(core.ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named("c"), Data: map[string]string{"keep": "a"}}, metav1.CreateOptions{})),
		second(core.Services(namespace).Create(t.Context(), &corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{Selector: app.MatchLabels, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{})),
		second(network.NetworkPolicies(namespace).Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: named("only-front"), Spec: networkingv1.NetworkPolicySpec{PodSelector: app, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &front}}}}}}, metav1.CreateOptions{})),
		second(network.NetworkPolicies(namespace).Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: named("deny"), Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}, metav1.CreateOptions{})),
		second(access.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: named("r"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	awaitSettled(t, namespace, "web")
	name := labtest.Name("extras")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	before := specsOf(t, namespace)

	unchanged := want(t, restored(t, restoreRun(backup, labtest.Name("unchanged"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	mustBeEqual(t, unchanged)

	for _, change := range []struct {
		resource schema.GroupVersionResource
		name     string
		patch    string
	}{
		{appsv1.SchemeGroupVersion.WithResource("deployments"), "web", `[{"op":"add","path":"/spec/template/spec/containers/-","value":{"name":"miner","image":"example.com/miner"}},
			{"op":"add","path":"/spec/template/spec/containers/0/env/-","value":{"name":"MODE2","value":"bad"}},{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.com/app:2"},
			{"op":"add","path":"/spec/template/spec/hostNetwork","value":true},{"op":"add","path":"/spec/template/spec/nodeSelector","value":{"gpu":"yes"}},{"op":"add","path":"/spec/paused","value":true}]`},
		{corev1.SchemeGroupVersion.WithResource("configmaps"), "c", `[{"op":"add","path":"/data/extra","value":"breaks"},{"op":"replace","path":"/data/keep","value":"b"},{"op":"add","path":"/metadata/labels","value":{"tool":"theirs"}}]`},
		{corev1.SchemeGroupVersion.WithResource("configmaps"), "settings", `[{"op":"add","path":"/data/extra","value":"breaks"}]`},
		{corev1.SchemeGroupVersion.WithResource("services"), "web", `[{"op":"add","path":"/spec/selector/version","value":"2"}]`},
		{networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), "only-front", `[{"op":"add","path":"/spec/ingress/-","value":{}}]`},
		{networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), "deny", `[{"op":"add","path":"/spec/ingress","value":[{}]}]`},
		{rbacv1.SchemeGroupVersion.WithResource("roles"), "r", `[{"op":"add","path":"/rules/-","value":{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}}]`},
	} {
		if _, err := client.Resource(change.resource).Namespace(namespace).Patch(t.Context(), change.name, types.JSONPatchType, []byte(change.patch), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatalf("%s %s: %v", change.resource.Resource, change.name, err)
		}
	}
	changed := specsOf(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("none"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted,
		"deployments.apps "+namespace+"/web: it is there, and stays as it is, though it differs: spec.template.spec.containers[app].image; it has besides: spec.paused, spec.template.spec.containers[app].env[MODE2], spec.template.spec.containers[miner], spec.template.spec.hostNetwork, spec.template.spec.nodeSelector",
		"configmaps "+namespace+"/c: it is there, and stays as it is, though it differs: data.keep; it has besides: data.extra",
		"configmaps "+namespace+"/settings: it is there, and stays as it is, though it has besides: data.extra",
		"services "+namespace+"/web: it is there, and stays as it is, though it has besides: spec.selector.version",
		"networkpolicies.networking.k8s.io "+namespace+"/deny: it is there, and stays as it is, though it has besides: spec.ingress",
		"networkpolicies.networking.k8s.io "+namespace+"/only-front: it is there, and stays as it is, though it differs: spec.ingress",
		"roles.rbac.authorization.k8s.io "+namespace+"/r: it is there, and stays as it is, though it differs: rules")
	if !maps.Equal(changed, specsOf(t, namespace)) {
		t.Error("with the policy none something was written")
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("update"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})), v1alpha1.RestorePhaseCompleted)
	after := specsOf(t, namespace)
	for object, content := range before {
		if after[object] != content {
			t.Errorf("%s is %s\nand was %s", object, after[object], content)
		}
	}
	if labelled, err := core.ConfigMaps(namespace).Get(t.Context(), "c", metav1.GetOptions{}); err != nil || labelled.Labels["tool"] != "theirs" {
		t.Errorf("the label of another: %v, %v", labelled, err)
	}
	mustBeEqual(t, want(t, restored(t, restoreRun(backup, labtest.Name("again"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})), v1alpha1.RestorePhaseCompleted))
}

// awaitSettled waits until the controller of a Deployment has seen it.
func awaitSettled(t *testing.T, namespace, name string) {
	t.Helper()
	labtest.Eventually(t, "the Deployment "+name, func() error {
		found, err := lab.Kube.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && found.Status.Replicas == 0 {
			err = errors.New("it has no pods")
		}
		return err
	})
}

// mustBeEqual fails the test unless a restore has left all objects that are there alone, as equal.
func mustBeEqual(t *testing.T, plan format.RestorePlan) {
	t.Helper()
	for _, o := range plan.Items {
		if o.Action != "skip" {
			t.Errorf("%s %s/%s: %s: %s", o.Kind, o.Namespace, o.Name, o.Action, o.Reason)
		}
	}
	if len(plan.Items) == 0 {
		t.Error("the plan is empty")
	}
}

// specsOf are the specs and data of a namespace's objects, as JSON.
func specsOf(t *testing.T, namespace string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, resource := range []schema.GroupVersionResource{
		appsv1.SchemeGroupVersion.WithResource("deployments"), corev1.SchemeGroupVersion.WithResource("configmaps"), corev1.SchemeGroupVersion.WithResource("services"),
		networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), rbacv1.SchemeGroupVersion.WithResource("roles"),
	} {
		list, err := dynamicClient(t).Resource(resource).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			key := o.GetKind() + " " + o.GetName()
			delete(o.Object, "metadata")
			delete(o.Object, "status")
			encoded, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			found[key] = string(encoded)
		}
	}
	return found
}

// TestEqualOfEveryKind: of 40 kinds, what is there unchanged is equal, and so is what a restore has
// made: no warning, and no write.
func TestEqualOfEveryKind(t *testing.T) {
	t.Parallel()
	set := kinds.New(labtest.Name("equal"), lab.Namespace(t, "equal"), lab.Namespace(t, "equal"))
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if set.Converter, err = kinds.NewConverter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Delete(context.Background(), client); err != nil {
			t.Error(err)
		}
		set.Converter.Close()
	})
	if _, err := set.Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("equal")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
		IncludedNamespaces: set.Namespaces, IncludeClusterResources: new(true),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{kinds.Label: set.Name}},
	})
	backup := lab.AwaitCompleted(t, name)
	mine := func(plan format.RestorePlan, actions ...string) {
		t.Helper()
		for _, o := range plan.Items {
			if allowed := strings.Join(actions, " "); !strings.Contains(allowed, o.Action) {
				t.Errorf("%s %s/%s: %s: %s", o.Kind, o.Namespace, o.Name, o.Action, o.Reason)
			}
		}
	}
	update := v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate, IncludeClusterResources: new(true)}
	_, plan := told(t, restored(t, restoreRun(backup, labtest.Name("unchanged"), update)))
	mine(plan, "skip")
	lose(t, set.Namespaces...)
	_, plan = told(t, restored(t, restoreRun(backup, labtest.Name("anew"), update)))
	mine(plan, "skip", "create")
	if len(plan.Items) < 100 {
		t.Errorf("there are %d objects", len(plan.Items))
	}
	none := v1alpha1.RestoreSpec{IncludeClusterResources: new(true)}
	_, plan = told(t, restored(t, restoreRun(backup, labtest.Name("second"), none)))
	mine(plan, "skip")
	t.Logf("%d objects", len(plan.Items))
}

// TestRestoreLeavesControllers: what a HorizontalPodAutoscaler scales and what a controller applies
// since the backup makes no difference. A field that a person applies with kubectl does.
func TestRestoreLeavesControllers(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "controlled")
	apps := lab.Kube.AppsV1().Deployments(namespace)
	if _, err := apps.Create(t.Context(), deployment("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitSettled(t, namespace, "web")
	name := labtest.Name("controlled")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: new(int32(4)), MaxReplicas: 5,
	}}
	if _, err := lab.Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(t.Context(), scaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply := func(manager, template string) {
		t.Helper()
		content := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"by":"` + manager + `"}},"spec":{"template":` + template + `}}`
		if _, err := apps.Patch(t.Context(), "web", types.ApplyPatchType, []byte(content), metav1.PatchOptions{FieldManager: manager, Force: new(true)}); err != nil {
			t.Fatal(err)
		}
	}
	apply("injector", `{"spec":{"containers":[{"name":"sidecar","image":"example.com/sidecar"}]}}`)
	labtest.Eventually(t, "the Deployment to be scaled", func() error {
		found, err := apps.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && *found.Spec.Replicas != 4 {
			err = fmt.Errorf("it has %d replicas", *found.Spec.Replicas)
		}
		return err
	})
	only := v1alpha1.RestoreSpec{IncludedResources: []string{"deployments.apps"}, IncludeClusterResources: new(false)}
	run := restored(t, restoreRun(backup, labtest.Name("controlled"), only))
	mustBeEqual(t, want(t, run, v1alpha1.RestorePhaseCompleted))
	if run.Status.Warnings > 0 {
		t.Errorf("%d warnings", run.Status.Warnings)
	}
	apply("kubectl", `{"spec":{"nodeSelector":{"gpu":"yes"}}}`)
	want(t, restored(t, restoreRun(backup, labtest.Name("applied"), only)), v1alpha1.RestorePhaseCompleted, "/web: it is there, and stays as it is, though it has besides: spec.template.spec.nodeSelector")
	only.ExistingResourcePolicy = v1alpha1.ExistingResourceUpdate
	want(t, restored(t, restoreRun(backup, labtest.Name("updated"), only)), v1alpha1.RestorePhaseCompleted)
	found, err := apps.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if spec := found.Spec.Template.Spec; len(spec.NodeSelector) > 0 || len(spec.Containers) != 2 || *found.Spec.Replicas != 4 || found.Labels["by"] != "kubectl" {
		t.Errorf("after the update: %+v", found)
	}
}

// TestRestoreOfUnknownFields: what the cluster drops of an object, since the definition of its kind
// is an older one there, is a warning; so it is when an update writes it.
func TestRestoreOfUnknownFields(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "dropped")
	group := namespace + ".example.com"
	client := dynamicClient(t)
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	gears := client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "gears"}).Namespace(namespace)
	definition := unstructuredOf(t, fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.%[1]s"},
"spec":{"group":"%[1]s","scope":"Namespaced","names":{"plural":"gears","singular":"gear","kind":"Gear","listKind":"GearList"},"versions":[{"name":"v1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"teeth":{"type":"integer"},"colour":{"type":"string"}}}}}}}]}}`, group))
	if _, err := client.Resource(crds).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Resource(crds).Delete(context.Background(), definition.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	gear := unstructuredOf(t, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Gear","metadata":{"name":"g"},"spec":{"teeth":12,"colour":"red"}}`, group))
	labtest.Eventually(t, "the kind to be served", func() error { return second(gears.Create(t.Context(), gear, metav1.CreateOptions{})) })
	name := labtest.Name("dropped")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	if err := gears.Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	older := `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/colour"}]`
	if _, err := client.Resource(crds).Patch(t.Context(), definition.GetName(), types.JSONPatchType, []byte(older), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the older definition to be served", func() error {
		created, err := gears.Create(t.Context(), gear, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if _, known := nestedOf(created)["colour"]; err == nil && known {
			err = errors.New("it knows the field")
		}
		return err
	})
	newer := `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size","value":{"type":"integer"}}]`
	if _, err := client.Resource(crds).Patch(t.Context(), definition.GetName(), types.JSONPatchType, []byte(newer), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	const warning = "/g: the cluster does not know these fields, and has dropped them: spec.colour"
	about := "gears." + group + " " + namespace
	spec := v1alpha1.RestoreSpec{IncludedResources: []string{"gears." + group}, IncludeClusterResources: new(false)}
	run := restored(t, restoreRun(backup, labtest.Name("dropped"), spec))
	want(t, run, v1alpha1.RestorePhaseCompleted, about+warning)
	if run.Status.Warnings != 1 {
		t.Errorf("there are %d warnings", run.Status.Warnings)
	}
	spec.ExistingResourcePolicy = v1alpha1.ExistingResourceUpdate
	want(t, restored(t, restoreRun(backup, labtest.Name("dropped-again"), spec)), v1alpha1.RestorePhaseCompleted, about+warning)

	// The definition gets back what it lacks, and keeps what is newer.
	spec = v1alpha1.RestoreSpec{IncludedResources: []string{"gears." + group, "customresourcedefinitions.apiextensions.k8s.io"}, ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}
	for _, action := range []string{"update", "conflict"} {
		plan := want(t, restored(t, restoreRun(backup, labtest.Name("defined"), spec)), v1alpha1.RestorePhaseCompleted)
		for _, o := range plan.Items {
			if o.Kind == "CustomResourceDefinition" && (o.Action != action || action == "conflict" && !strings.Contains(o.Reason, "has besides: spec.versions[v1].schema.openAPIV3Schema.properties.spec.properties.size; ")) {
				t.Errorf("the definition: %s: %s, want %s", o.Action, o.Reason, action)
			}
		}
	}
	found, err := client.Resource(crds).Get(t.Context(), definition.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(found.Object, "spec", "versions")
	fields, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties")
	if fields["size"] == nil || fields["colour"] == nil || fields["teeth"] == nil {
		t.Errorf("the definition has the fields %v", fields)
	}
}

func unstructuredOf(t *testing.T, content string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(content)); err != nil {
		t.Fatal(err)
	}
	return o
}

func nestedOf(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	return spec
}
