// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "ice")
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
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "ice-killed") // by the next controller
}

// TestKilledInAPhaseOfAHook kills a controller in a pre hook, in a post hook, and when all post
// hooks have run and the backup has not ended, which another pod's hook holds open; TestHooks does
// it while volumes are read. Each time the next one thaws the pod before it begins anew, and the
// backup has everything once.
func TestKilledInAPhaseOfAHook(t *testing.T) {
	start(t, workload{"frost", "db", nodes[0], 1}, workload{"frost", "last", nodes[1], 1})
	lab.must(t, "label", "-n", "frost", "pod/db", "app=db")
	lab.must(t, "label", "-n", "frost", "pod/last", "app=last")
	// A hook says when it begins, and ends once nobody holds it.
	hook := func(phase string) string {
		return fmt.Sprintf(`[sh, -c, "echo %[1]s >>/content/ran; while [ -e /content/hold-%[1]s ]; do sleep 0.1; done; echo ended-%[1]s >>/content/ran; echo said by %[1]s"]`, phase)
	}
	ran := func(ctx context.Context, pod string) (string, error) {
		out, err := lab.kubectl(ctx, "", "exec", "-n", "frost", pod, "--", "cat", "/content/ran")
		return strings.Join(strings.Fields(out), " "), err
	}
	for i, test := range []struct {
		// pod's hook of a phase is held, and by then so much has run in db.
		pod, phase, before string
	}{
		{"db", "pre", "pre"},
		{"db", "post", "pre ended-pre post"},
		{"last", "dump", "pre ended-pre post ended-post"},
	} {
		name := fmt.Sprintf("frost-%d", i)
		step("The controller is killed while the hook " + test.phase + " of the pod " + test.pod + " runs")
		for _, pod := range []string{"db", "last"} {
			lab.exec(t, "frost", pod, ": >/content/ran")
		}
		lab.exec(t, "frost", test.pod, ": >/content/hold-"+test.phase)
		lab.create(t, fmt.Sprintf(`apiVersion: holdfast.io/v1alpha1
kind: Backup
metadata: {name: %s, namespace: holdfast}
spec:
  includedNamespaces: [frost]
  defaultVolumesToFsBackup: true
  hooks:
    resources:
    - name: freeze
      labelSelector: {matchLabels: {app: db}}
      pre:
      - exec: {container: serve, timeout: 10m, command: %s}
      post:
      - exec: {container: serve, timeout: 10m, command: %s}
    - name: dump
      labelSelector: {matchLabels: {app: last}}
      pre:
      - exec: {container: serve, timeout: 10m, command: %s}
`, name, hook("pre"), hook("post"), hook("dump")))
		eventually(t, "the hook is held", func(ctx context.Context) error {
			db, err := ran(ctx, "db")
			if err == nil && db != test.before {
				err = fmt.Errorf("in db ran %q", db)
			}
			if held, failure := ran(ctx, test.pod); err == nil && !strings.HasSuffix(held, test.phase) {
				err = fmt.Errorf("in %s ran %q: %v", test.pod, held, failure)
			}
			return err
		})
		controller := lab.mustPods(t, "controller", 1)[0]
		kill(t, controller)
		// A new pod has no pauses between restarts.
		lab.must(t, "delete", "pod", "-n", system, controller.Name, "--force", "--grace-period=0")
		lab.exec(t, "frost", test.pod, "rm /content/hold-"+test.phase)
		ended := awaitEnd(t, v1alpha1.BackupPhaseCompleted, name)[name]
		db, err := ran(t.Context(), "db")
		if err != nil {
			t.Fatal(err)
		}
		began := strings.Join(slices.DeleteFunc(strings.Fields(db), func(line string) bool { return strings.HasPrefix(line, "ended-") }), " ")
		before := strings.Join(slices.DeleteFunc(strings.Fields(test.before), func(line string) bool { return strings.HasPrefix(line, "ended-") }), " ")
		if want := before + " post pre post"; began != want {
			t.Errorf("in db ran %q, want %q", began, want)
		}
		if hooks := ended.Status.HookStatus; hooks == nil || hooks.HooksAttempted != 4 || hooks.HooksFailed != 0 {
			t.Errorf("%s: hooks %+v", name, hooks)
		}
		if volumes := ended.Status.Volumes; volumes == nil || volumes.Total != 4 || volumes.Completed != 4 {
			t.Errorf("%s: volumes %+v", name, volumes)
		}
		for _, pod := range []string{"db", "last"} {
			if got := lab.must(t, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/holdfast/backups/"+name+"/manifest?kind=Pod&namespace=frost&format=ndjson&name="+pod); strings.Count(strings.TrimSpace(got), "\n") != 0 || !strings.Contains(got, pod) {
				t.Errorf("%s has %s as %s", name, pod, got)
			}
		}
	}
}
