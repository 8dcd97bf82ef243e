// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// distant is a store far away, of backups that all have the same volumes. It makes their
// metadata when it is asked for, and takes its time for each request.
type distant struct {
	backups  int
	latency  time.Duration
	volumes  []byte
	cluster  format.Cluster
	requests atomic.Int64
}

func (s *distant) request() {
	s.requests.Add(1)
	time.Sleep(s.latency)
}

func (s *distant) List(_ context.Context, _ string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		listed := 0
		for i := range s.backups {
			key := format.BackupPrefix(fmt.Sprintf("b%05d", i))
			if key <= options.StartAfter {
				continue
			}
			if listed%1000 == 0 {
				s.request()
			}
			if listed++; !yield(store.Object{Key: key, IsFolder: true}, nil) {
				return
			}
		}
		if listed == 0 {
			s.request()
		}
	}
}

func (s *distant) Get(_ context.Context, key string) (io.ReadCloser, error) {
	s.request()
	var i int
	if _, err := fmt.Sscanf(key, format.BackupsPrefix+"b%05d/", &i); err != nil {
		return nil, store.ErrNotFound
	}
	name := fmt.Sprintf("b%05d", i)
	switch key {
	case format.PodVolumeBackupsKey(name):
		return io.NopCloser(bytes.NewReader(s.volumes)), nil
	case format.MetadataKey(name):
		ended := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, i, 0, time.UTC))
		contents := format.Contents{}
		contents.Set(format.PodVolumeBackupsKey(name), format.NewContent(s.volumes))
		metadata, err := format.EncodeBackup(&v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID(name), CreationTimestamp: ended},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended},
		}, contents, s.cluster)
		return io.NopCloser(bytes.NewReader(metadata)), err
	}
	return nil, store.ErrNotFound
}

func (s *distant) Attributes(context.Context, string) (store.Object, error) {
	s.request()
	return store.Object{}, store.ErrNotFound
}

func (s *distant) Close() error { return nil }

// volumeList is a list of so many volumes.
func volumeList(tb testing.TB, count int) []byte {
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "b"}}
	volumes := make([]format.PodVolumeBackup, count)
	for i := range volumes {
		claim := fmt.Sprintf("data-%04d", i)
		volumes[i] = format.NewPodVolumeBackup(backup, "b", format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web-" + claim}, Name: "data", ClaimName: claim,
			Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: fmt.Sprintf("%032x", i)},
		})
	}
	var list bytes.Buffer
	if err := format.WritePodVolumeBackups(&list, volumes); err != nil {
		tb.Fatal(err)
	}
	return list.Bytes()
}

// cpuTime is how long this process has kept a CPU busy. Unlike the time that passes, it hardly
// depends on what else the machine does.
func cpuTime(tb testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkFirstLoad reads a store 750 ms away, without an index, and polls it then.
func BenchmarkFirstLoad(b *testing.B) {
	for _, size := range []struct{ backups, volumes int }{{1_000, 1_000}, {10_000, 100}} {
		b.Run(fmt.Sprintf("%dx%d", size.backups, size.volumes), func(b *testing.B) {
			s := &distant{backups: size.backups, latency: 750 * time.Millisecond, volumes: volumeList(b, size.volumes), cluster: madeBy(b, "here")}
			for b.Loop() {
				c := catalog.New(system, nil)
				r := refresh.New(c, refresh.Options{SystemNamespace: system})
				ctx, stop := context.WithCancel(b.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.Run(ctx)
				}()
				s.requests.Store(0)
				begin, before := time.Now(), cpuTime(b)
				interval := time.Second
				location := refresh.Location{Name: "far", Store: "far", Open: func(context.Context) (refresh.Store, error) { return s, nil }}
				r.SetLocations([]refresh.Location{location})
				await := func(is func(refresh.State) bool) refresh.State {
					for {
						if state, ok := r.State("far"); ok && is(state) {
							return state
						}
						time.Sleep(10 * time.Millisecond)
					}
				}
				first := await(func(state refresh.State) bool { return state.Loaded })
				b.ReportMetric(time.Since(begin).Seconds(), "s")
				b.ReportMetric((cpuTime(b) - before).Seconds(), "CPU-s")
				b.ReportMetric(float64(s.requests.Load()), "requests")
				if first.LastError != "" || first.Backups != size.backups {
					b.Fatalf("%+v", first)
				}
				s.requests.Store(0)
				location.Interval = &interval
				r.SetLocations([]refresh.Location{location})
				await(func(state refresh.State) bool { return state.LastSuccess.After(first.LastSuccess) })
				b.ReportMetric(float64(s.requests.Load()), "requests/poll")
				stop()
				<-done
			}
		})
	}
}
