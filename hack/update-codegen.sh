#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Writes all generated code and manifests: deep copies, clients,
# listers, informers, OpenAPI (k8s.io/code-generator) and the CRDs
# (controller-gen). The tools are built from the versions pinned in go.mod and
# hack/tools/go.mod.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
cd "${root}"
module="$(go list -m)"
boilerplate="${root}/hack/boilerplate.go.txt"

GOBIN="$(mktemp -d)"
export GOBIN
export TMPDIR="${GOBIN}" # the generators leave files behind
trap 'rm -rf "${GOBIN}"' EXIT

(cd hack/tools && go mod download k8s.io/code-generator)
codegen="$(cd hack/tools && go list -m -f '{{.Dir}}' k8s.io/code-generator)"
# shellcheck disable=SC1091
source "${codegen}/kube_codegen.sh"

kube::codegen::gen_helpers --boilerplate "${boilerplate}" pkg/apis

for group in engine holdfast; do
  kube::codegen::gen_client --boilerplate "${boilerplate}" --with-watch \
    --one-input-api "${group}" \
    --output-dir "pkg/generated/${group}" --output-pkg "${module}/pkg/generated/${group}" \
    pkg/apis
done

kube::codegen::gen_openapi --boilerplate "${boilerplate}" \
  --output-dir pkg/generated/openapi --output-pkg "${module}/pkg/generated/openapi" \
  --output-model-name-file zz_generated.model_name.go \
  --report-filename hack/openapi-violations.list --update-report \
  pkg/apis

echo "Generating CRDs"
(cd hack/tools && go build -o "${GOBIN}/controller-gen" sigs.k8s.io/controller-tools/cmd/controller-gen)
rm -f artifacts/crds/*.yaml
"${GOBIN}/controller-gen" crd paths=./pkg/apis/engine/... output:crd:dir=artifacts/crds

echo "Generating the chart's templates and README"
go run -C hack/chart .

echo "Generating the reference of kubectl holdfast"
go run -C hack/clidocs . -page "${root}/docs/cli-reference.md"
