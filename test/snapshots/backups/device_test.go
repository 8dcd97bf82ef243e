// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backups

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/snapshots/kubelet"
)

// runDevices has a kubelet run the container of each pod of a namespace. In place of a block device it has
// the file of its volume.
func runDevices(t testing.TB, namespace string) {
	kubelet.Run(t, lab.Kube, namespace, labtest.Node, func(pod *corev1.Pod, volume *corev1.PersistentVolume) error {
		container, emptyDir := restorewait.In(pod)
		if container == nil || len(container.VolumeDevices) != 1 {
			return fmt.Errorf("the pod %s has no container with a device", pod.Name)
		}
		folder := filepath.Join(lab.Dir, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", emptyDir)
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		short, err := os.MkdirTemp("/tmp", "hf") // a socket's path is short
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = os.RemoveAll(short) })
		if short += "/d"; os.Symlink(folder, short) != nil {
			return fmt.Errorf("%s can't be a link", short)
		}
		args := []string{"--dir=" + short}
		for _, arg := range container.Args {
			args = append(args, strings.Replace(arg, container.VolumeDevices[0].DevicePath, filepath.Join(storage("volumes"), volume.Spec.CSI.VolumeHandle, "data"), 1))
		}
		args[0], args[1] = args[1], args[0] // the command comes first
		command := exec.CommandContext(t.Context(), filepath.Join(lab.Bin(), "holdfast"), args...)
		command.Stderr = os.Stderr
		if err := command.Start(); err != nil {
			return err
		}
		t.Cleanup(func() { _ = command.Wait() }) // it is killed when the test ends
		return nil
	})
}

// TestDevice: the bytes of a block device at its cut are in the repository, and a restore writes them into a
// new one. The next backup uploads changes only.
func TestDevice(t *testing.T) {
	runDevices(t, movers)
	namespace, other := lab.Namespace(t, "device"), lab.Namespace(t, "device-other")
	runDevices(t, other)
	device := claimOf(t, namespace, "disk", corev1.PersistentVolumeBlock)
	must(t, os.Truncate(device, 64<<20)) // the rest of a gigabyte would take its time
	home := labtest.System
	spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, SnapshotVolumes: new(true)}
	write := func(b string, offset int64) {
		file, err := os.OpenFile(device, os.O_WRONLY, 0)
		must(t, err)
		_, err = file.WriteAt([]byte(b), offset)
		must(t, err)
		must(t, file.Close())
	}
	write("first", 0)
	write("end", 64<<20-3)
	var last string
	for i, text := range []string{"one", "two"} {
		last = labtest.Name("device")
		write(text, 5<<20)
		lab.Create(t, home, last, spec)
		backup := lab.AwaitPhase(t, home, last, v1alpha1.BackupPhaseCompleted)
		if counts := backup.Status.Volumes; backup.Status.Errors+backup.Status.Warnings > 0 || counts == nil || counts.Completed != 1 {
			t.Fatalf("the backup has %+v, with %+v", backup.Status, counts)
		}
		labtest.Eventually(t, "the volume to be listed", func() error {
			stored, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.backupUID=" + string(backup.UID)})
			if err == nil && len(stored.Items) != 1 {
				err = fmt.Errorf("there are %d", len(stored.Items))
			}
			if err == nil && stored.Items[0].Status.Method != catalog.MethodMoved {
				t.Errorf("backup %d: the volume is listed as %+v", i, stored.Items[0].Status)
			}
			return err
		})
		expectNothingLeft(t)
	}
	want, err := os.ReadFile(device)
	must(t, err)
	write("later", 0)
	restoreOf(t, home, last, map[string]string{namespace: other}, v1alpha1.RestorePhaseCompleted)
	bound, err := lab.Kube.CoreV1().PersistentVolumeClaims(other).Get(t.Context(), "disk", metav1.GetOptions{})
	must(t, err)
	volume, err := lab.Kube.CoreV1().PersistentVolumes().Get(t.Context(), bound.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	got, err := os.ReadFile(filepath.Join(storage("volumes"), volume.Spec.CSI.VolumeHandle, "data"))
	must(t, err)
	if *bound.Spec.VolumeMode != corev1.PersistentVolumeBlock || len(got) < len(want) || !bytes.Equal(got[:len(want)], want) {
		t.Errorf("the claim of the mode %s has other bytes", *bound.Spec.VolumeMode)
	}
}
