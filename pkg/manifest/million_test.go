// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// addMany adds as many objects of 40 kinds in 300 namespaces as a backup of so many has; each other-th
// differs from what it would be without.
func addMany(t testing.TB, w *Writer, count, other int) {
	t.Helper()
	for i := range count {
		kind := i * 40 / count
		digest := sha256.Sum256(fmt.Appendf(nil, "%d-%t", i, other > 0 && i%other == 0))
		item := &Item{
			APIGroup: "example.com", APIVersion: "v1", KindName: fmt.Sprintf("Kind%02d", kind), Resource: fmt.Sprintf("kind%02ds", kind),
			Namespace: fmt.Sprintf("namespace-%03d", i%(count/40)*300/(count/40)), Name: fmt.Sprintf("object-%06d", i),
			UID:    fmt.Sprintf("%x-%x-%x-%x-%x", digest[:4], digest[4:6], digest[6:8], digest[8:10], digest[10:16]),
			Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprint("app-", i%50)},
			Size:   1000 + int64(i%300), SHA256: fmt.Sprintf("%x", digest), Place: Place{int64(i / 400 * 60_000), int64(i % 400 * 2500)},
		}
		if err := w.Add(item); err != nil {
			t.Fatal(err)
		}
	}
}

// What the bound for a million items rests on: how many bytes each has while a backup is made, and in
// the store. It counts what the writer keeps and not what the process has, so that nothing else
// matters. What is not full of a kind is bounded by itself, and so is what reading takes; the peak
// of it all is a row of the bench.
func TestBytesPerItem(t *testing.T) {
	const count = 40_000
	const heldLimit, storedLimit = 80, 78 // bytes: it is 72.4, and 70.6
	var w Writer
	addMany(t, &w, count, 0)
	held, items := 0, 0
	for kind, s := range w.sections {
		if open := s.open.Cap(); open > 3*memberBytes {
			t.Errorf("what is not full of %s takes %d bytes, and %d is the limit", kind, open, 3*memberBytes)
		}
		held += cap(s.members) * int(unsafe.Sizeof(member{}))
		items += s.count - bytes.Count(s.open.Bytes(), []byte("\n"))
		for _, m := range s.members {
			held += cap(m.compressed) + len(m.first)
		}
	}
	each := float64(held) / float64(items)
	if items < count/2 || each > heldLimit {
		t.Errorf("each of %d items takes %.1f bytes, and the limit is %d", items, each, heldLimit)
	}
	stored, err := w.WriteTo(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if each := float64(stored) / count; each > storedLimit {
		t.Errorf("an item takes %.1f bytes in the store, and the limit is %d", each, storedLimit)
	}
}

// BenchmarkMillion writes the manifest of a million objects of 40 kinds in 300 namespaces, as
// a backup does, reads it, and compares it with a second one, in which every hundredth differs.
func BenchmarkMillion(b *testing.B) {
	const count = 1_000_000
	folder := b.TempDir()
	write := func(name string, other int) (bytesHeld, size int64) {
		var w Writer
		before := heap()
		addMany(b, &w, count, other)
		bytesHeld = heap() - before
		var document bytes.Buffer
		document.Grow(w.Size())
		size, err := w.WriteTo(&document)
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), document.Bytes(), 0o600); err != nil {
			b.Fatal(err)
		}
		return bytesHeld, size
	}
	open := func(name string) *os.File {
		file, err := os.Open(filepath.Join(folder, name))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = file.Close() })
		return file
	}
	for b.Loop() {
		began := time.Now()
		held, size := write("a", 0)
		b.ReportMetric(time.Since(began).Seconds(), "write-s")
		b.ReportMetric(float64(held)/count, "held-bytes/item")
		b.ReportMetric(float64(size)/count, "stored-bytes/item")
		write("b", 100)
		began = time.Now()
		items := 0
		for _, err := range Read(open("a")) {
			if err != nil {
				b.Fatal(err)
			}
			items++
		}
		b.ReportMetric(time.Since(began).Seconds(), "read-s")
		began = time.Now()
		changed := 0
		for _, err := range Diff(Read(open("a")), Read(open("b"))) {
			if err != nil {
				b.Fatal(err)
			}
			changed++
		}
		b.ReportMetric(time.Since(began).Seconds(), "diff-s")
		if items != count || changed != count/100 {
			b.Fatal(items, changed)
		}
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(usage.Maxrss)/1024, "peak-MiB")
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
