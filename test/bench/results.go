// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// What Velero 1.18 needed on a real kube-apiserver on a machine with 2 cores: 200
// backups of one namespace with 5 ConfigMaps each at --concurrent-backups=4, and
// one namespace of 20,000 ConfigMaps of 1 KB.
const (
	veleroDrained       = 200
	veleroDrainSeconds  = 213
	veleroDrainPatches  = 20311
	veleroObjects       = 20000
	veleroObjectSeconds = 6
	veleroObjectMB      = 299
)

// veleroPatchesPerSecond is what Velero's client allows itself.
const veleroPatchesPerSecond = 100

// veleroPatches is how many PATCHes Velero 1.18 makes to drain n backups: each that
// starts renumbers all behind it, and is written twice itself. For 200 that is
// 20,300, and 20,311 were counted. For more it is only computed.
func veleroPatches(n int) float64 { return float64(n)*float64(n-1)/2 + 2*float64(n) }

const (
	// maxWritesPerBackup is the limit that we have set ourselves, from creation to the
	// removal of the run.
	maxWritesPerBackup = 10
	// maxQueueWrites is how many of them may be the queue's: the ticket and the start.
	maxQueueWrites = 2
)

// row is one line of the table.
type row struct {
	What, Measured, Against, Ratio string
}

// appendRows keeps rows for the table.
func appendRows(path string, rows []row) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(file)
	for _, r := range rows {
		err = errors.Join(err, encoder.Encode(r))
	}
	return errors.Join(err, file.Close())
}

func printTable(out io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "WHAT\tMEASURED\tAGAINST\tRATIO")
	for decoder := json.NewDecoder(file); ; {
		var r row
		err := decoder.Decode(&r)
		if errors.Is(err, io.EOF) {
			return table.Flush()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.What, r.Measured, r.Against, r.Ratio)
	}
}

// times says how much better, or of what share, a is by b.
func times(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

// median of at least one value.
func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
