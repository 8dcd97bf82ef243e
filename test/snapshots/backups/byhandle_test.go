// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backups

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// loseRecord deletes the content of a backup's snapshot as if etcd had been lost. The storage keeps the
// snapshot, whose handle it returns.
func loseRecord(t testing.TB, backup types.UID) (handle string) {
	t.Helper()
	labtest.Eventually(t, "the VolumeSnapshot to be deleted: else its content would be made anew", func() error {
		left, err := objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
	contents := objects.Resource(snapshots.Contents)
	found, err := contents.List(t.Context(), metav1.ListOptions{LabelSelector: snapshots.LabelBackup + "=" + string(backup)})
	must(t, err)
	if len(found.Items) != 1 {
		t.Fatalf("the backup has %d contents", len(found.Items))
	}
	content := found.Items[0]
	handle, _, _ = unstructured.NestedString(content.Object, "status", "snapshotHandle")
	_, err = contents.Patch(t.Context(), content.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	if err := contents.Delete(t.Context(), content.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the content to be deleted", func() error {
		left, err := contents.Get(t.Context(), content.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && len(left.GetFinalizers()) > 0 {
			_, err = contents.Patch(t.Context(), content.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		return errors.Join(err, errors.New("it is there"))
	})
	return handle
}

// planOf returns the dry run of a restore.
func planOf(t testing.TB, namespace string, spec v1alpha1.RestoreSpec) *v1alpha1.RestorePlan {
	t.Helper()
	dry, err := lab.Holdfast.HoldfastV1alpha1().Restores(namespace).Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("dry")}, Spec: spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	must(t, err)
	if dry.Status.Plan == nil {
		t.Fatalf("there is no plan: %+v", dry.Status)
	}
	return dry.Status.Plan
}

// expectNoClaim waits until no offer of a restore is left, and checks that it has made no claim.
func expectNoClaim(t testing.TB, namespace, name string) {
	t.Helper()
	if _, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is an empty claim: %v", err)
	}
	labtest.Eventually(t, "the offers to be deleted", func() error {
		left, err := objects.Resource(snapshots.Snapshots).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = errors.New("there are some")
		}
		return err
	})
}

// TestByHandle: an administrator's restore finds a kept snapshot by the handle in the backup when the cluster
// has lost its record; a tenant's does not. A snapshot that the driver does not know is an error in its words,
// and no claim is made.
func TestByHandle(t *testing.T) {
	namespace, other, third := lab.Namespace(t, "handle"), lab.Namespace(t, "handle-other"), lab.Namespace(t, "handle-third")
	claim(t, namespace, "data", "first")
	name := labtest.Name("handle")
	backup := lab.Create(t, namespace, name, keptSpec())
	lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
	expectStored(t, 1)
	handle := loseRecord(t, backup.UID)
	lab.Kubectl(t, "delete", "pvc", "data", "-n", namespace)

	restoreOf(t, namespace, name, nil, v1alpha1.RestorePhasePartiallyFailed)
	expectNoClaim(t, namespace, "data")

	spec := v1alpha1.RestoreSpec{BackupNamespace: namespace, BackupName: name, NamespaceMapping: map[string]string{namespace: other}}
	plan := planOf(t, labtest.System, spec)
	if len(plan.Volumes) != 1 || !strings.Contains(plan.Volumes[0].Reason, "the snapshot "+handle+" of the driver") || !strings.Contains(plan.Volumes[0].Reason, "only the backup names") {
		t.Errorf("the plan is %+v", plan)
	}
	restoreTo(t, labtest.System, spec, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, other, "data"); got != "first" {
		t.Errorf("restored is %q", got)
	}
	restoreVelero(t, handle)

	must(t, os.RemoveAll(filepath.Join(storage("snapshots"), handle)))
	spec.NamespaceMapping[namespace] = third
	ended := restoreTo(t, labtest.System, spec, v1alpha1.RestorePhasePartiallyFailed)
	if !strings.Contains(ended.Status.Message, handle) || !strings.Contains(ended.Status.Message, "does not confirm the snapshot") {
		t.Errorf("the restore says %q", ended.Status.Message)
	}
	expectNoClaim(t, third, "data")
	_, err := plugin(t, "backup", "delete", name, "-n", namespace, "--yes")
	must(t, err)
}

// TestDeleteByHandle: a deletion deletes the snapshots that only the backup names if it is asked to. One
// that is deleted already does not hold it up.
func TestDeleteByHandle(t *testing.T) {
	namespace, home := lab.Namespace(t, "lost"), labtest.System
	claim(t, namespace, "data", "x")
	spec := keptSpec()
	spec.IncludedNamespaces = []string{namespace}
	var names, handles []string
	for range 3 {
		name := labtest.Name("lost")
		backup := lab.Create(t, home, name, spec)
		lab.AwaitPhase(t, home, name, v1alpha1.BackupPhaseCompleted)
		names, handles = append(names, name), append(handles, loseRecord(t, backup.UID))
	}
	must(t, os.RemoveAll(filepath.Join(storage("snapshots"), handles[2])))
	for i, flags := range [][]string{nil, {"--snapshots-by-handle"}, {"--snapshots-by-handle"}} {
		if _, err := plugin(t, append([]string{"backup", "delete", names[i], "-n", home, "--yes"}, flags...)...); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the backup to be deleted", func() error {
			_, err := lab.Holdfast.HoldfastV1alpha1().Backups(home).Get(t.Context(), names[i], metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
	left := filepath.Join(storage("snapshots"), handles[0])
	labtest.Eventually(t, "the second snapshot to be deleted, and not the first", func() error {
		_, err := os.Stat(left)
		if stored := entries(t, storage("snapshots")); err == nil && stored != 1 {
			err = fmt.Errorf("there are %d", stored)
		}
		return err
	})
	must(t, os.RemoveAll(left))
	expectStored(t, 0)
}

// restoreVelero restores a claim from a snapshot that Velero has left in the storage: only from a location whose
// handles are trusted.
func restoreVelero(t *testing.T, handle string) {
	location, folder := lab.Location(t, "unmoved")
	driver := ""
	classes, err := objects.Resource(snapshots.Classes).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, class := range classes.Items {
		if class.GetName() == "folder" {
			driver, _, _ = unstructured.NestedString(class.Object, "driver")
		}
	}
	putVelero(t, folder, driver, handle)
	labtest.Eventually(t, "Velero's backup to be listed", func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), "v-moved", metav1.GetOptions{})
		return err
	})
	target := lab.Namespace(t, "unmoved")
	spec := v1alpha1.RestoreSpec{
		BackupName: "v-moved", NamespaceMapping: map[string]string{"ware": target}, StorageClassMapping: map[string]string{"fast": "folder"},
		Objects: []v1alpha1.RestoreObject{{Resource: "persistentvolumeclaims", Namespace: "ware", Name: "kept"}},
	}
	ended := restoreTo(t, labtest.System, spec, v1alpha1.RestorePhasePartiallyFailed)
	if !strings.Contains(ended.Status.Message, "spec.trustSnapshotHandles") {
		t.Errorf("the restore says %q", ended.Status.Message)
	}
	expectNoClaim(t, target, "kept")

	lab.Kubectl(t, "patch", "storagelocation", location, "-n", labtest.System, "--type=merge", "-p", `{"spec":{"trustSnapshotHandles":true}}`)
	labtest.Eventually(t, "the location's handles to be trusted", func() error {
		if plan := planOf(t, labtest.System, spec); len(plan.Volumes) != 1 || !strings.Contains(plan.Volumes[0].Reason, handle) {
			return errors.New(plan.Message)
		}
		return nil
	})
	restoreTo(t, labtest.System, spec, v1alpha1.RestorePhaseCompleted)
	if got := dataOf(t, target, "kept"); got != "first" {
		t.Errorf("restored is %q", got)
	}
}

// putVelero puts a backup of Velero's into a folder, whose claim kept has a snapshot of this driver.
func putVelero(t testing.TB, folder, driver, handle string) {
	t.Helper()
	file, err := os.Open(filepath.Join(root, "pkg/restore/source/testdata/velero-moved.tar.gz"))
	must(t, err)
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	must(t, err)
	files := map[string][]byte{}
	for entries := tar.NewReader(unpacked); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if header.Typeflag == tar.TypeReg && strings.HasPrefix(header.Name, "backups/") {
			files[header.Name], err = io.ReadAll(entries)
			must(t, err)
		}
	}
	put := func(name string, content []byte) {
		path := filepath.Join(folder, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)))
	}
	key, metadata := format.VolumeInfoKey("v-moved"), format.MetadataKey("v-moved")
	infos, err := format.ReadVolumeInfo(bytes.NewReader(files[key]))
	must(t, err)
	for i := range infos {
		if of := infos[i].CSISnapshotInfo; of != nil && infos[i].PVCName == "kept" {
			of.Driver, of.SnapshotHandle = driver, handle
		}
	}
	var list bytes.Buffer
	zip := gzip.NewWriter(&list)
	must(t, errors.Join(json.NewEncoder(zip).Encode(infos), zip.Close()))
	files[key] = list.Bytes()
	for name, content := range files {
		if name != metadata {
			put(name, content)
		}
	}
	put(metadata, files[metadata]) // last, as Velero does
}
