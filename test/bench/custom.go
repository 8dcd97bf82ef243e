// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	customGroup      = "bench.holdfast.io"
	customPath       = "/apis/" + customGroup + "/v1"
	customWorkers    = 32
	customNamespaces = 10
	customVolumes    = 100 // of each namespace, in each backup
	// customSettles is longer than the two minutes after which Go collects garbage at rest.
	customSettles = 130 * time.Second
	// On a machine that is slow, or busy, fewer are made than are asked for, and listed fewer
	// times, so that all of it ends within a quarter of an hour; what is extrapolated is so from
	// as many as there are.
	customCreates, customLists = 7 * time.Minute, 2 * time.Minute
	customMillion              = 1_000_000
)

// measureCustom keeps volume backups as custom resources, and compares what they take with
// what BenchmarkMillion found of our rows. There is no status subresource, with which each
// would be two writes.
func (l *lab) measureCustom(ctx context.Context, found benchmarks, count int) ([]row, error) {
	resident, page := found["BenchmarkMillion/resident"], found["BenchmarkMillion/page"]
	if resident == nil || page == nil {
		return nil, errors.New("no results of BenchmarkMillion of pkg/registry/volumebackup; run `hack/bench.sh custom`")
	}
	if err := l.defineCustom(ctx); err != nil {
		return nil, err
	}
	before, err := l.server(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	var made atomic.Int64
	if err := eachOf(ctx, customWorkers, count, func(ctx context.Context, n int) error {
		if time.Since(begin) > customCreates {
			return nil
		}
		made.Add(1)
		return l.createCustom(ctx, n)
	}); err != nil {
		return nil, err
	}
	created := time.Since(begin)
	fmt.Printf("%d of %d were created in %s\n", made.Load(), count, seconds(created))
	count = int(made.Load())
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(customSettles):
	}
	after, err := l.server(ctx)
	if err != nil {
		return nil, err
	}
	database, err := os.Stat(filepath.Join(l.dir, "etcd", "member", "snap", "db"))
	if err != nil {
		return nil, err
	}
	var first, whole []time.Duration
	var sent int64
	cpuBefore, err := l.cpuTime("kube-apiserver")
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); len(first) == 0 || len(first) < listRounds && time.Since(begin) < customLists; {
		list, err := l.listCustom(ctx, count)
		if err != nil {
			return nil, err
		}
		first, whole, sent = append(first, list.first), append(whole, list.whole), list.bytes
	}
	rounds := len(first)
	cpuAfter, err := l.cpuTime("kube-apiserver")
	if err != nil {
		return nil, err
	}
	cpuPage := float64((cpuAfter - cpuBefore).Milliseconds()) / float64(rounds*((count+pageSize-1)/pageSize))
	peak, err := l.peakMemory("kube-apiserver")
	if err != nil {
		return nil, err
	}
	fmt.Printf("first pages of %d: %v; all: %v; kube-apiserver's peak memory %.0f MB\n", pageSize, first, whole, megabytes(peak))

	scale := customMillion / float64(count)
	gained, ours := float64(after.resident-before.resident), resident["MB"]*1e6
	fastest, oursPage := slices.Min(first), time.Duration(page["ns/op"])
	return []row{
		{fmt.Sprintf("%d volume backups as custom resources: memory that kube-apiserver gains", count),
			fmt.Sprintf("%.0f MB, %.0f bytes each; %.0f MB of them live", gained/1e6, gained/float64(count), megabytes(after.live-before.live)),
			fmt.Sprintf("a whole process with a million of our rows: %.0f bytes each", ours/customMillion), times(gained/float64(count), ours/customMillion)},
		{"the same of a million, extrapolated", fmt.Sprintf("%.1f GB", gained*scale/1e9), fmt.Sprintf("ours, measured: %.0f MB", ours/1e6), times(gained*scale, ours)},
		{fmt.Sprintf("first page of %d of them, fastest of %d", pageSize, rounds), fmt.Sprintf("%.1f ms; a page in the mean %.1f ms of CPU time", float64(fastest.Microseconds())/1e3, cpuPage),
			fmt.Sprintf("ours of a million, with its JSON and without HTTP: %.1f ms, %.1f ms of CPU time", float64(oursPage.Microseconds())/1e3, page["CPU-ms"]), times(cpuPage, page["CPU-ms"]) + " of the CPU time"},
		{"all of them in such pages, and a million, extrapolated", fmt.Sprintf("%s, and %.0f s", seconds(slices.Min(whole)), slices.Min(whole).Seconds()*scale), fmt.Sprintf("%.0f MB of JSON", megabytes(sent)), ""},
		{"etcd's database with them, and with a million, extrapolated", fmt.Sprintf("%.0f MB, and %.1f GB", megabytes(database.Size()), float64(database.Size())*scale/1e9), "ours: nothing; etcd's default quota is 2.1 GB", ""},
		{fmt.Sprintf("time to create them, %d at once", customWorkers), seconds(created), "", ""},
	}, nil
}

