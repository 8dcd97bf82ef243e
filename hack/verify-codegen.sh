#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Fails when generated code or manifests are not what hack/update-codegen.sh
# writes: generates in a copy of the tree, and compares.
set -o errexit -o nounset -o pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT

cd "${root}"
git ls-files --cached --others --exclude-standard -z | while IFS= read -r -d '' file; do
  if [[ -f "${file}" ]]; then printf '%s\0' "${file}"; fi
done | xargs -0 cp --parents -t "${copy}"
(cd "${copy}" && git init --quiet && hack/update-codegen.sh >/dev/null)

for generated in pkg/apis pkg/generated artifacts/crds artifacts/monitoring charts/holdfast docs/cli-reference.md hack/openapi-violations.list; do
  if ! diff --recursive --brief --new-file "${generated}" "${copy}/${generated}"; then
    echo "verify: ${generated} is stale: run make generate, and commit the result"
    exit 1
  fi
done
echo "verify: generated code is up to date"
