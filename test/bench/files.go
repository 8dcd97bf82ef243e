// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// What is aimed at, in times as fast as Kopia: large files, and the restore of tiny ones.
const (
	filesLarge = 1.5
	filesTiny  = 2
)

// measureFiles makes rows of BenchmarkFiles, those of peak memory, and BenchmarkFreedSlot of
// pkg/datapath: CPU time of uploads and restores in memory, ours by that of Kopia's command.
func measureFiles(found benchmarks) ([]row, error) {
	var rows []row
	var errs []error
	for _, files := range []struct {
		name, what string
		aims       map[string]float64
	}{
		{"images=4x200MiB", "4 images of disks of 200 MiB", map[string]float64{"first": filesLarge}},
		{"big=4x200MiB", "4 other files of 200 MiB", map[string]float64{"first": filesLarge}},
		{"small=20000x8KiB", "20,000 files of 8 KiB", nil},
		{"tiny=300000x100B", "300,000 files of 100 bytes", map[string]float64{"restore": filesTiny}},
	} {
		values, err := found.values("BenchmarkFiles/"+files.name, "first", "second", "restore", "kopia-start", "kopia-first", "kopia-second", "kopia-restore")
		errs = append(errs, err)
		for _, how := range []struct{ of, what string }{{"first", "first backup"}, {"second", "unchanged second backup"}, {"restore", "restore"}} {
			aim := files.aims[how.of]
			if aim == 0 {
				aim = 1
			}
			ours, kopia, start := values[how.of], values["kopia-"+how.of], values["kopia-start"]
			ratio := times(kopia, ours) + " times as fast"
			switch {
			case start >= kopia: // both vary
				ratio += ", all of which is its start"
			case start > kopia/10:
				ratio += fmt.Sprintf(", %s without its start", times(kopia-start, ours))
			}
			rows = append(rows, row{
				fmt.Sprintf("CPU time, %s of %s", how.what, files.what), fmt.Sprintf("%.3f s", ours),
				fmt.Sprintf("Kopia's command %.3f s, of which %.3f s to start; aim %.1f times as fast", kopia, start, aim),
				ratio,
			})
		}
	}
	memory, errMemory := found.values("BenchmarkPeakMemory", "volumes", "peak-bytes", "limit-bytes")
	many, errMany := found.values("BenchmarkPeakMemoryOfManyFiles", "files", "peak-bytes", "limit-bytes")
	slot, errSlot := found.values("BenchmarkFreedSlot", "median-us")
	if err := errors.Join(append(errs, errMemory, errMany, errSlot)...); err != nil {
		return nil, fmt.Errorf("the results of pkg/datapath are not whole; run `hack/bench.sh files`:\n%w", err)
	}
	rows = append(rows, row{
		fmt.Sprintf("peak memory of a mover within %.0f MiB, %.0f volumes at once, up and back", memory["limit-bytes"]/(1<<20), memory["volumes"]),
		fmt.Sprintf("%.0f MiB", memory["peak-bytes"]/(1<<20)), fmt.Sprintf("limit %.0f MiB", memory["limit-bytes"]/(1<<20)), times(memory["peak-bytes"], memory["limit-bytes"]) + " of the limit",
	})
	rows = append(rows, row{
		fmt.Sprintf("the same while %.0f tiny files are stored", many["files"]),
		fmt.Sprintf("%.0f MiB", many["peak-bytes"]/(1<<20)), fmt.Sprintf("limit %.0f MiB", many["limit-bytes"]/(1<<20)), times(many["peak-bytes"], many["limit-bytes"]) + " of the limit",
	})
	return append(rows, row{"from a freed slot to the next work's start, in the manager, median", fmt.Sprintf("%.0f us", slot["median-us"]), "aim 100 ms; Velero polls every 5 s", ""}), nil
}
