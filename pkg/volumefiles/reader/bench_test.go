// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// BenchmarkFiles lists a folder of 10,000 files of a store that takes 20 ms for each request, in pages as
// kubectl holdfast files ls requests them, with a repository that was not open before. Then it reads a
// file of 1 GB of a folder store, as files cat does. With -short they are 100 files, and 10 MB.
func BenchmarkFiles(b *testing.B) {
	files, size := 10_000, int64(1_000_000_000)
	if testing.Short() {
		files, size = 100, 10_000_000
	}
	b.Run("ls", func(b *testing.B) {
		volume := b.TempDir()
		for i := range files {
			if err := os.WriteFile(filepath.Join(volume, fmt.Sprintf("file-%05d", i)), fmt.Append(nil, i), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		var delay, requests atomic.Int64
		spec, secret := storetest.FakeS3(b, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				time.Sleep(time.Duration(delay.Load()))
				next.ServeHTTP(w, r)
			})
		})
		var took time.Duration
		var asked int64
		for b.Loop() {
			delay.Store(0)
			w := newWorldOf(b, spec, secret, volume, false)
			delay.Store(int64(20 * time.Millisecond))
			before, begin := requests.Load(), time.Now()
			listed := 0
			for token := ""; ; {
				list, err := w.List(b.Context(), w.request(func(r *volumefiles.Request) {
					r.Kind, r.Path, r.Limit, r.Continue = volumefiles.Folder, "/", 1000, token
				}))
				if err != nil {
					b.Fatal(err)
				}
				listed += len(list.Items)
				if token = list.Continue; token == "" {
					break
				}
			}
			if took, asked = time.Since(begin), requests.Load()-before; listed != files {
				b.Fatalf("%d of %d files are listed", listed, files)
			}
			delay.Store(0)
			storetest.Empty(b, w.bucket, "")
		}
		b.ReportMetric(float64(took.Milliseconds()), "ms")
		b.ReportMetric(float64(asked), "requests")
	})
	b.Run("cat", func(b *testing.B) {
		volume := b.TempDir()
		file, err := os.Create(filepath.Join(volume, "large"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyN(file, rand.Reader, size); err != nil {
			b.Fatal(err)
		}
		if err := file.Close(); err != nil {
			b.Fatal(err)
		}
		w := newWorldOf(b, inFolder(b), nil, volume, false)
		for b.Loop() {
			var got counted
			if err := w.Copy(b.Context(), w.request(nil), func(int64) {}, &got); err != nil || int64(got) != size {
				b.Fatalf("%d of %d bytes: %v", got, size, err)
			}
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s")
	})
}

// counted counts what is written.
type counted int64

func (c *counted) Write(p []byte) (int, error) {
	*c += counted(len(p))
	return len(p), nil
}
