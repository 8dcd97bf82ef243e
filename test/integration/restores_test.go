// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// restoreRun is the record of a restore, of the system namespace unless mutate says else.
func restoreRun(backup *v1alpha1.Backup, name string, spec v1alpha1.RestoreSpec, mutate ...func(*enginev1alpha1.RestoreRun)) *enginev1alpha1.RestoreRun {
	run := &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: labtest.System},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef: v1alpha1.BackupReference{Namespace: labtest.System, Name: name},
			Requester:  enginev1alpha1.Requester{Username: "an-administrator"},
			Backup: enginev1alpha1.RestoreSource{
				RestoredBackup: v1alpha1.RestoredBackup{Namespace: backup.Namespace, Name: backup.Name, UID: backup.UID, StorageLocation: backup.Spec.StorageLocation},
				StoreName:      format.StoreName(backup.Namespace, backup.Name, labtest.System),
			},
			Restore: spec,
		},
	}
	for _, m := range mutate {
		m(run)
	}
	return run
}

// restored carries a restore out, and waits until it has ended.
func restored(t *testing.T, run *enginev1alpha1.RestoreRun) *enginev1alpha1.RestoreRun {
	t.Helper()
	runs := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System)
	run, err := runs.Create(t.Context(), run, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return awaitRestored(t, run.Name)
}

func awaitRestored(t *testing.T, name string) *enginev1alpha1.RestoreRun {
	t.Helper()
	var run *enginev1alpha1.RestoreRun
	labtest.Eventually(t, "the restore "+name+" to end", func() (err error) {
		run, err = lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !run.Status.Phase.Ended() {
			err = fmt.Errorf("it is %q", run.Status.Phase)
		}
		return err
	})
	return run
}

// told reads what is stored of a restore.
func told(t *testing.T, run *enginev1alpha1.RestoreRun) (format.Results, format.RestorePlan) {
	t.Helper()
	name := format.RestoreStoreName(run.Spec.RestoreRef.Namespace, run.Spec.RestoreRef.Name, labtest.System, run.UID)
	var results format.Results
	var plan format.RestorePlan
	for key, read := range map[string]func(*os.File) error{
		format.RestoreResultsKey(name): func(f *os.File) (err error) { results, err = format.ReadResults(f); return err },
		format.RestorePlanKey(name):    func(f *os.File) (err error) { plan, err = format.ReadRestorePlan(f); return err },
	} {
		file, err := os.Open(filepath.Join(lab.Dir, "store", key))
		if err == nil {
			err = read(file)
			_ = file.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return results, plan
}

// want fails the test unless a restore has ended in a phase, with results of which each text
// is part.
func want(t *testing.T, run *enginev1alpha1.RestoreRun, phase v1alpha1.RestorePhase, texts ...string) format.RestorePlan {
	t.Helper()
	results, plan := told(t, run)
	encoded, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if run.Status.Phase != phase {
		t.Fatalf("the restore is %+v\n%s", run.Status, encoded)
	}
	all := string(encoded) + strings.Join(run.Status.ValidationErrors, "\n") + run.Status.FailureReason
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("the results lack %q:\n%s", text, all)
		}
	}
	return plan
}

// application makes what an application is made of, with an owner's chain: a Widget owns a
// ConfigMap, which owns another one.
func application(t *testing.T, namespace, group string) schema.GroupVersionResource {
	t.Helper()
	definition := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.%[1]s"},
"spec":{"group":"%[1]s","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, group)
	client := dynamicClient(t)
	create := func(resource schema.GroupVersionResource, in string, content string) *unstructured.Unstructured {
		t.Helper()
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON([]byte(content)); err != nil {
			t.Fatal(err)
		}
		var created *unstructured.Unstructured
		labtest.Eventually(t, "the creation of "+o.GetName(), func() (err error) {
			if in == "" {
				created, err = client.Resource(resource).Create(t.Context(), o, metav1.CreateOptions{})
			} else {
				created, err = client.Resource(resource).Namespace(in).Create(t.Context(), o, metav1.CreateOptions{})
			}
			return err
		})
		return created
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	create(crds, "", definition)
	t.Cleanup(func() {
		if err := client.Resource(crds).Delete(context.Background(), "widgets."+group, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	configMaps := corev1.SchemeGroupVersion.WithResource("configmaps")
	owner := create(resource, namespace, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"gear"},"spec":{"teeth":12}}`, group))
	owned := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s","ownerReferences":[{"apiVersion":"%s","kind":"%s","name":"%s","uid":"%s","controller":true}]},"data":{"a":"b"}}`
	child := create(configMaps, namespace, fmt.Sprintf(owned, "child", group+"/v1", "Widget", "gear", owner.GetUID()))
	create(configMaps, namespace, fmt.Sprintf(owned, "grandchild", "v1", "ConfigMap", "child", child.GetUID()))

	_, err := lab.Kube.AppsV1().Deployments(namespace).Create(t.Context(), deployment("web"), metav1.CreateOptions{})
	if err == nil {
		_, err = lab.Kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}, Data: map[string][]byte{"p": []byte("x")}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = lab.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "readers"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: namespace}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitReplicas(t, namespace, 2)
	return resource
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web"}}},
			},
		},
	}
}

