// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// farStore is a bucket that counts the requests for objects, and takes its time if it is
// told to. It keeps packs by itself, as the fake below it hashes what it gets, twice, which
// would take longer than all that is measured.
type farStore struct {
	store
	// requests are all, and gets those for objects.
	requests, gets atomic.Int64
	// puts of packs that are under way, and the most that ever were.
	puts, mostPuts atomic.Int64
	packs          sync.Map // from path to []byte
	// onPut is called with each, and may be nil.
	onPut func(underWay int64)
	// latency of each request, and the bytes a second of each connection.
	latency   time.Duration
	bandwidth int
}

func newFarStore(t testing.TB) *farStore {
	t.Helper()
	f := &farStore{}
	f.store = newBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.requests.Add(1)
			if r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "" {
				f.gets.Add(1)
			}
			time.Sleep(f.latency)
			if f.bandwidth > 0 {
				connection := &pace{bandwidth: f.bandwidth, begun: time.Now()}
				r.Body = slowBody{r.Body, connection}
				w = slowWriter{w, connection}
			}
			kept, isKept := f.packs.Load(r.URL.Path)
			switch name := path.Base(r.URL.Path); {
			case r.Method == http.MethodPut && (name[0] == 'p' || name[0] == 'q'):
				f.keep(w, r)
			case isKept && (r.Method == http.MethodGet || r.Method == http.MethodHead):
				w.Header().Set("ETag", keptETag)
				http.ServeContent(w, r, "", time.Now(), bytes.NewReader(kept.([]byte)))
			default:
				next.ServeHTTP(w, r)
			}
		})
	})
	return f
}

func (f *farStore) keep(w http.ResponseWriter, r *http.Request) {
	now := f.puts.Add(1)
	defer f.puts.Add(-1)
	for most := f.mostPuts.Load(); now > most && !f.mostPuts.CompareAndSwap(most, now); {
		most = f.mostPuts.Load()
	}
	if f.onPut != nil {
		f.onPut(now)
	}
	body, size := io.Reader(r.Body), r.ContentLength
	// Kopia's own client signs what it sends in chunks, which look like those of HTTP.
	if signed := r.Header.Get("X-Amz-Decoded-Content-Length"); signed != "" {
		body = httputil.NewChunkedReader(body)
		size, _ = strconv.ParseInt(signed, 10, 64)
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(body, content); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.packs.Store(r.URL.Path, content)
	w.Header().Set("ETag", keptETag)
}

// keptETag is what every store of S3 sends of an object.
const keptETag = `"kept"`

// pace is how far a connection is by now. It waits for what is due and not for each piece
// by itself, as the end of each wait comes late.
type pace struct {
	bandwidth int
	begun     time.Time
	moved     int
}

func (p *pace) move(bytes int) {
	p.moved += bytes
	due := p.begun.Add(time.Duration(p.moved) * time.Second / time.Duration(p.bandwidth))
	if ahead := time.Until(due); ahead > time.Millisecond {
		time.Sleep(ahead)
	}
}

type slowBody struct {
	io.ReadCloser
	*pace
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.move(n)
	return n, err
}

type slowWriter struct {
	http.ResponseWriter
	*pace
}

func (w slowWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.move(n)
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
