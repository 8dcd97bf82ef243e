// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Bounds of decompressed sizes: a small file must not fill the memory.
const (
	// MaxSideFileBytes is for files read on request: names of two million objects.
	MaxSideFileBytes = 256 << 20
	// MaxVolumesBytes is for lists of volumes, some 40,000, for the catalogue.
	MaxVolumesBytes = 64 << 20
	// MaxForeignListBytes is for untrusted lists: some 2,500 volumes.
	MaxForeignListBytes = 4 << 20
)

const largeList = 256 << 10

// Foreign reads a file of an untrusted backup, up to MaxForeignListBytes. Large is called once it is
// large, and may wait or fail.
type Foreign struct {
	io.Reader
	Large func() error
}

// ErrTooLarge means that a side file exceeds its limit.
var ErrTooLarge = errors.New("the file is too large: make several backups, each of some namespaces")

// Messages are texts by their origin.
type Messages struct {
	// Velero has texts about the whole backup. The name is the format's.
	Velero     []string            `json:"velero,omitempty"`
	Cluster    []string            `json:"cluster,omitempty"`
	Namespaces map[string][]string `json:"namespaces,omitempty"`
}

// Count returns the number of texts.
func (m *Messages) Count() int {
	count := len(m.Velero) + len(m.Cluster)
	for _, texts := range m.Namespaces {
		count += len(texts)
	}
	return count
}

// Results is the content of ResultsKey.
type Results struct {
	Errors   Messages `json:"errors"`
	Warnings Messages `json:"warnings"`
}

// ResourceList is the content of ResourceListKey: objects as NAMESPACE/NAME, or NAME if cluster-scoped,
// by GROUP/VERSION/KIND (core: VERSION/KIND).
type ResourceList map[string][]string

// WriteResults writes Results.
func WriteResults(w io.Writer, results Results) error { return writeJSON(w, MaxSideFileBytes, results) }

// ReadResults reads Results.
func ReadResults(r io.Reader) (Results, error) { return readJSON[Results](r) }

// WriteResourceList writes a sorted ResourceList.
func WriteResourceList(w io.Writer, list ResourceList) error {
	sorted := make(ResourceList, len(list))
	for kind, names := range list {
		sorted[kind] = slices.Sorted(slices.Values(names))
	}
	return writeJSON(w, MaxSideFileBytes, sorted)
}

// ReadResourceList reads a ResourceList.
func ReadResourceList(r io.Reader) (ResourceList, error) { return readJSON[ResourceList](r) }

// WriteEmptyList writes VolumeSnapshotsKey or ItemOperationsKey.
func WriteEmptyList(w io.Writer) error { return writeJSON(w, MaxSideFileBytes, []struct{}{}) }

// writeJSON omits name and time from the gzip header: equal values give equal bytes. It fails with
// ErrTooLarge beyond limit.
func writeJSON(w io.Writer, limit int64, value any) error {
	compressed := compressors.Get().(*gzip.Writer)
	compressed.Reset(w)
	defer func() {
		compressed.Reset(io.Discard)
		compressors.Put(compressed)
	}()
	if err := json.NewEncoder(&limitedWriter{compressed, limit}).Encode(value); err != nil {
		return err
	}
	return compressed.Close()
}

// compressors are reused: one takes 0.8 MB, for mostly tiny files.
var compressors = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

func readJSON[T any](r io.Reader) (T, error) {
	var value T
	err := readCompressed(r, MaxSideFileBytes, func(decoder *json.Decoder) error { return decoder.Decode(&value) })
	return value, err
}

func readList[T any](r io.Reader, limit int64, each func(T) error) error {
	return readCompressed(r, limit, func(decoder *json.Decoder) error {
		start, err := decoder.Token()
		if err != nil || start == nil {
			return err
		}
		if start != json.Delim('[') {
			return fmt.Errorf("it starts with %v, not with a list", start)
		}
		for decoder.More() {
			var element T
			if err := decoder.Decode(&element); err != nil {
				return err
			}
			if err := each(element); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
		return err
	})
}

// readCompressed also checks that the compressed stream ends properly.
func readCompressed(r io.Reader, limit int64, decode func(*json.Decoder) error) error {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("the file is not gzip: %w", err)
	}
	limited := &limitedReader{r: plain, left: limit}
	if foreign, ok := r.(Foreign); ok {
		limited.left, limited.large = min(limit, MaxForeignListBytes), foreign.Large
	}
	decoder := json.NewDecoder(limited)
	if err := decode(decoder); err != nil {
		return fmt.Errorf("the file is not the JSON that it should be: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is more after its end")
		}
		return fmt.Errorf("the file does not end as it should: %w", err)
	}
	return nil
}

type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left <= 0 {
		return 0, ErrTooLarge
	}
	return l.w.Write(p)
}

// limitedReader fails beyond its limit, where io.LimitReader would end.
type limitedReader struct {
	r    io.Reader
	left int64
	// large is called once after largeList bytes; may be nil.
	large func() error
	read  int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.large != nil && l.read > largeList {
		if err := l.large(); err != nil {
			return 0, err
		}
		l.large = nil
	}
	if l.left <= 0 {
		return 0, ErrTooLarge
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	l.left, l.read = l.left-int64(n), l.read+int64(n)
	return n, err
}
