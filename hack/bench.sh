#!/usr/bin/env bash
# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Measures Holdfast on a Kubernetes of its own, and prints counts, and ratios
# against Velero, Kopia or a limit: docs/performance.md says what they mean.
# Usage: hack/bench.sh [plan|queue|objects|restore|served|catalogue|custom|maintenance|volume|files|far|list|claims|plugin|stores|snapshots]...   without arguments all of them
# HOLDFAST_BENCH_SMALL=1 makes the part plugin a hundred times as small, to try it out.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin="$PWD/.lab/bin"
holdfast="${HOLDFAST:-${bin}/holdfast}"
results="$PWD/.lab/bench"
dir="${results}/lab"
scratch=""
lab() { "${bin}/lab" "$@" --dir "${dir}"; }
say() { printf '\n== %s\n' "$*"; }

finish() {
  status=$?
  trap - EXIT
  lab down >/dev/null || true
  if [[ -n "${scratch}" ]]; then
    rm -rf "${scratch}"
  fi
  if [[ ${status} -ne 0 ]]; then
    echo "bench: failed; the logs are in ${dir}/logs" >&2
  fi
  exit "${status}"
}
trap finish EXIT
trap 'exit 130' INT TERM

# holdfast_up CONTROLLER_FLAGS [AGENT_FLAGS]: a fresh Holdfast. Runs are removed at
# once, so that the removal is in what is counted.
holdfast_up() {
  lab holdfast up --holdfast "${holdfast}" --artifacts artifacts \
    --controller-flags "--run-retention=0s $1" --agent-flags "${2:-}" >/dev/null
}

fresh_lab() {
  lab down >/dev/null
  lab up --bin "${bin}" >/dev/null
}

measure() { "${bin}/bench" --dir "${dir}" --results "${results}/rows" "$@"; }

# How often each benchmark is repeated is fixed, so that a busy machine takes no
# longer than it must.
plan() {
  say "Decisions on a queue, in memory"
  bench() { go test "$1" -run '^$' -benchmem -benchtime "$2" -bench "$3"; }
  {
    bench ./pkg/queue 20x '^BenchmarkReplan$/^names$/^(2000|10000)$'
    bench ./pkg/queue 3x '^Benchmark(Memory|Oracle)$/^names$/^(2000|10000)$'
    bench ./pkg/queue/records 3x '^Benchmark(Replan|Memory)OfRecords$/^10000$'
    bench ./pkg/queue 100x '^BenchmarkPass$/^names(,_nearly_all_distinct)?$/^10000$'
    bench ./pkg/queue 1000x '^BenchmarkNextAfterCompletion$/^names(,_nearly_all_distinct)?$/^(2000|10000)$'
    echo "once: the rules alone, on 10,000 of which hardly any overlap; half a minute" >&2
    bench ./pkg/queue 1x '^BenchmarkOracle$/^names,_nearly_all_distinct$/^10000$/^decision$'
  } | measure plan
}

queue() {
  local queued
  holdfast_up "--concurrent-backups=4"
  for queued in 10 200 1000 2000; do
    say "A queue of ${queued} tiny backups"
    measure queue --queued "${queued}"
  done
}

# What it leaves waits for ever, so it goes with its lab.
list() {
  say "A queue of 10,000 tiny backups, listed and watched"
  fresh_lab
  holdfast_up "--concurrent-backups=4"
  measure list --kubectl "${bin}/kubectl"
  fresh_lab
}

objects() {
  say "One namespace of 20,000 ConfigMaps"
  holdfast_up ""
  measure objects
  go test ./pkg/backup -run '^$' -benchtime 1x -bench '^Benchmark(Tarball|ManyKinds|ManyPods)$' 2>/dev/null | measure engine # it logs
}

# Restores keep their records, unlike backups here.
restore() {
  say "10,000 ConfigMaps and Secrets, restored into an empty namespace, and again"
  fresh_lab
  holdfast_up ""
  measure restore
  fresh_lab
  go test ./pkg/restore/source -run '^$' -benchtime 1x -bench '^BenchmarkLarge$' | measure large-restore
}

