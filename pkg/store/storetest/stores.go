// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storetest tests stores and what is built on them: a suite that every
// implementation of package store passes, stores for tests, and Faulty, which
// makes any of them fail.
package storetest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"gocloud.dev/blob/memblob"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is all that can be done with a store.
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

// Memory is a new store in memory.
func Memory(t testing.TB) *store.Bucket {
	t.Helper()
	bucket, err := store.OverBlob(memblob.OpenBucket(nil), "")
	return opened(t, bucket, err)
}

// Filesystem is a new store in a folder that goes with the test.
func Filesystem(t testing.TB) *store.Bucket {
	t.Helper()
	return Open(t, engine.BackupStorageLocationSpec{
		Provider:   engine.StorageProviderFilesystem,
		Filesystem: &engine.FilesystemLocation{Path: t.TempDir()},
	}, nil)
}

// FakeS3 runs an S3 server in memory until the test ends, with one empty bucket.
// wrap, if not nil, sees every request before the server.
func FakeS3(t testing.TB, wrap func(http.Handler) http.Handler) (location engine.BackupStorageLocationSpec, secret map[string][]byte) {
	t.Helper()
	const bucket = "backups"
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	handler := gofakes3.New(backend, gofakes3.WithIntegrityCheck(true)).Server()
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return engine.BackupStorageLocationSpec{
			Provider: engine.StorageProviderS3,
			S3: &engine.S3Location{
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

// Open opens a location until the test ends.
func Open(t testing.TB, location engine.BackupStorageLocationSpec, secret map[string][]byte) *store.Bucket {
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
