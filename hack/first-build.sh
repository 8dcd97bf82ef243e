#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Says what the first build makes and how long that takes, and begins to download
# the modules of the lab, so that they are there once holdfast is compiled.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What one CPU takes for everything, downloads aside.
minutes=15

cpus="$(nproc)"
cat <<TEXT
The first time, everything is built from Go modules: holdfast, the command lab, an S3
server, and one program that is etcd, kubectl and all of Kubernetes. Together these are some
4,500 packages and about $(((minutes + cpus - 1) / cpus)) minutes on ${cpus} idle CPUs; later it takes seconds.
TEXT
module="kubernetes-${KUBERNETES:-}.mod"
if [[ ! -f "hack/lab/${module}" ]]; then module=go.mod; fi
{ go list -C hack/lab -modfile="${module}" -deps ./cmd/kube; go list -C hack/lab -deps .; go list -C hack/lab/s3gw -deps github.com/versity/versitygw/cmd/versitygw; } >/dev/null 2>&1 &
