#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Shows the main job on a Kubernetes of its own: backups that wait for each other, what
# they store, and a lost namespace that comes back, into place and beside it. The API, the
# queue, the store and the data path are real. No kubelet, scheduler or provisioner runs
# here, so pods are API objects, and this script does what these would: it makes persistent
# volumes, starts pods, and makes the folders of their volumes.
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
# Nothing is mounted here, and an agent wants a mount of the kubelet's own plugins.
volume_path() { # NAMESPACE: the folder in which a plugin of the kubelet would make the claim's volume
  echo "${dir}/pods/$(k get pod web -n "$1" -o jsonpath='{.metadata.uid}')/volumes/example.com~folder/$1-data"
}
bound() { [[ "$(k get pvc data -n "$1" -o jsonpath='{.status.phase}')" == Bound ]]; }
provision() { # NAMESPACE NAME [UID]: a persistent volume for the namespace's claim
  k create -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata:
  name: $2
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: /unused}
  claimRef: {namespace: $1, name: data${3:+, uid: $3}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [lab-node-0]}]
YAML
}
has_account() { k get serviceaccount default -n "$1" >/dev/null 2>&1; }
for namespace in shop blog wiki; do
  k create namespace "${namespace}" >/dev/null
  k create configmap settings -n "${namespace}" --from-literal="greeting=hello from ${namespace}" >/dev/null
  k create secret generic password -n "${namespace}" --from-literal="password=${RANDOM}" >/dev/null
  k create service clusterip web -n "${namespace}" --tcp=80 >/dev/null
  k create deployment cache -n "${namespace}" --image=example.com/cache --replicas=2 >/dev/null
  eventually has_account "${namespace}"
  provision "${namespace}" "${namespace}-data"
  k apply -f - >/dev/null <<YAML
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
  printf -- '---\napiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: %s, namespace: holdfast}\nspec: {includedNamespaces: [%s]}\n' \
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

say "The files of two volumes are lost, and come back"
for namespace in blog wiki; do
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
for namespace in blog wiki; do
  checksums "$(volume_path "${namespace}")" >"${dir}/${namespace}.after"
  diff "${dir}/${namespace}.before" "${dir}/${namespace}.after" || fail "the files of ${namespace} differ"
  echo "${namespace}: $(wc -l <"${dir}/${namespace}.after") checks of content, mode and links: all as before"
done

say "A whole namespace is lost"
specs() { # NAMESPACE: its objects, without what the cluster chooses
  k get configmaps,secrets,services,deployments,persistentvolumeclaims -n "$1" -o jsonpath='{range .items[*]}{.kind} {.metadata.name} {.metadata.labels} {.data} {.spec}{"\n"}{end}' |
    grep -v kube-root-ca.crt | sed -E 's/"(clusterIP|volumeName)":"[^"]*",?//g; s/"clusterIPs":\[[^]]*\],?//g; s/,}/}/g' | sort
}
specs shop >"${dir}/shop.specs"
show delete namespace shop --timeout=60s
k delete persistentvolume shop-data >/dev/null

say "It comes back, into place and under another name"
cat >"${dir}/restores.yaml" <<YAML
apiVersion: holdfast.io/v1alpha1
kind: Restore
metadata: {name: shop, namespace: holdfast}
spec: {backupName: shop}
---
apiVersion: holdfast.io/v1alpha1
kind: Restore
metadata: {name: shop-as-it-was, namespace: holdfast}
spec: {backupName: shop, namespaceMapping: {shop: shop-as-it-was}}
YAML
cat "${dir}/restores.yaml"
show create -f "${dir}/restores.yaml"
holder() { # NAMESPACE: the name of the pod that holds the claim while its files come back
  k get pods -n "$1" -l engine.holdfast.io/restore-uid -o jsonpath='{.items[*].metadata.name}'
}
holds() { [[ -n "$(holder "$1")" ]]; }
start() { # NAMESPACE VOLUME: what a scheduler and a kubelet do with that pod
  eventually holds "$1"
  eventually bound "$1"
  local name path
  name="$(holder "$1")"
  path="${dir}/pods/$(k get pod "${name}" -n "$1" -o jsonpath='{.metadata.uid}')/volumes"
  mkdir -p "${path}/example.com~folder/$2" "${path}/kubernetes.io~empty-dir/holdfast-restore"
  echo "${path}/example.com~folder/$2" >"${dir}/$1.path"
  k create --raw "/api/v1/namespaces/$1/pods/${name}/binding" -f - >/dev/null \
    <<<'{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "'"${name}"'"}, "target": {"kind": "Node", "name": "lab-node-0"}}'
  k patch pod "${name}" -n "$1" --subresource=status --type=merge -p '{"status": {"phase": "Running", "containerStatuses": [
    {"name": "holdfast-restore-wait", "image": "holdfast", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}' >/dev/null
}
claim_uid() { k get pvc data -n "$1" -o jsonpath='{.metadata.uid}' 2>/dev/null; }
for namespace in shop shop-as-it-was; do
  eventually claim_uid "${namespace}" >/dev/null
  # A provisioner names the claim's uid, and the binding needs no resync then.
  provision "${namespace}" "${namespace}-again" "$(claim_uid "${namespace}")"
  start "${namespace}" "${namespace}-again"
done
show wait --for=condition=Complete --timeout=120s -n holdfast restore/shop restore/shop-as-it-was
show get hfr -n holdfast
[[ "$(k get restores -n holdfast --field-selector status.phase=Completed -o name | wc -l)" == 2 ]] || fail "not every restore was completed"
for namespace in shop shop-as-it-was; do
  specs "${namespace}" >"${dir}/${namespace}.specs-after"
  diff "${dir}/shop.specs" "${dir}/${namespace}.specs-after" || fail "the objects of ${namespace} differ"
  checksums "$(cat "${dir}/${namespace}.path")" >"${dir}/${namespace}.after"
  diff "${dir}/shop.before" "${dir}/${namespace}.after" || fail "the files of ${namespace} differ"
  echo "${namespace}: $(wc -l <"${dir}/${namespace}.specs-after") objects and $(wc -l <"${dir}/${namespace}.after") checks of files: all as before"
done

say "Deleting a namespace deletes no backup"
show delete namespace wiki --timeout=60s
show get hfb -n holdfast
[[ "$(k get backups -n holdfast -o name | wc -l)" == 4 ]] || fail "a backup is gone"
