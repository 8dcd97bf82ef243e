// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/consistencydetector"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// With the detector, an informer that began with WatchList lists once more at the
// same version, and panics when the two differ.
func TestMain(m *testing.M) {
	consistencydetector.SetDataConsistencyDetectionForWatchListEnabledForTest(true)
	os.Exit(m.Run())
}

// TestInformers follows a log through unmodified informers of client-go, one of
// JSON and one of protobuf metadata, while it changes and while the server is
// replaced by one that has a new log, other objects, and some time to load.
func TestInformers(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList=%v", watchList), func(t *testing.T) {
			clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, watchList)
			birth := time.Now().Add(-time.Hour)
			before := newPodLog(logstore.Options{Clock: clocktesting.NewFakePassiveClock(birth)})
			fill(t, before, 0, 300)
			before.SetReady()
			s := newServer(t, readOnly(t, before))

			dynamicClient, err := dynamic.NewForConfig(s.config())
			if err != nil {
				t.Fatal(err)
			}
			metadataClient, err := metadata.NewForConfig(s.config())
			if err != nil {
				t.Fatal(err)
			}
			byJSON := dynamicinformer.NewFilteredDynamicInformer(dynamicClient, pods, "", 0, cache.Indexers{}, nil).Informer()
			byMetadata := metadatainformer.NewFilteredMetadataInformer(metadataClient, pods, "", 0, cache.Indexers{}, nil).Informer()
			informers := []cache.SharedIndexInformer{byJSON, byMetadata}
			var deletions atomic.Int64
			for _, informer := range informers {
				if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { deletions.Add(1) }}); err != nil {
					t.Fatal(err)
				}
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					informer.Run(stop)
				}()
				t.Cleanup(func() { close(stop); <-stopped })
			}
			for _, informer := range informers {
				waitFor(t, informer, before)
			}

			for i := range 300 {
				if _, err := before.Apply(pod("a", fmt.Sprint(i), "changed")); err != nil {
					t.Fatal(err)
				}
				before.Remove("a", fmt.Sprint(i/2))
			}
			for _, informer := range informers {
				waitFor(t, informer, before)
			}

			// What is gone from the informers' stores is told a little later.
			if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
				return deletions.Load() == int64(150*len(informers)), nil
			}); err != nil {
				t.Fatalf("%d deletions were told: %v", deletions.Load(), err)
			}

			// The new server has lost some objects, has new ones, and never issued a
			// version that the informers know.
			after := newPodLog(logstore.Options{Loading: "the pods"})
			deletions.Store(0)
			s.replace(t, readOnly(t, after))
			s.waitForRequests(t, 4) // so that at least one informer was refused and came again
			fill(t, after, 200, 400)
			if got := deletions.Load(); got != 0 {
				t.Errorf("a server that was loading made informers drop %d objects", got)
			}
			after.SetReady()
			for _, informer := range informers {
				waitFor(t, informer, after)
			}
			after.Remove("a", "250")
			for _, informer := range informers {
				waitFor(t, informer, after)
			}
		})
	}
}

// waitForRequests waits for requests to the API server that replace put in place.
func (s *server) waitForRequests(t *testing.T, n int64) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
		return s.requests.Load() >= n, nil
	}); err != nil {
		t.Fatalf("%d requests, want %d: %v", s.requests.Load(), n, err)
	}
}

func fill(t *testing.T, l *podLog, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := l.Apply(pod("a", fmt.Sprint(i), "n")); err != nil {
			t.Fatal(err)
		}
	}
}

// waitFor waits until an informer holds what the log holds, at the same versions.
func waitFor(t *testing.T, informer cache.SharedIndexInformer, l *podLog) {
	t.Helper()
	var diff string
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, wait.ForeverTestTimeout, true, func(ctx context.Context) (bool, error) {
		want := map[string]string{}
		for i := range 400 {
			if p, ok := l.GetObject("a", fmt.Sprint(i)); ok {
				want[p.Name] = p.ResourceVersion
			}
		}
		got := map[string]string{}
		for _, obj := range informer.GetStore().List() {
			o, err := meta.Accessor(obj)
			if err != nil {
				return false, err
			}
			got[o.GetName()] = o.GetResourceVersion()
		}
		diff = cmp.Diff(want, got)
		return diff == "", nil
	}); err != nil {
		t.Fatalf("%v: the informer differs from the log: %s", err, diff)
	}
}
