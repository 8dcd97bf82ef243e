// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/scheme"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
)

const (
	listRounds = 5
	pageSize   = 500 // what kubectl asks for
	watchers   = 3
	// settled is how long watchers must be told nothing, until the queue is what they
	// were told: longer than the longest pause that the server makes.
	settled = 12 * time.Second
)

type listOptions struct {
	queued, drained int
	kubectl         string
}

// measureList lists a long queue, and watches it while some of it drains.
func measureList(ctx context.Context, l *lab, o listOptions) ([]row, error) {
	backups, err := l.tinyBackups(ctx, "bench-list-", o.queued)
	if err != nil {
		return nil, err
	}
	release, err := l.hold(ctx)
	if err != nil {
		return nil, err
	}
	var rows []row
	var watching *queueWatch
	var before, atDrain, after map[string]time.Duration
	var began, drainBegan time.Time
	if before, err = l.cpuTimes(); err != nil {
		return nil, err
	}
	began = time.Now()
	runs, err := l.run(ctx, backups, o.drained, func() error {
		fmt.Printf("%d backups were queued in %s\n", o.queued, seconds(time.Since(began)))
		if err := l.published(ctx, o.queued); err != nil {
			return err
		}
		now, err := l.cpuTimes()
		if err != nil {
			return err
		}
		for _, name := range []string{"holdfast-apiserver", "holdfast-controller", "kube-apiserver"} {
			fmt.Printf("  CPU time of %s meanwhile: %s\n", name, seconds(now[name]-before[name]))
		}
		if rows, err = l.listQueue(ctx, o); err != nil {
			return err
		}
		if watching, err = l.watchQueue(ctx, watchers); err != nil {
			return err
		}
		if atDrain, err = l.cpuTimes(); err != nil {
			return err
		}
		drainBegan = time.Now()
		return release()
	})
	if err != nil {
		return nil, err
	}
	drain := time.Since(drainBegan)
	if after, err = l.cpuTimes(); err != nil {
		return nil, err
	}
	if _, err := l.hold(ctx); err != nil {
		return nil, err
	}
	held := time.Now()
	if err := watching.settle(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("%d of them ended in %s, watched by %d\n", o.drained, seconds(drain), watchers)
	perBackup := map[string]float64{}
	for _, name := range []string{"holdfast-apiserver", "holdfast-controller", "kube-apiserver"} {
		perBackup[name] = float64((after[name] - atDrain[name]).Milliseconds()) / float64(o.drained)
		peak, err := l.peakMemory(name)
		if err != nil {
			return nil, err
		}
		fmt.Printf("  CPU time of %s per ended backup: %.0f ms; its peak memory %.0f MB\n", name, perBackup[name], megabytes(peak))
	}
	watched, err := watching.judge(ctx, l, runs, drainBegan, held)
	if err != nil {
		return nil, err
	}
	peak, err := l.peakMemory("holdfast-apiserver")
	if err != nil {
		return nil, err
	}
	rows = append(rows, watched...)
	return append(rows,
		row{"API server's CPU time per backup that ended meanwhile", fmt.Sprintf("%.0f ms", perBackup["holdfast-apiserver"]), "", ""},
		row{"controller's CPU time per backup that ended meanwhile", fmt.Sprintf("%.0f ms", perBackup["holdfast-controller"]), "", ""},
		row{"API server's peak memory", fmt.Sprintf("%.0f MB", megabytes(peak)), "", ""},
	), nil
}

// published waits until the queue shows n backups that wait.
func (l *lab) published(ctx context.Context, n int) error {
	shown := 0
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		page, err := l.holdfast.HoldfastV1alpha1().BackupQueueEntries(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return false, err
		}
		shown = len(page.Items)
		if page.RemainingItemCount != nil {
			shown += int(*page.RemainingItemCount)
		}
		return shown == n, nil
	})
	if err != nil {
		return fmt.Errorf("the queue shows %d of %d backups: %w", shown, n, err)
	}
	return nil
}

