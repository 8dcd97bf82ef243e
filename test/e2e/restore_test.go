// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// looks is the first container of each application: it makes the files where there are
// none, and else notes whether they are whole. So it tells what the application would have
// started on.
const looks = `cd /data
if [ -f sums ]; then
  if sha256sum -c sums >/dev/null 2>&1; then echo whole >>log; else echo broken >>log; fi
else
  mkdir -p deep
  for i in 1 2 3; do head -c 700000 /dev/urandom >deep/$i; done
  chown 1234:5678 deep/1; chmod 640 deep/1
  sha256sum deep/* >sums
  echo empty >>log
fi`

// storageClasses have volumes that are folders of a node, and are bound by the first pod.
func storageClasses(t testing.TB, volumes int, names ...string) {
	t.Helper()
	storageClassesOf(t, "local: {path: %q}", volumes, names...)
}

// csiVolume is the source of a volume that the lab's CSI driver mounts.
const csiVolume = "csi: {driver: folder.lab.holdfast.io, volumeHandle: %q}"

// storageClassesOf is storageClasses with volumes of a source, which is a format for the path
// of a folder.
func storageClassesOf(t testing.TB, source string, volumes int, names ...string) {
	t.Helper()
	var all strings.Builder
	for _, class := range names {
		fmt.Fprintf(&all, `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
`, class)
		for i := range volumes {
			node := nodes[i%len(nodes)]
			name := fmt.Sprintf("%s-%d", class, i)
			folder := lab.path("nodes", "volumes", name)
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&all, `apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: %s
  %s
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]
---
`, name, class, fmt.Sprintf(source, folder), node)
		}
	}
	lab.create(t, all.String())
}

// application is a Deployment with a claim, a StatefulSet with two, and a lone pod with an
// emptyDir.
func application(namespace, class string) string {
	container := func(mounts string) string {
		return fmt.Sprintf(`
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: looks, image: "holdfast.io/lab-busybox:dev", command: [sh, -euc, %q], volumeMounts: [{name: data, mountPath: /data}]}
      containers:
      - {name: app, image: "holdfast.io/lab-busybox:dev", command: [sleep, "1000000"], volumeMounts: [%s]}`, looks, mounts)
	}
	claim := fmt.Sprintf(`{accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Gi}}}`, class)
	lone := strings.ReplaceAll(container("{name: data, mountPath: /data}"), "\n      ", "\n  ")
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: web, namespace: %[1]s}
spec: %[2]s
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:%[3]s
      volumes: [{name: data, persistentVolumeClaim: {claimName: web}}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: %[1]s}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: %[1]s}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:%[4]s
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: %[2]s}
  - {metadata: {name: more}, spec: %[2]s}
---
apiVersion: v1
kind: Pod
metadata: {name: lone, namespace: %[1]s, labels: {app: lone}}
spec:%[5]s
  volumes: [{name: data, emptyDir: {}}]
