// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestDeletedNamespace: the real namespace controller deletes a namespace, and
// everything that is known of its backups stays.
func TestDeletedNamespace(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "doomed")
	location, _ := lab.Location(t, "doomed")
	lab.PodWithClaim(t, namespace, labtest.Node)
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true), StorageLocation: location})
	ofSystem := labtest.Name("of-system")
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.Create(t, labtest.System, ofSystem, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true), StorageLocation: location})
	lab.AwaitCompleted(t, ofSystem)
	lab.AwaitRunGone(t, ofSystem)
	lab.AwaitRunGone(t, namespace+".own")
	labtest.Eventually(t, "the volume's history", func() error {
		history, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(history.Items) != 2 {
			err = fmt.Errorf("it has %d entries", len(history.Items))
		}
		return err
	})
	before := about(t, namespace, ofSystem)
	if len(before) != 5 {
		t.Fatalf("of the namespace there are %d objects, not 2 backups, a volume and 2 entries of its history", len(before))
	}
	began := time.Now()
	lab.Kubectl(t, "delete", "namespace", namespace, "--timeout=60s")
	t.Logf("Kubernetes deleted the namespace in %s", time.Since(began).Round(time.Second/10))
	if diff := cmp.Diff(before, about(t, namespace, ofSystem)); diff != "" {
		t.Errorf("deleting the namespace changed (-before +after):\n%s", diff)
	}
	// A namesake finds nothing of the one before: that is the administrator's now.
	made, err := lab.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "everything to leave the new namespace", func() error {
		for name, object := range served(t) {
			if object.GetNamespace() == namespace {
				return fmt.Errorf("there is %s", name)
			}
		}
		return nil
	})
	moved := lab.AwaitCompleted(t, namespace+".own")
	if origin := moved.Status.Origin; origin == nil || origin.Trust != v1alpha1.BackupTrustOwn || origin.Namespace != namespace || origin.NamespaceUID == made.UID || origin.Message == "" {
		t.Errorf("its origin is %+v", origin)
	}
	// The administrator gives it to the new one, by the key that the backup shows.
	lab.Trust(t, location, enginev1alpha1.TrustedCluster{
		Name: "self", UID: moved.Status.Origin.ClusterUID, PublicKey: moved.Status.Origin.PublicKey, Namespaces: []string{namespace},
	})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	labtest.Eventually(t, "the volume's history to come along", func() error {
		if now := about(t, namespace, ofSystem); len(now) != len(before) {
			return fmt.Errorf("there are %d objects, of %d", len(now), len(before))
		}
		return nil
	})
}

// about is all that is served of a namespace, and of a backup in the system namespace.
func about(t *testing.T, namespace, backup string) map[string]map[string]any {
	t.Helper()
	objects := served(t)
	for name, object := range objects {
		if object.GetNamespace() != namespace && name != "backups "+labtest.System+"/"+backup {
			delete(objects, name)
		}
	}
	return withoutVersions(objects)
}

// TestDeletedNamespaceWithoutAPIServer: Kubernetes does not finish deleting a
// namespace before it has asked every API, so it waits for ours, and goes on by
// itself when it is back. It says what it waits for.
func TestDeletedNamespaceWithoutAPIServer(t *testing.T) {
	namespace := lab.Namespace(t, "doomed")
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)

	lab.Kill(t, labtest.APIServer)
	// Until Kubernetes has noticed, it deletes namespaces by what it knew before.
	labtest.Eventually(t, "discovery to miss Holdfast", func() error {
		_, _, err := lab.Kube.Discovery().ServerGroupsAndResources()
		if !discovery.IsGroupDiscoveryFailedError(err) {
			return fmt.Errorf("discovery says %v", err)
		}
		t.Log(err)
		return nil
	})
	lab.Kubectl(t, "delete", "namespace", namespace, "--wait=false")
	labtest.Eventually(t, "the namespace to say what it waits for", func() error {
		found, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NamespaceDeletionDiscoveryFailure && condition.Status == corev1.ConditionTrue {
				t.Logf("%s: %s", condition.Reason, condition.Message)
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", found.Status.Conditions)
	})
	lab.Start(t, labtest.APIServer)
	labtest.Eventually(t, "the namespace to be gone", func() error {
		_, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it: %v", err)
		}
		return nil
	})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
}
