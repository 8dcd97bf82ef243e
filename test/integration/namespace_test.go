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
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
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

// TestARestoredNamespaceHasItsPast: a namespace that was lost and that an administrator restores is
// as if it had not been. Its developer sees the backups and restores of before under their names,
// and restores from them; so it is after a second loss, by the same backup. One that is made anew by
// hand has nothing, and the names of restores are free there.
func TestARestoredNamespaceHasItsPast(t *testing.T) {
	t.Parallel()
	namespace, user := lab.Namespace(t, "lost"), labtest.Name("developer")
	lab.Grant(t, user, "edit", namespace)
	plain := v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false)}
	lab.Create(t, namespace, "full", plain)
	lab.AwaitPhase(t, namespace, "full", v1alpha1.BackupPhaseCompleted)
	restores := lab.Holdfast.HoldfastV1alpha1().Restores
	restore := func(in, name string, spec v1alpha1.RestoreSpec, by holdfastclientset.Interface) error {
		_, err := by.HoldfastV1alpha1().Restores(in).Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err == nil {
			labtest.Eventually(t, "the restore "+in+"/"+name+" to end", func() error {
				found, err := restores(in).Get(t.Context(), name, metav1.GetOptions{})
				if err == nil && found.Status.Phase != v1alpha1.RestorePhaseCompleted {
					err = fmt.Errorf("it is %s: %s", found.Status.Phase, found.Status.Message)
				}
				return err
			})
		}
		return err
	}
	mustRestore := func(in, name string, spec v1alpha1.RestoreSpec, by holdfastclientset.Interface) {
		t.Helper()
		if err := restore(in, name, spec, by); err != nil {
			t.Fatal(err)
		}
	}
	mustRestore(namespace, "after-upgrade", v1alpha1.RestoreSpec{BackupName: "full"}, as(t, user))
	lose := func() {
		t.Helper()
		lab.Kubectl(t, "delete", "namespace", namespace, "--timeout=60s")
	}
	hasIts := func(when string, backups, ofRestores []string) {
		t.Helper()
		labtest.Eventually(t, "the past of the namespace, "+when, func() error {
			for _, name := range backups {
				if _, err := as(t, user).HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
					return err
				}
			}
			for _, name := range ofRestores {
				if _, err := as(t, user).HoldfastV1alpha1().Restores(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}

	lose()
	ofBackup := v1alpha1.RestoreSpec{BackupNamespace: namespace, BackupName: "full"}
	mustRestore(labtest.System, labtest.Name("recovery"), ofBackup, lab.Holdfast)
	hasIts("restored", []string{"full"}, []string{"after-upgrade"})
	mustRestore(namespace, "again", v1alpha1.RestoreSpec{BackupName: "full"}, as(t, user))
	lab.Create(t, namespace, "next", plain)
	lab.AwaitPhase(t, namespace, "next", v1alpha1.BackupPhaseCompleted)

	lose()
	mustRestore(labtest.System, labtest.Name("recovery"), ofBackup, lab.Holdfast)
	hasIts("lost twice", []string{"full", "next"}, []string{"after-upgrade", "again"})

	lose()
	if _, err := lab.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the past to leave the namespace that was made by hand", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there is %s", list.Items[0].Name)
		}
		return err
	})
	lab.Grant(t, user, "edit", namespace)
	lab.Create(t, namespace, "mine", plain)
	lab.AwaitPhase(t, namespace, "mine", v1alpha1.BackupPhaseCompleted)
	if _, err := as(t, user).HoldfastV1alpha1().Restores(namespace).Get(t.Context(), "after-upgrade", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the restore of the lost namespace: %v", err)
	}
	mustRestore(namespace, "after-upgrade", v1alpha1.RestoreSpec{BackupName: "mine"}, as(t, user))
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
