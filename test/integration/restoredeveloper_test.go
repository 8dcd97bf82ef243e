// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestRestoreOfDeveloper: a user with the role edit restores a namespace, and the restore ends
// Completed. Objects that Kubernetes makes come back by themselves, and equal ones are nothing to
// tell of. Lost ones that the user may not write are one warning with a count.
func TestRestoreOfDeveloper(t *testing.T) {
	t.Parallel()
	namespace, user := lab.Namespace(t, "developer"), labtest.Name("developer")
	core, apps, access := lab.Kube.CoreV1(), lab.Kube.AppsV1(), lab.Kube.RbacV1()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	role := &rbacv1.Role{ObjectMeta: named("reader"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: named("readers"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "reader"}}}
	for _, err := range []error{
		second(apps.StatefulSets(namespace).Create(t.Context(), statefulSet("db"), metav1.CreateOptions{})),
		second(core.Services(namespace).Create(t.Context(), &corev1.Service{ObjectMeta: named("db"), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "db"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})),
		second(access.Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{})),
		second(access.RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{})),
		second(core.ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: named("quota")}, metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	awaitRevision(t, namespace)
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false)})
	backup := lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.Grant(t, user, "edit", namespace)
	by := func(run *enginev1alpha1.RestoreRun) {
		run.Name = namespace + "." + run.Name
		run.Spec.RestoreRef.Namespace = namespace
		run.Spec.Requester = enginev1alpha1.Requester{Username: user, Groups: []string{"system:authenticated"}}
	}

	// Nothing is lost: there is nothing to tell of.
	there := restored(t, restoreRun(backup, labtest.Name("there"), v1alpha1.RestoreSpec{}, by))
	mustBeEqual(t, want(t, there, v1alpha1.RestorePhaseCompleted))
	if there.Status.Errors+there.Status.Warnings > 0 {
		t.Errorf("%d errors and %d warnings of what is there", there.Status.Errors, there.Status.Warnings)
	}

	for _, err := range []error{
		apps.StatefulSets(namespace).Delete(t.Context(), "db", metav1.DeleteOptions{}),
		core.Services(namespace).Delete(t.Context(), "db", metav1.DeleteOptions{}),
		core.ConfigMaps(namespace).Delete(t.Context(), "settings", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	labtest.Eventually(t, "what the StatefulSet owns to go", func() error {
		list, err := apps.ControllerRevisions(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d revisions", len(list.Items))
		}
		return err
	})
	lost := restored(t, restoreRun(backup, labtest.Name("lost"), v1alpha1.RestoreSpec{}, by))
	plan := want(t, lost, v1alpha1.RestorePhaseCompleted)
	if lost.Status.Errors+lost.Status.Warnings > 0 {
		results, _ := told(t, lost)
		t.Errorf("a developer is told %+v", results)
	}
	revisions := 0
	for _, o := range plan.Items {
		if o.Kind == "ControllerRevision" {
			revisions++
			if o.Action != "skip" || !strings.Contains(o.Reason, "the StatefulSet db makes it") {
				t.Errorf("the revision: %s: %s", o.Action, o.Reason)
			}
		}
	}
	if revisions == 0 {
		t.Error("the backup has no revision")
	}
	awaitRevision(t, namespace)

	// Objects that may not be written, and are lost or differ, are counted.
	for _, err := range []error{
		access.RoleBindings(namespace).Delete(t.Context(), "readers", metav1.DeleteOptions{}),
		core.ResourceQuotas(namespace).Delete(t.Context(), "quota", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	role.Rules[0].Verbs = append(role.Rules[0].Verbs, "list")
	if _, err := access.Roles(namespace).Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	const counted = "are not as in the backup: 3 (1 resourcequotas, 1 rolebindings.rbac.authorization.k8s.io, 1 roles.rbac.authorization.k8s.io)"
	for _, policy := range []v1alpha1.ExistingResourcePolicy{v1alpha1.ExistingResourceNone, v1alpha1.ExistingResourceUpdate} {
		for _, planOnly := range []bool{true, false} {
			run := restored(t, restoreRun(backup, labtest.Name("counted"), v1alpha1.RestoreSpec{ExistingResourcePolicy: policy, PlanOnly: planOnly}, by))
			want(t, run, v1alpha1.RestorePhaseCompleted, counted)
			if run.Status.Errors != 0 || run.Status.Warnings != 1 {
				t.Errorf("%s, plan only %v: %d errors and %d warnings", policy, planOnly, run.Status.Errors, run.Status.Warnings)
			}
		}
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("named"), v1alpha1.RestoreSpec{IncludedResources: []string{"roles.rbac.authorization.k8s.io"}}, by)), v1alpha1.RestorePhasePartiallyFailed,
		"roles.rbac.authorization.k8s.io "+namespace+"/reader: the requester of the restore may not")
}

func statefulSet(name string) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(1)), ServiceName: name, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/db"}}}},
	}}
}

// awaitRevision waits until a StatefulSet's controller has made its revision, and the Service's
// controller its Endpoints.
func awaitRevision(t *testing.T, namespace string) {
	t.Helper()
	labtest.Eventually(t, "a ControllerRevision and Endpoints", func() error {
		revisions, err := lab.Kube.AppsV1().ControllerRevisions(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(revisions.Items) != 1 {
			return fmt.Errorf("there are %d revisions", len(revisions.Items))
		}
		slices, err := lab.Kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(slices.Items) != 1 {
			err = fmt.Errorf("there are %d slices", len(slices.Items))
		}
		return err
	})
}
