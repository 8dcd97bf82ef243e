// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backups

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// keptSpec keeps snapshots in their storage.
func keptSpec() v1alpha1.BackupSpec {
	return v1alpha1.BackupSpec{SnapshotVolumes: new(true), SnapshotMoveData: new(false)}
}

// expectStored waits until the storage has so many snapshots, and the cluster a content of each and no
// VolumeSnapshot.
func expectStored(t testing.TB, want int) {
	t.Helper()
	labtest.Eventually(t, fmt.Sprintf("the storage to have %d snapshots", want), func() error {
		contents, err := objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		taken, err := objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		if stored := entries(t, storage("snapshots")); stored != want || len(contents.Items) != want || len(taken.Items) != 0 {
			return fmt.Errorf("there are %d snapshots, %d contents and %d VolumeSnapshots", stored, len(contents.Items), len(taken.Items))
		}
		return nil
	})
}

// dataOf returns a file of a claim that is bound.
func dataOf(t testing.TB, namespace, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folderOf(t, namespace, name), "file"))
	must(t, err)
	return string(content)
}

// restoreOf restores a backup, perhaps into another namespace, and waits for the phase.
func restoreOf(t testing.TB, namespace, backup string, mapping map[string]string, phase v1alpha1.RestorePhase) *v1alpha1.Restore {
	t.Helper()
	return restoreTo(t, namespace, v1alpha1.RestoreSpec{BackupName: backup, NamespaceMapping: mapping}, phase)
}

// restoreTo restores, and waits for the phase.
func restoreTo(t testing.TB, namespace string, spec v1alpha1.RestoreSpec, phase v1alpha1.RestorePhase) *v1alpha1.Restore {
	t.Helper()
	name := labtest.Name("restore")
	_, err := lab.Holdfast.HoldfastV1alpha1().Restores(namespace).Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
	var restore *v1alpha1.Restore
	labtest.Eventually(t, "the restore to end", func() (err error) {
		restore, err = lab.Holdfast.HoldfastV1alpha1().Restores(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !restore.Status.Phase.Ended() {
			err = fmt.Errorf("it is %+v", restore.Status)
		}
		return err
	})
	if restore.Status.Phase != phase {
		t.Fatalf("the restore is %+v, want %s", restore.Status, phase)
	}
	return restore
}

// expectLocal waits until the volume backups of a namespace say so of their snapshots, by the uids of their
// backups.
func expectLocal(t testing.TB, namespace string, want map[types.UID]string) {
	t.Helper()
	labtest.Eventually(t, fmt.Sprintf("the local snapshots to be %v", want), func() error {
		stored, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		got := map[types.UID]string{}
		for i := range stored.Items {
			got[stored.Items[i].Spec.BackupUID] = stored.Items[i].Status.LocalSnapshot
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// TestKept: a snapshot that is not moved stays in the storage until its backup is deleted, also if its
// namespace is deleted. A restore makes a claim from it, with the data of the cut.
func TestKept(t *testing.T) {
	namespace, other := lab.Namespace(t, "kept"), lab.Namespace(t, "kept-other")
	folder := claim(t, namespace, "data", "first")
	home, first, second := labtest.System, labtest.Name("first"), labtest.Name("second")
	spec := keptSpec()
	spec.IncludedNamespaces = []string{namespace}
	lab.Create(t, home, first, spec)
	backup := lab.AwaitPhase(t, home, first, v1alpha1.BackupPhaseCompleted)
	if counts := backup.Status.Volumes; counts == nil || counts.Completed != 1 || counts.InStorage != 1 || backup.Status.Errors+backup.Status.Warnings > 0 {
		t.Errorf("the backup has %+v, with %+v", backup.Status, counts)
	}
	must(t, os.WriteFile(filepath.Join(folder, "file"), []byte("second"), 0o640))
	lab.Create(t, home, second, spec)
	later := lab.AwaitPhase(t, home, second, v1alpha1.BackupPhaseCompleted)
	expectStored(t, 2)
	expectLocal(t, namespace, map[types.UID]string{backup.UID: v1alpha1.LocalSnapshotStored, later.UID: v1alpha1.LocalSnapshotStored})
	labtest.Eventually(t, "the volume to be listed", func() error {
		stored, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.backupUID=" + string(backup.UID)})
		if err != nil || len(stored.Items) != 1 {
			return errors.Join(err, errors.New("it is not"))
		}
		if status := stored.Items[0].Status; status.Method != catalog.MethodInStorage || status.Message == "" || status.Phase != v1alpha1.VolumeBackupCompleted {
			t.Errorf("the volume is listed as %+v", status)
		}
		return nil
	})

	restoreOf(t, home, first, map[string]string{namespace: other}, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, other, "data"); got != "first" {
		t.Errorf("restored is %q", got)
	}
	expectStored(t, 2)
	lab.Kubectl(t, "delete", "pvc", "data", "-n", namespace)
	restoreOf(t, home, second, nil, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, namespace, "data"); got != "second" {
		t.Errorf("restored is %q", got)
	}

	if _, err := plugin(t, "backup", "delete", first, "-n", home, "--yes"); err != nil {
		t.Fatal(err)
	}
	expectStored(t, 1)
	lab.Kubectl(t, "delete", "namespace", namespace, "--timeout=60s")
	expectStored(t, 1)
	restoreOf(t, home, second, nil, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, namespace, "data"); got != "second" {
		t.Errorf("restored is %q", got)
	}
	if _, err := plugin(t, "backup", "delete", second, "-n", home, "--yes"); err != nil {
		t.Fatal(err)
	}
	expectStored(t, 0)
}

// TestKeepLocal: the newest snapshots of a claim stay beside their moved data, and a claim is restored from one. Older
// backups keep the moved data. A claim that is made anew is another one.
func TestKeepLocal(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "local")
	_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		Data:       map[string]string{"policies": "version: v1\nvolumePolicies: [{conditions: {storageClass: [folder]}, action: {type: snapshot, parameters: {keepLocalSnapshots: 2}}}]"},
	}, metav1.CreateOptions{})
	must(t, err)
	folder := claim(t, namespace, "data", "")
	uids := map[string]types.UID{}
	backup := func(name string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(folder, "file"), []byte(name), 0o640))
		lab.Create(t, namespace, name, v1alpha1.BackupSpec{ResourcePolicy: &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "policies"}})
		ended := lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
		if uids[name] = ended.UID; ended.Status.Volumes == nil || ended.Status.Volumes.Completed != 1 || ended.Status.Volumes.InStorage != 0 {
			t.Errorf("the backup has %+v", ended.Status.Volumes)
		}
		expectFile(t, namespace, name, "data", name)
	}
	for i, name := range []string{"first", "second", "third"} {
		backup(name)
		expectStored(t, min(i+1, 2))
	}
	expectFile(t, namespace, "first", "data", "first")
	expectLocal(t, namespace, map[types.UID]string{uids["first"]: "", uids["second"]: v1alpha1.LocalSnapshotStored, uids["third"]: v1alpha1.LocalSnapshotStored})

	lab.Kubectl(t, "delete", "pvc", "data", "-n", namespace)
	restoreOf(t, namespace, "second", nil, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, namespace, "data"); got != "second" {
		t.Errorf("restored is %q", got)
	}
	made, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), "data", metav1.GetOptions{})
	must(t, err)
	if of := made.Spec.DataSource; of == nil || of.Kind != "VolumeSnapshot" {
		t.Errorf("it is made from %v", of)
	}
	folder = folderOf(t, namespace, "data")
	backup("fourth")
	expectStored(t, 3)
	for i, name := range []string{"third", "first", "second", "fourth"} {
		_, err := plugin(t, "backup", "delete", name, "-n", namespace, "--yes")
		must(t, err)
		expectStored(t, []int{2, 2, 1, 0}[i])
	}
	expectNothingLeft(t)
}