---
`, namespace, claim, container("{name: data, mountPath: /data}"), container("{name: data, mountPath: /data}, {name: more, mountPath: /more}"), lone)
}

// applicationPods waits until the pods of an application are ready, and returns their names
// by their labels.
func applicationPods(t *testing.T, namespace string) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, app := range []string{"web", "db", "lone"} {
		eventually(t, app+" is ready in "+namespace, func(ctx context.Context) error {
			list, err := lab.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
			if err != nil {
				return err
			}
			if len(list.Items) != 1 {
				return fmt.Errorf("there are %d pods", len(list.Items))
			}
			for _, c := range list.Items[0].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					names[app] = list.Items[0].Name
					return nil
				}
			}
			return fmt.Errorf("it is %s, %+v", list.Items[0].Status.Phase, list.Items[0].Status.InitContainerStatuses)
		})
	}
	return names
}

// contents are the files of an application that a restore has to bring back, by pod.
func contents(t *testing.T, namespace string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for app, pod := range applicationPods(t, namespace) {
		all[app] = lab.exec(t, namespace, pod, `cd /data; stat -c '%n %a %u:%g %s %Y' deep deep/* sums; cat sums`)
	}
	return all
}

// TestRestoreBeforeTheFirstContainer (proof 13): a Deployment, a StatefulSet with two
// claims and a lone pod lose their namespace. Restored into place, and into another
// namespace with another storage class, the first container of each finds its files whole.
// A CSI driver mounts the volumes of the first class; those of the other are local.
func TestRestoreBeforeTheFirstContainer(t *testing.T) {
	step("An application with CSI volumes of a class that waits for the first consumer")
	storageClassesOf(t, csiVolume, 12, "proof")
	storageClasses(t, 12, "proof-other")
	lab.create(t, application("proof", "proof"))
	pods := applicationPods(t, "proof")
	checkMounted(t, "proof", 3)
	lab.exec(t, "proof", pods["db"], "echo more of it >/more/file")
	before := contents(t, "proof")
	lab.create(t, backup("proof", "proof"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "proof")

	step("Its namespace is lost, and restored into place")
	lab.must(t, "delete", "namespace", "proof", "--timeout=120s")
	restoreBackup(t, "into-place", "proof", "")
	checkRestored(t, "proof", before)
	checkMounted(t, "proof", 3)

	step("And into another namespace, with another storage class")
	restoreBackup(t, "elsewhere", "proof", "namespaceMapping: {proof: proof-copy}, storageClassMapping: {proof: proof-other}")
	checkRestored(t, "proof-copy", before)
	for _, name := range []string{"web", "data-db-0", "more-db-0"} {
		claim, err := lab.kube.CoreV1().PersistentVolumeClaims("proof-copy").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if class := *claim.Spec.StorageClassName; class != "proof-other" || !strings.HasPrefix(claim.Spec.VolumeName, "proof-other-") {
			t.Errorf("claim %s has the class %s and the volume %s", name, class, claim.Spec.VolumeName)
		}
	}

	step("Where the claims exist, nothing is written")
	awaitRestore(t, "over-it", "proof", "", v1alpha1.RestorePhaseFailedValidation, v1alpha1.RestorePhaseFailed)
	checkRestored(t, "proof", before)
}

// checkMounted checks that the CSI driver has mounted so many claims for the pods of a
// namespace, where an agent looks for them.
func checkMounted(t *testing.T, namespace string, want int) {
	t.Helper()
	pods, err := lab.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, pod := range pods.Items {
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim == nil {
				continue
			}
			claim, err := lab.kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), volume.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			path := lab.path("nodes", pod.Spec.NodeName, "kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~csi", claim.Spec.VolumeName, "mount")
			if !strings.Contains(string(mounts), " "+path+" ") {
				t.Errorf("nothing is mounted on %s", path)
			}
			got++
		}
	}
	if got != want {
		t.Errorf("the pods of %s have %d claims, want %d", namespace, got, want)
	}
}

// restoreBackup restores a backup, and returns when all of it is there.
func restoreBackup(t *testing.T, name, backup, spec string) {
	t.Helper()
	awaitRestore(t, name, backup, spec, v1alpha1.RestorePhaseCompleted)
}

// awaitRestore restores a backup, and returns when that has ended as it should.
func awaitRestore(t *testing.T, name, backup, spec string, want ...v1alpha1.RestorePhase) {
	t.Helper()
	if spec != "" {
		spec = ", " + spec
	}
	lab.create(t, fmt.Sprintf(`apiVersion: holdfast.io/v1alpha1
kind: Restore
metadata: {name: %s, namespace: holdfast}
spec: {backupName: %s%s}
`, name, backup, spec))
	eventually(t, "restore "+name+" has ended", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("it is %s, %+v", live.Status.Phase, live.Status.Volumes)
		}
		for _, phase := range want {
			if live.Status.Phase == phase {
				return nil
			}
		}
		_ = lab.show(ctx, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/holdfast/restores/"+name+"/results")
		t.Fatalf("restore %s is %s with %d errors (%s), want one of %v", name, live.Status.Phase, live.Status.Errors, live.Status.FailureReason, want)
		return nil
	})
}

// checkRestored compares an application with what it was, and asks its first containers
// what they have found. Nothing of the restore is left.
func checkRestored(t *testing.T, namespace string, before map[string]string) {
	t.Helper()
	pods := applicationPods(t, namespace)
	for app, content := range contents(t, namespace) {
		if content != before[app] {
			t.Errorf("%s in %s has\n%s\nwant\n%s", app, namespace, content, before[app])
		}
		if log := lab.exec(t, namespace, pods[app], "cat /data/log"); log != "empty\nwhole\n" {
			t.Errorf("the first container of %s in %s has seen %q", app, namespace, log)
		}
	}
	if got := lab.exec(t, namespace, pods["db"], "cat /more/file"); got != "more of it\n" {
		t.Errorf("the second claim of db in %s has %q", namespace, got)
	}
	eventually(t, "nothing of the restore is left", func(ctx context.Context) error {
		selector := metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore}
		holders, err := lab.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, selector)
		if err != nil {
			return err
		}
		records, err := lab.engine.EngineV1alpha1().VolumeRestores(system).List(ctx, selector)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if len(holders.Items)+len(records.Items) > 0 {
			return fmt.Errorf("%d pods and %d records are", len(holders.Items), len(records.Items))
		}
		return nil
	})
}