// queuePage is what is read of a page of the queue, as it is sent.
type queuePage struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []queueEntry    `json:"items"`
}

type queueEntry struct {
	Metadata struct{ Namespace, Name, ResourceVersion string } `json:"metadata"`
	Status   struct {
		State    v1alpha1.QueueState
		Position int
	} `json:"status"`
}

func (e *queueEntry) key() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Metadata.Namespace, Name: e.Metadata.Name}
}

// listing is a list of the whole queue, page by page.
type listing struct {
	entries     []queueEntry
	version     string
	bytes       int
	whole, page time.Duration // page is the slowest one
}

// pages lists the queue. The time is that until the last byte has come, without
// what it takes to read them.
func (l *lab) pages(ctx context.Context) (*listing, error) {
	result := &listing{}
	for token := ""; ; {
		begin := time.Now()
		raw, err := l.holdfast.HoldfastV1alpha1().RESTClient().Get().Resource("backupqueues").
			VersionedParams(&metav1.ListOptions{Limit: pageSize, Continue: token}, scheme.ParameterCodec).
			SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		took := time.Since(begin)
		result.whole += took
		result.page = max(result.page, took)
		result.bytes += len(raw)
		var page queuePage
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, err
		}
		result.entries = append(result.entries, page.Items...)
		result.version = page.Metadata.ResourceVersion
		if token = page.Metadata.Continue; token == "" {
			return result, nil
		}
	}
}

// check returns an error unless n entries wait, at the positions from 1 to n.
func (l *listing) check(n int) error {
	var positions []int
	for _, entry := range l.entries {
		if entry.Status.State == v1alpha1.QueueStateQueued {
			positions = append(positions, entry.Status.Position)
		}
	}
	slices.Sort(positions)
	for i, position := range positions {
		if position != i+1 {
			return fmt.Errorf("the list has position %d where %d should be", position, i+1)
		}
	}
	if len(positions) != n {
		return fmt.Errorf("the list has %d backups that wait, not %d", len(positions), n)
	}
	return nil
}

// listQueue lists the queue as a client and as kubectl.
func (l *lab) listQueue(ctx context.Context, o listOptions) ([]row, error) {
	var whole, page, shown []time.Duration
	var bytesSent int
	for range listRounds {
		list, err := l.pages(ctx)
		if err != nil {
			return nil, err
		}
		if err := list.check(o.queued); err != nil {
			return nil, err
		}
		whole, page, bytesSent = append(whole, list.whole), append(page, list.page), list.bytes

		begin := time.Now()
		command := exec.CommandContext(ctx, o.kubectl, "--kubeconfig", filepath.Join(l.dir, "kubeconfig"),
			"--cache-dir", filepath.Join(l.dir, "kubectl-cache"), "get", "backupqueue", "--all-namespaces", "--no-headers")
		out, err := command.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		shown = append(shown, time.Since(begin))
		if lines := bytes.Count(out, []byte("\n")); lines != o.queued {
			return nil, fmt.Errorf("kubectl shows %d backups of %d", lines, o.queued)
		}
	}
	fmt.Printf("listed %d times: %v, with the slowest page in %v; kubectl %v\n", listRounds, whole, page, shown)
	what := fmt.Sprintf("list of %d waiting backups in pages of %d, fastest of %d", o.queued, pageSize, listRounds)
	return []row{
		{what, seconds(slices.Min(whole)), fmt.Sprintf("%.1f MB of JSON", megabytes(int64(bytesSent))), fmt.Sprintf("%.0f ms for a page at most", float64(slices.Min(page).Milliseconds()))},
		{"the same with kubectl get", seconds(slices.Min(shown)), "", ""},
	}, nil
}

// bound is the most events that a watcher may be sent in a time: so many a second,
// and one of each entry at once.
func bound(d time.Duration, entries int) int {
	return int(projection.MaxQueueEvents*d.Seconds()) + entries
}
