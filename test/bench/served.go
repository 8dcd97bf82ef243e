// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// What may be taken: of a store 20 ms away by one object of a backup of 300,000, and by the
// process that makes the manifest of a million, reads it and compares it. The time is an aim, all
// else a limit.
const (
	servedRequests = 4
	servedMillis   = 200
	servedMB       = 250
)

// measureServed makes rows of BenchmarkMillion of pkg/manifest and BenchmarkObject of
// pkg/stored.
func measureServed(found benchmarks) ([]row, error) {
	million, err := found.values("BenchmarkMillion", "held-bytes/item", "stored-bytes/item", "peak-MiB")
	object, err2 := found.values("BenchmarkObject", "requests", "ms")
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("what BenchmarkMillion of pkg/manifest and BenchmarkObject of pkg/stored print is not whole; run `hack/bench.sh served`: %w", err)
	}
	if object["requests"] > servedRequests {
		return nil, fmt.Errorf("one object of a backup took %.1f requests, and %d is the limit", object["requests"], servedRequests)
	}
	peak := million["peak-MiB"] * (1 << 20) / 1e6
	if peak > servedMB {
		return nil, fmt.Errorf("the manifest of a million items took %.0f MB, and %d is the limit", peak, servedMB)
	}
	return []row{
		{"manifest of 1,000,000 items: bytes an item while it is made, and in the store", fmt.Sprintf("%.0f, and %.0f", million["held-bytes/item"], million["stored-bytes/item"]), "", ""},
		{"time to make and write it, to read it, to compare it with another one", fmt.Sprintf("%.1f s, %.1f s, %.1f s", million["write-s"], million["read-s"], million["diff-s"]), "", ""},
		{"peak memory of the process that did so", fmt.Sprintf("%.0f MB", peak), fmt.Sprintf("limit %d MB", servedMB), times(peak, servedMB) + " of it"},
		{"one object of a backup of 300,000 from an S3 20 ms away", fmt.Sprintf("%.0f ms, %.1f requests", object["ms"], object["requests"]), fmt.Sprintf("aim %d ms, limit %d requests", servedMillis, servedRequests), times(object["ms"], servedMillis) + " of the aim"},
	}, nil
}
