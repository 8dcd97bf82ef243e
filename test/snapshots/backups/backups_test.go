// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backups tests backups of data from snapshots, with Holdfast's processes, Kubernetes's own
// snapshot-controller and sidecars, and the lab's driver. There are no nodes: a goroutine stands for
// the kubelet. `make csi` runs it.
package backups

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/snapshots/kubelet"
)

var (
	root    string
	lab     *labtest.Lab
	objects dynamic.Interface
	movers  = enginev1alpha1.SnapshotsNamespace(labtest.System)
)

func TestMain(m *testing.M) {
	var err error
	if root, err = filepath.Abs("../../.."); err != nil {
		panic(err)
	}
	os.Exit(labtest.Main(m, labtest.Options{Root: root, APIServerFlags: "--snapshots --backupstore-poll-interval=1s", ControllerFlags: fmt.Sprintf("--snapshots --restore-image=holdfast --concurrent-backups=%d", slots)}, func(l *labtest.Lab) {
		lab = l
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}))
}

// run runs a program of the lab.
func run(program string, args ...string) error {
	command := exec.Command(filepath.Join(lab.Bin(), program), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+lab.Kubeconfig())
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// startSidecars starts the driver and the sidecars, perhaps anew. qps bounds the requests of each sidecar to
// the API server in a second.
func startSidecars(qps int) error {
	return run("lab", "csi", "up", "--dir", lab.Dir, "--source", filepath.Join(root, "hack", "lab"), "--snapshots", "--qps", strconv.Itoa(qps))
}

// prepare starts the driver and the sidecars, and gives the controller the rights of the component.
func prepare() (err error) {
	component := filepath.Join(root, "artifacts", "components", "snapshots")
	objects, err = dynamic.NewForConfig(lab.Config)
	return errors.Join(err,
		startSidecars(50),
		run("kubectl", "label", "volumesnapshotclass", "folder", snapshots.LabelClass+"=true"),
		run("kubectl", "apply", "-f", filepath.Join(component, "binding.yaml"), "-f", filepath.Join(component, "movers.yaml")))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storage returns the folder of all volumes or snapshots that the driver has.
func storage(of string) string { return filepath.Join(lab.Dir, "csi", of) }

// claim makes a claim whose volume has one file, and returns its folder.
func claim(t testing.TB, namespace, name, content string) (folder string) {
	t.Helper()
	folder = claimOf(t, namespace, name, corev1.PersistentVolumeFilesystem)
	must(t, os.WriteFile(filepath.Join(folder, "file"), []byte(content), 0o640))
	return folder
}

// claimOf makes a claim of a mode, and returns the folder or the device of its volume.
func claimOf(t testing.TB, namespace, name string, mode corev1.PersistentVolumeMode) string {
	t.Helper()
	claims := lab.Kube.CoreV1().PersistentVolumeClaims(namespace)
	class := "folder"
	_, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	labtest.Eventually(t, "the claim to be bound", func() error {
		bound, err := claims.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || bound.Status.Phase != corev1.ClaimBound {
			return errors.Join(err, errors.New("it is not"))
		}
		return nil
	})
	return folderOf(t, namespace, name)
}

// folderOf returns the folder or the device of a bound claim's volume.
func folderOf(t testing.TB, namespace, name string) string {
	t.Helper()
	bound, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	if bound.Status.Phase != corev1.ClaimBound {
		t.Fatalf("the claim %s is %s", name, bound.Status.Phase)
	}
	volume, err := lab.Kube.CoreV1().PersistentVolumes().Get(t.Context(), bound.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	return filepath.Join(storage("volumes"), volume.Spec.CSI.VolumeHandle, "data")
}

// runMovers has a kubelet give each pod of movers the files of its volume, on the agent's node.
func runMovers(t testing.TB) {
	kubelet.Run(t, lab.Kube, movers, labtest.Node, func(pod *corev1.Pod, volume *corev1.PersistentVolume) error {
		folder := filepath.Join(lab.Dir, "pods", string(pod.UID), "volumes", labtest.FolderPlugin, volume.Name)
		if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(filepath.Dir(folder), 0o755)); err != nil {
			return err
		}
		return os.CopyFS(folder, os.DirFS(filepath.Join(storage("volumes"), volume.Spec.CSI.VolumeHandle, "data")))
	})
}

// entries counts what a folder has.
func entries(t testing.TB, folder string) int {
	t.Helper()
	all, err := os.ReadDir(folder)
	must(t, err)
	return len(all)
}

// expectNothingLeft waits until the storage has the cluster's volumes only, and the cluster nothing that
// was made for backups.
func expectNothingLeft(t testing.TB) {
	t.Helper()
	labtest.Eventually(t, "all snapshots to be deleted", func() error { return nothingLeft(t) })
}

func nothingLeft(t testing.TB) error {
	t.Helper()
	contents, err := objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if stored := entries(t, storage("snapshots")); stored+len(contents.Items) > 0 {
		return fmt.Errorf("the storage has %d snapshots, and the cluster %d contents", stored, len(contents.Items))
	}
	return nothingExposed(t)
}

// nothingExposed fails while the cluster or the storage has an object or a volume that was made for a backup, beside
// the snapshots and their contents.
func nothingExposed(t testing.TB) error {
	t.Helper()
	taken, err := objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	pods, err := lab.Kube.CoreV1().Pods(movers).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	volumes, err := lab.Kube.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	exposed := 0
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == movers {
			exposed++
		}
	}
	left := entries(t, storage("volumes"))
	if exposed+len(taken.Items)+len(pods.Items) > 0 || left != len(volumes.Items) {
		return fmt.Errorf("the storage has %d volumes, want %d; the cluster has %d VolumeSnapshots, %d volumes and %d pods of backups",
			left, len(volumes.Items), len(taken.Items), exposed, len(pods.Items))
	}
	return nil
}

// expectFile reads a file out of a stored volume. A controller that has just started can't be reached
// by the API server for some seconds.
func expectFile(t testing.TB, namespace, backup, claim, want string) {
	t.Helper()
	expectFileOf(t, namespace, namespace+"."+backup+":"+claim, want)
}

func expectFileOf(t testing.TB, namespace, volumeBackup, want string) {
	t.Helper()
	labtest.Eventually(t, "the file to be read", func() error {
		got, err := plugin(t, "files", "cat", volumeBackup+":/file", "-n", namespace)
		if err == nil && got != want {
			t.Fatalf("the file of %s has %q, want %q", volumeBackup, got, want)
		}
		return err
	})
}

// plugin runs kubectl holdfast.
func plugin(t testing.TB, args ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(lab.Bin(), "kubectl-holdfast"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+lab.Kubeconfig())
	out, err := command.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("kubectl holdfast %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// TestDataIsMoved: a claim that no pod uses is stored with its data at the time of the cut, and nothing
// is left in the cluster or the storage. The next backup uploads changes only.
func TestDataIsMoved(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "moved")
	folder := claim(t, namespace, "idle", "first")
	claim(t, namespace, "other", "else")
	for _, content := range []string{"first", "second"} {
		must(t, os.WriteFile(filepath.Join(folder, "file"), []byte(content), 0o640))
		lab.Create(t, namespace, content, v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
		backup := lab.AwaitPhase(t, namespace, content, v1alpha1.BackupPhaseCompleted)
		if counts := backup.Status.Volumes; backup.Status.Errors+backup.Status.Warnings > 0 || counts == nil || counts.Completed != 2 {
			t.Errorf("the backup has %+v, with %+v", backup.Status, counts)
		}
		expectFile(t, namespace, content, "idle", content)
		expectFile(t, namespace, content, "other", "else")
		expectNothingLeft(t)
	}
	stored, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range stored.Items {
		if got := stored.Items[i].Status.Method; got != catalog.MethodMoved {
			t.Errorf("the method of %s is %q, want %q", stored.Items[i].Name, got, catalog.MethodMoved)
		}
	}
	if len(stored.Items) != 4 {
		t.Errorf("%d volumes are listed, want 4", len(stored.Items))
	}
}

// TestSlowStorage: a snapshot of the class that its claim names is cut, and copied for a while. Its backup
// waits for it without a pod, and completes.
func TestSlowStorage(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "slow")
	claim(t, namespace, "idle", "x")
	lab.Kubectl(t, "annotate", "pvc", "idle", "-n", namespace, snapshots.LabelClass+"=folder-kept")
	removeFaults := inject(t, `{"readyAfter":"1h"}`)
	lab.Create(t, namespace, "slow", v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
	expectMessage(t, namespace, "slow", "the storage has not finished it")
	contents, err := objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range contents.Items {
		if class, _, _ := unstructured.NestedString(contents.Items[i].Object, "spec", "volumeSnapshotClassName"); class != "folder-kept" {
			t.Errorf("the class is %q, want the claim's", class)
		}
	}
	pods, err := lab.Kube.CoreV1().Pods(movers).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(contents.Items) != 1 || len(pods.Items) != 0 {
		t.Errorf("there are %d contents and %d pods, want 1 and none", len(contents.Items), len(pods.Items))
	}
	removeFaults()
	lab.AwaitPhase(t, namespace, "slow", v1alpha1.BackupPhaseCompleted)
	expectFile(t, namespace, "slow", "idle", "x")
	expectNothingLeft(t)
}

// TestMovingHoldsNothing: while the storage copies a snapshot, the backup holds no slot and no namespace. The
// claim and its VolumeSnapshot may go, and a controller that is replaced reads nothing of the cluster.
func TestMovingHoldsNothing(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "free")
	claim(t, namespace, "idle", "x")
	removeFaults := inject(t, `{"readyAfter":"1h"}`)
	home := labtest.System
	name := labtest.Name("moving")
	spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, SnapshotVolumes: new(true)}
	lab.Create(t, home, name, spec)
	lab.AwaitPhase(t, home, name, v1alpha1.BackupPhaseWaitingForPluginOperations)
	spec.SnapshotVolumes = new(false)
	lab.Create(t, home, name+"-files", spec)
	lab.AwaitPhase(t, home, name+"-files", v1alpha1.BackupPhaseCompleted)

	lab.Kubectl(t, "delete", "pvc", "idle", "-n", namespace, "--wait=false")
	lab.Kubectl(t, "delete", "volumesnapshot", "--all", "-n", namespace)
	lab.Kubectl(t, "delete", "configmap", "settings", "-n", namespace)
	lab.Kubectl(t, "create", "configmap", "later", "-n", namespace)
	lab.Kill(t, "controller")
	lab.Start(t, "controller")
	labtest.Eventually(t, "the next controller to take the backup over", func() error {
		run, err := lab.Engine.EngineV1alpha1().BackupRuns(home).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (run.Status.Attempts != 2 || run.Status.Phase != v1alpha1.BackupPhaseWaitingForPluginOperations) {
			err = fmt.Errorf("it is %+v", run.Status)
		}
		return err
	})
	removeFaults()
	backup := lab.AwaitPhase(t, home, name, v1alpha1.BackupPhaseCompleted)
	objects, err := plugin(t, "backup", "tree", name, "-n", home)
	must(t, err)
	if !strings.Contains(objects, "settings") || strings.Contains(objects, "later") {
		t.Errorf("the backup has:\n%s", objects)
	}
	labtest.Eventually(t, "the volume to be listed", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.backupUID=" + string(backup.UID)})
		if err != nil || len(list.Items) != 1 {
			return errors.Join(err, errors.New("it is not"))
		}
		expectFileOf(t, namespace, list.Items[0].Name, "x")
		return nil
	})
	expectNothingLeft(t)
}

