// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package stored_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/stored"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// BenchmarkObject reads one object of a backup of 300,000 in 300 namespaces and 40 kinds,
// from an S3 server that takes 20 ms for each request.
func BenchmarkObject(b *testing.B) {
	const count, latency = 300_000, 20 * time.Millisecond
	var requests atomic.Int32
	var delay atomic.Int64
	location, secret := storetest.FakeS3(b, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			time.Sleep(time.Duration(delay.Load()))
			next.ServeHTTP(w, r)
		})
	})
	bucket := storetest.Open(b, location, secret)
	objects := make([]storedtest.Object, count)
	for i := range objects {
		kind := i * 40 / count
		objects[i] = storedtest.Object{
			Kind: fmt.Sprintf("example.com/v1/Kind%02d", kind), Resource: fmt.Sprintf("kind%02ds", kind),
			Namespace: fmt.Sprintf("namespace-%03d", i%300), Name: fmt.Sprintf("object-%06d", i),
			Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprint("app-", i%50)},
		}
		objects[i].Content = fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Kind%02d","metadata":{"name":%q,"namespace":%q,"uid":"%08x-0000-4000-8000-%012x"},"data":{"key":%q}}`,
			kind, objects[i].Name, objects[i].Namespace, i, i*7919, strings.Repeat(fmt.Sprintf("%06d ", i), 100))
	}
	storedtest.Write(b, bucket, "b", objects...)
	from := stored.Backup{Store: bucket, StoreName: "b"}
	delay.Store(int64(latency))
	requests.Store(0)
	i := 0
	for b.Loop() {
		wanted := objects[i*77_777%count]
		i++
		if got, err := find(b.Context(), from, wanted); err != nil || !bytes.Equal(got, wanted.Content) {
			b.Fatalf("%s: %d bytes, %v", wanted.Name, len(got), err)
		}
	}
	b.ReportMetric(float64(requests.Load())/float64(i), "requests")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(i), "ms")
}
