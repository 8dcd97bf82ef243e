// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestFilesComeBack: what lies in a volume survives a backup, its loss, and a
// restore, in every respect that a file has.
func TestFilesComeBack(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "files")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	before := tree(t, folder)

	name := labtest.Name("files")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	backup := lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	if volumes := backup.Status.Volumes; volumes == nil || volumes.Total != 1 || volumes.Completed != 1 || backup.Status.Warnings != 0 {
		t.Errorf("the backup has volumes %+v and %d warnings", volumes, backup.Status.Warnings)
	}
	history := volumeHistory(t, namespace, name)
	if history.Spec.VolumeName != "data" || history.Spec.PodName != "web" || history.Spec.PodVolume != "content" ||
		history.Status.Phase != "Completed" || history.Status.Node != labtest.Node || history.Status.SizeBytes == 0 {
		t.Errorf("the history says %+v %+v", history.Spec, history.Status)
	}

	empty(t, folder)
	restore(t, pod, namespace+"-data", history.Status.SnapshotID)
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}

	// A second backup reads what is new, and nothing else.
	if err := os.WriteFile(filepath.Join(folder, "new"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	// The restore made every file anew, so this one reads them all, the next does not.
	for _, next := range []string{labtest.Name("files"), labtest.Name("files")} {
		lab.Create(t, labtest.System, next, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
		lab.AwaitCompleted(t, next)
		lab.AwaitRunGone(t, next)
		name = next
	}
	if last := volumeHistory(t, namespace, name); last.Status.IncrementalBytes != 0 || last.Status.SizeBytes != history.Status.SizeBytes+1000 {
		t.Errorf("the third backup has %d bytes, of which %d are new; the first one had %d", last.Status.SizeBytes, last.Status.IncrementalBytes, history.Status.SizeBytes)
	}
	volume, err := lab.Holdfast.HoldfastV1alpha1().BackupVolumes(namespace).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// It is an administrator's backup, whose name is not the namespace's business.
	if volume.Status.Backups != 3 || volume.Status.LastBackup != nil || volume.Status.LastBackupTimestamp == nil {
		t.Errorf("the volume says %+v", volume.Status)
	}
}

// TestAClaimIsReadThroughAnotherPod: of two pods with a claim, one whose volume its node does not
// have costs nothing. The backup's spec says nothing of volumes.
func TestAClaimIsReadThroughAnotherPod(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "shared")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	first := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "early"}, Spec: *pod.Spec.DeepCopy()}
	first, err := lab.Kube.CoreV1().Pods(namespace).Create(t.Context(), first, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first.Status.Phase = corev1.PodRunning
	if _, err := lab.Kube.CoreV1().Pods(namespace).UpdateStatus(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("shared")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}})
	backup := lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	if volumes := backup.Status.Volumes; volumes == nil || volumes.Total != 1 || volumes.Completed != 1 || volumes.LeftOut != 0 || backup.Status.Warnings != 0 {
		t.Errorf("the backup has volumes %+v and %d warnings", volumes, backup.Status.Warnings)
	}
	if history := volumeHistory(t, namespace, name); history.Spec.PodName != pod.Name || history.Status.SizeBytes == 0 {
		t.Errorf("the history says %+v %+v", history.Spec, history.Status)
	}
	log := lab.Kubectl(t, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/"+labtest.System+"/backups/"+name+"/log")
	if !strings.Contains(log, "its claim is read through pod web on node "+labtest.Node+" instead") {
		t.Errorf("the log says nothing of it:\n%s", log)
	}
}

// TestHostPathClaim: a claim whose persistent volume is a folder of its node is backed up and
// restored below the roots of --host-path-roots, and the path in a record does not change.
func TestHostPathClaim(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "hostpath")
	pod, folder := lab.PodWithHostPath(t, namespace, labtest.Node)
	fill(t, folder)
	before := tree(t, folder)
	name := labtest.Name("hostpath")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	backup := lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	if volumes := backup.Status.Volumes; volumes == nil || volumes.Total != 1 || volumes.Completed != 1 || backup.Status.Warnings != 0 {
		t.Errorf("the backup has volumes %+v and %d warnings", volumes, backup.Status.Warnings)
	}
	empty(t, folder)
	record := restoreOf("default", pod, namespace+"-data", volumeHistory(t, namespace, name).Status.SnapshotID)
	record.Spec.HostPath = folder
	awaitRestore(t, record)
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}
	records := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System)
	for _, path := range []string{"", "/etc"} {
		record, err := records.Get(t.Context(), record.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		record.Spec.HostPath = path
		if _, err := records.Update(t.Context(), record, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("the path becomes %q: %v", path, err)
		}
	}
}

