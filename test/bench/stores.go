// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// idleAim is the aim for the requests of a day to a location without a writer.
const idleAim = 1000

// measureStores makes rows of BenchmarkProviders of hack/stores and of BenchmarkIdleLocation of
// test/integration.
func measureStores(found benchmarks) (rows []row, err error) {
	for _, provider := range []string{"filesystem", "s3", "gcs", "azure"} {
		of, err := found.values("BenchmarkProviders/"+provider, "upload-s", "restore-s", "upload-requests", "restore-requests")
		if err != nil && provider == "azure" {
			fmt.Println("  azure is left out: make stores installs its emulator")
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the results of hack/stores are not whole; run `hack/bench.sh stores`: %w", err)
		}
		rows = append(rows,
			row{"first backup of 1,000 files of 1 MiB, provider " + provider, fmt.Sprintf("%.1f s, %.0f requests", of["upload-s"], of["upload-requests"]), "", ""},
			row{"restore of them", fmt.Sprintf("%.1f s, %.0f requests", of["restore-s"], of["restore-requests"]), "", ""},
		)
	}
	idle := found["BenchmarkIdleLocation"]
	if idle == nil {
		return nil, errors.New("no results of BenchmarkIdleLocation of test/integration; run `hack/bench.sh stores`")
	}
	reads, lists, writes := idle["reads/day"], idle["lists/day"], idle["writes/day"]
	return append(rows, row{"requests of an idle day to one S3 location", fmt.Sprintf("%.0f: %.0f reads, %.0f lists, %.0f writes", reads+lists+writes, reads, lists, writes),
		fmt.Sprintf("aim %d", idleAim), times(reads+lists+writes, idleAim) + " of the aim"}), nil
}
