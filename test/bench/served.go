// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// What may be taken: of a store 20 ms away by one object of a backup of 300,000, and by the
// manifest of a million.
const (
	servedRequests = 4
	servedMillis   = 200
	servedMB       = 250
)

// measureServed makes rows of BenchmarkMillion of pkg/manifest and BenchmarkObject of
// pkg/stored.
func measureServed(found benchmarks) ([]row, error) {
	million, object := found["BenchmarkMillion"], found["BenchmarkObject"]
	if million == nil || object == nil {
		return nil, errors.New("no results of BenchmarkMillion of pkg/manifest and BenchmarkObject of pkg/stored; run `hack/bench.sh served`")
	}
	if object["requests"] > servedRequests {
		return nil, fmt.Errorf("one object of a backup took %.1f requests, and %d is the limit", object["requests"], servedRequests)
	}
	peak := million["peak-MiB"] * (1 << 20) / 1e6
	return []row{
		{"manifest of 1,000,000 items: bytes an item while it is made, and in the store", fmt.Sprintf("%.0f, and %.0f", million["held-bytes/item"], million["stored-bytes/item"]), "", ""},
		{"time to make and write it, to read it, to compare it with another one", fmt.Sprintf("%.1f s, %.1f s, %.1f s", million["write-s"], million["read-s"], million["diff-s"]), "", ""},
		{"peak memory of the process that did so", fmt.Sprintf("%.0f MB", peak), fmt.Sprintf("aim %d MB", servedMB), times(peak, servedMB) + " of the aim"},
		{"one object of a backup of 300,000 from an S3 20 ms away", fmt.Sprintf("%.0f ms, %.1f requests", object["ms"], object["requests"]), fmt.Sprintf("aim %d ms, limit %d requests", servedMillis, servedRequests), times(object["ms"], servedMillis) + " of the aim"},
	}, nil
}
