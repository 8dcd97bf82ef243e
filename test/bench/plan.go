// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// benchmarks are the results of `go test -bench`: by name, without the number of CPUs, and
// then by unit.
type benchmarks map[string]map[string]float64

// values are those of one benchmark, of which these units are needed. The error names each that
// is missing, or not above zero: a row of it would say nothing.
func (b benchmarks) values(name string, units ...string) (map[string]float64, error) {
	var errs []error
	for _, unit := range units {
		if value, ok := b[name][unit]; !ok {
			errs = append(errs, fmt.Errorf("no %s of %s", unit, name))
		} else if !(value > 0) { // nor is NaN
			errs = append(errs, fmt.Errorf("%s of %s is %v, which can't be", unit, name, value))
		}
	}
	return b[name], errors.Join(errs...)
}

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

// cost is what one operation takes: nanoseconds, bytes and allocations.
type cost struct{ time, bytes, allocations float64 }

func (c cost) String() string {
	allocated := fmt.Sprintf("%.1f KB", c.bytes/1e3)
	if c.bytes >= 1e6 {
		allocated = fmt.Sprintf("%.1f MB", c.bytes/1e6)
	}
	return fmt.Sprintf("%s, %s in %.0f allocations", rounded(time.Duration(c.time)), allocated, c.allocations)
}

// measurePlan makes rows of the benchmarks of pkg/queue. What they are compared with
// are the rules alone, without an index, on the same input.
func measurePlan(found benchmarks) ([]row, error) {
	var missing []string
	value := func(name, unit string) float64 {
		v, ok := found["Benchmark"+name][unit]
		if !ok {
			missing = append(missing, name+" "+unit)
		}
		return v
	}
	of := func(name string) cost {
		return cost{value(name, "ns/op"), value(name, "B/op"), value(name, "allocs/op")}
	}
	against := func(what string, ours, rules cost) row {
		return row{what, ours.String(), "the rules alone: " + rules.String(), fmt.Sprintf("1/%.0f of the time", rules.time/ours.time)}
	}
	// A backup costs the controller 28 ms of CPU time.
	const aim, memoryAim = 10 * time.Millisecond, 100
	const distinct = "names,_nearly_all_distinct/10000"
	plan, planOfFewer, recorded := of("Replan/names/10000"), of("Replan/names/2000"), of("ReplanOfRecords/10000")
	next, nextOfFewer, nextOfDistinct := of("NextAfterCompletion/names/10000"), of("NextAfterCompletion/names/2000"), of("NextAfterCompletion/"+distinct)
	slowest := max(value("Pass/names/10000", "ns/op"), value("Pass/"+distinct, "ns/op"))
	kept, explained := value("Memory/names/10000", "planner-MB"), value("Memory/names/10000", "plan-MB")
	records := value("MemoryOfRecords/10000", "records-MB")
	keptOfRecords := records + value("MemoryOfRecords/10000", "planner-MB") + value("MemoryOfRecords/10000", "plan-MB")
	rows := []row{
		against("plan of 10,000 waiting backups of 50 namespaces, from nothing", plan, of("Oracle/names/10000/plan")),
		against("the same of 2,000", planOfFewer, of("Oracle/names/2000/plan")),
		{"10,000 against 2,000: times as long, times the bytes", times(plan.time, planOfFewer.time) + ", " + times(plan.bytes, planOfFewer.bytes), "5 is linear", times(plan.time, 5*planOfFewer.time)},
		{"plan of 10,000 from their records, which it reads first", recorded.String(), "from nothing: " + rounded(time.Duration(plan.time)), times(recorded.time, plan.time) + " times that"},
		against("decision after one of 10,000 ended", next, of("Oracle/names/10000/decision")),
		against("the same of 2,000", nextOfFewer, of("Oracle/names/2000/decision")),
		against("the same of 10,000 that overlap only their neighbours", nextOfDistinct, of("Oracle/"+distinct+"/decision")),
		{"a look at all of these 10,000, as the longest decision takes", rounded(time.Duration(slowest)), fmt.Sprintf("aim %s", aim), times(slowest, float64(aim)) + " of the aim"},
		{"what a planner of 10,000 keeps alive", fmt.Sprintf("%.1f MB, and a plan with all entries %.1f MB", kept, explained), fmt.Sprintf("aim %d MB", memoryAim),
			times(kept+explained, memoryAim) + " of the aim"},
		{"the same with the records, which caches keep anyway", fmt.Sprintf("%.1f MB, of which records %.1f MB", keptOfRecords, records), fmt.Sprintf("aim %d MB", memoryAim),
			times(keptOfRecords, memoryAim) + " of the aim"},
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no result of the benchmarks %s of pkg/queue; run `hack/bench.sh plan`", strings.Join(missing, ", "))
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
