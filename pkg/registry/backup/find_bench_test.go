// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// farStores have the same content for each backup, and take their time.
type farStores struct {
	*library
	latency  time.Duration
	requests atomic.Int64
}

func (f *farStores) Use(context.Context, string) (store.Ranger, func(), error) {
	return farRanger{f.bucket, f}, func() {}, nil
}

type farRanger struct {
	store.Ranger
	*farStores
}

// of waits, and returns the key of the one stored backup.
func (r farRanger) of(key string) string {
	r.requests.Add(1)
	time.Sleep(r.latency)
	return strings.ReplaceAll(key, strings.Split(key, "/")[1], "many")
}

func (r farRanger) Attributes(ctx context.Context, key string) (store.Object, error) {
	return r.Ranger.Attributes(ctx, r.of(key))
}

func (r farRanger) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	return r.Ranger.GetRange(ctx, r.of(key), offset, length)
}

// BenchmarkFind finds one Secret in all of 1,000 backups of 10,000 objects, in a store that takes 20 ms
// for each request; in 20 of 500 with -short.
func BenchmarkFind(b *testing.B) {
	backups, objects := 1000, 10_000
	if testing.Short() {
		backups, objects = 20, 500
	}
	l := newLibrary(b)
	l.rights = []string{"* backups/manifest", "* secrets"}
	_, rest := searchedIn(l)
	far := &farStores{library: l, latency: 20 * time.Millisecond}
	l.contents.Streams.Stores = far
	many := []storedtest.Object{{Kind: "v1/Secret", Resource: "secrets", Namespace: "shop", Name: "wanted"}}
	for i := range objects - 1 {
		kind := i * 20 / objects
		many = append(many, storedtest.Object{
			Kind: fmt.Sprintf("example.com/v1/Kind%02d", kind), Resource: fmt.Sprintf("kind%02ds", kind), Namespace: fmt.Sprintf("namespace-%02d", i%30), Name: fmt.Sprintf("object-%05d", i),
		})
	}
	storedtest.Write(b, l.bucket, "many", many...)
	for i := range backups {
		backup := newBackup(system, fmt.Sprintf("b%04d", i))
		backup.UID = "uid-of-backup"
		backup.Status.Phase = v1alpha1.BackupPhaseCompleted
		backup.Status.StartTimestamp = &metav1.Time{Time: time.Unix(int64(1000+i), 0)}
		if _, err := l.log.Apply(backup); err != nil {
			b.Fatal(err)
		}
	}
	rounds := 0
	far.requests.Store(0)
	for b.Loop() {
		rounds++
		found := 0
		for token := ""; ; {
			rows, next, _, err := l.list(rest, system, 0, token, "kind=Secret,name=wanted,namespace=shop")
			if err != nil {
				b.Fatal(err)
			}
			found += len(rows)
			if token = next; token == "" {
				break
			}
		}
		// The library's own backup has the same content here.
		if found < backups {
			b.Fatalf("%d of %d backups are found", found, backups)
		}
	}
	b.ReportMetric(float64(far.requests.Load())/float64(rounds*backups), "requests/backup")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(rounds), "ms")
}
