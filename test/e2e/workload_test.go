// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var nodes = []string{"lab-node-0", "lab-node-1"}

// workload is a pod that writes into a claim's volume and into an emptyDir.
type workload struct {
	namespace, pod string
	node           string
	megabytes      int // of data that does not compress, in each volume
}

// volumes are the folders of a workload's volumes, by their names in the pod.
var volumes = map[string]string{"content": "/content", "scratch": "/scratch"}

func (w workload) claim() string            { return w.pod + "-data" }
func (w workload) persistentVolume() string { return w.namespace + "-" + w.claim() }

// files fills a folder with what a backup may get wrong.
const files = `cd %[1]s
mkdir -p pictures/deep empty
for i in 1 2 3 4; do head -c $((%[2]d * 262144)) /dev/urandom >pictures/deep/$i.bin; done
echo "welcome to %[3]s" >index.html
ln -s index.html default
ln -s /nowhere dangling
: >nothing
truncate -s 64M sparse.img
echo end >>sparse.img
printf secret >private
chmod 600 private
chmod 4750 pictures/deep/1.bin
chown 1234:5678 pictures private
chmod 2770 pictures
touch -d '2020-02-29 12:34:56' index.html pictures/deep
`

// manifests are the objects of a workload. The PersistentVolume is a folder of
// its node.
func (w workload) manifests(folder string) string {
	var script strings.Builder
	for _, path := range volumes {
		fmt.Fprintf(&script, files, path, w.megabytes, w.namespace)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: %[2]q}
  claimRef: {namespace: %[3]s, name: %[4]s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[5]s]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[4]s, namespace: %[3]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[6]s, namespace: %[3]s}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[5]s}
  initContainers:
  - name: fill
    image: holdfast.io/lab-busybox:dev
    command: [sh, -euc, %[7]q]
    volumeMounts: &mounts
    - {name: content, mountPath: /content}
    - {name: scratch, mountPath: /scratch}
  containers:
  - name: serve
    image: holdfast.io/lab-busybox:dev
    command: [sleep, "1000000"]
    volumeMounts: *mounts
  volumes:
  - name: content
    persistentVolumeClaim: {claimName: %[4]s}
  - name: scratch
    emptyDir: {}
---
`, w.persistentVolume(), folder, w.namespace, w.claim(), w.node, w.pod, script.String())
}

// start creates the namespaces of workloads, and the workloads, and returns when
// their files are written.
func start(t *testing.T, all ...workload) {
	t.Helper()
	var objects strings.Builder
	seen := map[string]bool{}
	for _, w := range all {
		if !seen[w.namespace] {
			seen[w.namespace] = true
			fmt.Fprintf(&objects, `apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: %[1]s}
data: {greeting: hello from %[1]s}
---
`, w.namespace)
		}
		folder := lab.path("nodes", "volumes", w.persistentVolume())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		objects.WriteString(w.manifests(folder))
	}
	lab.create(t, objects.String())
	for _, w := range all {
		lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", w.namespace, "pod/"+w.pod)
	}
}

// fingerprint is all that a backup of the workload's volume has to keep: names,
// types, modes, owners, links, times and contents, and that holes take no space.
func (w workload) fingerprint(t *testing.T, volume string) string {
	t.Helper()
	return lab.exec(t, w.namespace, w.pod, fmt.Sprintf(`cd %s
find . -mindepth 1 | sort | while read -r f; do
  stat -c '%%n %%F %%a %%u:%%g %%Y' "$f"
  if [ -L "$f" ]; then readlink "$f"; elif [ -f "$f" ]; then sha256sum "$f"; fi
done
if [ $(du -k sparse.img | cut -f1) -lt 1024 ]; then echo sparse.img is sparse; else echo sparse.img is full; fi`, volumes[volume]))
}

// lose deletes all files of the workload's volume.
func (w workload) lose(t *testing.T, volume string) {
	t.Helper()
	lab.exec(t, w.namespace, w.pod, fmt.Sprintf(`cd %s; find . -mindepth 1 -maxdepth 1 -exec rm -r {} +; [ -z "$(ls -A)" ]`, volumes[volume]))
}

// live is the workload's pod as it runs.
func (w workload) live(t *testing.T) *corev1.Pod {
	t.Helper()
	pod, err := lab.kube.CoreV1().Pods(w.namespace).Get(t.Context(), w.pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}
