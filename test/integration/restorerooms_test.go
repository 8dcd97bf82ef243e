// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// narrowRoom is what a namespace's LimitRange and quota leave room for: what there is, and no more.
const narrowRoom = `apiVersion: v1
kind: LimitRange
metadata: {name: at-least}
spec:
  limits:
  - {type: Container, min: {cpu: 80m, memory: 70Mi}, max: {cpu: 100m, memory: 128Mi}, default: {cpu: 100m, memory: 128Mi}, defaultRequest: {cpu: 80m, memory: 70Mi}}
  - {type: Pod, min: {cpu: 90m}, max: {cpu: 100m, ephemeral-storage: 1Gi}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: just}
spec: {hard: {pods: "2", persistentvolumeclaims: "3", limits.cpu: 200m}}
---
`

// TestRestoreIntoNarrowRoom: pitfall 15. In a namespace whose LimitRange asks for more than a waiting pod
// needs, and whose quota has room for just its own pods, the data comes back and all pods do: those
// that hold claims are as large as asked for, and a pod that they leave no room for is tried again.
func TestRestoreIntoNarrowRoom(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	namespace := lab.Namespace(t, "narrow")
	manifest := narrowRoom
	for _, claim := range []string{"data-1", "data-2", "data-3"} {
		manifest += "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + claim + "}\nspec: {accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {requests: {storage: 1Gi}}}\n---\n"
	}
	manifestIn(t, namespace, manifest)
	const resources = "resources: {requests: {cpu: 100m, memory: 70Mi}, limits: {cpu: 100m, memory: 70Mi, ephemeral-storage: 1Mi}}"
	labtest.Eventually(t, "the pods", func() error {
		_, stderr, err := lab.TryKubectl(t, `apiVersion: v1
kind: Pod
metadata: {name: p1}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: example.com/c, `+resources+`, volumeMounts: [{name: d1, mountPath: /1}, {name: d2, mountPath: /2}]}]
  volumes: [{name: d1, persistentVolumeClaim: {claimName: data-1}}, {name: d2, persistentVolumeClaim: {claimName: data-2}}]
---
apiVersion: v1
kind: Pod
metadata: {name: p2}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: example.com/c, `+resources+`, volumeMounts: [{name: d3, mountPath: /3}]}]
  volumes: [{name: d3, persistentVolumeClaim: {claimName: data-3}}]
`, "apply", "-n", namespace, "-f", "-")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr)
		}
		return err
	})
	before := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
	labtest.Eventually(t, "the pods to run", func() error {
		if err := before.provision(t); err != nil {
			return err
		}
		if err := before.start(t); err != nil {
			return err
		}
		if len(before.folders) < 3 {
			return fmt.Errorf("there are the volumes %v", before.folders)
		}
		return nil
	})
	for claim, folder := range before.folders {
		if err := os.WriteFile(filepath.Join(folder, "whose"), []byte(claim), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := labtest.Name("narrow")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	for claim := range before.folders {
		if err := core.PersistentVolumes().Delete(t.Context(), before.volume(claim), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run, err := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Create(t.Context(), restoreRun(backup, labtest.Name("narrow"), v1alpha1.RestoreSpec{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
	})
	after := &stand{lab: lab, namespace: namespace, generation: "-again", folders: map[string]string{}}
	labtest.Eventually(t, "the restore to end", func() error {
		_ = after.provision(t) // a pod may go meanwhile
		_ = after.start(t)
		pods, err := core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil { // as a kubelet confirms
				_ = core.Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			}
		}
		if run, err = lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Get(t.Context(), run.Name, metav1.GetOptions{}); err == nil && !run.Status.Phase.Ended() {
			err = fmt.Errorf("it is %q", run.Status.Phase)
		}
		return err
	})
	want(t, run, v1alpha1.RestorePhaseCompleted)
	for claim, folder := range after.folders {
		if content, err := os.ReadFile(filepath.Join(folder, "whose")); err != nil || string(content) != claim {
			t.Errorf("the data of %s is %q, %v", claim, content, err)
		}
	}
	for _, name := range []string{"p1", "p2"} {
		if pod, err := core.Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil || pod.Status.Phase == corev1.PodFailed || strings.HasPrefix(pod.Name, "holdfast") {
			t.Errorf("%s: %+v, %v", name, pod, err)
		}
	}
}
