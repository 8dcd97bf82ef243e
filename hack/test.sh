#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs all tests that need no root.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What is killed leaves its files behind. The folder's name is always the same, since the
# go command runs a test anew whose environment has changed.
TMPDIR="${PWD}/.lab/tmp"
export TMPDIR
trap 'rm -rf "${TMPDIR}"' EXIT
rm -rf "${TMPDIR}"
mkdir -p "${TMPDIR}"

# Random tests draw the same cases each time here, so that a change is not refused for
# what it did not do. make soak draws others, and many more.
export RAPID_SEED=1

# side_by_side runs what is given on its input, a command per line, at once, and shows
# what each has said when it has ended. It fails when one of them does.
side_by_side() {
  local logs line i failed=0 pids=()
  logs=$(mktemp -d)
  while read -r line; do
    bash -c "${line}" >"${logs}/${#pids[@]}" 2>&1 </dev/null &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    wait "${pids[i]}" || failed=1
    cat "${logs}/${i}"
  done
  rm -r "${logs}"
  return "${failed}"
}

if command -v "$(go env CC)" >/dev/null; then
  echo "test: unit, property and conformance tests, with the race detector"
  # It need not look at each byte that is hashed or compressed, which shares nothing and takes
  # most of the time: a repository's key is derived by half a million hashes.
  plain=()
  for package in 'golang.org/x/crypto/...' 'crypto/internal/fips140/...' 'github.com/kopia/kopia/internal/crypto' 'github.com/kopia/kopia/repo/splitter' 'compress/flate' 'hash/crc32' 'github.com/klauspost/compress/...' ./pkg/datapath/buzhash; do
    plain+=("-gcflags=${package}=-race=false")
  done
  # Tests that measure memory, or go through all interleavings in one goroutine, run without it.
  alone='TestPeakMemory|TestWhatOthersWriteIsBounded|TestManyChangesTakeNoMemory|TestTwoWriters|TestKilledAtEachStep|TestRotate'
  CGO_ENABLED=1 go test -race "${plain[@]}" -timeout 20m -skip "^(${alone})$" ./cmd/... ./pkg/... ./test/architecture/...
  echo "test: the maintenance of repositories, memory, large backups, and interleavings, without it"
  mapfile -t packages < <(grep -rlE "^func (${alone})\(" --include='*_test.go' cmd pkg | xargs -n1 dirname | sort -u | sed 's|^|./|')
  go test -run "Maintenance|TestLarge|^(${alone})$" ./pkg/repository ./pkg/datapath ./pkg/restore/source "${packages[@]}"
else
  echo "test: unit, property and conformance tests, without the race detector: it needs a C compiler, and there is none"
  go test ./cmd/... ./pkg/... ./test/architecture/...
fi
echo "test: what was stored, listed, verified and restored by Kopia's own command, which is built for it"
go build -C hack/bench/kopia -o "${PWD}/.lab/bin/kopia" github.com/kopia/kopia
HOLDFAST_KOPIA="${PWD}/.lab/bin/kopia" go test -run 'TestKopiaCommand|TestUploadStoresAnewWhatIsMissing' ./pkg/datapath
echo "test: the queue against its rules, in thousands of random histories"
go test -run 'Against|Forgets' ./pkg/queue -rapid.checks=2000
echo "test: restores of random objects, while the cluster fails"
go test -run RandomGraph ./pkg/restore -rapid.checks=200
# The go command caches results, and does not see changes of files outside the module.
echo "test: the chart, the image, a release, stores on emulators of clouds but for Azure's (make stores), the lab, and the alerts in Prometheus's engine;"
echo "test: beside them what the most used charts create, restored in place and elsewhere"
side_by_side <<'END'
(cd hack/chart && go test -count=1 ./...) && (cd hack/image && go test ./...) && (cd hack/release && go test -count=1 ./...) && (cd hack/stores && go test -skip Azurite ./...) && (cd hack/lab && go test $(go list ./... | grep -v /cmd/kube)) && (cd hack/alerts && go test -count=1 ./...)
go test -count=1 -timeout 20m ./test/realworld
END
# Tests that end processes come one after the other; they wait for most of the time.
echo "test: integration, on three Kubernetes of its own, and a short campaign on two others, all at once"
kills='Kill|Unfinished'
waits='NodeAgents|BadNetwork|ThatNeverAnswers|Replicas|Rights|NothingForeign|RandomGraphs'
side_by_side <<END
go test -count=1 -timeout 20m -run '${kills}' ./test/integration
go test -count=1 -timeout 20m -run '${waits}' -skip '${kills}' ./test/integration
go test -count=1 -timeout 45m -parallel 4 -skip '${kills}|${waits}' ./test/integration/...
go test -count=1 -timeout 20m ./test/soak/...
END
