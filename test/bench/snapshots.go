// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// writesAim and keptAim are the aims for the writes to the API server of one claim. The first is for moved
// data, the second for a kept snapshot and its deletion.
const writesAim, keptAim = 25, 12

// measureSnapshots makes rows of BenchmarkSnapshots, BenchmarkKept and BenchmarkFrozen, which fail if anything is left, and of BenchmarkMoving.
func measureSnapshots(found benchmarks) (rows []row, err error) {
	for _, qps := range []string{"5", "50"} {
		of, err := found.values("BenchmarkSnapshots/qps="+qps, "claims", "cuts/s", "first-upload-s", "namespace-free-s", "completed-s", "writes/claim")
		if err != nil {
			return nil, fmt.Errorf("the results of test/snapshots/backups are not whole; run `hack/bench.sh snapshots`: %w", err)
		}
		rows = append(rows,
			row{fmt.Sprintf("%.0f claims without pods, sidecars at %s QPS: snapshots a second", of["claims"], qps), fmt.Sprintf("%.1f", of["cuts/s"]), "", ""},
			row{"from the backup's start until its namespace and slot are free", fmt.Sprintf("%.0f s", of["namespace-free-s"]), "until all is moved", times(of["namespace-free-s"], of["completed-s"])},
			row{"from the first cut to the first upload; until all is moved", fmt.Sprintf("%.0f s; %.0f s", of["first-upload-s"], of["completed-s"]), "", ""},
			row{"writes to the API server for each claim", fmt.Sprintf("%.1f", of["writes/claim"]), fmt.Sprintf("aim %d", writesAim), times(of["writes/claim"], writesAim) + " of the aim"},
		)
		frozen, err := found.values("BenchmarkFrozen/qps="+qps, "pods", "frozen-p50-s", "frozen-p99-s")
		if err != nil {
			return nil, fmt.Errorf("the results of test/snapshots/backups are not whole; run `hack/bench.sh snapshots`: %w", err)
		}
		rows = append(rows, row{fmt.Sprintf("%.0f pods with hooks, a claim each: frozen, p50; p99", frozen["pods"]), fmt.Sprintf("%.1f s; %.1f s", frozen["frozen-p50-s"], frozen["frozen-p99-s"]), "", ""})
	}
	kept, err := found.values("BenchmarkKept", "claims", "completed-s", "writes/claim")
	if err != nil {
		return nil, fmt.Errorf("the results of test/snapshots/backups are not whole; run `hack/bench.sh snapshots`: %w", err)
	}
	moving, err := found.values("BenchmarkMoving", "cut-MB", "moving-MB")
	if err != nil {
		return nil, fmt.Errorf("the results of BenchmarkMoving are not whole; run `hack/bench.sh snapshots`: %w", err)
	}
	return append(rows,
		row{fmt.Sprintf("%.0f claims whose snapshots are kept, at 50 QPS: until the backup has ended", kept["claims"]), fmt.Sprintf("%.0f s", kept["completed-s"]), "", ""},
		row{"writes to the API server for each claim, with the deletion", fmt.Sprintf("%.1f", kept["writes/claim"]), fmt.Sprintf("aim %d", keptAim), times(kept["writes/claim"], keptAim) + " of the aim"},
		row{"memory of a backup of 20,000 objects that only moves data", fmt.Sprintf("%.1f MB", moving["moving-MB"]), fmt.Sprintf("at the cut %.1f MB", moving["cut-MB"]), times(moving["moving-MB"], moving["cut-MB"])},
	), nil
}
