// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

const (
	// What a poll in which nothing changes may cost.
	pollRequests = 2
	// What a first load may with an index.
	indexedRequests = 40
	indexedSeconds  = 5
	warmSeconds     = 1
	residentMB      = 250
	pageMillis      = 20
	selectedMillis  = 50
	longhornRatio   = 1.3
)

// measureCatalogue makes rows of BenchmarkFirstLoad, BenchmarkColdStart, BenchmarkWarmRestart
// and BenchmarkLonghorn of pkg/catalog/refresh, and of BenchmarkMillion of
// pkg/registry/volumebackup.
func measureCatalogue(found benchmarks) ([]row, error) {
	var missing []string
	of := func(name string) map[string]float64 {
		if found[name] == nil {
			missing = append(missing, name)
		}
		return found[name]
	}
	aim := func(limit float64, unit string) string { return fmt.Sprintf("aim %g %s", limit, unit) }
	var rows []row
	for _, size := range []struct {
		name, what string
		backups    float64
		seconds    float64
	}{
		{"1000x1000", "1,000 backups of 1,000 volumes", 1_000, 60},
		{"10000x100", "10,000 backups of 100 volumes", 10_000, 180},
	} {
		load, indexed := of("BenchmarkFirstLoad/"+size.name), of("BenchmarkColdStart/"+size.name)
		if load["requests/poll"] > pollRequests {
			return nil, fmt.Errorf("a poll of %s in which nothing changed took %.0f requests, and %d is the limit", size.what, load["requests/poll"], pollRequests)
		}
		if indexed["requests"] > indexedRequests {
			return nil, fmt.Errorf("a first load of %s with an index took %.0f requests, and %d is the limit", size.what, indexed["requests"], indexedRequests)
		}
		rows = append(rows,
			row{"first load of " + size.what + ", 750 ms away, without an index", fmt.Sprintf("%.1f s, %.2f requests a backup, %.1f s of CPU time", load["s"], load["requests"]/size.backups, load["CPU-s"]), aim(size.seconds, "s"), times(load["s"], size.seconds) + " of the aim"},
			row{"the same with the index", fmt.Sprintf("%.1f s, %.0f requests, %.1f s of CPU time", indexed["s"], indexed["requests"], indexed["CPU-s"]), fmt.Sprintf("aim %d s, limit %d requests", indexedSeconds, indexedRequests), times(indexed["s"], indexedSeconds) + " of the aim"},
			row{"a poll of them in which nothing changed", fmt.Sprintf("%.0f requests, and no write to etcd (TestSync)", load["requests/poll"]), fmt.Sprintf("limit %d", pollRequests), times(load["requests/poll"], pollRequests)},
		)
	}
	warm := of("BenchmarkWarmRestart")
	rows = append(rows, row{"1,000 x 1,000 from the disk after a restart: the first page, and all", fmt.Sprintf("%.2f s, and %.1f s, %.1f s of CPU time", warm["first-s"], warm["s"], warm["CPU-s"]), aim(warmSeconds, "s for the first"), times(warm["first-s"], warmSeconds) + " of the aim"})

	const million = "BenchmarkMillion/"
	resident, page := of(million+"resident"), of(million+"page")
	rows = append(rows,
		row{"memory of a process with a million rows: resident, and at its peak while they came", fmt.Sprintf("%.0f MB, and %.0f MB", resident["MB"], resident["peak-MB"]), aim(residentMB, "MB resident"), times(resident["MB"], residentMB) + " of the aim"},
		row{"first page of 500 of them, with its JSON", fmt.Sprintf("%.1f ms, %.1f ms of CPU time", page["ns/op"]/1e6, page["CPU-ms"]), aim(pageMillis, "ms"), times(page["ns/op"]/1e6, pageMillis) + " of the aim"},
	)
	worst, name := map[string]float64{}, ""
	for _, field := range []string{"volume", "backup", "uid", "location", "node", "phase", "pod", "name", "label"} {
		if values := of(million + field); values["CPU-ms"] >= worst["CPU-ms"] {
			worst, name = values, field
		}
	}
	ended := of(million + "ended")
	if ended["commits"] > 1 {
		return nil, fmt.Errorf("one backup that ended was %.1f commits", ended["commits"])
	}
	rows = append(rows,
		row{"a page of 500 that a selector selects of them, the slowest of nine: by " + name, fmt.Sprintf("%.1f ms, %.1f ms of CPU time", worst["ns/op"]/1e6, worst["CPU-ms"]), aim(selectedMillis, "ms"), times(worst["ns/op"]/1e6, selectedMillis) + " of the aim"},
		row{"one more backup of 1,000 volumes ends", fmt.Sprintf("%.0f commit, %.0f events to a watcher of volumes, %.1f ms of CPU time", ended["commits"], ended["events"], ended["CPU-ms"]), "limit 1 commit", times(ended["commits"], 1)},
	)
	longhorn := of("BenchmarkLonghorn")
	rows = append(rows, row{"first load of a store of Longhorn's of 1,000 volumes of 20 backups, 750 ms away, 64 requests at once",
		fmt.Sprintf("%.0f s, %.0f requests, %.1f s of CPU time", longhorn["s"], longhorn["requests"], longhorn["CPU-s"]),
		fmt.Sprintf("its %.0f different requests take %.0f s", longhorn["distinct"], longhorn["bound-s"]), times(longhorn["s"], longhorn["bound-s"]) + fmt.Sprintf(" of that, aim %g", longhornRatio)})
	if len(missing) > 0 {
		return nil, fmt.Errorf("no results of %s; run `hack/bench.sh catalogue`", strings.Join(missing, ", "))
	}
	return rows, nil
}