// TestVolumeWithoutClaim: an emptyDir is backed up and listed by its pod.
func TestVolumeWithoutClaim(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "scratch")
	pod, folder := lab.Pod(t, namespace, labtest.Node)
	fill(t, folder)
	before := tree(t, folder)
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, namespace+".own")
	history := volumeHistory(t, namespace, "own")
	if history.Spec.VolumeName != "pod:web:scratch" {
		t.Errorf("the volume is called %q", history.Spec.VolumeName)
	}
	lab.Refused(t, "", []string{"get", "backupvolume", "pod:web:scratch", "-n", namespace}, "not found")
	empty(t, folder)
	restore(t, pod, "", history.Status.SnapshotID)
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}
}

// TestRestoreWait: a pod that waits for its volumes is told when they are complete, and
// why one is not, also by the next agent; what is told lies beside the volumes.
func TestRestoreWait(t *testing.T) {
	namespace := lab.Namespace(t, "waits")
	pod, folder := lab.Pod(t, namespace, labtest.Node)
	fill(t, folder)
	before := tree(t, folder)
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, namespace+".own")
	snapshot := volumeHistory(t, namespace, "own").Status.SnapshotID
	const waitVolume = "holdfast-restore"
	dir := filepath.Join(filepath.Dir(folder), waitVolume)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	record := func(volume, snapshot string) *enginev1alpha1.VolumeRestore {
		record := restoreOf("default", pod, "", snapshot)
		record.Spec.Volume, record.Spec.WaitVolume = volume, waitVolume
		return record
	}
	empty(t, folder)

	// What a pod's init container runs.
	wait := func(timeout string, volumes ...string) (string, error) {
		args := []string{"restore-wait", "--dir=" + dir, "--timeout=" + timeout, "--termination-log=" + filepath.Join(t.TempDir(), "none")}
		for _, volume := range volumes {
			args = append(args, "--volume="+volume)
		}
		_, err := lab.Program(t, args...)
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
			return string(failed.Stderr), err
		}
		return "", err
	}
	if output, err := wait("1s", "scratch"); err == nil || !strings.Contains(output, "gave up after 1s: these volumes were not restored: scratch") {
		t.Errorf("before the restore: %v, %s", err, output)
	}
	awaitRestore(t, record("scratch", snapshot))
	if output, err := wait("1m", "scratch"); err != nil {
		t.Errorf("after the restore: %v, %s", err, output)
	}
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}
	missing := record("other", strings.Repeat("0", 32))
	if err := os.Mkdir(filepath.Join(filepath.Dir(folder), "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System).Create(t.Context(), missing, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if output, err := wait("1m", "scratch", "other"); err == nil || !strings.Contains(output, "volume other could not be restored: ") {
		t.Errorf("of a volume that can't be restored: %v, %s", err, output)
	}

	lab.Kill(t, labtest.Agent)
	if err := os.Remove(filepath.Join(dir, "scratch")); err != nil {
		t.Fatal(err)
	}
	lab.Start(t, labtest.Agent)
	if output, err := wait("1m", "scratch"); err != nil {
		t.Errorf("by the next agent: %v, %s", err, output)
	}
}