// awaitReplicas waits until a namespace has so many pods, and one ReplicaSet.
func awaitReplicas(t *testing.T, namespace string, count int) {
	t.Helper()
	labtest.Eventually(t, "the pods of "+namespace, func() error {
		pods, err := lab.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		sets, err := lab.Kube.AppsV1().ReplicaSets(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != count || len(sets.Items) != 1 {
			return fmt.Errorf("%d pods of %d ReplicaSets", len(pods.Items), len(sets.Items))
		}
		return nil
	})
}

func dynamicClient(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(lab.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// lose deletes namespaces and waits until they are gone.
func lose(t *testing.T, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		if err := lab.Kube.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, namespace := range namespaces {
		labtest.Eventually(t, "the end of "+namespace, func() error {
			_, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("it is there")
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

// TestRestore loses a namespace, and the definition of a kind in it, and has both back:
// proofs 1, 2, 5, 7, 10, 12 and 17 of a restore.
func TestRestore(t *testing.T) {
	t.Parallel()
	client := dynamicClient(t)
	namespace := lab.Namespace(t, "restored")
	kind := application(t, namespace, namespace+".example.com")
	name := labtest.Name("for-restore")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	before := everything(t, namespace, kind)
	lose(t, namespace)
	if err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Delete(t.Context(), kind.GroupResource().String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	plan := want(t, restored(t, restoreRun(backup, labtest.Name("plan"), v1alpha1.RestoreSpec{PlanOnly: true})), v1alpha1.RestorePhaseCompleted)
	if _, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a plan has written: %v", err)
	}
	run := restored(t, restoreRun(backup, labtest.Name("restore"), v1alpha1.RestoreSpec{}))
	done := want(t, run, v1alpha1.RestorePhaseCompleted)
	if diff := cmp.Diff(actions(plan), actions(done)); diff != "" {
		t.Errorf("what was done is not what was planned (-plan +done):\n%s", diff)
	}
	if diff := cmp.Diff(before, everything(t, namespace, kind)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}
	awaitReplicas(t, namespace, 2)

	// Whoever has owned what, owns what is there, so that the collector of garbage leaves it.
	owner, err := client.Resource(kind).Namespace(namespace).Get(t.Context(), "gear", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	child, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "child", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "grandchild", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if child.OwnerReferences[0].UID != owner.GetUID() || grandchild.OwnerReferences[0].UID != child.UID {
		t.Errorf("the owners are %v and %v", child.OwnerReferences, grandchild.OwnerReferences)
	}

	versions := versionsOf(t, namespace, kind)
	again := restored(t, restoreRun(backup, labtest.Name("again"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}))
	want(t, again, v1alpha1.RestorePhaseCompleted)
	if diff := cmp.Diff(versions, versionsOf(t, namespace, kind)); diff != "" {
		t.Errorf("a second restore has written (-before +after):\n%s", diff)
	}

	// Into another namespace, of which a binding's subject becomes that.
	to := namespace + "-copy"
	t.Cleanup(func() { _ = lab.Kube.CoreV1().Namespaces().Delete(context.Background(), to, metav1.DeleteOptions{}) })
	want(t, restored(t, restoreRun(backup, labtest.Name("mapped"), v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{namespace: to}})), v1alpha1.RestorePhaseCompleted)
	binding, err := lab.Kube.RbacV1().RoleBindings(to).Get(t.Context(), "readers", metav1.GetOptions{})
	if err != nil || binding.Subjects[0].Namespace != to {
		t.Errorf("the binding of the copy: %v, %v", binding, err)
	}

	// Deleting the owner deletes what it owns, down to the end.
	if err := client.Resource(kind).Namespace(namespace).Delete(t.Context(), "gear", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the collector of garbage", func() error {
		_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "grandchild", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("it is there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// actions are what was decided about each object.
func actions(plan format.RestorePlan) map[string]string {
	decided := map[string]string{}
	for _, o := range plan.Items {
		if o.Kind == "ServiceAccount" && o.Name == "default" {
			continue // Kubernetes makes it with the namespace, or the restore does
		}
		decided[o.Kind+" "+o.Namespace+"/"+o.Name] = o.Action
	}
	return decided
}

// versionsOf are the versions of what nobody but a restore changes.
func versionsOf(t *testing.T, namespace string, kind schema.GroupVersionResource) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, resource := range []schema.GroupVersionResource{
		kind,
		corev1.SchemeGroupVersion.WithResource("configmaps"),
		corev1.SchemeGroupVersion.WithResource("secrets"),
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	} {
		list, err := dynamicClient(t).Resource(resource).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			found[o.GetKind()+" "+o.GetName()] = o.GetResourceVersion()
		}
	}
	deployment, err := lab.Kube.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found["generation"] = fmt.Sprint(deployment.Generation)
	return found
}

// everything is the content of what a restore of an application brings back, without what
// each creation makes anew.
func everything(t *testing.T, namespace string, kind schema.GroupVersionResource) map[string]any {
	t.Helper()
	client := dynamicClient(t)
	found := map[string]any{}
	for _, resource := range []schema.GroupVersionResource{
		kind,
		corev1.SchemeGroupVersion.WithResource("configmaps"),
		corev1.SchemeGroupVersion.WithResource("secrets"),
		appsv1.SchemeGroupVersion.WithResource("deployments"),
		rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	} {
		list, err := client.Resource(resource).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			if o.GetName() == "kube-root-ca.crt" {
				continue
			}
			content := o.Object
			delete(content, "status")
			var owners []string
			for _, owner := range o.GetOwnerReferences() {
				owners = append(owners, owner.Kind+" "+owner.Name)
			}
			annotations := o.GetAnnotations()
			for key := range annotations {
				if strings.HasPrefix(key, "holdfast.io/") || key == "deployment.kubernetes.io/revision" {
					delete(annotations, key)
				}
			}
			slices.Sort(owners)
			content["metadata"] = map[string]any{"labels": o.GetLabels(), "annotations": len(annotations), "owners": owners}
			found[o.GetKind()+" "+o.GetName()] = content
		}
	}
	return found
}

// TestRestoreOfTenant restores with the rights of whoever asks, as they are when it runs:
// proof 18.
func TestRestoreOfTenant(t *testing.T) {
	t.Parallel()
	namespace, user, stranger := lab.Namespace(t, "tenant"), labtest.Name("tenant"), labtest.Name("stranger")
	core := lab.Kube.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	_, err := core.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	if err == nil {
		_, err = lab.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "powerful"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "revoked"}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{})
	backup := lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.Grant(t, user, "edit", namespace)
	for _, err := range []error{
		core.ConfigMaps(namespace).Delete(t.Context(), "settings", metav1.DeleteOptions{}),
		core.Secrets(namespace).Delete(t.Context(), "token", metav1.DeleteOptions{}),
		lab.Kube.RbacV1().RoleBindings(namespace).Delete(t.Context(), "powerful", metav1.DeleteOptions{}),
		core.ResourceQuotas(namespace).Delete(t.Context(), "quota", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	by := func(user string) func(*enginev1alpha1.RestoreRun) {
		return func(run *enginev1alpha1.RestoreRun) {
			run.Name = namespace + "." + run.Name
			run.Spec.RestoreRef.Namespace = namespace
			run.Spec.Requester = enginev1alpha1.Requester{Username: user, Groups: []string{"system:authenticated"}}
		}
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("strange"), v1alpha1.RestoreSpec{}, by(stranger))), v1alpha1.RestorePhaseFailedValidation,
		"may not create restores in the namespace "+namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("own"), v1alpha1.RestoreSpec{}, by(user))), v1alpha1.RestorePhasePartiallyFailed,
		"secrets "+namespace+"/token: a tenant's restore brings no token",
		"objects that the requester may not write are not as in the backup: 2 (1 resourcequotas, 1 rolebindings.rbac.authorization.k8s.io)")
	if _, err := core.ConfigMaps(namespace).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Errorf("what the tenant may create: %v", err)
	}
	for what, err := range map[string]error{
		"token":   second(core.Secrets(namespace).Get(t.Context(), "token", metav1.GetOptions{})),
		"binding": second(lab.Kube.RbacV1().RoleBindings(namespace).Get(t.Context(), "powerful", metav1.GetOptions{})),
		"quota":   second(core.ResourceQuotas(namespace).Get(t.Context(), "quota", metav1.GetOptions{})),
	} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("the %s is there: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestRestoreOntoWhatIsThere: proofs 8, 11, 14 and 15.
func TestRestoreOntoWhatIsThere(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "existing")
	core := lab.Kube.CoreV1()
	service := func(name string, port int32) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, NodePort: port}}}}
	}
	created, err := core.Services(namespace).Create(t.Context(), service("web", 0), metav1.CreateOptions{})
	if err == nil {
		_, err = lab.Kube.AppsV1().Deployments(namespace).Create(t.Context(), deployment("web"), metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("onto")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)

	// The port is another's by now, a setting has changed, and somebody has added one; the
	// Deployment has another selector, which can't be changed; and there is no room for Secrets.
	port := created.Spec.Ports[0].NodePort
	other := deployment("web")
	other.Spec.Selector.MatchLabels, other.Spec.Template.Labels = map[string]string{"app": "other"}, map[string]string{"app": "other"}
	err = core.Services(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{})
	if err == nil {
		_, err = core.Services(namespace).Create(t.Context(), service("thief", port), metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.ConfigMaps(namespace).Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"greeting": "changed", "added": "by somebody"}}, metav1.UpdateOptions{})
	}
	if err == nil {
		err = lab.Kube.AppsV1().Deployments(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{})
	}
	if err == nil {
		_, err = lab.Kube.AppsV1().Deployments(namespace).Create(t.Context(), other, metav1.CreateOptions{})
	}
	if err == nil {
		err = core.Secrets(namespace).Delete(t.Context(), "refused", metav1.DeleteOptions{})
	}
	if err == nil {
		_, err = core.ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("0")}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	preserve := new(true)
	want(t, restored(t, restoreRun(backup, labtest.Name("none"), v1alpha1.RestoreSpec{PreserveNodePorts: preserve})), v1alpha1.RestorePhasePartiallyFailed,
		"secrets "+namespace+"/refused: ", "exceeded quota", "already allocated",
		"configmaps "+namespace+"/settings: it is there, and stays as it is, though it differs: data.greeting")
	settings, err := core.ConfigMaps(namespace).Get(t.Context(), "settings", metav1.GetOptions{})
	if err != nil || settings.Data["greeting"] != "changed" {
		t.Errorf("with the policy none: %v, %v", settings, err)
	}
	if web, err := core.Services(namespace).Get(t.Context(), "web", metav1.GetOptions{}); err != nil || web.Spec.Ports[0].NodePort == port {
		t.Errorf("the Service whose port is taken: %v, %v", web, err)
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("update"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})), v1alpha1.RestorePhasePartiallyFailed,
		"deployments.apps "+namespace+"/web: it is there, and fields differ that can't be changed: spec.selector")
	if settings, err = core.ConfigMaps(namespace).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil || settings.Data["greeting"] != "hello from "+namespace || settings.Data["added"] != "" {
		t.Errorf("with the policy update: %v, %v", settings, err)
	}
	restored(t, restoreRun(backup, labtest.Name("recreate"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceRecreate}))
	web, err := lab.Kube.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || web.Spec.Selector.MatchLabels["app"] != "web" {
		t.Errorf("with the policy recreate: %v, %v", web, err)
	}
}

