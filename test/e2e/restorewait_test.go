// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// TestRestoreWait: on a real node, in a namespace with the restricted Pod Security
// Standard, a pod starts when its volume is restored, and not before.
func TestRestoreWait(t *testing.T) {
	source := workload{"origin", "web", nodes[0], 1}
	step("A pod that waits for the restore of its volume")
	start(t, source)
	lab.create(t, backup("origin", "origin"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "origin")
	awaitStored(t, "origin")
	entry := awaitHistory(t, source, "scratch", "origin")

	lab.create(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: waits, labels: {pod-security.kubernetes.io/enforce: restricted}}\n")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{
			NodeName:                      nodes[0],
			TerminationGracePeriodSeconds: new(int64),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: new(int64(1000)), RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "web", Image: "holdfast.io/lab-busybox:dev", Command: []string{"sh", "-euc", "cat /data/index.html; sleep 1000000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	waitVolume, err := restorewait.Add(pod, "ghcr.io/holdfast-io/holdfast:dev", []string{"data"}, restorewait.DefaultTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if pod, err = lab.kube.CoreV1().Pods("waits").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, mount := range pod.Spec.InitContainers[0].VolumeMounts {
		if mount.Name != waitVolume {
			t.Errorf("the container that waits mounts %s", mount.Name)
		}
	}
	// waiting is what the container that waits is in the middle of, unless another one
	// has begun.
	waiting := func(ctx context.Context) (state, last corev1.ContainerState, err error) {
		live, err := lab.kube.CoreV1().Pods("waits").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return state, last, err
		}
		if len(live.Status.InitContainerStatuses) != 1 {
			return state, last, errors.New("it has no status")
		}
		for _, own := range live.Status.ContainerStatuses {
			if own.State.Running != nil {
				t.Errorf("container %s runs before its volume is restored", own.Name)
			}
		}
		status := live.Status.InitContainerStatuses[0]
		return status.State, status.LastTerminationState, nil
	}
	eventually(t, "the pod waits", func(ctx context.Context) error {
		state, _, err := waiting(ctx)
		if err == nil && state.Running == nil {
			err = fmt.Errorf("it is %+v", state)
		}
		return err
	})

	restore := func(name, snapshot string) {
		t.Helper()
		_, err := lab.engine.EngineV1alpha1().VolumeRestores(system).Create(t.Context(), &enginev1alpha1.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{enginev1alpha1.LabelNode: nodes[0]}},
			Spec: enginev1alpha1.VolumeRestoreSpec{
				Node: nodes[0], Pod: enginev1alpha1.PodReference{Namespace: "waits", Name: "web", UID: pod.UID}, Volume: "data", WaitVolume: waitVolume,
				BackupStorageLocation: location, Repository: enginev1alpha1.RepositoryName("origin", location), SnapshotID: snapshot,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	step("A restore that fails: the container that waits says so")
	restore("waits-in-vain", strings.Repeat("0", 32))
	eventually(t, "the pod says why it does not start", func(ctx context.Context) error {
		state, last, err := waiting(ctx)
		for _, s := range []corev1.ContainerState{state, last} {
			if s.Terminated != nil && s.Terminated.ExitCode == 1 && strings.HasPrefix(s.Terminated.Message, "volume data could not be restored: ") {
				fmt.Println(s.Terminated.Message)
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("it is %+v, and was %+v", state, last))
	})
	step("And one that succeeds: the pod starts")
	restore("waits", entry.Status.SnapshotID)
	awaitRestored(t, "waits")
	lab.mustShow(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", "waits", "pod/web")
	if got := lab.exec(t, "waits", "web", "cat /data/index.html"); !strings.Contains(got, "welcome to origin") {
		t.Errorf("its volume has %q", got)
	}
	if restored, here := lab.exec(t, source.namespace, source.pod, "ls -A /scratch"), lab.exec(t, "waits", "web", "ls -A /data"); here != restored {
		t.Errorf("in its volume is %q, want %q", here, restored)
	}
}

// TestRestoreGivenUp: a pod of a restore that is cancelled before its agent has begun is told
// so when the agent is back, and one that was backed up after a restore waits for its own
// data when it is restored again.
func TestRestoreGivenUp(t *testing.T) {
	lab.create(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: quit}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: quit}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  initContainers:
  - name: fill
    image: holdfast.io/lab-busybox:dev
    command: [sh, -euc, "[ -e /data/file ] || echo first >/data/file"]
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: web
    image: holdfast.io/lab-busybox:dev
    command: [sleep, "1000000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`, nodes[0]))
	lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", "quit", "pod/web")
	mapped := func(from, to string) string {
		return fmt.Sprintf("includedNamespaces: [%s], namespaceMapping: {%s: %s}", from, from, to)
	}
	restored := func(namespace string) {
		t.Helper()
		lab.mustShow(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", namespace, "pod/web")
		if got := lab.exec(t, namespace, "web", "cat /data/file; ls /data | wc -l"); got != "first\n1\n" {
			t.Errorf("in the volume of %s is %q", namespace, got)
		}
	}
	step("A pod is restored, and what came of that once more")
	lab.create(t, backup("quit", "quit"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "quit")
	awaitStored(t, "quit")
	restoreBackup(t, "quit-1", "quit", mapped("quit", "quit-once"))
	restored("quit-once")
	lab.create(t, backup("quit-once", "quit-once"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "quit-once")
	awaitStored(t, "quit-once")
	restoreBackup(t, "quit-2", "quit-once", mapped("quit-once", "quit-twice"))
	restored("quit-twice")

	step("A restore is cancelled before the agent of its node has begun")
	agent := processes(t, podOn(t, lab.mustPods(t, "node-agent", 2), nodes[0]))
	for _, pid := range agent {
		signal(t, pid, syscall.SIGSTOP)
	}
	resume := sync.OnceFunc(func() {
		for _, pid := range agent {
			signal(t, pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(resume)
	lab.create(t, fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata: {name: quit-3, namespace: holdfast}\nspec: {backupName: quit, %s}\n", mapped("quit", "quit-never")))
	eventually(t, "its volume is asked for", func(ctx context.Context) error {
		records, err := lab.engine.EngineV1alpha1().VolumeRestores(system).List(ctx, metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore})
		if err == nil && len(records.Items) != 1 {
			err = fmt.Errorf("there are %d records", len(records.Items))
		}
		return err
	})
	if out, err := lab.kubectl(t.Context(), `{"apiVersion":"holdfast.io/v1alpha1","kind":"RestoreCancellation"}`, "create", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/holdfast/restores/quit-3/cancel", "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
	eventually(t, "it is cancelled", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(ctx, "quit-3", metav1.GetOptions{})
		if err == nil && live.Status.Phase != v1alpha1.RestorePhaseCancelled {
			err = fmt.Errorf("it is %s", live.Status.Phase)
		}
		return err
	})
	resume()
	eventually(t, "the pod is told", func(ctx context.Context) error {
		live, err := lab.kube.CoreV1().Pods("quit-never").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range live.Status.InitContainerStatuses {
			if ended := status.State.Terminated; ended != nil && ended.ExitCode == 1 && strings.Contains(ended.Message, "volume data could not be restored: "+restorewait.GivenUp) {
				fmt.Println(ended.Message)
				return nil
			}
		}
		return fmt.Errorf("it is %+v", live.Status.InitContainerStatuses)
	})
}
