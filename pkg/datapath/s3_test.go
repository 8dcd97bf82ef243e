// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// TestS3 takes a volume through a bucket, with a cache that is used again.
func TestS3(t *testing.T) {
	backend := s3mem.New()
	must(t, backend.CreateBucket("backups"))
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	s := newStoreAt(t, repository.Location{
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: "backups", Endpoint: server.URL, ForcePathStyle: true, CredentialsSecret: "credentials"},
		},
		Secret: map[string][]byte{"accessKeyID": []byte("id"), "secretAccessKey": []byte("key")},
	}, repository.NewKey())
	s.create(t)

	dir, cache := t.TempDir(), t.TempDir()
	kept, err := repository.NewCache(cache, 1<<30)
	must(t, err)
	richTree(t, dir)
	want := tree(t, dir)
	ids := map[string]bool{}
	for i := range 2 {
		r, err := repository.Open(t.Context(), s.location, namespace, s.key, repository.Options{Cache: kept})
		must(t, err)
		got, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
		must(t, err)
		if i == 1 && got.IncrementalBytes != 0 {
			t.Errorf("the second upload read %d bytes", got.IncrementalBytes)
		}
		ids[got.SnapshotID] = true

		target := t.TempDir()
		_, err = Restore(t.Context(), r, RestoreRequest{SnapshotID: got.SnapshotID, Path: target}, new(Progress))
		must(t, err)
		expectSameTree(t, tree(t, target), want)
		must(t, r.Close(t.Context()))
	}
	// The cache holds listings and indexes, and no contents.
	if contents, _ := filepath.Glob(filepath.Join(cache, "*", "p*")); len(contents) > 0 {
		t.Errorf("%d packs with contents of files are cached", len(contents))
	}
	for _, kind := range []string{"q", "x"} {
		if found, _ := filepath.Glob(filepath.Join(cache, "*", kind+"*")); len(found) == 0 {
			t.Errorf("no blobs of kind %s are cached", kind)
		}
	}
	if caches, _ := os.ReadDir(cache); len(caches) != 1 {
		t.Errorf("there are %d caches for one repository", len(caches))
	}
	for id := range ids {
		target := t.TempDir()
		s.restore(t, id, target) // by a new client without a cache
		expectSameTree(t, tree(t, target), want)
	}
}
