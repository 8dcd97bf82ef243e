// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestDeletionOfVolumes: one volume backup, and then the history of its volume, leave the
// lists with the answer, also when the API server dies right after it, and the store later.
// What lies in an administrator's backup needs the right to delete that.
func TestDeletionOfVolumes(t *testing.T) {
	lab.Reconfigure(t, "--run-retention=1s")
	namespace := lab.Namespace(t, "deleted-volumes")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	for _, name := range []string{"first", "second", "third"} {
		lab.Create(t, namespace, name, v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)})
		lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
		lab.AwaitRunGone(t, namespace+"."+name)
	}
	theirs := labtest.Name("of-all")
	lab.Create(t, labtest.System, theirs, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, theirs)
	lab.AwaitRunGone(t, theirs)

	listed := func() (names []string) {
		list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names
	}
	labtest.Eventually(t, "the history of the volume", func() error {
		if got := listed(); len(got) != 4 {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	tenant := labtest.Name("tenant")
	lab.Bind(t, tenant, "holdfast-admin", namespace)
	lab.Grant(t, tenant, "view", namespace)
	remove := func(resource, name string, args ...string) (string, string, error) {
		path := fmt.Sprintf("%s/namespaces/%s/%s/%s/deletion", api, namespace, resource, name)
		return lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"VolumeDeletion"}`, append([]string{"create", "--raw", path, "-f", "-"}, args...)...)
	}
	has := func(when string, want int) {
		t.Helper()
		if got := listed(); len(got) != want {
			t.Errorf("%s there are %q", when, got)
		}
		volume, err := lab.Holdfast.HoldfastV1alpha1().BackupVolumes(namespace).Get(t.Context(), "data", metav1.GetOptions{})
		if want == 0 != (err != nil) || err == nil && int(volume.Status.Backups) != want {
			t.Errorf("%s the volume is %+v, %v", when, volume.Status, err)
		}
	}

	if _, stderr, err := remove("volumebackups", namespace+".first:data", "--as="+labtest.Name("nobody")); err == nil || !strings.Contains(stderr, "Forbidden") && !strings.Contains(stderr, "forbidden") {
		t.Errorf("without the right it is answered with %q, %v", stderr, err)
	}
	stdout, stderr, err := remove("volumebackups", namespace+".first:data", "--as="+tenant)
	if err != nil || !strings.Contains(stdout, "is deleted") {
		t.Fatalf("it is answered with %q, %q, %v", stdout, stderr, err)
	}
	has("right after one is deleted", 3)
	lab.StartAnother(t, labtest.AnotherAPIServer)
	takenOver(t, namespace, 3, namespace+".first:data")
	labtest.Eventually(t, "the list after the API server's death", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 3 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	if backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "first", metav1.GetOptions{}); err != nil || backup.Status.Volumes == nil || backup.Status.Volumes.Deleted != 1 || backup.Status.Volumes.Total != 0 {
		t.Errorf("the backup says %+v, %v", backup.Status.Volumes, err)
	}

	// The tenant's part of the history goes, and the administrator's stays.
	stdout, stderr, err = remove("backupvolumes", "data", "--as="+tenant)
	if err != nil || !strings.Contains(stdout, "2 volume backups are deleted") || !strings.Contains(stdout, "1 stay in backups of other namespaces") {
		t.Fatalf("it is answered with %q, %q, %v", stdout, stderr, err)
	}
	has("right after the tenant's history is deleted", 1)
	takenOver(t, namespace, 1, namespace+".second:data", namespace+".third:data")
	if _, stderr, err = remove("backupvolumes", "data", "--as="+tenant); err == nil || !strings.Contains(stderr, "backups.holdfast.io/deletion") {
		t.Errorf("the administrator's is answered with %q, %v", stderr, err)
	}
	has("after what the tenant may not", 1)

	deletions := lab.Engine.EngineV1alpha1().BackupChanges(labtest.System)
	awaitDone := func() {
		t.Helper()
		labtest.Eventually(t, "the deletions to be in the store", func() error {
			list, err := deletions.List(t.Context(), metav1.ListOptions{})
			for i := range list.Items {
				if d := &list.Items[i]; d.Spec.Namespace == namespace && (!d.Done() || len(d.Status.Refused) > 0) {
					return fmt.Errorf("it is %+v", d.Status)
				}
			}
			return err
		})
	}
	awaitDone()
	// When all that the cluster knows of it is gone, the store knows, also after a restart.
	list, err := deletions.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list.Items {
		if d.Spec.Namespace == namespace {
			if err := deletions.Delete(t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	has("without the records", 1)
	if err := lab.Restart(t.Context(), labtest.APIServer); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the list after a restart", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})

	// The maintenance removes the snapshots, and a restore says that there is no data.
	results, _, err := maintain(t, "--repo-name="+namespace, "--backup-storage-location=default")
	if err != nil || len(results) != 1 || results[0].SweptSnapshots != 3 || results[0].WaitingBackups != 0 {
		t.Errorf("the maintenance says %v, %v", results, err)
	}
	if results, _, err = maintain(t, "--repo-name="+namespace, "--backup-storage-location=default"); err != nil || len(results) != 1 || results[0].SweptSnapshots != 0 {
		t.Errorf("the next maintenance says %v, %v", results, err)
	}
	backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "second", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	back := lab.Namespace(t, "brought-back")
	want(t, restored(t, restoreRun(backup, labtest.Name("restored"), v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{namespace: back}})), v1alpha1.RestorePhasePartiallyFailed,
		"its data was deleted from the backup: "+tenant+" asked for that")

	// An administrator deletes what is left.
	if stdout, stderr, err = remove("backupvolumes", "data"); err != nil || !strings.Contains(stdout, "is deleted") {
		t.Fatalf("it is answered with %q, %q, %v", stdout, stderr, err)
	}
	has("when all is deleted", 0)
	awaitDone()
	if results, _, err = maintain(t, "--repo-name="+namespace, "--backup-storage-location=default"); err != nil || len(results) != 1 || results[0].SweptSnapshots != 1 {
		t.Errorf("the maintenance says %v, %v", results, err)
	}
}

// takenOver kills the API server that serves, and then the one that has taken over: neither that
// one nor the first, started anew, ever lists what was deleted before.
func takenOver(t *testing.T, namespace string, left int, deleted ...string) {
	t.Helper()
	if !lab.Running(labtest.AnotherAPIServer) {
		lab.Start(t, labtest.AnotherAPIServer)
	}
	kill := func(role, next string) {
		t.Helper()
		if err := lab.Signal(role, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		other := replicaOf(t, next)
		other.awaitServing(t, "the "+role+" was killed")
		labtest.Eventually(t, "the list of the "+next, func() error {
			list, err := other.client.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, item := range list.Items {
				if slices.Contains(deleted, item.Name) {
					t.Fatalf("the %s lists %s, which was deleted", next, item.Name)
				}
			}
			if len(list.Items) != left {
				return fmt.Errorf("there are %d", len(list.Items))
			}
			return nil
		})
	}
	kill(labtest.APIServer, labtest.AnotherAPIServer)
	lab.AwaitKilled(t, labtest.APIServer)
	lab.Start(t, labtest.APIServer)
	kill(labtest.AnotherAPIServer, labtest.APIServer)
	lab.AwaitEnd(t, labtest.AnotherAPIServer)
}
