// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// The race detector makes these last for minutes: hack/test.sh runs them without it.

//go:build !race

package source

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// large stores a backup of many ConfigMaps.
func large(t testing.TB, count int, withManifest bool) *written {
	t.Helper()
	w := &written{storetest.Memory(t), format.Contents{}, "b"}
	var tarball, document bytes.Buffer
	writer, err := archive.NewWriter(&tarball, now, "backup-uid")
	check(t, err)
	items := manifest.Writer{}
	for i := range count {
		namespace, name := fmt.Sprintf("n-%03d", i/1000), fmt.Sprintf("settings-%06d", i)
		uid := fmt.Sprintf("%08d-1111-2222-3333-444444444444", i)
		content := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":%q,"uid":%q,"labels":{"app":"a-%d"}},"data":{"k":"%d"}}`, name, namespace, uid, i/100, i)
		position, err := writer.WriteItem(archive.Item{Resource: schema.GroupResource{Resource: "configmaps"}, Version: "v1", Namespace: namespace, Name: name}, content)
		check(t, err)
		stored := format.NewContent(content)
		check(t, items.Add(&manifest.Item{
			APIVersion: "v1", KindName: "ConfigMap", Resource: "configmaps", Namespace: namespace, Name: name, UID: uid, Labels: map[string]string{"app": fmt.Sprintf("a-%d", i/100)},
			Annotations: map[string]string{"note": "something that a restore does not look at"},
			Size:        stored.Size, SHA256: stored.SHA256, Place: manifest.Place(position),
		}))
	}
	check(t, writer.Close())
	w.put(t, format.TarballKey("b"), tarball.Bytes())
	if withManifest {
		_, err = items.WriteTo(&document)
		check(t, err)
		w.put(t, format.ManifestKey("b"), document.Bytes())
	}
	w.finish(t)
	return w
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A backup of 300,000 objects is opened in bounded memory, and one object of it is found at
// once.
func TestLarge(t *testing.T) {
	for _, withManifest := range []bool{true, false} {
		t.Run(fmt.Sprintf("manifest=%t", withManifest), func(t *testing.T) {
			const count = 300_000
			w := large(t, count, withManifest)
			before, began := heap(), time.Now()
			b, err := Open(t.Context(), w.bucket, placeOf("b"), "", nil)
			check(t, err)
			opened := time.Since(began)
			items := heap() - before
			began = time.Now()
			_, err = b.Object(t.Context(), b.Items[count/2])
			check(t, err)
			found := time.Since(began)
			began = time.Now()
			g := graph.Order(b.Items, nil, func(*manifest.Item) bool { return false })
			ordered := time.Since(began)
			t.Logf("opened in %s, %d MiB; one object in %s; ordered in %s, %d nodes; all %d MiB", opened, items>>20, found, ordered, len(g.Nodes), (heap()-before)>>20)
			if items > 140<<20 {
				t.Errorf("the items take %d MiB", items>>20)
			}
			runtime.KeepAlive(b)
			runtime.KeepAlive(g)
		})
	}
}

// BenchmarkLarge opens a backup of 300,000 objects and reads one, and then orders all.
func BenchmarkLarge(b *testing.B) {
	const count = 300_000
	w := large(b, count, true)
	for b.Loop() {
		before, began := heap(), time.Now()
		backup, err := Open(b.Context(), w.bucket, placeOf("b"), "", nil)
		check(b, err)
		_, err = backup.Object(b.Context(), backup.Items[count/2])
		check(b, err)
		took := time.Since(began)
		g := graph.Order(backup.Items, nil, func(*manifest.Item) bool { return false })
		b.ReportMetric(float64(heap()-before)/(1<<20), "held-MiB")
		b.ReportMetric(took.Seconds(), "one-s")
		runtime.KeepAlive(backup)
		runtime.KeepAlive(g)
	}
}
