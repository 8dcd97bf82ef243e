// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"testing"
)

// Rows of backups fail by their limits, and by a value that is missing.
func TestLimits(t *testing.T) {
	measured := benchmarks{
		"BenchmarkTarball":            {"bytes": 100, "velero-bytes": 100, "requests": 30},
		"BenchmarkManyKinds":          {"objects/s": 1000, "peak-MB": 190, "lists": 600, "requests/object": 0.01},
		"BenchmarkManyPods/workers=1": {"ns/op": 9e9, "requests/pod": 0.01},
		"BenchmarkManyPods/workers=8": {"ns/op": 1e9, "requests/pod": 0.01},
		"BenchmarkMillion":            {"held-bytes/item": 77, "stored-bytes/item": 69, "write-s": 7, "read-s": 16, "diff-s": 26, "peak-MiB": 238},
		"BenchmarkObject":             {"requests": 4, "ms": 500},
	}
	for name, measure := range map[string]func(benchmarks) ([]row, error){"engine": measureEngine, "served": measureServed} {
		if _, err := measure(measured); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, test := range []struct {
		benchmark, unit string
		value           float64
		measure         func(benchmarks) ([]row, error)
	}{
		{"BenchmarkTarball", "bytes", 111, measureEngine},
		{"BenchmarkManyKinds", "peak-MB", 191, measureEngine}, // MiB
		{"BenchmarkManyKinds", "requests/object", 0.011, measureEngine},
		{"BenchmarkManyKinds", "lists", 0, measureEngine},
		{"BenchmarkMillion", "peak-MiB", 239, measureServed},
		{"BenchmarkMillion", "held-bytes/item", 0, measureServed},
		{"BenchmarkObject", "requests", 4.1, measureServed},
	} {
		changed := maps.Clone(measured)
		changed[test.benchmark] = maps.Clone(measured[test.benchmark])
		changed[test.benchmark][test.unit] = test.value
		if rows, err := test.measure(changed); err == nil {
			t.Errorf("%s of %v %s: %v", test.benchmark, test.value, test.unit, rows)
		}
	}
}