# In a lab of its own, with real nodes.
claims() {
  say "100 claims of 10 MB with their Deployments, on two nodes: backed up, lost and restored"
  if [[ "$(id -u)" -ne 0 ]]; then
    echo "bench: left out, since real nodes need root" >&2
    return 0
  fi
  lab down >/dev/null
  hack/e2e.sh '-test.run=^$' '-test.bench=^BenchmarkClaims$' -test.benchtime=1x | tee "${results}/claims" | measure claims ||
    echo "bench: left out: the nodes need Debian's packages, as make e2e" >&2
  fresh_lab
}

served() {
  say "A manifest of a million items, and one object of a store 20 ms away"
  {
    go test ./pkg/manifest -run '^$' -benchtime 1x -bench '^BenchmarkMillion$'
    go test ./pkg/stored -run '^$' -benchtime 50x -bench '^BenchmarkObject$' 2>/dev/null # the fake S3 server complains
  } | measure served
}

catalogue() {
  say "A million volume backups, and stores 750 ms away; six minutes, most of which is waiting"
  local bench="${results}/catalogue" running
  mkdir -p "${bench}"
  # Each kind has a process of its own, and Longhorn's goes on beside the others: it hardly
  # takes a CPU. They log.
  go test -c -o "${bench}/refresh.test" ./pkg/catalog/refresh
  go test -c -o "${bench}/rows.test" ./pkg/registry/volumebackup
  "${bench}/rows.test" -test.run '^$' -test.benchtime 10x -test.bench '^BenchmarkMillion$' >"${bench}/rows" 2>/dev/null
  "${bench}/refresh.test" -test.run '^$' -test.benchtime 1x -test.bench '^BenchmarkWarmRestart$' >"${bench}/warm" 2>/dev/null
  "${bench}/refresh.test" -test.run '^$' -test.benchtime 1x -test.bench '^BenchmarkColdStart$' >"${bench}/cold" 2>/dev/null
  "${bench}/refresh.test" -test.run '^$' -test.benchtime 1x -test.bench '^BenchmarkLonghorn$' >"${bench}/longhorn" 2>/dev/null &
  running=$!
  "${bench}/refresh.test" -test.run '^$' -test.benchtime 1x -test.bench '^BenchmarkFirstLoad$' >"${bench}/first" 2>/dev/null || { kill "${running}"; return 1; }
  wait "${running}"
  cat "${bench}"/{rows,warm,cold,first,longhorn} | measure catalogue
}

# What it leaves goes with its lab, and is in nobody else's etcd.
custom() {
  say "100,000 volume backups as custom resources, and a million as rows; some four minutes"
  fresh_lab
  go test ./pkg/registry/volumebackup -run '^$' -benchtime 10x -bench '^BenchmarkMillion$/^(resident|page)$' 2>/dev/null | measure custom
  fresh_lab
}

maintenance() {
  say "A repository of many contents, maintained by us and by Kopia's command"
  go test ./pkg/repository -run '^$' -benchtime 1x -bench '^Benchmark(Maintenance|Reclaimed)$' | measure maintenance
}

