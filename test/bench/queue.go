// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// configMapsPerTiny is what is in the namespace of a tiny backup.
	configMapsPerTiny = 5
	// tinyNamespaces is how many such namespaces there are. A longer queue has each
	// of them more than once, too far apart for one to wait for the other.
	tinyNamespaces = 200
	// tinyCPUAim is half of the milliseconds of CPU time that a tiny backup took at first.
	tinyCPUAim = 88
)

// tinyBackups are n backups of one tiny namespace each, which it makes.
func (l *lab) tinyBackups(ctx context.Context, prefix string, n int) ([]*v1alpha1.Backup, error) {
	var backups []*v1alpha1.Backup
	for i := range n {
		of := fmt.Sprintf("bench-tiny-%03d", i%tinyNamespaces)
		if i < tinyNamespaces {
			if err := l.fill(ctx, of, configMapsPerTiny, 100); err != nil {
				return nil, err
			}
		}
		backups = append(backups, newBackup(fmt.Sprintf("%s%05d", prefix, i), of))
	}
	return backups, nil
}

// measureQueue queues backups of tiny namespaces and drains the queue. Their store
// is away while they are created, so that all of them wait, each with its ticket,
// when the drain begins.
func measureQueue(ctx context.Context, l *lab, n int) ([]row, error) {
	prefix := fmt.Sprintf("bench-%d-", n)
	backups, err := l.tinyBackups(ctx, prefix, n)
	if err != nil {
		return nil, err
	}
	release, err := l.hold(ctx)
	if err != nil {
		return nil, err
	}
	offset, err := l.auditSize()
	if err != nil {
		return nil, err
	}
	var drainBegan time.Time
	var atDrain map[string]time.Duration
	began := time.Now()
	before, err := l.cpuTimes()
	if err != nil {
		return nil, err
	}
	requests, err := l.requestsMade(ctx)
	if err != nil {
		return nil, err
	}
	runs, err := l.run(ctx, backups, n, func() (err error) {
		drainBegan = time.Now()
		if atDrain, err = l.cpuTimes(); err != nil {
			return err
		}
		return release()
	})
	if err != nil {
		return nil, err
	}
	after, err := l.cpuTimes()
	if err != nil {
		return nil, err
	}
	passed := time.Since(drainBegan)
	made, err := l.requestsMade(ctx)
	if err != nil {
		return nil, err
	}
	var last time.Time
	var changes int
	for _, run := range runs {
		if run.ended.After(last) {
			last = run.ended
		}
		changes += run.changes
	}
	if err := l.listed(ctx, prefix, n); err != nil {
		return nil, err
	}
	found, err := l.writesSince(ctx, offset)
	if err != nil {
		return nil, err
	}

	// What was written to a run's status and was not seen as a change of a run that
	// has left the queue, was written by the queue, or in vain.
	tickets := found.of("backupruns.engine.holdfast.io/status") - changes
	starts := found.of("configmaps/" + records.LedgerName)
	ofQueue := float64(tickets+starts) / float64(n)
	total := found.total()
	perBackup := float64(total) / float64(n)
	creation, drain := drainBegan.Sub(began), last.Sub(drainBegan)
	fmt.Printf("%d backups queued, each of one namespace with %d ConfigMaps: %d writes, from the creation of a backup to the removal of its run\n",
		n, configMapsPerTiny, total)
	found.print(os.Stdout, n)
	fmt.Printf("  of these, the queue's: %d tickets and %d starts, %.2f per backup; all others: %.2f\n", tickets, starts, ofQueue, perBackup-ofQueue)
	fmt.Printf("  creation took %s, the drain %s\n", seconds(creation), seconds(drain))
	var ours time.Duration
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if name == wholeMachine {
			continue
		}
		ours += after[name] - before[name]
		perBackup := func(d time.Duration) float64 { return float64(d.Milliseconds()) / float64(n) }
		fmt.Printf("  CPU time of %s per backup: %.1f ms until all were queued, %.1f ms of the drain\n",
			name, perBackup(atDrain[name]-before[name]), perBackup(after[name]-atDrain[name]))
	}
	inDrain := ours
	for name := range after {
		if name != wholeMachine {
			inDrain -= atDrain[name] - before[name]
		}
	}
	each := float64(ours.Milliseconds()) / float64(n)
	requestsEach := float64(made-requests) / float64(n)
	fmt.Printf("  a backup: %.1f ms of CPU time of all four processes, %.1f requests of kube-apiserver\n", each, requestsEach)
	machine := after[wholeMachine] - atDrain[wholeMachine]
	fmt.Printf("  the drain kept %.1f of %d CPUs busy; everything else on the machine %.1f\n",
		inDrain.Seconds()/passed.Seconds(), runtime.NumCPU(), (machine-inDrain).Seconds()/passed.Seconds())
	if total > n*maxWritesPerBackup {
		return nil, fmt.Errorf("%.2f writes per backup, more than %d", perBackup, maxWritesPerBackup)
	}
	if ofQueue > maxQueueWrites {
		return nil, fmt.Errorf("%.2f writes per backup are the queue's, more than %d", ofQueue, maxQueueWrites)
	}
	rows := []row{
		{fmt.Sprintf("API writes per backup, %d queued", n), fmt.Sprintf("%.2f", perBackup),
			fmt.Sprintf("limit %d", maxWritesPerBackup), times(perBackup, maxWritesPerBackup) + " of the limit"},
		{"of these, the queue's", fmt.Sprintf("%.3f", ofQueue), fmt.Sprintf("limit %d", maxQueueWrites), times(ofQueue, maxQueueWrites) + " of the limit"},
	}
	if n < tinyNamespaces {
		return rows, nil
	}
	rows = append(rows, row{
		fmt.Sprintf("a tiny backup, of %d: CPU time of all four processes; requests", n), fmt.Sprintf("%.0f ms; %.1f", each, requestsEach),
		fmt.Sprintf("aim %d ms", tinyCPUAim), times(each, tinyCPUAim) + " of the aim",
	})
	what := fmt.Sprintf("drain of %d tiny backups, 4 at once", n)
	if n == veleroDrained {
		return append(rows,
			row{what + ", with their creation", seconds(creation + drain), fmt.Sprintf("Velero %d s", veleroDrainSeconds), times(veleroDrainSeconds, (creation+drain).Seconds()) + " times as fast"},
			row{"API writes of that drain", fmt.Sprint(total), fmt.Sprintf("Velero %d PATCHes", veleroDrainPatches), "1/" + times(veleroDrainPatches, float64(total))},
			row{"CPU time of that drain, all four processes", seconds(ours), fmt.Sprintf("%d CPUs", runtime.NumCPU()), fmt.Sprintf("%.2f s at best", ours.Seconds()/float64(runtime.NumCPU()))},
		), nil
	}
	computed := veleroPatches(n)
	return append(rows,
		row{what + ", with their creation", seconds(creation + drain), fmt.Sprintf("Velero %.0f s, computed", computed/veleroPatchesPerSecond), times(computed/veleroPatchesPerSecond, (creation+drain).Seconds()) + " times as fast"},
		row{"API writes of that drain", fmt.Sprint(total), fmt.Sprintf("Velero %.0f PATCHes, computed", computed), "1/" + times(computed, float64(total))},
	), nil
}
