// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// reclaimedBy is the run by which docs/maintenance.md has the space back.
const reclaimedBy = 7

// measureMaintenance makes rows of BenchmarkMaintenance and BenchmarkReclaimed of pkg/repository.
func measureMaintenance(found benchmarks) ([]row, error) {
	full, reclaimed := found["BenchmarkMaintenance"], found["BenchmarkReclaimed"]
	if full == nil || reclaimed == nil || full["kopia-s"] == 0 {
		return nil, errors.New("no results of BenchmarkMaintenance and BenchmarkReclaimed of pkg/repository, with Kopia's command; run `hack/bench.sh maintenance`")
	}
	if reclaimed["runs"] > reclaimedBy {
		return nil, fmt.Errorf("the space of deleted backups came back with full maintenance %.0f, and %d is the limit", reclaimed["runs"], reclaimedBy)
	}
	const what = "full maintenance of a repository of 300,000 contents"
	return []row{
		{what, fmt.Sprintf("%.1f s", full["ours-s"]), fmt.Sprintf("Kopia's command %.1f s", full["kopia-s"]), times(full["ours-s"], full["kopia-s"])},
		{"its peak memory", fmt.Sprintf("%.0f MiB", full["ours-peak-MiB"]), fmt.Sprintf("%.0f MiB", full["kopia-peak-MiB"]), times(full["ours-peak-MiB"], full["kopia-peak-MiB"])},
		{"its requests to an S3", fmt.Sprintf("%.0f", full["ours-requests"]), fmt.Sprintf("%.0f", full["kopia-requests"]), times(full["ours-requests"], full["kopia-requests"])},
		{"space that comes back after half of the backups were deleted", fmt.Sprintf("%.0f of %.0f MiB, by full maintenance %.0f", reclaimed["reclaimed-MiB"], reclaimed["deleted-MiB"], reclaimed["runs"]), fmt.Sprintf("limit %d", reclaimedBy), times(reclaimed["runs"], reclaimedBy)},
	}, nil
}
