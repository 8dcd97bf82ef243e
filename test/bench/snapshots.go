// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// writesAim is the aim for the writes to the API server by which a claim's data is moved.
const writesAim = 25

// measureSnapshots makes rows of BenchmarkSnapshots of test/snapshots/backups, which fails if anything is left.
func measureSnapshots(found benchmarks) (rows []row, err error) {
	for _, qps := range []string{"5", "50"} {
		of, err := found.values("BenchmarkSnapshots/qps="+qps, "claims", "cuts/s", "first-upload-s", "completed-s", "writes/claim")
		if err != nil {
			return nil, fmt.Errorf("the results of test/snapshots/backups are not whole; run `hack/bench.sh snapshots`: %w", err)
		}
		rows = append(rows,
			row{fmt.Sprintf("%.0f claims without pods, sidecars at %s QPS: snapshots a second", of["claims"], qps), fmt.Sprintf("%.1f", of["cuts/s"]), "", ""},
			row{"from the first cut to the first upload; until all is moved", fmt.Sprintf("%.0f s; %.0f s", of["first-upload-s"], of["completed-s"]), "", ""},
			row{"writes to the API server for each claim", fmt.Sprintf("%.1f", of["writes/claim"]), fmt.Sprintf("aim %d", writesAim), times(of["writes/claim"], writesAim) + " of the aim"},
		)
	}
	return rows, nil
}
