// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfastv1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestHooks runs commands in real containers around the reading of their volumes, one by
// the backup's spec and one by annotations, during which its pod changes, and kills the
// controller in between: the next one runs the post hooks.
func TestHooks(t *testing.T) {
	frozen := workload{"ice", "frozen", nodes[0], 128}
	dumps := workload{"ice", "dumps", nodes[1], 1}
	step("Hooks in two pods")
	start(t, frozen, dumps)
	lab.must(t, "label", "-n", "ice", "pod/frozen", "app=db")
	lab.must(t, "annotate", "-n", "ice", "pod/dumps", "pre.hook.backup.velero.io/timeout=10m",
		`pre.hook.backup.velero.io/command=["sh","-c","echo dump >/content/dump; until [ -e /content/annotated ]; do sleep 0.1; done"]`)
	hooked := func(name string) string {
		return fmt.Sprintf(`apiVersion: holdfast.io/v1alpha1
kind: Backup
metadata: {name: %s, namespace: holdfast}
spec:
  includedNamespaces: [ice]
  defaultVolumesToFsBackup: true
  hooks:
    resources:
    - name: freeze
      labelSelector: {matchLabels: {app: db}}
      pre:
      - exec: {container: serve, command: [sh, -c, "echo frozen; : >/content/frozen"]}
      post:
      - exec: {command: [sh, -c, "rm -f /content/frozen; echo thawed >>/content/thawed"]}
`, name)
	}
	lab.create(t, hooked("ice"))
	eventually(t, "the hook of the annotations runs", func(ctx context.Context) error {
		_, err := lab.kubectl(ctx, "", "exec", "-n", "ice", "dumps", "--", "ls", "/content/dump")
		return err
	})
	lab.must(t, "annotate", "-n", "ice", "pod/dumps", "dumped=yes")
	lab.exec(t, "ice", "dumps", ": >/content/annotated")
	awaitEnd(t, holdfastv1alpha1.BackupPhaseCompleted, "ice")
	done, err := lab.holdfast.HoldfastV1alpha1().Backups(system).Get(t.Context(), "ice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if hooks := done.Status.HookStatus; hooks == nil || hooks.HooksAttempted != 3 || hooks.HooksFailed != 0 {
		t.Errorf("hooks: %+v", hooks)
	}
	if got := lab.exec(t, "ice", "frozen", "ls /content/frozen 2>/dev/null || cat /content/thawed"); strings.TrimSpace(got) != "thawed" {
		t.Errorf("in the pod: %q", got)
	}
	if got := lab.exec(t, "ice", "dumps", "cat /content/dump"); strings.TrimSpace(got) != "dump" {
		t.Errorf("in the other pod: %q", got)
	}
	if got := lab.must(t, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/holdfast/backups/ice/objects?kind=Pod&namespace=ice&name=dumps"); !strings.Contains(got, `"dumped":"yes"`) {
		t.Errorf("what happened to the pod during its hook is not in the backup: %s", got)
	}

	step("The controller is killed while a pod is frozen")
	lab.exec(t, "ice", "frozen", "rm /content/thawed; head -c 134217728 /dev/urandom >/content/more")
	lab.create(t, hooked("ice-killed"))
	resume := lab.pauseStore(t, "a volume of the frozen pod is read", func(ctx context.Context) error {
		work, err := volumeWork(ctx, "ice-killed")
		for _, w := range work {
			if w.Spec.Pod.Name == "frozen" && w.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
				return nil
			}
		}
		return fmt.Errorf("%d volumes, %w", len(work), err)
	})
	lab.exec(t, "ice", "frozen", "ls /content/frozen")
	kill(t, lab.mustPods(t, "controller", 1)[0])
	eventually(t, "the next controller thaws the pod", func(context.Context) error {
		out, err := lab.kubectl(t.Context(), "", "exec", "-n", "ice", "frozen", "--", "cat", "/content/thawed")
		if err == nil && strings.TrimSpace(out) != "thawed" {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	resume()
	awaitEnd(t, holdfastv1alpha1.BackupPhaseCompleted, "ice-killed") // by the next controller
}
