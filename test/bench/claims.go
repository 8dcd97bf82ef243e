// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// measureClaims makes rows of BenchmarkClaims of test/e2e: claims of 10 MB with a Deployment
// each, on two nodes.
func measureClaims(found benchmarks) ([]row, error) {
	claims := found["BenchmarkClaims"]
	if claims == nil {
		return nil, errors.New("no results of BenchmarkClaims of test/e2e; run `hack/bench.sh claims` as root")
	}
	n := claims["claims"]
	return []row{
		{fmt.Sprintf("%.0f claims of 10 MB with their Deployments, two nodes' agents: restore, until the last pod is ready", n), fmt.Sprintf("%.0f s", claims["ready-s"]),
			fmt.Sprintf("the pods alone, when they were made: %.0f s", claims["started-s"]), times(claims["ready-s"], claims["started-s"])},
		{"until it is Completed; volumes a second", fmt.Sprintf("%.0f s; %.1f", claims["completed-s"], n/claims["completed-s"]), "", ""},
		{"pods that hold claims at once, of which run; volumes written at once, at most", fmt.Sprintf("%.0f, %.0f; %.0f", claims["holders"], claims["holders-running"], claims["writing"]), "", ""},
		{"backup of them", fmt.Sprintf("%.0f s, %.1f volumes/s", claims["backup-s"], n/claims["backup-s"]), "", ""},
	}, nil
}
