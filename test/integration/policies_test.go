// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestVolumePolicies: a tenant's policies decide about the volumes of their backup, those that
// they may not read or that mean nothing do not, and say so.
func TestVolumePolicies(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "policies")
	ann, bob := labtest.Name("ann"), labtest.Name("bob")
	lab.Grant(t, ann, "edit", namespace)
	lab.Bind(t, bob, "holdfast-edit", namespace) // of ConfigMaps nothing
	lab.Grant(t, bob, "holdfast-view", namespace)
	lab.Pod(t, namespace, labtest.Node)
	for name, text := range map[string]string{
		"skip": "version: v1\nvolumePolicies:\n- conditions: {volumeTypes: [emptyDir]}\n  action: {type: skip}\n",
		"bad":  "version: v1\nvolumePolicies:\n- conditions: {capacity: 5Gi}\n  action: {type: skip}\n",
	} {
		_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"p": text}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(user, name, policy string) error {
		_, err := as(t, user).HoldfastV1alpha1().Backups(namespace).Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.BackupSpec{
				DefaultVolumesToFsBackup: new(true), ResourcePolicy: &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: policy},
				OrderedResources: map[string]string{"configmaps": namespace + "/skip," + namespace + "/bad"},
			},
		}, metav1.CreateOptions{})
		return err
	}
	if err := create(bob, "his", "skip"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may not get configmaps") {
		t.Errorf("who may not read the policies was answered %v", err)
	}
	for name, policy := range map[string]string{"skipped": "skip", "refused": "bad", "missing": "gone"} {
		if err := create(ann, name, policy); err != nil {
			t.Fatal(err)
		}
	}
	done := lab.AwaitPhase(t, namespace, "skipped", v1alpha1.BackupPhaseCompleted)
	if done.Status.Volumes != nil || done.Status.Warnings > 0 {
		t.Errorf("got %+v", done.Status)
	}
	for name, reason := range map[string]string{"refused": "conditions.capacity", "missing": `configmaps "gone" not found`} {
		failed := lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseFailed)
		if !strings.Contains(failed.Status.FailureReason, reason) {
			t.Errorf("%s failed since %q", name, failed.Status.FailureReason)
		}
	}
}
