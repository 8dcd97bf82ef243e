#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs all tests that need no root.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if command -v "$(go env CC)" >/dev/null; then
  echo "test: unit, property and conformance tests, with the race detector"
  CGO_ENABLED=1 go test -race -timeout 20m ./cmd/... ./pkg/... ./test/architecture/...
  echo "test: the maintenance of repositories, without it"
  go test -run Maintenance ./pkg/repository
else
  echo "test: unit, property and conformance tests, without the race detector: it needs a C compiler, and there is none"
  go test ./cmd/... ./pkg/... ./test/architecture/...
fi
echo "test: the queue against its rules, in thousands of random histories"
go test -run 'Against|Forgets' ./pkg/queue -rapid.checks=2000
echo "test: the lab"
(cd hack/lab && go test $(go list ./... | grep -v /cmd/kube))
# The go command caches results, and does not see changes of files outside the module.
echo "test: the alerts, in Prometheus's engine"
(cd hack/alerts && go test -count=1 ./...)
echo "test: integration, on a Kubernetes of its own, and a short campaign on two others"
go test -count=1 -timeout 20m ./test/integration/... ./test/soak/...
