// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-io/holdfast/pkg/store"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, operation string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want %v", operation, err, kind)
	}
}

func fill(t *testing.T, s Store, keys []string) {
	t.Helper()
	for _, key := range keys {
		must(t, s.Put(t.Context(), key, []byte(key)))
	}
}

func read(t *testing.T, s Store, key string) string {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	must(t, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	must(t, err)
	return string(content)
}

func wantContent(t *testing.T, s Store, key, want string) {
	t.Helper()
	if got := read(t, s, key); got != want {
		t.Errorf("%s holds %.80q, want %.80q", key, got, want)
	}
}

func keys(t *testing.T, s Store, folder string, options store.ListOptions) []string {
	t.Helper()
	var keys []string
	for object, err := range s.List(t.Context(), folder, options) {
		must(t, err)
		keys = append(keys, object.Key)
	}
	return keys
}

func objects(t *testing.T, s Store, folder string) []store.Object {
	t.Helper()
	var found []store.Object
	for object, err := range s.List(t.Context(), folder, store.ListOptions{Recursive: true}) {
		must(t, err)
		found = append(found, object)
	}
	return found
}

func wantKeys(t *testing.T, s Store, folder string, recursive bool, want ...string) {
	t.Helper()
	got := keys(t, s, folder, store.ListOptions{Recursive: recursive})
	if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		t.Errorf("listing of %q, recursive %v (-want +got):\n%s", folder, recursive, diff)
	}
}
