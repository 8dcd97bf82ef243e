#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs the end-to-end tests in a lab with two real nodes and an S3 server, with
# our image, which the nodes pull, and our chart, or with INSTALL=kustomize our
# manifests. The lab is gone afterwards; the logs stay when a test has failed.
# Arguments go to the tests, as in -test.run=TestMainJob. With
# AGGREGATOR_ROUTING=false, kube-apiserver reaches our API server by its ClusterIP.
# SNAPSHOTS=true builds Kubernetes's CSI sidecars, for TestSnapshots.
# With LAST_RELEASE=COMMIT, this commit is installed instead, for TestUpgrade.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin="$PWD/.lab/bin"
dir="$PWD/.lab/e2e"
lab() { "${bin}/lab" "$@" --dir "${dir}"; }

if [[ "$(id -u)" -ne 0 ]]; then
  echo "e2e: real nodes need root: network namespaces, mounts and cgroups. Run it as root, or run make demo, which needs none." >&2
  exit 1
fi

tests=""
finish() {
  status=$?
  trap - EXIT INT TERM
  if [[ -n "${tests}" ]] && kill "${tests}" 2>/dev/null; then
    wait "${tests}" || true
  fi
  if ! lab down; then
    echo "e2e: the lab is not quite gone: run ${bin}/lab down --dir ${dir}" >&2
    exit 1
  fi
  if [[ ${status} -ne 0 ]]; then
    echo "e2e: failed; the logs of the lab and of Holdfast's pods are in ${dir}/logs" >&2
    exit "${status}"
  fi
  rm -rf "${dir}"
  echo "e2e: ok"
}
trap finish EXIT
trap 'exit 130' INT TERM

previous=""
if [[ -n "${LAST_RELEASE:-}" ]]; then
  commit="$(git rev-parse --quiet --verify "${LAST_RELEASE}^{commit}")" || {
    echo "e2e: the last release, ${LAST_RELEASE}, is not in this clone: fetch it, or name another commit by LAST_RELEASE" >&2
    exit 1
  }
  previous="$PWD/.lab/previous/${commit}"
  if [[ ! -x "${previous}/holdfast" ]]; then
    echo "e2e: building the last release, ${LAST_RELEASE}; it is kept in ${previous}"
    rm -rf "${previous}"
    mkdir -p "${previous}/tree"
    git archive "${commit}" | tar -x -C "${previous}/tree"
    go build -C "${previous}/tree" -buildvcs=false -ldflags '-s -w' -o "${previous}/holdfast" ./cmd/holdfast
  fi
fi

echo "e2e: a Kubernetes with two nodes, an S3 server, and our image"
lab down >/dev/null
# What tests left there that were killed.
rm -rf "${dir}"
lab up --bin "${bin}" --nodes 2 --aggregator-routing="${AGGREGATOR_ROUTING:-true}"
lab s3 up
if [[ -n "${SNAPSHOTS:-}" ]]; then "${bin}/lab" build --snapshots --bin "${bin}"; fi
lab csi up
PUSH=true hack/image.sh "$(go env GOARCH)=${bin}/holdfast" "$(lab registry)/holdfast-io/holdfast:dev"
if [[ -n "${previous}" ]]; then
  PUSH=true hack/image.sh "$(go env GOARCH)=${previous}/holdfast" "$(lab registry)/holdfast-io/holdfast:previous"
fi

echo "e2e: building the tests, and Helm"
make --no-print-directory helm
go test -c -o "${bin}/e2e.test" ./test/e2e
# In the background, since bash hears of signals only when nothing is before it.
(cd test/e2e && HOLDFAST_LAB="${dir}" HOLDFAST_PREVIOUS="${previous:+${previous}/tree}" exec "${bin}/e2e.test" -test.timeout=40m -test.v "$@") &
tests=$!
wait "${tests}"
tests=""
