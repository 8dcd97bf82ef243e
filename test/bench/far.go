// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// What a restore of 20,000 files of 8 KiB from such a store may take, in requests, and one
// of 800 MiB, in seconds; and what an upload of the latter may take.
const (
	farRequests  = 50
	farSeconds   = 4
	farFiles     = 20_000
	farOfKopia   = 1_000
	farBandwidth = 80 // MB a second and connection
)

// measureFar makes rows of BenchmarkFarStore of pkg/datapath: an emulated store that takes
// 20 ms for each request. Kopia's own restore of small files is measured with a few of
// them, as each takes a request.
func measureFar(found benchmarks) ([]row, error) {
	small, big := found["BenchmarkFarStore/small=20000x8KiB"], found["BenchmarkFarStore/big=1x800MiB"]
	if small == nil || big == nil {
		return nil, errors.New("no result of BenchmarkFarStore of pkg/datapath; run `hack/bench.sh far`")
	}
	seconds := func(s float64) string { return fmt.Sprintf("%.2f s", s) }
	const scale = farFiles / farOfKopia
	return []row{
		{fmt.Sprintf("restore of %d files of 8 KiB, 20 ms and %d MB/s away", farFiles, farBandwidth), seconds(small["restore-s"]), fmt.Sprintf("Kopia alone %.0f s, computed from %d files", scale*small["kopia-s"], farOfKopia),
			times(scale*small["kopia-s"], small["restore-s"]) + " times as fast"},
		{"requests for them", fmt.Sprintf("%.0f", small["GETs"]), fmt.Sprintf("limit %d; Kopia alone %.0f for %d", farRequests, small["kopia-GETs"], farOfKopia), times(small["GETs"], farRequests) + " of the limit"},
		{"upload of them", seconds(small["upload-s"]), "", ""},
		{"restore of one file of 800 MiB from there", seconds(big["restore-s"]), "Kopia alone " + seconds(big["kopia-s"]), times(big["kopia-s"], big["restore-s"]) + " times as fast"},
		{"upload of it", seconds(big["upload-s"]), fmt.Sprintf("aim %d s", farSeconds), times(big["upload-s"], farSeconds) + " of the aim"},
	}, nil
}
