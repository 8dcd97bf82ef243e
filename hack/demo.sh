#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Shows the main job on a Kubernetes of its own: backups that wait for each
# other, what they store, and the bytes coming back. The API, the queue, the
# store and the data path are real. No kubelet runs here, so pods are API objects,
# and this script fills their volumes' folders.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin="$PWD/.lab/bin"
dir="$PWD/.lab/demo"
lab() { "${bin}/lab" "$@" --dir "${dir}"; }
k() { "${bin}/kubectl" --kubeconfig "${dir}/kubeconfig" "$@"; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ kubectl %s\n' "$*"; k "$@"; }
fail() { echo "demo: $*" >&2; exit 1; }

finish() {
  status=$?
  trap - EXIT
  if [[ ${status} -ne 0 ]]; then
    echo "demo: failed; the logs are in ${dir}/logs" >&2
  fi
  lab down >/dev/null || true
  if [[ ${status} -eq 0 ]]; then
    rm -rf "${dir}"
    echo "demo: ok"
  fi
  exit "${status}"
}
trap finish EXIT
trap 'exit 130' INT TERM

# eventually COMMAND...: until it succeeds, for a minute at most.
eventually() {
  local deadline=$((SECONDS + 60))
  until "$@"; do
    [[ ${SECONDS} -lt ${deadline} ]] || fail "gave up waiting for: $*"
    sleep 0.1
  done
}

say "A Kubernetes, with Holdfast in it"
lab down >/dev/null
lab up --bin "${bin}"
lab holdfast up --holdfast "${bin}/holdfast" --artifacts artifacts --controller-flags "--concurrent-backups=2"

say "Three namespaces, each with objects and a pod whose volume holds files"
volume_path() { # NAMESPACE: the folder in which the kubelet would mount the claim's volume
  echo "${dir}/pods/$(k get pod web -n "$1" -o jsonpath='{.metadata.uid}')/volumes/kubernetes.io~local-volume/$1-data"
}
bound() { [[ "$(k get pvc data -n "$1" -o jsonpath='{.status.phase}')" == Bound ]]; }
has_account() { k get serviceaccount default -n "$1" >/dev/null 2>&1; }
for namespace in shop blog wiki; do
  k create namespace "${namespace}" >/dev/null
  k create configmap settings -n "${namespace}" --from-literal="greeting=hello from ${namespace}" >/dev/null
  eventually has_account "${namespace}"
  k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata:
  name: ${namespace}-data
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: /unused}
  claimRef: {namespace: ${namespace}, name: data}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [lab-node-0]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  namespace: ${namespace}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: ${namespace}-data
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: ${namespace}
spec:
  nodeName: lab-node-0
  terminationGracePeriodSeconds: 0 # no kubelet is here to confirm a slower end
  containers:
  - name: web
    image: example.com/web
    volumeMounts: [{name: content, mountPath: /content}]
  volumes:
  - name: content
    persistentVolumeClaim: {claimName: data}
YAML
  eventually bound "${namespace}"
  k patch pod web -n "${namespace}" --subresource=status --type=merge -p '{"status":{"phase":"Running"}}' >/dev/null
  path="$(volume_path "${namespace}")"
  mkdir -p "${path}/pictures" "${path}/empty"
  for i in 1 2 3 4; do
    head -c 64M /dev/urandom >"${path}/pictures/${i}.bin"
  done
  echo "welcome to ${namespace}" >"${path}/index.html"
  ln -s index.html "${path}/default"
  chmod 640 "${path}/index.html"
  : >"${path}/nothing"
  truncate --size 50M "${path}/sparse.img"
done
checksums() { # FOLDER: content, mode, type and link target of all that is in it
  (cd "$1" && find . -mindepth 1 -printf '%P %y %m %l\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
for namespace in shop blog wiki; do checksums "$(volume_path "${namespace}")" >"${dir}/${namespace}.before"; done
show get pods,pvc -A

say "Four backups at once, of which two may run: what waits, and for what?"
backup() { # NAME NAMESPACE...
  printf -- '---\napiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: %s, namespace: holdfast}\nspec: {includedNamespaces: [%s], defaultVolumesToFsBackup: true}\n' \
    "$1" "$(IFS=,; echo "${*:2}")"
}
{ backup shop shop; backup shop-and-blog shop blog; backup wiki wiki; backup blog blog; } >"${dir}/backups.yaml"
cat "${dir}/backups.yaml"
show create -f "${dir}/backups.yaml"
waits() { k get backupqueue -n holdfast -o wide >"${dir}/queue.txt" 2>/dev/null && grep -q NamespaceOverlap "${dir}/queue.txt"; }
eventually waits
printf '$ kubectl get backupqueue -n holdfast -o wide\n'
cat "${dir}/queue.txt"

say "All of them end"
show wait --for=condition=Complete --timeout=120s -n holdfast backup/shop backup/shop-and-blog backup/wiki backup/blog
show get hfb -n holdfast
[[ "$(k get backups -n holdfast --field-selector status.phase=Completed -o name | wc -l)" == 4 ]] || fail "not every backup was completed"

say "What is stored: the volumes, and their history"
known() { [[ "$(k get volumebackups -A -o name | wc -l)" == 5 ]]; }
eventually known
show get backupvolumes -A
show get volumebackups -A

say "The files are lost, and come back"
for namespace in shop blog wiki; do
  path="$(volume_path "${namespace}")"
  find "${path}" -mindepth 1 -delete
  uid="$(k get backup "${namespace}" -n holdfast -o jsonpath='{.metadata.uid}')"
  snapshot="$(k get volumebackups -n "${namespace}" --field-selector "spec.backupUID=${uid},spec.volumeName=data" -o jsonpath='{.items[0].status.snapshotID}')"
  k create -f - <<YAML
apiVersion: engine.holdfast.io/v1alpha1
kind: VolumeRestore
metadata:
  name: ${namespace}
  namespace: holdfast
  labels: {engine.holdfast.io/node: lab-node-0}
spec:
  node: lab-node-0
  pod: {namespace: ${namespace}, name: web, uid: $(k get pod web -n "${namespace}" -o jsonpath='{.metadata.uid}')}
  volume: content
  persistentVolume: ${namespace}-data
  backupStorageLocation: default
  repository: ${namespace}.default
  snapshotID: ${snapshot}
YAML
done
show wait --for=jsonpath='{.status.phase}'=Completed --timeout=120s -n holdfast volumerestore --all
for namespace in shop blog wiki; do
  checksums "$(volume_path "${namespace}")" >"${dir}/${namespace}.after"
  diff "${dir}/${namespace}.before" "${dir}/${namespace}.after" || fail "the files of ${namespace} differ"
  echo "${namespace}: $(wc -l <"${dir}/${namespace}.after") checks of content, mode and links: all as before"
done

say "Deleting a namespace deletes no backup"
show delete namespace wiki --timeout=60s
show get hfb -n holdfast
[[ "$(k get backups -n holdfast -o name | wc -l)" == 4 ]] || fail "a backup is gone"
