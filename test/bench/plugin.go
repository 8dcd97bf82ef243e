// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Aims of kubectl holdfast, and of the API behind it. None is a limit.
const (
	findAim        = 2 * time.Second
	planAim        = 2 * time.Second
	protectionsAim = 100 * time.Millisecond
	statusAim      = time.Second
	startAim       = 100 * time.Millisecond
	pluginRounds   = 5
)

type pluginOptions struct {
	program          string
	objects, backups int
}

// measurePlugin makes rows of BenchmarkFind of pkg/registry/backup, BenchmarkPage of
// pkg/registry/protection and BenchmarkFiles of pkg/volumefiles/reader, and measures the plugin and
// plans in the lab.
func (l *lab) measurePlugin(ctx context.Context, found benchmarks, o pluginOptions) ([]row, error) {
	find, err1 := found.values("BenchmarkFind", "ms", "requests/backup")
	page, err2 := found.values("BenchmarkPage", "ms", "MB")
	list, err3 := found.values("BenchmarkFiles/ls", "ms", "requests")
	read, err4 := found.values("BenchmarkFiles/cat", "s")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("what the benchmarks print is not whole; run `hack/bench.sh plugin`: %w", err)
	}
	aimed := func(what string, took, aim time.Duration, besides string) row {
		return row{what, fmt.Sprintf("%.0f ms%s", float64(took.Microseconds())/1000, besides), fmt.Sprintf("aim %.0f ms", float64(aim.Milliseconds())), times(took.Seconds(), aim.Seconds()) + " of the aim"}
	}
	milliseconds := func(of float64) time.Duration { return time.Duration(of * float64(time.Millisecond)) }
	rows := []row{
		aimed("find an object in 1,000 backups of 10,000 objects, 20 ms away", milliseconds(find["ms"]), findAim, fmt.Sprintf(", %.1f requests a backup", find["requests/backup"])),
		aimed("page of 500 of the protections of 5,000 workloads and 10,000 claims", milliseconds(page["ms"]), protectionsAim, fmt.Sprintf(", %.0f MB in memory", page["MB"])),
		{"files ls of a folder of 10,000 files, 20 ms away", fmt.Sprintf("%.0f ms, %.0f requests", list["ms"], list["requests"]), "", ""},
		{"files cat of 1 GB from a folder store, without HTTP", fmt.Sprintf("%.1f s", read["s"]), "", fmt.Sprintf("%.0f MB/s", 1000/read["s"])},
	}
	planned, requests, err := l.plan(ctx, o.objects)
	if err != nil {
		return nil, err
	}
	rows = append(rows, aimed(fmt.Sprintf("plan of a backup of %d objects", o.objects), planned, planAim, fmt.Sprintf(", %d requests to kube-apiserver", requests)))
	if err := l.storeBackups(ctx, o.backups); err != nil {
		return nil, err
	}
	status, requests, err := l.plugin(ctx, o.program, "status", "-n", namespace)
	if err != nil {
		return nil, err
	}
	rows = append(rows, aimed(fmt.Sprintf("kubectl holdfast status with %d backups", o.backups), status, statusAim, fmt.Sprintf(", %d requests", requests)))
	start, _, err := l.plugin(ctx, o.program, "version", "--client")
	if err != nil {
		return nil, err
	}
	size, err := os.Stat(o.program)
	if err != nil {
		return nil, err
	}
	return append(rows,
		aimed("start of kubectl holdfast", start, startAim, ""),
		row{"size of kubectl-holdfast", fmt.Sprintf("%.0f MB", megabytes(size.Size())), "", ""},
	), nil
}

