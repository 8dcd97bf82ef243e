// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/holdfast-io/holdfast/pkg/catalog"
)

// BenchmarkMillion is of a million volume backups: what the process has by then, what pages of
// them take, and what one more backup does.
func BenchmarkMillion(b *testing.B) {
	commits, events := 0, 0
	f := newFixture(b, func(changes catalog.Changes) {
		commits++
		events += len(changes.Volumes.Set) + len(changes.Volumes.Gone)
	}).ready()
	const backups = 1000
	for i := range backups {
		f.put(fmt.Sprintf("daily-%06d", i), i, 10, 100)
	}
	b.Run("resident", func(b *testing.B) {
		for b.Loop() {
			debug.FreeOSMemory()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(memory(b, "VmRSS:")/1e6, "MB")
		b.ReportMetric(memory(b, "VmHWM:")/1e6, "peak-MB")
	})
	const page = 500
	field := fields.OneTermEqualSelector
	for _, list := range []struct {
		name    string
		options internalversion.ListOptions
		want    int
	}{
		{"page", internalversion.ListOptions{Limit: page}, page},
		{"volume", internalversion.ListOptions{Limit: page, FieldSelector: field("spec.volumeName", "data-0042")}, page},
		{"backup", internalversion.ListOptions{Limit: page, FieldSelector: field("spec.backup.name", "daily-000777")}, 0},
		{"uid", internalversion.ListOptions{Limit: page, FieldSelector: field("spec.backupUID", "uid-of-daily-000777")}, page},
		{"location", internalversion.ListOptions{Limit: page, FieldSelector: field("spec.storageLocation", "another")}, 0},
		{"node", internalversion.ListOptions{Limit: page, FieldSelector: field("status.node", "nowhere")}, 0},
		{"phase", internalversion.ListOptions{Limit: page, FieldSelector: field("status.phase", "Unreadable")}, 0},
		{"pod", internalversion.ListOptions{Limit: page, FieldSelector: field("spec.podName", "nowhere")}, 0},
		{"name", internalversion.ListOptions{Limit: page, FieldSelector: field("metadata.name", "nowhere:data-0042")}, 0},
		{"label", internalversion.ListOptions{Limit: page, LabelSelector: labels.SelectorFromSet(labels.Set{"tier": "lead"})}, 0},
	} {
		b.Run(list.name, func(b *testing.B) {
			before, lists := cpuTime(b), 0
			for b.Loop() {
				lists++
				items := f.mustList("", list.options)
				if len(items.Items) != min(list.want, page) {
					b.Fatalf("%d are listed, not %d", len(items.Items), list.want)
				}
				if _, err := json.Marshal(items); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/1e6/float64(lists), "CPU-ms")
		})
	}
	b.Run("ended", func(b *testing.B) {
		commits, events = 0, 0
		version, before, ended := f.catalog.Version(), cpuTime(b), 0
		for b.Loop() {
			f.put(fmt.Sprintf("daily-%06d", backups+ended), backups+ended, 10, 100)
			ended++
		}
		b.ReportMetric(float64(cpuTime(b)-before)/1e6/float64(ended), "CPU-ms")
		b.ReportMetric(float64(commits)/float64(ended), "commits")
		b.ReportMetric(float64(f.catalog.Version()-version)/float64(ended), "versions")
		b.ReportMetric(float64(events)/float64(ended), "events")
	})
}

// cpuTime is how long this process has kept a CPU busy.
func cpuTime(tb testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// memory is that of this process, in bytes, by proc_pid_status(5).
func memory(tb testing.TB, field string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field); ok {
			var kibibytes float64
			if _, err := fmt.Sscanf(value, "%g kB", &kibibytes); err == nil {
				return kibibytes * 1024
			}
		}
	}
	tb.Skipf("no %s in /proc/self/status; this needs Linux", field)
	return 0
}