// TestRestoreRefusedByPolicies: proof 14, pitfalls 15 and 16. What a namespace's Pod Security, its
// LimitRange and its quota refuse is an error each, which says by whom; all else is there.
func TestRestoreRefusedByPolicies(t *testing.T) {
	t.Parallel()
	from, to := lab.Namespace(t, "free"), lab.Namespace(t, "bounded")
	core := lab.Kube.CoreV1()
	pod := func(name, memory string, privileged bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "example.com/c", SecurityContext: &corev1.SecurityContext{Privileged: &privileged},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}},
		}}}}
	}
	for _, p := range []*corev1.Pod{pod("well", "64Mi", false), pod("privileged", "64Mi", true), pod("large", "2Gi", false)} {
		if _, err := core.Pods(from).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := core.Secrets(from).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "beyond"}}, metav1.CreateOptions{})
	if err == nil {
		_, err = core.Namespaces().Patch(t.Context(), to, types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`), metav1.PatchOptions{})
	}
	if err == nil {
		_, err = core.LimitRanges(to).Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
			{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}}}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.ResourceQuotas(to).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("0")}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("bounded")
	lab.Backup(t, name, from)
	backup := lab.AwaitCompleted(t, name)
	want(t, restored(t, restoreRun(backup, labtest.Name("bounded"), v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{from: to}})), v1alpha1.RestorePhasePartiallyFailed,
		"pods "+to+"/privileged: ", "violates PodSecurity", "pods "+to+"/large: ", "maximum memory usage per Container is 1Gi",
		"secrets "+to+"/beyond: ", "exceeded quota: none")
	list, err := core.Pods(to).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "well" {
		t.Errorf("there are %+v, %v", list, err)
	}
	if _, err := core.ConfigMaps(to).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestRestoreIsGoneOnWith kills the controller while it restores, again and again, and
// cancels a restore: proof 16.
func TestRestoreIsGoneOnWith(t *testing.T) {
	const count = 1500
	namespace := lab.Namespace(t, "resumed")
	client := lab.Kube.CoreV1().ConfigMaps(namespace)
	for i := range count {
		if _, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%04d", i)}, Data: map[string]string{"n": fmt.Sprint(i)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	name := labtest.Name("resumed")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	runs := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System)

	run, err := runs.Create(t.Context(), restoreRun(backup, labtest.Name("cancelled"), v1alpha1.RestoreSpec{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitSome(t, namespace, 50)
	cancelled := time.Now()
	if _, err := runs.Patch(t.Context(), run.Name, types.MergePatchType, []byte(`{"spec":{"cancellation":{"requester":{"username":"ann"},"timestamp":"2026-01-02T03:04:05Z"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	run = awaitRestored(t, run.Name)
	plan := want(t, run, v1alpha1.RestorePhaseCancelled, "cancelled by ann")
	if took := time.Since(cancelled); took > 15*time.Second {
		t.Errorf("cancelling took %s", took)
	}
	t.Logf("cancelled after %d objects, within %s", len(plan.Items), time.Since(cancelled))
	lose(t, namespace)

	run, err = runs.Create(t.Context(), restoreRun(backup, labtest.Name("killed"), v1alpha1.RestoreSpec{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{100, 500, 1000} {
		awaitSome(t, namespace, at)
		lab.Kill(t, labtest.Controller)
		lab.Start(t, labtest.Controller)
	}
	run = awaitRestored(t, run.Name)
	want(t, run, v1alpha1.RestorePhaseCompleted)
	if run.Status.Attempts < 2 {
		t.Errorf("the restore was not interrupted: %+v", run.Status)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	marked := 0
	for _, c := range list.Items {
		if c.Annotations["holdfast.io/restore-uid"] == string(run.UID) {
			marked++
		}
	}
	if marked != count+1 { // and settings
		t.Errorf("%d of %d objects were restored, in %d attempts", marked, count+1, run.Status.Attempts)
	}
}

// awaitSome waits until a namespace has so many ConfigMaps.
func awaitSome(t *testing.T, namespace string, count int) {
	t.Helper()
	labtest.Eventually(t, fmt.Sprintf("%d ConfigMaps", count), func() error {
		list, err := lab.Kube.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) < count {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}