// inject has the driver fail, until remove is called.
func inject(t testing.TB, faults string) (remove func()) {
	t.Helper()
	file := filepath.Join(lab.Dir, "csi", "faults.json")
	must(t, os.WriteFile(file, []byte(faults), 0o644))
	t.Cleanup(func() { _ = os.Remove(file) })
	return func() { must(t, os.Remove(file)) }
}

// expectMessage waits until a backup says something.
func expectMessage(t testing.TB, namespace, name, words string) {
	t.Helper()
	labtest.Eventually(t, "the backup to say "+words, func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !strings.Contains(backup.Status.Message, words) {
			err = fmt.Errorf("the message is %q", backup.Status.Message)
		}
		return err
	})
}

// TestUnsetMeansLabelled: without any wish, the class with Velero's label decides.
func TestUnsetMeansLabelled(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "unset")
	claim(t, namespace, "idle", "x")
	lab.Create(t, namespace, "unset", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, namespace, "unset", v1alpha1.BackupPhaseCompleted)
	expectFile(t, namespace, "unset", "idle", "x")
	expectNothingLeft(t)
}

// TestKilledWhileItMoves: in whichever state of a snapshot the controller is killed, the backup completes
// with all data, and no snapshot is left.
func TestKilledWhileItMoves(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "killed")
	claim(t, namespace, "one", "1")
	claim(t, namespace, "two", "2")
	count := func(resource schema.GroupVersionResource, is func(*unstructured.Unstructured) bool) error {
		list, err := objects.Resource(resource).List(t.Context(), metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(list.Items, func(object unstructured.Unstructured) bool { return is(&object) }) {
			err = errors.New("there is none")
		}
		return err
	}
	in := func(namespace string) func(*unstructured.Unstructured) bool {
		return func(object *unstructured.Unstructured) bool { return object.GetNamespace() == namespace }
	}
	for name, reached := range map[string]func() error{
		"a snapshot is asked for": func() error { return count(snapshots.Snapshots, in(namespace)) },
		"its content is held": func() error {
			return count(snapshots.Contents, func(object *unstructured.Unstructured) bool {
				return slices.Contains(object.GetFinalizers(), snapshots.Finalizer)
			})
		},
		"a cut is exposed": func() error { return count(snapshots.Snapshots, in(movers)) },
		"a pod is made":    func() error { return count(corev1.SchemeGroupVersion.WithResource("pods"), in(movers)) },
		"an upload is handed over": func() error {
			return count(enginev1alpha1.SchemeGroupVersion.WithResource("volumeuploads"), func(object *unstructured.Unstructured) bool {
				return strings.HasPrefix(object.GetName(), namespace)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			backup := labtest.Name("killed")
			lab.Create(t, namespace, backup, v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
			labtest.Eventually(t, name, reached)
			lab.Kill(t, "controller")
			lab.Start(t, "controller")
			lab.AwaitPhase(t, namespace, backup, v1alpha1.BackupPhaseCompleted)
			expectFile(t, namespace, backup, "one", "1")
			expectFile(t, namespace, backup, "two", "2")
			expectNothingLeft(t)
		})
	}
}

// TestDriverAway: the driver's words are told, a cancellation ends the backup at once, and what the driver
// makes later is deleted.
func TestDriverAway(t *testing.T) {
	runMovers(t)
	namespace := lab.Namespace(t, "away")
	claim(t, namespace, "idle", "x")
	removeFaults := inject(t, `{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE","message":"the storage is away"}}}`)
	lab.Create(t, namespace, "away", v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
	expectMessage(t, namespace, "away", "Unavailable")
	_, err := plugin(t, "backup", "cancel", "away", "-n", namespace)
	must(t, err)
	lab.AwaitPhase(t, namespace, "away", v1alpha1.BackupPhaseCancelled)
	removeFaults()
	expectNothingLeft(t)
}
