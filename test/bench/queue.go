// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// configMapsPerTiny is what is in the namespace of a tiny backup.
const configMapsPerTiny = 5

// measureQueue queues backups of tiny namespaces and drains the queue. The
// controller is held while they are created, so that all of them wait when it
// begins. It must run without leader election, or it would lose its Lease.
func measureQueue(ctx context.Context, l *lab, n int) ([]row, error) {
	prefix := fmt.Sprintf("bench-%d-", n)
	var backups []*v1alpha1.Backup
	for i := range n {
		name := fmt.Sprintf("%s%03d", prefix, i)
		if err := l.fill(ctx, name, configMapsPerTiny, 100); err != nil {
			return nil, err
		}
		backups = append(backups, newBackup(name, name))
	}
	controller, err := l.pid("holdfast-controller")
	if err != nil {
		return nil, err
	}
	offset, err := l.auditSize()
	if err != nil {
		return nil, err
	}
	before, err := l.cpuTimes()
	if err != nil {
		return nil, err
	}

	// A controller that could not renew its Lease for 10 s ends, so the backups must
	// all be created in less; they take about a second.
	if err := syscall.Kill(controller, syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("holding the controller: %w", err)
	}
	resume := func() error { return syscall.Kill(controller, syscall.SIGCONT) }
	var drainBegan time.Time
	began := time.Now()
	runs, err := l.run(ctx, backups, func() error {
		drainBegan = time.Now()
		return resume()
	})
	if err != nil {
		return nil, errors.Join(err, resume())
	}
	after, err := l.cpuTimes()
	if err != nil {
		return nil, err
	}
	passed := time.Since(began)
	var last time.Time
	for _, run := range runs {
		if run.ended.After(last) {
			last = run.ended
		}
	}
	if err := l.listed(ctx, prefix, n); err != nil {
		return nil, err
	}
	found, err := l.writesSince(ctx, offset)
	if err != nil {
		return nil, err
	}

	total := found.total()
	perBackup := float64(total) / float64(n)
	fmt.Printf("%d backups queued, each of one namespace with %d ConfigMaps: %d writes, from the creation of a backup to the removal of its run\n",
		n, configMapsPerTiny, total)
	found.print(os.Stdout, n)
	fmt.Printf("  creation took %s, the drain %s\n", seconds(drainBegan.Sub(began)), seconds(last.Sub(drainBegan)))
	var ours time.Duration
	machine := after[wholeMachine] - before[wholeMachine]
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if name == wholeMachine {
			continue
		}
		used := after[name] - before[name]
		ours += used
		fmt.Printf("  CPU time of %s: %.0f ms per backup\n", name, float64(used.Milliseconds())/float64(n))
	}
	fmt.Printf("  that is %.1f of %d CPUs; everything else on the machine kept %.1f busy\n",
		ours.Seconds()/passed.Seconds(), runtime.NumCPU(), (machine-ours).Seconds()/passed.Seconds())
	if perBackup > maxWritesPerBackup {
		return nil, fmt.Errorf("%.2f writes per backup, more than %d", perBackup, maxWritesPerBackup)
	}
	rows := []row{{
		fmt.Sprintf("API writes per backup, %d queued", n), fmt.Sprintf("%.2f", perBackup),
		fmt.Sprintf("limit %d", maxWritesPerBackup), times(perBackup, maxWritesPerBackup) + " of the limit",
	}}
	if n != 200 { // what Velero was measured with
		return rows, nil
	}
	took := last.Sub(began)
	return append(rows,
		row{"drain of 200 tiny backups, 4 at once", seconds(took), fmt.Sprintf("Velero %d s", veleroDrainSeconds), times(veleroDrainSeconds, took.Seconds()) + " times as fast"},
		row{"CPU time of that drain, all four processes", seconds(ours), fmt.Sprintf("%d CPUs", runtime.NumCPU()),
			fmt.Sprintf("%.2f s at best", ours.Seconds()/float64(runtime.NumCPU()))},
		row{"API writes of that drain", fmt.Sprint(total), fmt.Sprintf("Velero %d PATCHes", veleroDrainPatches), "1/" + times(veleroDrainPatches, float64(total))},
	), nil
}
