#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs the random campaigns for long, and says what happened in them.
# Usage: hack/soak.sh DURATION KILLS
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

duration="$1" kills="$2"

echo "soak: 10,000 backups on bad days, in memory, 10 times"
go test -count=10 ./pkg/controllers/simulation
echo "soak: two clusters and one store, for ${duration} and ${kills} kills of each role at least, and some minutes to judge"
go test -count=1 -v -timeout 0 ./test/soak -soak.duration="${duration}" -soak.kills="${kills}"
