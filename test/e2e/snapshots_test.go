// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// cold is a StatefulSet whose hooks note in its volume what they do, and a block device.
const cold = `apiVersion: v1
kind: Namespace
metadata: {name: cold}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk, namespace: cold}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: folder, resources: {requests: {storage: 32Mi}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: cold}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata:
      labels: {app: db}
      annotations:
        pre.hook.backup.velero.io/command: '["sh", "-c", "echo frozen >/data/state"]'
        post.hook.backup.velero.io/command: '["sh", "-c", "echo thawed >/data/state"]'
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: holdfast.io/lab-busybox:dev
        command: [sleep, "1000000"]
        volumeMounts: [{name: data, mountPath: /data}]
        volumeDevices: [{name: disk, devicePath: /disk}]
      volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: folder, resources: {requests: {storage: 1Gi}}}
`

// lookCold prints all that a backup has to bring back: the files with their owners, modes and links, their
// contents, and the bytes of the device.
const lookCold = `cd /data; find . -type f -o -type l | sort | xargs ls -ln | awk '{print $1, $3, $4, $5, $9, $10, $11}'; cat state sums; sha256sum -c sums; sha256sum /disk`

// TestSnapshots turns snapshots on, and restores what they had into other namespaces: the files as they were while
// the pod was frozen, a block device, and the same of a StatefulSet that is scaled to zero.
func TestSnapshots(t *testing.T) {
	step("Kubernetes's snapshot-controller and sidecars, a driver that makes snapshots, and Holdfast with --snapshots")
	up := exec.CommandContext(t.Context(), filepath.Join(lab.bin, "lab"), "csi", "up", "--dir", lab.dir, "--source", filepath.Join("..", "..", "hack", "lab"), "--snapshots", "--qps", "50")
	if out, err := up.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	commands, err := page("snapshots.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(helm(t, commands["Turning it on"]), lab.rolledOut(t.Context())); err != nil {
		t.Fatal(err)
	}
	lab.must(t, "label", "volumesnapshotclass/folder", "velero.io/csi-volumesnapshot-class=true")
	lab.create(t, cold)
	readyPod(t, "cold", "db")
	lab.exec(t, "cold", "db-0", `cd /data; mkdir -m 750 deep; head -c 3000000 /dev/urandom >deep/file; chown 12:34 deep/file; chmod 604 deep/file
ln -s deep/file link; sha256sum deep/file >sums; head -c 2000000 /dev/urandom | dd of=/disk bs=1M conv=notrunc 2>/dev/null; sync`)

	backUp := func(name string) {
		lab.create(t, fmt.Sprintf(`apiVersion: holdfast.io/v1alpha1
kind: Backup
metadata: {name: %s, namespace: holdfast}
spec: {includedNamespaces: [cold], snapshotVolumes: true}
`, name))
		done := awaitEnd(t, v1alpha1.BackupPhaseCompleted, name)[name]
		if volumes := done.Status.Volumes; volumes == nil || volumes.Completed != 2 || done.Status.Warnings > 0 {
			t.Errorf("the backup %s has %+v", name, done.Status)
		}
	}
	step("A backup of a frozen pod's snapshots")
	backUp("cold-frozen")
	lab.mustShow(t, "get", "volumebackups", "-n", "cold")
	want := lab.exec(t, "cold", "db-0", lookCold)
	if !strings.Contains(want, "thawed") || !strings.Contains(want, "deep/file: OK") {
		t.Fatalf("the pod has\n%s", want)
	}
	step("A backup of a StatefulSet that is scaled to zero")
	lab.must(t, "scale", "-n", "cold", "statefulset/db", "--replicas=0")
	lab.must(t, "wait", "-n", "cold", "--for=delete", "pod/db-0", "--timeout=60s")
	backUp("cold-idle")
	eventually(t, "all that was made for the backups is deleted", func(ctx context.Context) error {
		left, err := lab.kubectl(ctx, "", "get", "pods,persistentvolumeclaims,volumesnapshots,volumesnapshotcontents", "-A", "-l", "engine.holdfast.io/moves-for-cluster", "-o", "name")
		if err == nil && left != "" {
			err = errors.New("left are " + left)
		}
		return err
	})
	lab.must(t, "delete", "namespace", "cold", "--timeout=60s")

	for _, test := range []struct{ backup, into, state string }{{"cold-frozen", "cold-first", "frozen"}, {"cold-idle", "cold-second", "thawed"}} {
		step("The restore of " + test.backup)
		restoreBackup(t, test.into, test.backup, "namespaceMapping: {cold: "+test.into+"}")
		lab.must(t, "scale", "-n", test.into, "statefulset/db", "--replicas=1")
		pod := readyPod(t, test.into, "db")
		if got, want := lab.exec(t, test.into, pod, lookCold), strings.Replace(want, "thawed", test.state, 1); got != want {
			t.Errorf("restored is\n%s\nwant\n%s", got, want)
		}
	}
	list, err := lab.holdfast.HoldfastV1alpha1().VolumeBackups("cold").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if got := list.Items[i].Status.Method; got != "csi-snapshot-moved" {
			t.Errorf("the method of %s is %q", list.Items[i].Name, got)
		}
	}
}
