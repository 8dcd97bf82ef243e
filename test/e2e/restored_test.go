// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// TestRestoreHooksAndPaths: commands run in the containers of a pod that a restore creates, and
// before them in one that it adds; and single files come back into a pod that runs.
func TestRestoreHooksAndPaths(t *testing.T) {
	step("A pod with a claim loses its namespace, and comes back with hooks")
	storageClasses(t, 4, "hooked")
	lab.create(t, `apiVersion: v1
kind: Namespace
metadata: {name: hooked}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: hooked}
spec: {accessModes: [ReadWriteOnce], storageClassName: hooked, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: hooked, labels: {app: db}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: "holdfast.io/lab-busybox:dev", command: [sleep, "1000000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
`)
	ready := func() { lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", "hooked", "pod/app") }
	ready()
	lab.exec(t, "hooked", "app", "cd /data; echo dump >dump; mkdir deep; echo a >deep/a; echo b >deep/b; chown 1234:5678 deep/a; chmod 640 deep/a")
	lab.create(t, backup("hooked", "hooked"))
	awaitEnd(t, "Completed", "hooked")
	lab.must(t, "delete", "namespace", "hooked", "--timeout=120s")
	restoreBackup(t, "hooked", "hooked", `hooks: {resources: [{name: load, includedNamespaces: [hooked], labelSelector: {matchLabels: {app: db}}, postHooks: [
  {init: {initContainers: [{name: prepare, image: "holdfast.io/lab-busybox:dev", command: [sh, -c, "cp /data/dump /data/prepared"], volumeMounts: [{name: data, mountPath: /data}]}]}},
  {exec: {container: app, command: [sh, -c, "cat /data/prepared >/data/loaded"], waitForReady: true, execTimeout: 1m}}]}]}`)
	restored, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(t.Context(), "hooked", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if hooks := restored.Status.HookStatus; hooks == nil || hooks.HooksAttempted != 1 || hooks.HooksFailed != 0 {
		t.Errorf("hooks: %+v", hooks)
	}
	ready()
	if got := lab.exec(t, "hooked", "app", "cat /data/loaded"); got != "dump\n" {
		t.Errorf("the commands have left %q", got)
	}

	step("Single files come back into the pod while it runs")
	lab.exec(t, "hooked", "app", "cd /data; echo spoilt >deep/a; rm deep/b; echo later >dump; echo more >deep/more")
	before, err := lab.kube.CoreV1().Pods("hooked").Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restoreBackup(t, "hooked-files", "hooked", "objects: [{resource: persistentvolumeclaims, namespace: hooked, name: data}], paths: [deep/a, deep/b]")
	if got := lab.exec(t, "hooked", "app", "cd /data; cat deep/a deep/b deep/more dump; stat -c '%a %u:%g' deep/a; ls -A . deep | grep holdfast || echo nothing else"); got != "a\nb\nmore\nlater\n640 1234:5678\nnothing else\n" {
		t.Errorf("in the pod there is\n%s", got)
	}
	after, err := lab.kube.CoreV1().Pods("hooked").Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil || after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod is another one: %v, %v", after, err)
	}
}

// TestHostPathVolumes: a claim whose persistent volume is a folder of its node (hostPath) comes
// back into another such one, and single files into the pod that uses it.
func TestHostPathVolumes(t *testing.T) {
	step("A pod with a claim that is a folder of its node loses its namespace")
	storageClassesOf(t, "hostPath: {path: %q}", 4, "folders")
	lab.create(t, `apiVersion: v1
kind: Namespace
metadata: {name: folders}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: folders}
spec: {accessModes: [ReadWriteOnce], storageClassName: folders, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: folders}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: "holdfast.io/lab-busybox:dev", command: [sleep, "1000000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
`)
	ready := func() { lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", "folders", "pod/app") }
	ready()
	lab.exec(t, "folders", "app", "cd /data; mkdir deep; echo a >deep/a; echo b >b; chown 1234:5678 deep/a; chmod 640 deep/a")
	lab.create(t, backup("folders", "folders"))
	awaitEnd(t, "Completed", "folders")
	volume := lab.must(t, "get", "pvc/data", "-n", "folders", "-o", "jsonpath={.spec.volumeName}")
	lab.must(t, "delete", "namespace", "folders", "--timeout=120s")
	restoreBackup(t, "folders", "folders", "")
	ready()
	if now := lab.must(t, "get", "pvc/data", "-n", "folders", "-o", "jsonpath={.spec.volumeName}"); now == volume {
		t.Errorf("the claim has its old volume %s", now)
	}
	const look = "cd /data; cat deep/a b; stat -c '%a %u:%g' deep/a"
	if got := lab.exec(t, "folders", "app", look); got != "a\nb\n640 1234:5678\n" {
		t.Errorf("in the pod there is\n%s", got)
	}
	lab.exec(t, "folders", "app", "echo spoilt >/data/deep/a; echo later >/data/b")
	restoreBackup(t, "folders-files", "folders", "objects: [{resource: persistentvolumeclaims, namespace: folders, name: data}], paths: [deep/a]")
	if got := lab.exec(t, "folders", "app", look); got != "a\nlater\n640 1234:5678\n" {
		t.Errorf("in the pod there is\n%s", got)
	}
}

// TestRestoreOfVelero (proof 20): a claim of a backup that Velero 1.18.1 has made comes back with
// its data, from Velero's repository, whose password is given as a Secret.
func TestRestoreOfVelero(t *testing.T) {
	step("A store that Velero wrote")
	checks := putVelero(t, "velero")
	lab.create(t, `apiVersion: v1
kind: Secret
metadata: {name: shop.velero.key, namespace: holdfast-repositories}
stringData: {repository-password: static-passw0rd}
---
`)
	lab.must(t, "wait", "--for=condition=Available", "-n", system, "storagelocation/velero", "--timeout=60s")
	eventually(t, "Velero's backup is listed", func(ctx context.Context) error {
		_, err := lab.holdfast.HoldfastV1alpha1().Backups(system).Get(ctx, "v-shop", metav1.GetOptions{})
		return err
	})

	step("Its claim is restored into another namespace")
	folder := lab.path("nodes", "volumes", "velero-data")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	lab.create(t, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: velero-data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: %q}
  claimRef: {namespace: velero-shop, name: data}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]
---
`, folder, nodes[0]))
	restoreBackup(t, "velero", "v-shop", "namespaceMapping: {shop: velero-shop}, objects: [{resource: persistentvolumeclaims, namespace: shop, name: data}]")
	compared := 0
	for line := range strings.Lines(checks) {
		sum, path, ok := strings.Cut(strings.TrimSpace(line), "  ./")
		if !ok {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			t.Error(err)
		} else if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
			t.Errorf("%s has the digest %s, not %s", path, got, sum)
		}
		compared++
	}
	if compared == 0 {
		t.Error("no file was compared")
	}
	if target, err := os.Readlink(filepath.Join(folder, "default")); err != nil || target != "index.html" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
}

// putVelero puts what Velero wrote beside our own store, and makes a location of it. It returns
// the checksums of the volume.
func putVelero(t *testing.T, name string) (checks string) {
	t.Helper()
	locations := lab.engine.EngineV1alpha1().StorageLocations(system)
	ours, err := locations.Get(t.Context(), location, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	theirs := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}, Spec: *ours.Spec.DeepCopy()}
	theirs.Spec.Default, theirs.Spec.Prefix = false, name
	theirs.Spec.AllowedNamespaces = &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}}
	secret, err := lab.kube.CoreV1().Secrets("holdfast-locations").Get(t.Context(), "bucket", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, err := store.Open(t.Context(), &theirs.Spec, secret.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	file, err := os.Open("../../pkg/restore/source/testdata/velero-store.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(bufio.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(unpacked); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == "volume.checks" {
			checks = string(content)
		} else if err := target.Put(t.Context(), header.Name, content); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := locations.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locations.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return checks
}
