// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	benchFiles     = 1000
	benchFileBytes = 1 << 20
)

// BenchmarkProviders uploads 1,000 files of 1 MiB into a new repository and restores them, through a
// folder and an emulator of each provider. It counts the requests of both. Emulators keep all in the
// memory of this machine, so times show what our clients and the emulators take. Azurite is left out
// unless make stores has installed it.
func BenchmarkProviders(b *testing.B) {
	source := b.TempDir()
	random := rand.NewChaCha8([32]byte{})
	content := make([]byte, benchFileBytes)
	for i := range benchFiles {
		_, _ = random.Read(content)
		if err := os.WriteFile(filepath.Join(source, fmt.Sprint(i)), content, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	providers := map[string]func(b *testing.B, requests *atomic.Int64) repository.Location{
		"filesystem": func(b *testing.B, _ *atomic.Int64) repository.Location {
			return repository.Location{Spec: enginev1alpha1.StorageLocationSpec{
				Provider:   enginev1alpha1.StorageProviderFilesystem,
				Filesystem: &enginev1alpha1.FilesystemLocation{Path: b.TempDir()},
			}}
		},
		"s3": func(b *testing.B, requests *atomic.Int64) repository.Location {
			spec, secret := storetest.FakeS3(b, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					next.ServeHTTP(w, r)
				})
			})
			return repository.Location{Spec: spec, Secret: secret}
		},
		"gcs": func(b *testing.B, requests *atomic.Int64) repository.Location {
			spec, secret := fakeGCS(b)(b)
			spec.GCS.Endpoint = counting(b, spec.GCS.Endpoint, func(string) { requests.Add(1) })
			return repository.Location{Spec: spec, Secret: secret}
		},
		"azure": func(b *testing.B, requests *atomic.Int64) repository.Location {
			if _, err := os.Stat(azurite); err != nil {
				b.Skip("Azurite is not installed: run make stores")
			}
			spec, secret := startAzurite(b)(b)
			spec.Azure.Endpoint = counting(b, spec.Azure.Endpoint[:len(spec.Azure.Endpoint)-len("/"+azuriteAccount)], func(string) { requests.Add(1) }) + "/" + azuriteAccount
			return repository.Location{Spec: spec, Secret: secret}
		},
	}
	for _, name := range []string{"filesystem", "s3", "gcs", "azure"} {
		b.Run(name, func(b *testing.B) {
			var requests atomic.Int64
			location, key := providers[name](b, &requests), repository.NewKey()
			must := func(err error) {
				b.Helper()
				if err != nil {
					b.Fatal(err)
				}
			}
			must(repository.Create(b.Context(), location, "shop", key))
			opened, err := repository.Open(b.Context(), location, "shop", key, repository.Options{WorkDir: b.TempDir()})
			must(err)
			defer func() { must(opened.Close(context.WithoutCancel(b.Context()))) }()
			for b.Loop() {
				requests.Store(0)
				begun := time.Now()
				stored, err := datapath.Upload(b.Context(), opened, datapath.UploadRequest{Path: source, Source: datapath.Source{Namespace: "shop", Pod: "web-0", Volume: "data"}}, new(datapath.Progress))
				must(err)
				b.ReportMetric(time.Since(begun).Seconds(), "upload-s")
				b.ReportMetric(float64(requests.Swap(0)), "upload-requests")
				target := b.TempDir()
				begun = time.Now()
				restored, err := datapath.Restore(b.Context(), opened, datapath.RestoreRequest{SnapshotID: stored.SnapshotID, Path: target}, new(datapath.Progress))
				must(err)
				b.ReportMetric(time.Since(begun).Seconds(), "restore-s")
				b.ReportMetric(float64(requests.Load()), "restore-requests")
				if restored.Files != benchFiles || restored.TotalBytes != benchFiles*benchFileBytes {
					b.Fatalf("restored are %d files and %d bytes", restored.Files, restored.TotalBytes)
				}
			}
			b.ReportMetric(0, "ns/op") // it would be the sum of both
		})
	}
}
