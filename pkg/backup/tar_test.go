// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"iter"
	"testing"
)

// tarEntries reads a tarball with the standard library alone.
func tarEntries(t *testing.T, tarball []byte) iter.Seq2[*tar.Header, []byte] {
	return func(yield func(*tar.Header, []byte) bool) {
		plain, err := gzip.NewReader(bytes.NewReader(tarball))
		if err != nil {
			t.Fatal(err)
		}
		reader := tar.NewReader(plain)
		for {
			header, err := reader.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(reader)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(header, content) {
				return
			}
		}
	}
}
