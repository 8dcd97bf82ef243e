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
echo "soak: all random tests, with 1,000 cases each"
random=$(grep -rl --include='*_test.go' pgregory.net/rapid pkg | xargs -n1 dirname | sort -u | sed 's|^|./|')
# shellcheck disable=SC2086
go test -count=1 -timeout 0 ${random} -rapid.checks=1000
echo "soak: two clusters and one location, by turns, 200 stories of each kind of store; agents killed and graphs restored, 5 times"
go test -count=1 -timeout 0 -run TestTwoClustersOneLocation ./pkg/backup/folder -fence.count=200
go test -count=5 -timeout 0 -run '^(TestRestoreOfRandomGraphs|TestAgentKilledAgainAndAgain)$' ./test/integration
echo "soak: a network that stays bad, until the agent gives up; some half an hour"
go test -count=1 -timeout 0 -run '^TestBadNetwork$' ./test/integration -integration.bad-network-stays
echo "soak: random histories of a repository and its maintenance, verified by Kopia's command, 5 times"
go build -C hack/bench/kopia -o "${PWD}/.lab/bin/kopia" github.com/kopia/kopia
HOLDFAST_KOPIA="${PWD}/.lab/bin/kopia" go test -count=5 -v -timeout 0 -run TestMaintenanceHistories ./pkg/repository
echo "soak: a catalogue of a million volume backups in a store 750 ms away, as kubectl shows it"
go test -count=1 -v -timeout 1h -run '^TestCatalogueFarAway$' ./test/integration -catalogue.full
echo "soak: 300 repositories, three of them broken, each maintained twice within its period"
go test -count=1 -v -timeout 0 -run TestManyRepositories ./test/integration -repositories=300 -repositories.period=5m -repositories.rounds=2
echo "soak: snapshots of volumes in each way, for ${duration}: all processes and sidecars are killed, and the storage fails"
.lab/bin/lab build --snapshots --bin .lab/bin
mkdir -p .lab/tmp
TMPDIR="${PWD}/.lab/tmp" go test -count=1 -v -timeout 0 -run '^TestCampaign$' ./test/snapshots/backups -campaign.duration="${duration}"
echo "soak: two clusters and one store, for ${duration} and ${kills} kills of each role at least, and some minutes to judge"
go test -count=1 -v -timeout 0 ./test/soak -soak.duration="${duration}" -soak.kills="${kills}"
