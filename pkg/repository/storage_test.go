// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/sharded"

	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// connected1 is the storage of an empty repository.
func connected1(t *testing.T, loc Location) *storage {
	t.Helper()
	if fs := loc.Spec.Filesystem; fs != nil {
		if err := os.MkdirAll(filepath.Join(fs.Path, Folder(loc.Spec.Prefix, namespace)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, err := connect(t.Context(), storetest.Open(t, loc.Spec, loc.Secret), loc.Spec.Provider, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The names of blobs that Kopia gives, and a short one, which is not cut.
const (
	pack    blob.ID = "p0bb6e83a4f0507d054ed5a80a5b65086-s4c3bdb2b1b2b3b4b5"
	pack2   blob.ID = "p0cf4585856ebf0748fd989e1dd623a8963-s4c3bdb2b1b2b3b4b5"
	index   blob.ID = "xn0_4c5dca496d510f492c858a2df1eb824e-s4c3bdb2b1b2b3b4b5-c1"
	singled blob.ID = "kopia.maintenance"
)

// TestStorage is what Kopia asks of its storages.
func TestStorage(t *testing.T) {
	for name, loc := range locations(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, st := t.Context(), connected1(t, loc)
			for _, id := range []blob.ID{pack, singled} {
				_, metadataErr := st.GetMetadata(ctx, id)
				for operation, err := range map[string]error{
					"all": st.GetBlob(ctx, id, 0, -1, new(output)), "part": st.GetBlob(ctx, id, 1, 1, new(output)), "nothing": st.GetBlob(ctx, id, 0, 0, new(output)),
					"metadata": metadataErr,
				} {
					if !errors.Is(err, blob.ErrBlobNotFound) {
						t.Errorf("%s of what isn't there: %v", operation, err)
					}
				}
			}
			if err := st.DeleteBlob(ctx, pack); err != nil {
				t.Errorf("delete what isn't there: %v", err)
			}

			blobs := map[blob.ID]string{pack: "", pack2: strings.Repeat("abc", 1<<20), index: "index", singled: "first"}
			for id, content := range blobs {
				var written time.Time
				if err := st.PutBlob(ctx, id, storetest.Content(content), blob.PutOptions{GetModTime: &written}); err != nil {
					t.Fatal(err)
				}
				found, err := st.GetMetadata(ctx, id)
				if err != nil || found.BlobID != id || found.Length != int64(len(content)) || !found.Timestamp.Equal(written) || time.Since(written).Abs() > time.Minute {
					t.Errorf("%s was written at %v, and is %+v, %v", id, written, found, err)
				}
			}
			blobs[singled] = "second"
			if err := st.PutBlob(ctx, singled, storetest.Content("second"), blob.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			for id, content := range blobs {
				wantBlob(t, st, id, content)
			}
			for _, part := range []struct{ offset, length int64 }{{0, 6}, {5, 1}, {2, 3}, {0, 0}} {
				got := new(output)
				if err := st.GetBlob(ctx, singled, part.offset, part.length, got); err != nil || got.String() != "second"[part.offset:part.offset+part.length] {
					t.Errorf("%+v: %q, %v", part, got, err)
				}
			}
			for _, part := range []struct{ offset, length int64 }{{0, 7}, {5, 2}, {7, 1}, {-1, 2}, {-1, -1}} {
				if err := st.GetBlob(ctx, singled, part.offset, part.length, new(output)); !errors.Is(err, blob.ErrInvalidRange) {
					t.Errorf("%+v: %v", part, err)
				}
			}

			for prefix, want := range map[blob.ID][]blob.ID{
				"": {singled, pack, pack2, index}, "p": {pack, pack2}, "p0b": {pack}, "p0bb6e8": {pack}, "xn0_": {index}, "kopia.": {singled}, "q": nil, pack2: {pack2}, pack2 + "x": nil,
			} {
				if diff := cmp.Diff(want, listed(t, st, prefix)); diff != "" {
					t.Errorf("beginning with %q (-want +got):\n%s", prefix, diff)
				}
			}
			enough := errors.New("enough")
			calls := 0
			if err := st.ListBlobs(ctx, "p", func(blob.Metadata) error { calls++; return enough }); !errors.Is(err, enough) || calls != 1 {
				t.Errorf("a listing that the caller ends: %v after %d", err, calls)
			}

			for _, id := range []blob.ID{pack, singled, pack} {
				if err := st.DeleteBlob(ctx, id); err != nil {
					t.Error(err)
				}
			}
			if diff := cmp.Diff([]blob.ID{pack2, index}, listed(t, st, "")); diff != "" {
				t.Errorf("after the removal (-want +got):\n%s", diff)
			}
			if err := st.PutBlob(ctx, pack, storetest.Content("x"), blob.PutOptions{SetModTime: time.Now()}); !errors.Is(err, blob.ErrSetTimeUnsupported) {
				t.Errorf("a time of its own: %v", err)
			}
			if err := st.PutBlob(ctx, pack, storetest.Content("x"), blob.PutOptions{DoNotRecreate: true}); !errors.Is(err, blob.ErrUnsupportedPutBlobOption) {
				t.Errorf("only once: %v", err)
			}
			err := st.PutBlob(ctx, pack, storetest.Content("x"), blob.PutOptions{RetentionMode: blob.Governance, RetentionPeriod: time.Hour})
			if isFolder := st.shards != nil; isFolder != errors.Is(err, blob.ErrUnsupportedPutBlobOption) || !isFolder && err != nil {
				t.Errorf("retained: %v", err)
			}
		})
	}
}

// output is a blob.OutputBuffer.
type output struct{ bytes.Buffer }

func (o *output) Length() int { return o.Len() }

func wantBlob(t *testing.T, st blob.Storage, id blob.ID, want string) {
	t.Helper()
	got := new(output)
	if err := st.GetBlob(t.Context(), id, 0, -1, got); err != nil || got.String() != want {
		t.Errorf("%s holds %.20q, %v, and not %.20q", id, got, err, want)
	}
}

// listed are the blobs of a listing, each once, in order.
func listed(t *testing.T, st blob.Storage, prefix blob.ID) []blob.ID {
	t.Helper()
	found := map[blob.ID]bool{}
	err := st.ListBlobs(t.Context(), prefix, func(metadata blob.Metadata) error {
		if found[metadata.BlobID] {
			return fmt.Errorf("%s was listed twice", metadata.BlobID)
		}
		found[metadata.BlobID] = true
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return slices.Sorted(maps.Keys(found))
}

// In a folder, Kopia's own storage and ours read each other's blobs, however the
// repository cuts names.
func TestKopiasFolders(t *testing.T) {
	for name, shards := range map[string][]int{"new": nil, "old": {3, 3}, "flat": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc := filesystemLocation(t)
			dir := filepath.Join(loc.Spec.Filesystem.Path, Folder(loc.Spec.Prefix, namespace))
			kopias := func() blob.Storage {
				st, err := filesystem.New(context.WithoutCancel(t.Context()), &filesystem.Options{Path: dir, Options: sharded.Options{DirectoryShards: shards}}, false)
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			if shards != nil {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := kopias().PutBlob(t.Context(), pack, storetest.Content("Kopia's"), blob.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			ours := connected1(t, loc)
			for _, id := range []blob.ID{pack2, index, singled} {
				if err := ours.PutBlob(t.Context(), id, storetest.Content("ours"), blob.PutOptions{}); err != nil {
					t.Fatal(err)
				}
				wantBlob(t, kopias(), id, "ours")
			}
			if shards != nil {
				wantBlob(t, ours, pack, "Kopia's")
			}
			if diff := cmp.Diff(listed(t, kopias(), ""), listed(t, ours, "")); diff != "" {
				t.Errorf("Kopia lists (-), and we (+)\n%s", diff)
			}
			if err := kopias().DeleteBlob(t.Context(), pack2); err != nil {
				t.Fatal(err)
			}
			if err := ours.GetBlob(t.Context(), pack2, 0, -1, new(output)); !errors.Is(err, blob.ErrBlobNotFound) {
				t.Errorf("what Kopia has removed: %v", err)
			}
		})
	}
}

// The file with the storage classes of Kopia's client for S3 is no blob.
func TestStorageConfig(t *testing.T) {
	st := connected1(t, s3Location(t, false))
	if err := st.bucket.Put(t.Context(), ".storageconfig", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, st, ""); len(got) > 0 {
		t.Errorf("listed %v", got)
	}
}

// An upload outlives a store that fails for a while; but one that has never answered
// keeps nobody waiting.
func TestPatience(t *testing.T) {
	const large = 3 << 20
	var failures, requests atomic.Int32
	spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if failures.Add(-1) < 0 {
				next.ServeHTTP(w, r)
				return
			}
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "0") {
				w.Header().Set("Content-Length", fmt.Sprint(large)) // and then it breaks
				_, _ = w.Write(make([]byte, 1000))
			}
			panic(http.ErrAbortHandler)
		})
	})
	loc := Location{Spec: spec, Secret: secret}
	st := connected1(t, loc)
	content := storetest.Content(strings.Repeat("x", large))
	if err := st.PutBlob(t.Context(), "p0", content, blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	failures.Store(3)
	wantBlob(t, st, "p0", string(content))
	failures.Store(4) // the client tries three times
	if err := st.PutBlob(t.Context(), "p1", content, blob.PutOptions{}); err != nil {
		t.Error(err)
	}
	wantBlob(t, st, "p1", string(content))

	failures.Store(1000)
	requests.Store(0)
	if err := connected1(t, loc).GetBlob(t.Context(), "p1", 0, -1, new(output)); err == nil || requests.Load() > 3 {
		t.Errorf("%v, after %d requests", err, requests.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	begin := time.Now()
	if err := st.GetBlob(ctx, "p1", 0, -1, new(output)); err == nil || time.Since(begin) > 30*time.Second {
		t.Errorf("%v, after %v", err, time.Since(begin))
	}
}

// A store that says nothing takes minutes for each attempt, and has not many.
func TestPatienceWithSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, attempts := &storage{}, 0
		st.answered.Store(true)
		began := time.Now()
		err := st.persist(t.Context(), func() error {
			attempts++
			time.Sleep(patience - time.Second)
			return store.ErrUnavailable
		})
		if took := time.Since(began); !errors.Is(err, store.ErrUnavailable) || attempts != 2 || took > 2*patience {
			t.Errorf("%v, after %d attempts and %s", err, attempts, took)
		}
	})
}
