// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	objectRounds = 5
	objectSize   = 1000 // bytes of data in a ConfigMap
)

// measureObjects backs up one namespace of n ConfigMaps a few times. The
// controller should be freshly started: its peak counts from its start.
func measureObjects(ctx context.Context, l *lab, n int) ([]row, error) {
	const of = "bench-objects"
	fmt.Printf("making %d ConfigMaps of %d bytes\n", n, objectSize)
	if err := l.fill(ctx, of, n, objectSize); err != nil {
		return nil, err
	}
	idle, err := l.peakMemory("holdfast-controller")
	if err != nil {
		return nil, err
	}
	fmt.Printf("controller's peak before the first backup: %.0f MB\n", megabytes(idle))
	var took []time.Duration
	var first, peak int64
	for i := range objectRounds {
		name := fmt.Sprintf("%s-%d", of, i)
		runs, err := l.run(ctx, []*v1alpha1.Backup{newBackup(name, of)}, 1, nothing)
		if err != nil {
			return nil, err
		}
		run := runs[name]
		if run.status.Progress == nil || run.status.Progress.ItemsBackedUp < int64(n) {
			return nil, fmt.Errorf("backup %s holds %+v objects, not the %d that there are", name, run.status.Progress, n)
		}
		if peak, err = l.peakMemory("holdfast-controller"); err != nil {
			return nil, err
		}
		if i == 0 {
			first = peak
		}
		took = append(took, run.ended.Sub(run.started))
		fmt.Printf("  backup %d: %d objects in %s; the controller's peak so far %.0f MB\n", i+1, run.status.Progress.ItemsBackedUp, seconds(took[i]), megabytes(peak))
	}
	if err := l.listed(ctx, of, objectRounds); err != nil {
		return nil, err
	}
	middle := median(took)
	perSecond := float64(n) / middle.Seconds()
	veleroPerSecond := float64(veleroObjects) / veleroObjectSeconds
	return []row{
		{fmt.Sprintf("objects per second, %d ConfigMaps of 1 KB", n), fmt.Sprintf("%.0f", perSecond), fmt.Sprintf("Velero %.0f", veleroPerSecond), times(perSecond, veleroPerSecond) + " times as fast"},
		{"controller's peak memory, first such backup", fmt.Sprintf("%.0f MB", megabytes(first)), fmt.Sprintf("Velero %d MB", veleroObjectMB), times(megabytes(first), veleroObjectMB) + " of it"},
		{fmt.Sprintf("controller's peak memory, after %d of them", objectRounds), fmt.Sprintf("%.0f MB", megabytes(peak)), fmt.Sprintf("Velero %d MB", veleroObjectMB), times(megabytes(peak), veleroObjectMB) + " of it"},
	}, nil
}

// measureTarball makes a row of BenchmarkTarball of pkg/backup.
func measureTarball(found benchmarks) ([]row, error) {
	tarball := found["BenchmarkTarball"]
	if tarball == nil {
		return nil, errors.New("no results of BenchmarkTarball of pkg/backup; run `hack/bench.sh objects`")
	}
	ours, theirs := tarball["bytes"], tarball["velero-bytes"]
	if 10*ours > 11*theirs {
		return nil, fmt.Errorf("a tarball takes %.0f bytes, and a tenth more than Velero's %.0f of the same objects is the limit", ours, theirs)
	}
	return []row{
		{"bytes of a tarball of 264 objects of 30 kinds", fmt.Sprintf("%.0f, for %.0f requests", ours, tarball["requests"]), fmt.Sprintf("Velero %.0f", theirs), times(ours, theirs) + " of it"},
	}, nil
}
