// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// farStore is a bucket that counts the requests for objects, and takes its time if it is
// told to.
type farStore struct {
	store
	gets atomic.Int64
	// latency of each request, and the bytes a second of each connection.
	latency   time.Duration
	bandwidth int
}

func newFarStore(t testing.TB) *farStore {
	t.Helper()
	f := &farStore{}
	f.store = newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "" {
				f.gets.Add(1)
			}
			time.Sleep(f.latency)
			if f.bandwidth > 0 {
				r.Body = slowBody{r.Body, f}
				w = slowWriter{w, f}
			}
			next.ServeHTTP(w, r)
		})
	})
	return f
}

// wait takes the time of so many bytes.
func (f *farStore) wait(bytes int) {
	time.Sleep(time.Duration(bytes) * time.Second / time.Duration(f.bandwidth))
}

type slowBody struct {
	io.ReadCloser
	store *farStore
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.store.wait(n)
	return n, err
}

type slowWriter struct {
	http.ResponseWriter
	store *farStore
}

func (w slowWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.store.wait(n)
	return n, err
}

// smallFiles writes so many files of 8 KiB, 16 to a folder.
func smallFiles(t testing.TB, dir string, count int) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{})
	content := make([]byte, 8<<10)
	for i := range count {
		_, _ = random.Read(content)
		write(t, filepath.Join(dir, fmt.Sprint(i%50), fmt.Sprint(i/16), fmt.Sprint(i)), string(content))
	}
}

// A restore of small files asks for packs, not for files.
func TestRestoreAsksForPacks(t *testing.T) {
	s, dir, target := newFarStore(t), t.TempDir(), t.TempDir()
	const files = 3_000 // in two packs
	smallFiles(t, dir, files)
	id := s.upload(t, dir, web).SnapshotID
	s.gets.Store(0)
	s.restore(t, id, target)
	expectSameTree(t, tree(t, target), tree(t, dir))
	if got := s.gets.Load(); got > 30 {
		t.Errorf("%d requests for %d files", got, files)
	}
}

// A restore of few files does not read all that lies beside them.
func TestRestoreOfOneFileReadsLittle(t *testing.T) {
	s, dir, target := newFarStore(t), t.TempDir(), t.TempDir()
	smallFiles(t, dir, 1_000)
	s.upload(t, dir, web)
	lone := t.TempDir()
	write(t, filepath.Join(lone, "lone"), "lone")
	id := s.upload(t, lone, Source{Namespace: namespace, Pod: "other", Volume: "data"}).SnapshotID
	s.gets.Store(0)
	s.restore(t, id, target)
	if got := s.gets.Load(); got > 10 {
		t.Errorf("%d requests for one file", got)
	}
}
