#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Checks formatting, go vet and staticcheck in every module.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unformatted="$(git ls-files --cached --others --exclude-standard '*.go' | grep -v /zz_generated | xargs gofmt -l)"
if [[ -n "${unformatted}" ]]; then
  printf 'lint: run gofmt -w on\n%s\n' "${unformatted}"
  exit 1
fi

tools="$(mktemp -d)"
trap 'rm -rf "${tools}"' EXIT
go build -C hack/tools -o "${tools}/staticcheck" honnef.co/go/tools/cmd/staticcheck

echo "lint: go vet and staticcheck"
go vet ./...
# Generated clients are their generator's business.
go list ./... | grep -v /pkg/generated/ | xargs "${tools}/staticcheck"
for module in alerts chart clidocs image lab/snapshots release stores; do
  (cd "hack/${module}" && go vet ./... && "${tools}/staticcheck" ./...)
done
(cd hack/lab && packages="$(go list ./... | grep -v /cmd/kube)" && go vet ${packages} && "${tools}/staticcheck" ${packages})