// TestKeptIsMissing: a restore says that the cluster has no snapshot any more, and makes no empty claim. The
// volume backup says so too.
func TestKeptIsMissing(t *testing.T) {
	namespace, other := lab.Namespace(t, "missing"), lab.Namespace(t, "missing-other")
	claim(t, namespace, "data", "x")
	home, name := labtest.System, labtest.Name("missing")
	spec := keptSpec()
	spec.IncludedNamespaces = []string{namespace}
	backup := lab.Create(t, home, name, spec)
	lab.AwaitPhase(t, home, name, v1alpha1.BackupPhaseCompleted)
	expectStored(t, 1)
	client := snapshots.New(objects, string(clusterUID(t)), labtest.System)
	expectLocal(t, namespace, map[types.UID]string{backup.UID: v1alpha1.LocalSnapshotStored})
	must(t, client.Discard(t.Context(), backup.UID, func(snapshots.Place) bool { return true }))
	restoreOf(t, home, name, map[string]string{namespace: other}, v1alpha1.RestorePhasePartiallyFailed)
	if _, err := lab.Kube.CoreV1().PersistentVolumeClaims(other).Get(t.Context(), "data", metav1.GetOptions{}); err == nil {
		t.Error("there is an empty claim")
	}
	labtest.Eventually(t, "the record to be deleted", func() error {
		contents, err := objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{LabelSelector: snapshots.LabelBackup + "=" + string(backup.UID)})
		must(t, err)
		for _, content := range contents.Items {
			if waits, err := client.Forget(t.Context(), content.GetName(), content.GetUID()); err != nil || waits != "" {
				return errors.Join(err, errors.New(waits))
			}
		}
		return nil
	})
	expectLocal(t, namespace, map[types.UID]string{backup.UID: v1alpha1.LocalSnapshotMissing})
	_, err := plugin(t, "backup", "delete", name, "-n", home, "--yes")
	must(t, err)
	expectStored(t, 0)
}

func clusterUID(t testing.TB) types.UID {
	t.Helper()
	system, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	must(t, err)
	return system.UID
}
