#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs all tests that need no root.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "test: unit, property and conformance tests, with the race detector"
CGO_ENABLED=1 go test -race ./cmd/... ./pkg/... ./test/architecture/...
echo "test: the lab"
(cd hack/lab && go test $(go list ./... | grep -v /cmd/kube))
echo "test: integration, on a Kubernetes of its own"
go test -count=1 -timeout 20m ./test/integration/...
