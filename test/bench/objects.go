// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	objectRounds = 5
	objectSize   = 1000 // bytes of data in a ConfigMap
	// pagingAim is how much longer a backup is to take than reading what it reads. It is a ratio of
	// times, which are not the same twice on a machine that has other work: nothing fails by it.
	pagingAim = 1.5
	// kindsMB and kindsRequests are what a backup of 300,000 objects of 40 kinds may take: the
	// memory with that of the server that makes them, and the requests for each object.
	kindsMB       = 200
	kindsRequests = 0.01
	// objectsPerPage are those of a page, as kubectl asks for them.
	objectsPerPage = 500
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
	var took, limit []time.Duration
	var first, peak int64
	for i := range objectRounds {
		paged, err := l.page(ctx, of)
		if err != nil {
			return nil, err
		}
		limit = append(limit, paged)
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
		fmt.Printf("  backup %d: %d objects in %s, and read and thrown away in %s; the controller's peak so far %.0f MB\n",
			i+1, run.status.Progress.ItemsBackedUp, seconds(took[i]), seconds(paged), megabytes(peak))
	}
	if err := l.listed(ctx, of, objectRounds); err != nil {
		return nil, err
	}
	middle := median(took)
	perSecond := float64(n) / middle.Seconds()
	veleroPerSecond := float64(veleroObjects) / veleroObjectSeconds
	return []row{
		{fmt.Sprintf("objects per second, %d ConfigMaps of 1 KB", n), fmt.Sprintf("%.0f", perSecond), fmt.Sprintf("Velero %.0f", veleroPerSecond), times(perSecond, veleroPerSecond) + " times as fast"},
		{fmt.Sprintf("a backup of %d ConfigMaps of 1 KB", n), seconds(middle), "reading the same pages and throwing them away " + seconds(median(limit)),
			times(middle.Seconds(), median(limit).Seconds()) + fmt.Sprintf(" times (aim %.1f)", pagingAim)},
		{"controller's peak memory, first such backup", fmt.Sprintf("%.0f MB", megabytes(first)), fmt.Sprintf("Velero %d MB", veleroObjectMB), times(megabytes(first), veleroObjectMB) + " of it"},
		{fmt.Sprintf("controller's peak memory, after %d of them", objectRounds), fmt.Sprintf("%.0f MB", megabytes(peak)), fmt.Sprintf("Velero %d MB", veleroObjectMB), times(megabytes(peak), veleroObjectMB) + " of it"},
	}, nil
}

// page lists the ConfigMaps of a namespace page by page, throws them away, and tells how long
// that took: no backup of them can be faster.
func (l *lab) page(ctx context.Context, namespace string) (time.Duration, error) {
	began := time.Now()
	for next := ""; ; {
		body, err := l.kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("configmaps").
			SetHeader("Accept", "application/json").Param("limit", strconv.Itoa(objectsPerPage)).Param("continue", next).Stream(ctx)
		if err != nil {
			return 0, fmt.Errorf("list the ConfigMaps of %s: %w", namespace, err)
		}
		buffered := bufio.NewReaderSize(body, 4096)
		beginning, err := buffered.Peek(1024) // the list's metadata comes first
		if err == nil {
			_, err = io.Copy(io.Discard, buffered)
		}
		if err = errors.Join(err, body.Close()); err != nil {
			return 0, fmt.Errorf("list the ConfigMaps of %s: %w", namespace, err)
		}
		found := continueToken.FindSubmatch(beginning)
		if found == nil {
			return time.Since(began), nil
		}
		next = string(found[1])
	}
}

var continueToken = regexp.MustCompile(`^[^\[]*"continue":"([^"]+)"`)

// measureEngine makes rows of the benchmarks of pkg/backup.
func measureEngine(found benchmarks) ([]row, error) {
	tarball, err1 := found.values("BenchmarkTarball", "bytes", "velero-bytes", "requests")
	kinds, err2 := found.values("BenchmarkManyKinds", "objects/s", "peak-MB", "lists", "requests/object")
	one, err3 := found.values("BenchmarkManyPods/workers=1", "ns/op", "requests/pod")
	eight, err4 := found.values("BenchmarkManyPods/workers=8", "ns/op", "requests/pod")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("what the benchmarks of pkg/backup print is not whole; run `hack/bench.sh objects`: %w", err)
	}
	ours, theirs := tarball["bytes"], tarball["velero-bytes"]
	if 10*ours > 11*theirs {
		return nil, fmt.Errorf("a tarball takes %.0f bytes, and a tenth more than Velero's %.0f of the same objects is the limit", ours, theirs)
	}
	// The benchmark counts in MiB.
	if peak, each := kinds["peak-MB"]*(1<<20)/1e6, kinds["requests/object"]; peak > kindsMB || each > kindsRequests {
		return nil, fmt.Errorf("300,000 objects took %.0f MB and %.4f requests each, and the limits are %d MB and %.2f", peak, each, kindsMB, kindsRequests)
	}
	pods := func(b map[string]float64) string {
		return seconds(time.Duration(b["ns/op"])) + fmt.Sprintf(", %.3f requests per pod", b["requests/pod"])
	}
	return []row{
		{"bytes of a tarball of 264 objects of 30 kinds", fmt.Sprintf("%.0f, for %.0f requests", ours, tarball["requests"]), fmt.Sprintf("Velero %.0f", theirs), times(ours, theirs) + " of it"},
		{"300,000 objects of 40 kinds in 300 namespaces, with the server that makes them", fmt.Sprintf("%.0f a second, at most %.0f MB", kinds["objects/s"], kinds["peak-MB"]*(1<<20)/1e6),
			fmt.Sprintf("limits: %d MB, and %.2f requests per object", kindsMB, kindsRequests), fmt.Sprintf("%.0f lists, %.4f requests per object", kinds["lists"], kinds["requests/object"])},
		{"2,000 pods with 2 claims each, whose records take 2 ms: 1 worker, and 8", pods(one) + "; " + pods(eight), "", times(one["ns/op"], eight["ns/op"]) + " times as fast with 8"},
	}, nil
}