// fill makes one of every kind of file.
func fill(t *testing.T, folder string) {
	t.Helper()
	content := make([]byte, 3<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(content) // it never fails
	path := func(name string) string { return filepath.Join(folder, name) }
	errs := []error{
		os.MkdirAll(path("deep/er/est"), 0o755),
		os.Mkdir(path("empty"), 0o700),
		os.Mkdir(path("sticky"), 0o755),
		os.Chmod(path("sticky"), 0o777|os.ModeSticky),
		os.WriteFile(path("deep/er/est/random"), content, 0o644),
		os.WriteFile(path("nothing"), nil, 0o644),
		os.WriteFile(path("secret"), []byte("only for its owner"), 0o600),
		os.WriteFile(path("program"), []byte("#!/bin/sh\n"), 0o755),
		os.Chmod(path("program"), 0o755|os.ModeSetuid),
		os.WriteFile(path("read-only"), []byte("not even by its owner"), 0o444),
		os.WriteFile(path("name with spaces, äöü and \"quotes\""), []byte("x"), 0o644),
		os.WriteFile(path(".hidden"), []byte("x"), 0o644),
		os.Symlink("deep/er/est/random", path("link")),
		os.Symlink("/nowhere/at/all", path("dangling")),
		os.Symlink("..", path("upwards")),
		sparse(path("sparse"), 40<<20),
		os.Chtimes(path("secret"), time.Time{}, time.Date(2001, time.February, 3, 4, 5, 6, 789, time.UTC)),
	}
	if os.Geteuid() == 0 { // others can't give files away
		errs = append(errs,
			os.Chown(path("secret"), 1234, 5678),
			os.Chown(path("empty"), 33, 44),
			os.Lchown(path("link"), 55, 66))
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sparse makes a file with a little data in the middle of a hole.
func sparse(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return err
	}
	_, err = file.WriteAt([]byte("an island"), size/2)
	return err
}

func empty(t *testing.T, folder string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(folder, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// tree describes all that is below a folder.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	result := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		name, _ := filepath.Rel(folder, path)
		description := fmt.Sprintf("%s owner=%d:%d", info.Mode(), stat.Uid, stat.Gid)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			result[name] = description + " -> " + target
			return err
		case info.IsDir():
			result[name] = description + " " + info.ModTime().UTC().Format(time.RFC3339Nano)
			return nil
		}
		sum := sha256.New()
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := io.Copy(sum, file); err != nil {
			return err
		}
		// A hole of 40 MiB must not have become 40 MiB of zeros.
		holes := stat.Blocks*512 < info.Size()/2
		result[name] = fmt.Sprintf("%s %s size=%d holes=%t sha256=%x", description, info.ModTime().UTC().Format(time.RFC3339Nano), info.Size(), holes, sum.Sum(nil))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// volumeHistory is the entry of one backup, of the namespace or the system's, in the
// history of the only volume of a namespace.
func volumeHistory(t *testing.T, namespace, backup string) v1alpha1.VolumeBackup {
	t.Helper()
	var found v1alpha1.VolumeBackup
	labtest.Eventually(t, "the history of the volume in "+namespace, func() error {
		of, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), backup, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			of, err = lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), backup, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.backupUID=" + string(of.UID)})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("it has %d entries of backup %s", len(list.Items), backup)
		}
		found = list.Items[0]
		return nil
	})
	return found
}

// restore writes a snapshot back into the volume of a pod.
func restore(t *testing.T, pod *corev1.Pod, persistentVolume, snapshot string) {
	t.Helper()
	restoreFrom(t, "default", pod, persistentVolume, snapshot)
}

func restoreFrom(t *testing.T, location string, pod *corev1.Pod, persistentVolume, snapshot string) {
	t.Helper()
	awaitRestore(t, restoreOf(location, pod, persistentVolume, snapshot))
}

// restoreOf is the record of a restore into the first volume of a pod.
func restoreOf(location string, pod *corev1.Pod, persistentVolume, snapshot string) *enginev1alpha1.VolumeRestore {
	return &enginev1alpha1.VolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("restore"), Labels: map[string]string{enginev1alpha1.LabelNode: pod.Spec.NodeName}},
		Spec: enginev1alpha1.VolumeRestoreSpec{
			Node:                  pod.Spec.NodeName,
			Pod:                   enginev1alpha1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Volume:                pod.Spec.Volumes[0].Name,
			PersistentVolume:      persistentVolume,
			BackupStorageLocation: location,
			Repository:            enginev1alpha1.RepositoryName(pod.Namespace, location),
			SnapshotID:            snapshot,
		},
	}
}

// awaitRestore creates the record of a restore, and returns when it is complete.
func awaitRestore(t *testing.T, record *enginev1alpha1.VolumeRestore) {
	t.Helper()
	restores := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System)
	if _, err := restores.Create(t.Context(), record, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the restore of snapshot "+record.Spec.SnapshotID, func() error {
		latest, err := restores.Get(t.Context(), record.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case latest.Status.Phase == enginev1alpha1.VolumePhaseFailed:
			t.Fatalf("it failed: %s", latest.Status.Message)
		case latest.Status.Phase != enginev1alpha1.VolumePhaseCompleted:
			return fmt.Errorf("its status is %+v", latest.Status)
		}
		return nil
	})
}
