// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// countedS3 is a storage that counts requests for objects, and refuses those for which
// refuse says so.
func countedS3(t *testing.T, refuse func(*http.Request) bool) (s *storage, gets *atomic.Int64) {
	t.Helper()
	gets = new(atomic.Int64)
	spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "" {
				gets.Add(1)
				if refuse != nil && refuse(r) {
					http.Error(w, "refused", http.StatusForbidden)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	})
	return connected1(t, Location{Spec: spec, Secret: secret}), gets
}

// fill writes packs of a size, whose contents tell them apart, and returns their names.
func fill(t *testing.T, s *storage, count, size int) (ids []blob.ID, contents map[blob.ID]string) {
	t.Helper()
	contents = map[blob.ID]string{}
	for i := range count {
		id := blob.ID(fmt.Sprintf("p%032d", i))
		var content strings.Builder
		for content.Len() < size {
			fmt.Fprintf(&content, "%d of %d;", content.Len(), i)
		}
		ids, contents[id] = append(ids, id), content.String()[:size]
		if err := s.PutBlob(t.Context(), id, storetest.Content(contents[id]), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return ids, contents
}

// readPieces reads so many pieces of 100 bytes, several at once, and compares them.
func readPieces(t *testing.T, s *storage, id blob.ID, content string, pieces int) {
	t.Helper()
	var reading sync.WaitGroup
	for i := range pieces {
		reading.Go(func() {
			got, offset := new(output), i*(len(content)-100)/max(pieces-1, 1)
			if err := s.GetBlob(t.Context(), id, int64(offset), 100, got); err != nil || got.String() != content[offset:offset+100] {
				t.Errorf("%s from %d: %q, %v", id, offset, got, err)
			}
		})
	}
	reading.Wait()
}

// A pack of which many pieces are wanted is read once, by several requests, and one of
// which few are wanted is not.
func TestPacks(t *testing.T) {
	s, gets := countedS3(t, nil)
	ids, contents := fill(t, s, 3, 2*packPart+1_000)
	r := &Repository{storage: s}
	packs := r.KeepPacks(1 << 30)
	packs.Expect(ids[0], 500)
	packs.Expect(ids[1], 2)
	for _, step := range []struct {
		name   string
		pack   int
		pieces int
		want   int64
	}{
		{"many expected", 0, 500, 3},
		{"and once more", 0, 500, 0},
		{"few expected", 1, 2, 2},
		{"few, when nobody knows", 2, learnAfter, learnAfter},
		{"more, when nobody knows", 2, 50, 3},
	} {
		gets.Store(0)
		readPieces(t, s, ids[step.pack], contents[ids[step.pack]], step.pieces)
		if got := gets.Load(); got != step.want {
			t.Errorf("%s: %d requests, want %d", step.name, got, step.want)
		}
	}
	gets.Store(0)
	if err := s.GetBlob(t.Context(), ids[0], 0, SmallPiece+1, new(output)); err != nil || gets.Load() != 1 {
		t.Errorf("a large piece: %v, %d requests", err, gets.Load())
	}
	packs.Release()
	gets.Store(0)
	readPieces(t, s, ids[0], contents[ids[0]], 3)
	if got := gets.Load(); got != 3 {
		t.Errorf("after the release: %d requests", got)
	}
}

// What is kept stays within its limit: that which nobody has used for the longest time
// makes room.
func TestPacksKeepToTheirLimit(t *testing.T) {
	s, gets := countedS3(t, nil)
	const size = 100_000
	ids, contents := fill(t, s, 4, size)
	packs := (&Repository{storage: s}).KeepPacks(2 * size)
	defer packs.Release()
	for _, id := range ids {
		packs.Expect(id, 100)
	}
	for _, step := range []struct{ pack, requests int }{{0, 1}, {1, 1}, {0, 0}, {2, 1}, {0, 0}, {3, 1}, {0, 0}, {3, 0}} {
		gets.Store(0)
		readPieces(t, s, ids[step.pack], contents[ids[step.pack]], 20)
		if got := gets.Load(); got != int64(step.requests) {
			t.Errorf("pack %d took %d requests, want %d", step.pack, got, step.requests)
		}
		if packs.kept > 2*size {
			t.Errorf("%d bytes are kept", packs.kept)
		}
	}
	// One that has made room is read by pieces, until more of it is expected.
	gets.Store(0)
	readPieces(t, s, ids[1], contents[ids[1]], 5)
	packs.Expect(ids[1], 100)
	readPieces(t, s, ids[1], contents[ids[1]], 20)
	if got := gets.Load(); got != 6 {
		t.Errorf("%d requests for 5 pieces, and for the pack", got)
	}
	if (&Packs{limit: size - 1, storage: s}).read(t.Context(), ids[0]) != nil {
		t.Error("a pack was read whole that is larger than what is kept")
	}
}

// Those who read the packs of a repository at once share what is kept, within the limit,
// until the last of them has done.
func TestPacksAreShared(t *testing.T) {
	s, gets := countedS3(t, nil)
	const size = 100_000
	ids, contents := fill(t, s, 4, size)
	r := &Repository{storage: s}
	var reading sync.WaitGroup
	for range 4 {
		packs := r.KeepPacks(2 * size)
		reading.Go(func() {
			defer packs.Release()
			for _, id := range ids {
				packs.Expect(id, 100)
				readPieces(t, s, id, contents[id], 20)
				packs.mu.Lock()
				if packs.kept > 2*size {
					t.Errorf("%d bytes are kept", packs.kept)
				}
				packs.mu.Unlock()
			}
		})
	}
	reading.Wait()
	if s.packs.Load() != nil {
		t.Error("packs are kept for nobody")
	}
	first, second := r.KeepPacks(2*size), r.KeepPacks(2*size)
	first.Expect(ids[0], 100)
	readPieces(t, s, ids[0], contents[ids[0]], 20)
	first.Release()
	gets.Store(0)
	second.Expect(ids[0], 100)
	readPieces(t, s, ids[0], contents[ids[0]], 20)
	second.Release()
	if got := gets.Load(); got != 0 {
		t.Errorf("%d requests for a pack that another one has read", got)
	}
}

// When a pack can't be read whole, its pieces are, and whoever wants one that can't be
// hears why.
func TestPacksThatCantBeRead(t *testing.T) {
	all := false
	s, _ := countedS3(t, func(r *http.Request) bool { return all || strings.HasPrefix(r.Header.Get("Range"), "bytes=0-9") })
	ids, contents := fill(t, s, 1, 100_000)
	packs := (&Repository{storage: s}).KeepPacks(1 << 30)
	defer packs.Release()
	packs.Expect(ids[0], 100)
	got := new(output)
	if err := s.GetBlob(t.Context(), ids[0], 500, 100, got); err != nil || got.String() != contents[ids[0]][500:600] {
		t.Errorf("a piece: %q, %v", got, err)
	}
	all = true
	if err := s.GetBlob(t.Context(), ids[0], 500, 100, new(output)); err == nil || !strings.Contains(err.Error(), "denies access") {
		t.Errorf("a refused piece: %v", err)
	}
	packs.Expect("p-that-is-gone", 100)
	if err := s.GetBlob(t.Context(), "p-that-is-gone", 0, 100, new(output)); err == nil {
		t.Error("a pack that is gone was read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.GetBlob(ctx, ids[0], 0, 100, new(output)); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// A folder answers at once, so that only a pack of which a lot is wanted is read whole.
func TestPacksOfAFolder(t *testing.T) {
	dir := t.TempDir()
	s := connected1(t, Location{Spec: enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: dir}}})
	ids, contents := fill(t, s, 2, 100_000)
	packs := (&Repository{storage: s}).KeepPacks(1 << 30)
	defer packs.Release()
	packs.Expect(ids[0], wholeFromFolder)
	packs.Expect(ids[1], wholeFromFolder-2)
	for i, kept := range []bool{true, false} {
		readPieces(t, s, ids[i], contents[ids[i]], 1)
		if err := s.DeleteBlob(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
		if err := s.GetBlob(t.Context(), ids[i], 500, 100, new(output)); errors.Is(err, blob.ErrBlobNotFound) == kept {
			t.Errorf("a piece of %s, which is gone: %v", ids[i], err)
		}
	}
}
