// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"io"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// testRepository creates a repository, opens it, and removes a blob of it.
func testRepository(t *testing.T, location repository.Location) {
	t.Helper()
	key := repository.NewKey()
	if err := repository.Create(t.Context(), location, "shop", key); err != nil {
		t.Fatal(err)
	}
	if found, err := repository.Exists(t.Context(), location, "shop"); err != nil || !found {
		t.Fatalf("the new repository exists: %v, %v", found, err)
	}
	opened, err := repository.Open(t.Context(), location, "shop", key, repository.Options{WorkDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
	if err := opened.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := repository.Open(t.Context(), location, "shop", repository.NewKey(), repository.Options{WorkDir: t.TempDir()}); err == nil {
		t.Error("it was opened with another key")
	}
}

// testRequests does each operation once, and compares its requests.
func testRequests(t *testing.T, bucket *store.Bucket, taken func() string, want map[string]string) {
	t.Helper()
	ctx := t.Context()
	read := func(content io.ReadCloser, err error) error {
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(io.Discard, content)
		return err
	}
	stream := func(key string, size int) error {
		w, err := bucket.NewWriter(ctx, key)
		if err != nil {
			return err
		}
		defer w.Abort()
		if _, err := w.Write(make([]byte, size)); err != nil {
			return err
		}
		return w.Commit()
	}
	list := func(options store.ListOptions) (err error) {
		for _, err = range bucket.List(ctx, "a/", options) {
		}
		return err
	}
	var seen store.Object
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"check", func() error { return bucket.Check(ctx) }},
		{"create", func() error { return bucket.Create(ctx, "a/1", []byte("x")) }},
		{"put", func() error { return bucket.Put(ctx, "a/2", []byte("x")) }},
		{"small stream", func() error { return stream("a/3", 1<<20) }},
		{"large stream", func() error { return stream("a/4", 20<<20) }},
		{"list", func() error { return list(store.ListOptions{}) }},
		{"list after", func() error { return list(store.ListOptions{StartAfter: "a/3"}) }},
		{"get", func() error { return read(bucket.Get(ctx, "a/1")) }},
		{"part", func() error { return read(bucket.GetRange(ctx, "a/4", 1<<20, 10)) }},
		{"attributes", func() (err error) { seen, err = bucket.Attributes(ctx, "a/1"); return err }},
		{"delete", func() error { return bucket.Delete(ctx, seen) }},
		{"remove", func() error { return bucket.Remove(ctx, "a/2") }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := taken(); got != want[step.name] {
			t.Errorf("%s: the requests are %s, want %s", step.name, got, want[step.name])
		}
	}
}
