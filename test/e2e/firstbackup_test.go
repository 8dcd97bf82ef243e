// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// deploymentWithClaim is a Deployment whose pod looks at the files of its claim, which has the
// same name.
func deploymentWithClaim(namespace, name, class string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s, namespace: %[1]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: %[3]s, resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: looks, image: "holdfast.io/lab-busybox:dev", command: [sh, -euc, %[4]q], volumeMounts: [{name: data, mountPath: /data}]}
      containers:
      - {name: app, image: "holdfast.io/lab-busybox:dev", command: [sleep, "1000000"], volumeMounts: [{name: data, mountPath: /data}]}
      volumes: [{name: data, persistentVolumeClaim: {claimName: %[2]s}}]
---
`, namespace, name, class, looks)
}

// readyPod waits until the only pod with a label is ready, and returns its name.
func readyPod(t *testing.T, namespace, app string) (name string) {
	t.Helper()
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
				name = list.Items[0].Name
				return nil
			}
		}
		return fmt.Errorf("it is %s", list.Items[0].Status.Phase)
	})
	return name
}

// TestFirstBackupComesBack: a backup whose spec is empty brings a lost namespace with two claims
// back, by a restore that names no backup and no object. Neither has a warning.
func TestFirstBackupComesBack(t *testing.T) {
	const namespace, look = "first-backup", `cd /data; stat -c '%n %a %u:%g %s %Y' deep deep/* sums; cat sums`
	apps := []string{"web", "db"}
	step("A namespace with two claims, and its first backup")
	storageClasses(t, 8, "first-backup")
	manifests := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", namespace)
	for _, app := range apps {
		manifests += deploymentWithClaim(namespace, app, "first-backup")
	}
	lab.create(t, manifests)
	before := map[string]string{}
	for _, app := range apps {
		before[app] = lab.exec(t, namespace, readyPod(t, namespace, app), look)
	}
	lab.create(t, fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: first, namespace: %s}\nspec: {}\n", namespace))
	eventually(t, "the backup is completed", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Backups(namespace).Get(ctx, "first", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if v := live.Status.Volumes; live.Status.Phase != v1alpha1.BackupPhaseCompleted || v == nil || v.Completed != 2 || live.Status.Warnings > 0 {
			return fmt.Errorf("it is %s with %d warnings and the volumes %+v", live.Status.Phase, live.Status.Warnings, v)
		}
		return nil
	})

	step("The namespace is lost, and comes back")
	lab.must(t, "delete", "namespace", namespace, "--timeout=120s")
	lab.create(t, fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata: {name: first-backup, namespace: %s}\nspec: {backupNamespace: %s}\n", system, namespace))
	eventually(t, "the restore has ended", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(ctx, "first-backup", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("it is %s, %+v", live.Status.Phase, live.Status.Volumes)
		}
		if live.Status.Phase != v1alpha1.RestorePhaseCompleted || live.Status.Warnings+live.Status.Errors > 0 {
			_ = lab.show(ctx, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/"+system+"/restores/first-backup/results")
			t.Fatalf("the restore is %s with %d errors and %d warnings", live.Status.Phase, live.Status.Errors, live.Status.Warnings)
		}
		return nil
	})
	for _, app := range apps {
		pod := readyPod(t, namespace, app)
		if after := lab.exec(t, namespace, pod, look); after != before[app] {
			t.Errorf("%s has\n%s\nwant\n%s", app, after, before[app])
		}
		if log := lab.exec(t, namespace, pod, "cat /data/log"); log != "empty\nwhole\n" {
			t.Errorf("the first container of %s has seen %q", app, log)
		}
	}
}
