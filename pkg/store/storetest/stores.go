// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storetest tests stores: a suite for every implementation of package store, stores for tests,
// and Faulty.
package storetest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"gocloud.dev/blob/memblob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store has all operations of a store.
type Store interface {
	store.Reader
	store.Writer
	store.Remover
	Check(ctx context.Context) error
}

var (
	_ Store = (*store.Bucket)(nil)
	_ Store = (*Faulty)(nil)
)

// Memory returns a new store in memory.
func Memory(t testing.TB) *store.Bucket {
	t.Helper()
	bucket, err := store.OverBlob(memblob.OpenBucket(nil), "")
	return opened(t, bucket, err)
}

// Filesystem returns a new store in a temporary folder.
func Filesystem(t testing.TB) *store.Bucket {
	t.Helper()
	return Open(t, enginev1alpha1.StorageLocationSpec{
		Provider:   enginev1alpha1.StorageProviderFilesystem,
		Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
	}, nil)
}

// FakeS3 runs an S3 server in memory during the test, with one empty bucket. wrap, if not nil, sees
// requests first.
func FakeS3(t testing.TB, wrap func(http.Handler) http.Handler) (location enginev1alpha1.StorageLocationSpec, secret map[string][]byte) {
	t.Helper()
	const bucket = "backups"
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	handler := withConditions(gofakes3.New(backend, gofakes3.WithIntegrityCheck(true)).Server())
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3: &enginev1alpha1.S3Location{
				Bucket:            bucket,
				Endpoint:          server.URL,
				ForcePathStyle:    true,
				CredentialsSecret: "credentials",
			},
		}, map[string][]byte{
			store.SecretAccessKeyID:     []byte("id"),
			store.SecretSecretAccessKey: []byte("key"),
		}
}

// withConditions adds conditions that the fake ignores: of removals, and of the end of a multipart
// upload, which exclude other writes.
func withConditions(next http.Handler) http.Handler {
	var mu sync.RWMutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := r.URL.Query().Has("uploadId")
		ends := part && r.Method == http.MethodPost
		if r.Method == http.MethodGet || r.Method == http.MethodHead || part && !ends {
			next.ServeHTTP(w, r)
			return
		}
		match := r.Header.Get("If-Match")
		conditional := r.Method == http.MethodDelete && match != "" || ends && r.Header.Get("If-None-Match") == "*"
		if !conditional {
			mu.RLock()
			defer mu.RUnlock()
		} else {
			mu.Lock()
			defer mu.Unlock()
			asked := r.Clone(r.Context())
			asked.Method, asked.URL.RawQuery, asked.Header, asked.Body = http.MethodHead, "", http.Header{}, http.NoBody
			found := httptest.NewRecorder()
			next.ServeHTTP(found, asked)
			exists := found.Code == http.StatusOK
			if ends && exists || !ends && exists && found.Header().Get("ETag") != match {
				w.WriteHeader(http.StatusPreconditionFailed)
				_, _ = io.WriteString(w, "<Error><Code>PreconditionFailed</Code></Error>")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Content is a store.Content in several pieces.
type Content []byte

// Length implements store.Content.
func (c Content) Length() int { return len(c) }

// Reader implements store.Content.
func (c Content) Reader() io.ReadSeekCloser {
	return struct {
		io.ReadSeeker
		io.Closer
	}{bytes.NewReader(c), io.NopCloser(nil)}
}

// WriteTo implements store.Content.
func (c Content) WriteTo(w io.Writer) (written int64, err error) {
	for piece := range slices.Chunk(c, 100_003) {
		n, err := w.Write(piece)
		if written += int64(n); err != nil {
			return written, err
		}
	}
	return written, nil
}

// Empty removes all objects and unfinished writes in a folder.
func Empty(t testing.TB, s Store, folder string) {
	t.Helper()
	for object, err := range s.List(context.Background(), folder, store.ListOptions{Recursive: true, Unfinished: true}) {
		if err == nil {
			err = s.Delete(context.Background(), object)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Open opens a location until the test ends.
func Open(t testing.TB, location enginev1alpha1.StorageLocationSpec, secret map[string][]byte) *store.Bucket {
	t.Helper()
	bucket, err := store.Open(t.Context(), &location, secret)
	return opened(t, bucket, err)
}

func opened(t testing.TB, bucket *store.Bucket, err error) *store.Bucket {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bucket.Close(); err != nil {
			t.Error(err)
		}
	})
	return bucket
}
