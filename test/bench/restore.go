// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// What Velero 1.18 needed on a machine with 2 cores for 5,003 objects into a new namespace, and
// what may be taken.
const (
	veleroRestoredPerSecond = 48.9
	veleroRestoreRequests   = 3.0
	restoreTimes            = 1.3
	restoreRequests         = 1.2
	restoreAgainWrites      = 0.05
	restoreAgainReads       = 1
	// of a backup of 300,000 objects
	restoreLargeMB, restoreOneSeconds = 250, 2
)

// measureRestore restores n ConfigMaps and Secrets into an empty namespace, and again, beside
// the same creations by a plain client.
func measureRestore(ctx context.Context, l *lab, n int) ([]row, error) {
	const of, plain, into = "bench-restore", "bench-restore-plain", "bench-restore-into"
	fmt.Printf("making %d ConfigMaps and as many Secrets of %d bytes\n", n/2, objectSize)
	if err := l.fill(ctx, of, n/2, objectSize); err != nil {
		return nil, err
	}
	if err := l.fillSecrets(ctx, of, n/2); err != nil {
		return nil, err
	}
	if _, err := l.run(ctx, []*v1alpha1.Backup{newBackup(of, of)}, 1, nothing); err != nil {
		return nil, err
	}
	if err := l.listed(ctx, of, 1); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := l.fill(ctx, plain, n/2, objectSize); err != nil {
		return nil, err
	}
	if err := l.fillSecrets(ctx, plain, n/2); err != nil {
		return nil, err
	}
	byHand := time.Since(began)
	fmt.Printf("  a plain client with %d workers: %s\n", parallel, seconds(byHand))

	type measured struct {
		took          time.Duration
		reads, writes int
	}
	var runs [2]measured
	for i := range runs {
		reads, writes, err := l.requests(ctx)
		if err != nil {
			return nil, err
		}
		spec := v1alpha1.RestoreSpec{BackupName: of, NamespaceMapping: map[string]string{of: into}, ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}
		m := &runs[i]
		if m.took, err = l.restore(ctx, fmt.Sprintf("%s-%d", of, i), spec); err != nil {
			return nil, err
		}
		afterReads, afterWrites, err := l.requests(ctx)
		if err != nil {
			return nil, err
		}
		m.reads, m.writes = afterReads-reads, afterWrites-writes
		fmt.Printf("  restore %d: %s, %d reads and %d writes of ConfigMaps, Secrets, namespaces and accounts\n", i+1, seconds(m.took), m.reads, m.writes)
	}
	peak, err := l.peakMemory("holdfast-controller")
	if err != nil {
		return nil, err
	}
	each := func(count int) float64 { return float64(count) / float64(n) }
	first, again := runs[0], runs[1]
	if requests := each(first.reads + first.writes); requests > restoreRequests {
		return nil, fmt.Errorf("a restore took %.2f requests an object, and %.1f is the limit", requests, restoreRequests)
	}
	if each(again.writes) > restoreAgainWrites || each(again.reads) > restoreAgainReads {
		return nil, fmt.Errorf("the second restore took %.3f writes and %.3f reads an object, and %.2f and %d are the limits", each(again.writes), each(again.reads), restoreAgainWrites, restoreAgainReads)
	}
	perSecond := float64(n) / first.took.Seconds()
	return []row{
		{fmt.Sprintf("restore of %d ConfigMaps and Secrets into an empty namespace", n), seconds(first.took), fmt.Sprintf("a plain client with %d workers: %s", parallel, seconds(byHand)), times(first.took.Seconds(), byHand.Seconds()) + fmt.Sprintf(" of it (aim %.1f)", restoreTimes)},
		{"objects per second", fmt.Sprintf("%.0f", perSecond), fmt.Sprintf("Velero %.1f", veleroRestoredPerSecond), times(perSecond, veleroRestoredPerSecond) + " times as fast"},
		{"requests per object", fmt.Sprintf("%.3f", each(first.reads+first.writes)), fmt.Sprintf("Velero %.1f, limit %.1f", veleroRestoreRequests, restoreRequests), ""},
		{"the same again: time, and writes and reads per object", fmt.Sprintf("%s, %.4f, %.4f", seconds(again.took), each(again.writes), each(again.reads)), fmt.Sprintf("limits %.2f and %d", restoreAgainWrites, restoreAgainReads), ""},
		{"controller's peak memory after both", fmt.Sprintf("%.0f MB", megabytes(peak)), "", ""},
	}, nil
}

// measureLargeRestore makes rows of BenchmarkLarge of pkg/restore/source.
func measureLargeRestore(found benchmarks) ([]row, error) {
	large := found["BenchmarkLarge"]
	if large == nil {
		return nil, errors.New("no results of BenchmarkLarge of pkg/restore/source; run `hack/bench.sh restore`")
	}
	held := large["held-MiB"] * (1 << 20) / 1e6
	return []row{
		{"backup of 300,000 objects, opened and ordered: memory held", fmt.Sprintf("%.0f MB", held), fmt.Sprintf("aim %d MB", restoreLargeMB), times(held, restoreLargeMB) + " of the aim"},
		{"the same: time until it is opened, and one object of it is read", fmt.Sprintf("%.2f s", large["one-s"]), fmt.Sprintf("aim %d s", restoreOneSeconds), times(large["one-s"], restoreOneSeconds) + " of the aim"},
	}, nil
}

func (l *lab) fillSecrets(ctx context.Context, name string, count int) error {
	return each(ctx, count, func(ctx context.Context, i int) error {
		_, err := l.kube.CoreV1().Secrets(name).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("password-%05d", i)},
			Data:       map[string][]byte{"text": []byte(text(objectSize, uint64(i)))},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// restore makes a restore, and returns how long it took from there to its end.
func (l *lab) restore(ctx context.Context, name string, spec v1alpha1.RestoreSpec) (time.Duration, error) {
	restores := l.holdfast.HoldfastV1alpha1().Restores(namespace)
	began := time.Now()
	if _, err := restores.Create(ctx, &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	var last *v1alpha1.Restore
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, time.Hour, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = restores.Get(ctx, name, metav1.GetOptions{})
		return err == nil && last.Status.Phase.Ended(), err
	})
	took := time.Since(began)
	if err == nil && last.Status.Phase != v1alpha1.RestorePhaseCompleted {
		err = fmt.Errorf("restore %s ended as %+v", name, last.Status)
	}
	return took, err
}

// requests counts, by the API server's metrics, those for what a restore here is about.
func (l *lab) requests(ctx context.Context) (reads, writes int, err error) {
	err = l.eachRequest(ctx, func(verb, resource string, times int) {
		switch resource {
		case "configmaps", "secrets", "namespaces", "serviceaccounts":
		default:
			return
		}
		switch verb {
		case "GET", "LIST":
			reads += times
		case "WATCH":
		default:
			writes += times
		}
	})
	return reads, writes, err
}
