#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Makes an image of programs, given as "ARCHITECTURE=FILE ...", under a name, and as an archive
# if a file is named. With PUSH=true it is pushed too. Programs and commit decide its digest, which is printed.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flags=()
for program in $1; do
  flags+=("-program=${program}")
done
if [[ -n "${3:-}" ]]; then
  flags+=(-archive="$3")
fi
if [[ "${PUSH:-}" == true ]]; then
  flags+=(-push)
fi
# A copy of the tree without its history has no commit.
revision="$(git rev-parse HEAD 2>/dev/null || true)"
created="$(git log -1 --format=%ct 2>/dev/null || echo 0)"
go run -C hack/image . "${flags[@]}" -name="$2" -revision="${revision}" -created="${created}"