// volumeBackup is the n-th of those that BenchmarkMillion lists.
func volumeBackup(n int) *v1alpha1.VolumeBackup {
	volume, n := n%customVolumes, n/customVolumes
	namespace, n := n%customNamespaces, n/customNamespaces
	ended := metav1.NewTime(time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC))
	backup := fmt.Sprintf("daily-%06d", n)
	v := &v1alpha1.VolumeBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: customGroup + "/v1", Kind: "VolumeBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("namespace-%03d", namespace),
			Name:      fmt.Sprintf("%s.data-%04d", backup, volume),
			Labels:    map[string]string{"tier": []string{"gold", "silver"}[volume%2]},
		},
		Spec: v1alpha1.VolumeBackupSpec{
			VolumeName: fmt.Sprintf("data-%04d", volume), BackupUID: types.UID("uid-of-" + backup),
			PodName: fmt.Sprintf("db-%04d", volume), PodVolume: "data", StorageLocation: "default",
		},
		Status: v1alpha1.VolumeBackupStatus{
			Phase: v1alpha1.VolumeBackupCompleted, Method: "kopia", SnapshotID: fmt.Sprintf("%08x%024x", n, volume),
			SizeBytes: 1, IncrementalBytes: 1, Node: fmt.Sprintf("node-%02d", volume%50),
			StartTimestamp: &ended, CompletionTimestamp: &ended,
		},
	}
	v.Status.Labels = v.Labels
	v.Status.URL = fmt.Sprintf("store://default/kopia/%s?snapshot=%s", v.Namespace, v.Status.SnapshotID)
	if volume == customVolumes-1 {
		v.Status.Phase, v.Status.Message = v1alpha1.VolumeBackupFailed, "the agent restarted"
	}
	return v
}

// schemaOf is the schema of a value of JSON with all its fields.
func schemaOf(value any) map[string]any {
	switch value := value.(type) {
	case map[string]any:
		properties := map[string]any{}
		for name, field := range value {
			properties[name] = schemaOf(field)
		}
		return map[string]any{"type": "object", "properties": properties}
	case float64:
		return map[string]any{"type": "integer", "format": "int64"}
	default:
		return map[string]any{"type": "string"}
	}
}

// defineCustom makes the definition, the namespaces, and the server's cache of what there is.
func (l *lab) defineCustom(ctx context.Context) error {
	raw, err := json.Marshal(volumeBackup(customVolumes - 1)) // it has all fields
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	delete(fields, "metadata")
	definition := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "volumebackups." + customGroup},
		"spec": map[string]any{
			"group": customGroup, "scope": "Namespaced",
			"names": map[string]any{"plural": "volumebackups", "singular": "volumebackup", "kind": "VolumeBackup", "listKind": "VolumeBackupList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": schemaOf(fields)},
			}},
		},
	}
	if err := l.post(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition); err != nil {
		return err
	}
	for n := range customNamespaces {
		name := volumeBackup(n * customVolumes).Namespace
		if _, err := l.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	var last error
	if err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, last = l.listCustom(ctx, 0)
		return last == nil, nil
	}); err != nil {
		return fmt.Errorf("the custom resource is not served: %w", errors.Join(err, last))
	}
	return nil
}

func (l *lab) createCustom(ctx context.Context, n int) error {
	v := volumeBackup(n)
	return l.post(ctx, customPath+"/namespaces/"+v.Namespace+"/volumebackups", v)
}

func (l *lab) post(ctx context.Context, path string, object any) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return l.kube.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(raw).Do(ctx).Error()
}

// customList is a list of all, page by page: the time until the last byte has come, without
// what it takes to read them.
type customList struct {
	first, whole time.Duration
	bytes        int64
}

func (l *lab) listCustom(ctx context.Context, want int) (*customList, error) {
	result, items := &customList{}, 0
	for token := ""; ; {
		begin := time.Now()
		raw, err := l.kube.CoreV1().RESTClient().Get().AbsPath(customPath+"/volumebackups").
			Param("limit", strconv.Itoa(pageSize)).Param("continue", token).
			SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		took := time.Since(begin)
		if token == "" {
			result.first = took
		}
		result.whole += took
		result.bytes += int64(len(raw))
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, err
		}
		items += len(page.Items)
		if token = page.Metadata.Continue; token == "" {
			break
		}
	}
	if items != want {
		return nil, fmt.Errorf("%d custom resources are listed, not %d", items, want)
	}
	return result, nil
}

// memory is that of a process, in bytes: what is resident, and what its heap holds of it.
type memory struct{ resident, live int64 }

// server is the memory of kube-apiserver now. What is live is by Go's GOGC of 100, of which the
// heap grows to twice that before it is collected.
func (l *lab) server(ctx context.Context) (memory, error) {
	resident, err := l.memory("kube-apiserver", "VmRSS:")
	if err != nil {
		return memory{}, err
	}
	metrics, err := l.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return memory{}, err
	}
	for line := range bytes.Lines(metrics) {
		if value, ok := strings.CutPrefix(string(line), "go_memstats_next_gc_bytes "); ok {
			next, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			fmt.Printf("kube-apiserver has %.0f MB resident, %.0f MB live\n", megabytes(resident), next/2e6)
			return memory{resident: resident, live: int64(next / 2)}, err
		}
	}
	return memory{}, errors.New("kube-apiserver does not say how large its heap is")
}
