// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// benchmarks are the results of `go test -bench` of pkg/queue: by name, without the
// number of CPUs, and then by unit.
type benchmarks map[string]map[string]float64

var cpuSuffix = regexp.MustCompile(`-\d+$`)

// readBenchmarks reads the output of `go test -bench`, and shows it.
func readBenchmarks(in io.Reader, out io.Writer) (benchmarks, error) {
	found := benchmarks{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		fmt.Fprintln(out, lines.Text())
		values := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q is no result of a benchmark: %w", lines.Text(), err)
			}
			values[fields[i+1]] = value
		}
		found[cpuSuffix.ReplaceAllString(fields[0], "")] = values
	}
	return found, lines.Err()
}

// measurePlan makes rows of the benchmarks of pkg/queue. Those of a queue of 2,000
// are compared with the rules alone, without an index, on the same input; for one of
// 10,000 that would take minutes.
func measurePlan(found benchmarks) ([]row, error) {
	var missing []string
	value := func(name, unit string) float64 {
		v, ok := found["Benchmark"+name][unit]
		if !ok {
			missing = append(missing, name+" "+unit)
		}
		return v
	}
	duration := func(name string) time.Duration { return time.Duration(value(name, "ns/op")) }
	allocated := func(name string) string {
		return fmt.Sprintf("%s, %.1f KB in %.0f allocations", rounded(duration(name)), value(name, "B/op")/1e3, value(name, "allocs/op"))
	}
	const aim, memoryAim = time.Millisecond, 100
	all, next := "Replan/names/10000", "NextAfterCompletion/names/10000"
	allOfFewer, nextOfFewer := "Replan/names/2000", "NextAfterCompletion/names/2000"
	rows := []row{
		{"plan of 10,000 waiting backups of 50 namespaces, from nothing", allocated(all), "2,000 of them: " + rounded(duration(allOfFewer)),
			times(float64(duration(all)), float64(duration(allOfFewer))) + " times that"},
		{"the same of 2,000", allocated(allOfFewer), "the rules alone: " + rounded(duration("Oracle/plan/2000")),
			"1/" + times(float64(duration("Oracle/plan/2000")), float64(duration(allOfFewer)))},
		{"decision after one of 10,000 ended", allocated(next), fmt.Sprintf("aim %s", aim), times(float64(duration(next)), float64(aim)) + " of the aim"},
		{"the same of 2,000", allocated(nextOfFewer), "the rules alone: " + rounded(duration("Oracle/decision/2000")),
			"1/" + times(float64(duration("Oracle/decision/2000")), float64(duration(nextOfFewer)))},
		{"what a planner of 10,000 keeps in memory", fmt.Sprintf("%.1f MB", value("Memory/names/10000", "MB")), fmt.Sprintf("aim %d MB", memoryAim),
			times(value("Memory/names/10000", "MB"), memoryAim) + " of the aim"},
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no result of the benchmarks %s of pkg/queue; run `go test ./pkg/queue -run '^$' -bench . -benchmem`", strings.Join(missing, ", "))
	}
	return rows, nil
}

// rounded shows three digits.
func rounded(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
