// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
)

// What may be taken of such a store: requests by a restore of 20,000 files of 8 KiB, and
// seconds by that, and by an upload or a restore of 800 MiB.
const (
	farRequests     = 50
	farSmallSeconds = 3
	farBigSeconds   = 4
	farFiles        = 20_000
	farBandwidth    = 80 // MB a second and connection
)

// measureFar makes rows of BenchmarkFarStore and BenchmarkVolumes of pkg/datapath: an emulated
// store that takes 20 ms for each request.
func measureFar(found benchmarks) ([]row, error) {
	ours := []string{"upload-s", "upload-CPU-s", "restore-s", "restore-CPU-s"}
	both := slices.Concat(ours, []string{"kopia-upload-s", "kopia-upload-CPU-s", "kopia-restore-s", "kopia-restore-CPU-s"})
	small, errSmall := found.values("BenchmarkFarStore/small=20000x8KiB", slices.Concat(both, []string{"GETs", "kopia-GETs"})...)
	big, errBig := found.values("BenchmarkFarStore/big=1x800MiB", slices.Concat(both, []string{"PUTs-at-once"})...)
	image, errImage := found.values("BenchmarkFarStore/image=1x800MiB", ours...)
	volumes, errVolumes := found.values("BenchmarkVolumes", "uploads/s", "uploads-requests", "restores/s", "restores-requests")
	if err := errors.Join(errSmall, errBig, errImage, errVolumes); err != nil {
		return nil, fmt.Errorf("the results of pkg/datapath are not whole; run `hack/bench.sh far`:\n%w", err)
	}
	took := func(of map[string]float64, what string) string {
		return fmt.Sprintf("%.2f s, CPU %.1f s", of[what+"-s"], of[what+"-CPU-s"])
	}
	against := func(aim float64, kopia string) string {
		return fmt.Sprintf("aim %.0f s; Kopia's command %s", aim, kopia)
	}
	faster := func(of map[string]float64, what string) string {
		return times(of["kopia-"+what+"-s"], of[what+"-s"]) + " times as fast"
	}
	return []row{
		{fmt.Sprintf("restore of %d files of 8 KiB, 20 ms and %d MB/s away", farFiles, farBandwidth), took(small, "restore"),
			against(farSmallSeconds, took(small, "kopia-restore")), faster(small, "restore")},
		{"requests for them", fmt.Sprintf("%.0f", small["GETs"]), fmt.Sprintf("limit %d; Kopia's command %.0f", farRequests, small["kopia-GETs"]), times(small["GETs"], farRequests) + " of the limit"},
		{"upload of them", took(small, "upload"), "Kopia's command " + took(small, "kopia-upload"), faster(small, "upload")},
		{"restore of one file of 800 MiB from there", took(big, "restore"), against(farBigSeconds, took(big, "kopia-restore")), faster(big, "restore")},
		{"upload of it", took(big, "upload"), against(farBigSeconds, took(big, "kopia-upload")), faster(big, "upload")},
		{"packs of it that are uploaded at once", fmt.Sprintf("%.0f", big["PUTs-at-once"]), "", ""},
		{"restore of one image of a disk of 800 MiB", took(image, "restore"), against(farBigSeconds, took(big, "kopia-restore")), times(big["kopia-restore-s"], image["restore-s"]) + " times as fast"},
		{"upload of it", took(image, "upload"), against(farBigSeconds, took(big, "kopia-upload")), times(big["kopia-upload-s"], image["upload-s"]) + " times as fast"},
		{"backup of 500 volumes of 1 MiB of one namespace there, 4 at once", fmt.Sprintf("%.1f volumes/s", volumes["uploads/s"]), fmt.Sprintf("%.1f requests a volume", volumes["uploads-requests"]), ""},
		{"restore of them", fmt.Sprintf("%.1f volumes/s", volumes["restores/s"]), fmt.Sprintf("%.1f requests a volume", volumes["restores-requests"]), ""},
	}, nil
}