# In memory where there is enough of it: what a disk takes to write a small file
# varies more than what is compared.
volume() {
  say "One volume, through the agent and by Kopia's command"
  local free=0
  if [[ -d /dev/shm ]]; then
    free="$(df --output=avail -k /dev/shm | tail -n 1)"
  fi
  if [[ ${free} -gt 4000000 && "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -gt 8000000 ]]; then
    scratch="$(mktemp -d /dev/shm/holdfast-bench-XXXXXX)"
    echo "files and repositories are in memory"
  else
    scratch="$(mktemp -d "${results}/scratch-XXXXXX")"
    echo "files and repositories are on a disk, for want of memory: expect times to vary"
  fi
  mkdir "${scratch}/pods"
  holdfast_up "" "--host-pods-dir=${scratch}/pods --cache-dir=${scratch}/cache"
  measure volume --scratch "${scratch}" --pods "${scratch}/pods" --kopia "${bin}/kopia"
}

# By the fastest of three, and of two of the many tiny files, which take a minute each.
files() {
  say "Files in memory, by us and by Kopia's command"
  {
    go test ./pkg/datapath -run '^$' -benchtime 3x -bench '^BenchmarkFiles$/^(images|big|small)=|^BenchmarkFreedSlot$'
    go test ./pkg/datapath -run '^$' -benchtime 2x -bench '^BenchmarkFiles$/^tiny='
    go test ./pkg/datapath -run '^$' -benchtime 1x -bench '^BenchmarkPeakMemory(OfManyFiles)?$'
  } | measure files
}

far() {
  say "A store far away, emulated: 20 ms for each request, 80 MB/s for each connection"
  go test ./pkg/datapath -run '^$' -benchtime 1x -bench '^Benchmark(FarStore|Volumes)$' | measure far
}

# What it leaves goes with its lab.
plugin() {
  say "kubectl holdfast, and the API behind it: find, plans, protections, status, files"
  local short=() small=()
  if [[ -n "${HOLDFAST_BENCH_SMALL:-}" ]]; then
    short=(-short) small=(--objects=200 --backups=100)
    echo "it is made small, so the rows below name sizes that it does not have" >&2
  fi
  fresh_lab
  holdfast_up ""
  {
    go test ./pkg/registry/backup "${short[@]}" -run '^$' -benchtime 2x -bench '^BenchmarkFind$'
    go test ./pkg/registry/protection "${short[@]}" -run '^$' -benchtime 20x -bench '^BenchmarkPage$'
    go test ./pkg/volumefiles/reader "${short[@]}" -run '^$' -benchtime 1x -bench '^BenchmarkFiles$' 2>/dev/null # the fake S3 server complains
  } | measure plugin --plugin "${bin}/kubectl-holdfast" "${small[@]}"
  fresh_lab
}

# Azurite is measured if make stores has installed it.
stores() {
  say "1 GiB through an emulator of each provider, and a location to which nobody writes; twelve minutes"
  {
    (cd hack/stores && go test -run '^$' -benchtime 1x -bench '^BenchmarkProviders$' .) 2>/dev/null # the fake S3 server complains
    go test ./test/integration -timeout 30m -run '^$' -benchtime 1x -bench '^BenchmarkIdleLocation$' 2>/dev/null
  } | measure stores
}

# In a lab of its own, whose sidecars are built the first time.
snapshots() {
  say "Claims that are backed up from snapshots at once, with slow and with fast sidecars"
  "${bin}/lab" build --snapshots --bin "${bin}"
  {
    go test ./test/snapshots/backups -timeout 90m -run '^$' -benchtime 1x -bench '^Benchmark(Snapshots|Kept|Frozen)$'
    go test ./pkg/backup -run '^$' -benchtime 1x -bench '^BenchmarkMoving$'
  } | measure snapshots
}

kopia_version() { go list -C "$1" -m -f '{{.Version}}' github.com/kopia/kopia; }
if [[ "$(kopia_version .)" != "$(kopia_version hack/bench/kopia)" ]]; then
  echo "bench: Holdfast and hack/bench/kopia use different versions of Kopia; make them the same" >&2
  exit 1
fi
go build -trimpath -o "${bin}/bench" ./test/bench
go build -C hack/bench/kopia -o "${bin}/kopia" github.com/kopia/kopia
export HOLDFAST_KOPIA="${bin}/kopia"

mkdir -p "${results}"
: >"${results}/rows"
fresh_lab
for benchmark in "${@:-plan queue objects restore served catalogue custom maintenance volume files far list claims plugin stores snapshots}"; do
  for one in ${benchmark}; do
    case "${one}" in
    plan | queue | objects | restore | claims | served | catalogue | custom | maintenance | volume | files | far | list | plugin | stores | snapshots) "${one}" ;;
    *) echo "bench: there is no benchmark ${one}; there are plan, queue, objects, restore, claims, served, catalogue, custom, maintenance, volume, files, far, list, plugin, stores and snapshots" >&2; exit 2 ;;
    esac
  done
done

say "Results"
{
  echo "$("${holdfast}" --version) on $(nproc) CPUs ($(awk -F ': ' '/^model name/ {print $2; exit}' /proc/cpuinfo)), $(awk '/^MemTotal/ {printf "%.0f", $2 / 1e6}' /proc/meminfo) GB, Linux $(uname -r)"
  echo "load average of the last minutes: $(cut -d ' ' -f 1-3 /proc/loadavg); a load above the number of CPUs before the start makes times worse"
  measure table
} | tee "${results}/latest.txt"