// plan has the API plan a backup of a namespace of n ConfigMaps, and returns the fastest time, with the
// requests that kube-apiserver had meanwhile.
func (l *lab) plan(ctx context.Context, n int) (took time.Duration, requests int, err error) {
	const of = "bench-plugin"
	if err := l.fill(ctx, of, n, objectSize); err != nil {
		return 0, 0, err
	}
	for range pluginRounds {
		before, err := l.requestsMade(ctx)
		if err != nil {
			return 0, 0, err
		}
		begin := time.Now()
		planned, err := l.holdfast.HoldfastV1alpha1().Backups(namespace).Create(ctx, newBackup(of, of), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return 0, 0, err
		}
		now := time.Since(begin)
		after, err := l.requestsMade(ctx)
		if err != nil {
			return 0, 0, err
		}
		if of := planned.Status.Plan; of == nil || !of.Complete || of.TotalItems < int64(n) {
			return 0, 0, fmt.Errorf("the plan of %d objects is %+v", n, of)
		}
		fmt.Printf("  plan of %d objects: %s, %d requests\n", n, seconds(now), after-before)
		if took == 0 || now < took {
			took, requests = now, after-before
		}
	}
	return took, requests, nil
}

// storeBackups writes the metadata of n backups of this cluster into the default location's folder, and
// waits until they are listed.
func (l *lab) storeBackups(ctx context.Context, n int) error {
	location, err := l.engine.EngineV1alpha1().StorageLocations(namespace).Get(ctx, defaultLocation, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if location.Spec.Filesystem == nil {
		return errors.New("the default storage location is no folder")
	}
	cluster, err := backuprun.Cluster(ctx, l.kube, namespace)
	if err != nil {
		return err
	}
	if cluster.Key, err = clusteridentity.Stored(ctx, l.kube.CoreV1().Secrets(namespace)); err != nil {
		return err
	}
	of, err := l.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	begin := time.Now().Add(-time.Duration(n) * time.Second)
	for i := range n {
		at := metav1.NewTime(begin.Add(time.Duration(i) * time.Second).Truncate(time.Second))
		backup := &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("bench-plugin-%05d", i), UID: types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)), CreationTimestamp: at},
			Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}},
			Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at,
				Origin: &v1alpha1.BackupOrigin{NamespaceUID: of.UID}},
		}
		metadata, err := format.EncodeBackup(backup, format.Contents{}, cluster)
		if err != nil {
			return err
		}
		file := filepath.Join(location.Spec.Filesystem.Path, filepath.FromSlash(location.Spec.Prefix), filepath.FromSlash(format.MetadataKey(backup.Name)))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, metadata, 0o644)); err != nil {
			return err
		}
	}
	if _, err := l.holdfast.HoldfastV1alpha1().SyncRequests(namespace).Create(ctx, &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: defaultLocation}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	last := fmt.Sprintf("bench-plugin-%05d", n-1)
	shown := 0
	if err := wait.PollUntilContextTimeout(ctx, time.Second, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		page, err := l.holdfast.HoldfastV1alpha1().Backups(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return false, err
		}
		if shown = len(page.Items); page.RemainingItemCount != nil {
			shown += int(*page.RemainingItemCount)
		}
		return shown >= n, nil
	}); err != nil {
		return fmt.Errorf("the API lists %d backups, and %d to %s were written: %w", shown, n, last, err)
	}
	return nil
}

// plugin runs the plugin a few times, and returns the fastest time and the requests of one run. They
// pass by a proxy here, which is no limit for them.
func (l *lab) plugin(ctx context.Context, program string, args ...string) (took time.Duration, requests int, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(l.dir, "kubeconfig"))
	if err != nil {
		return 0, 0, err
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		return 0, 0, err
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	if proxy.Transport, err = rest.TransportFor(config); err != nil {
		return 0, 0, err
	}
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	empty := filepath.Join(l.dir, "bench-plugin.kubeconfig")
	if err := os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		return 0, 0, err
	}
	var all []time.Duration
	for range pluginRounds {
		seen.Store(0)
		begin := time.Now()
		command := exec.CommandContext(ctx, program, append(slices.Clone(args), "--kubeconfig="+empty, "--server="+server.URL)...)
		if output, err := command.CombinedOutput(); err != nil {
			return 0, 0, fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, output)
		}
		all = append(all, time.Since(begin))
		requests = int(seen.Load())
	}
	fmt.Printf("  kubectl holdfast %s: %v, %d requests\n", strings.Join(args, " "), all, requests)
	return slices.Min(all), requests, nil
}
