// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"testing"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// TestSizeOfTheTarball: one of the same objects takes no more of the store than Velero's,
// although several resources are read at once.
func TestSizeOfTheTarball(t *testing.T) {
	files := veleroBackup(t)
	f := veleroCluster(t, files)
	f.run(t)
	if theirs, ours := len(files[".tar.gz"]), len(f.read(t, format.TarballKey("b"))); ours > theirs {
		t.Errorf("the tarball has %d bytes, and Velero's %d", ours, theirs)
	}
}

// BenchmarkTarball compares that tarball with Velero's, and counts the requests for it.
func BenchmarkTarball(b *testing.B) {
	files := veleroBackup(b)
	var requests, size int
	for b.Loop() {
		f := veleroCluster(b, files)
		f.run(b)
		requests, size = len(f.requests), len(f.read(b, format.TarballKey("b")))
	}
	b.ReportMetric(float64(size), "bytes")
	b.ReportMetric(float64(len(files[".tar.gz"])), "velero-bytes")
	b.ReportMetric(float64(requests), "requests")
}
