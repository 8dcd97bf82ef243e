// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Run runs the suite. open returns a new empty store, below a folder, which may also be opened twice.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for name, test := range map[string]func(*testing.T, Store){
		"read after write":     testReadAfterWrite,
		"missing objects":      testMissing,
		"create once":          testCreateOnce,
		"concurrent creators":  testConcurrentCreators,
		"concurrent writers":   testConcurrentWriters,
		"list one level":       testListLevel,
		"list all":             testListRecursive,
		"list in parts":        testStartAfter,
		"list a beginning":     testBeginning,
		"folder boundaries":    testFolderBoundaries,
		"stop a listing":       testStopListing,
		"names":                testNames,
		"names that are none":  testBadNames,
		"streamed write":       testStreamedWrite,
		"aborted write":        testAbortedWrite,
		"cancelled write":      testCancelledWrite,
		"unfinished is unseen": testUnfinished,
		"stream once":          testStreamOnce,
		"delete":               testDelete,
		"delete what was seen": testDeleteChanged,
		"concurrent removers":  testConcurrentRemovers,
		"cancelled operations": testCancelled,
		"check":                testCheck,
		"more than a page":     testManyObjects,
		"empty store":          testEmpty,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
	bucket, isBucket := open(t).(*store.Bucket)
	if !isBucket {
		return
	}
	t.Run("blobs", func(t *testing.T) { testBlobs(t, bucket) })
	t.Run("identity", func(t *testing.T) { testIdentity(t, open(t).(*store.Bucket)) })
}

func testIdentity(t *testing.T, bucket *store.Bucket) {
	_, err := bucket.Identity(t.Context())
	wantKind(t, "the id of a store that has none", err, store.ErrNotFound)
	wantKind(t, "a store that has none", bucket.Expect(t.Context(), "another"), store.ErrOther)
	ids := make([]string, 8)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			id, err := bucket.Identify(t.Context(), time.Now())
			if ids[i] = id; err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if others := slices.Compact(slices.Clone(ids)); len(others) != 1 || others[0] == "" {
		t.Errorf("of several that gave it an id, each was to get the same: %q", ids)
	}
	must(t, bucket.Expect(t.Context(), ids[0]))
	if heeds, err := bucket.KeepsConditions(t.Context()); !heeds || err != nil {
		t.Errorf("it heeds conditions: %t, %v", heeds, err)
	}
	must(t, bucket.Expect(t.Context(), ids[0]))
	must(t, bucket.Put(t.Context(), "backups/a", nil))
	err = bucket.Expect(t.Context(), "another")
	wantKind(t, "another store", err, store.ErrOther)
	wantKind(t, "another store", err, store.ErrUnavailable)
	for _, id := range []string{"another", ids[0]} {
		if !strings.Contains(err.Error(), id) {
			t.Errorf("%v: the id %s is not named", err, id)
		}
	}
	must(t, bucket.Put(t.Context(), format.StoreIdentityKey, []byte("<html>")))
	_, err = bucket.Identity(t.Context())
	wantKind(t, "what is no id", err, store.ErrUnavailable)
}

func testBlobs(t *testing.T, bucket *store.Bucket) {
	fill(t, bucket, []string{"neighbour", "x/y/neighbour"})
	must(t, bucket.Put(t.Context(), "x/kopia/blob", []byte("to be replaced")))
	folder, err := bucket.Folder(t.Context(), "x/kopia/")
	must(t, err)
	large := bytes.Repeat([]byte("0123456789"), 2<<20)
	for _, content := range [][]byte{nil, large} {
		must(t, folder.PutContent(t.Context(), "blob", Content(content), store.Retention{}))
		if got := read(t, folder, "blob"); got != string(content) {
			t.Errorf("read other bytes than the %d that were written", len(content))
		}
	}
	for _, part := range []struct {
		offset, length int64
		want           string
	}{{0, 1, "0"}, {3, 5, "34567"}, {int64(len(large)) - 2, -1, "89"}, {int64(len(large)) - 2, 3, "89"}, {int64(len(large)) + 1, 3, ""}} {
		var got []byte
		content, err := folder.GetRange(t.Context(), "blob", part.offset, part.length)
		if err == nil {
			got, err = io.ReadAll(content)
			must(t, content.Close())
		}
		if string(got) != part.want || err != nil && (part.want != "" || !errors.Is(err, store.ErrRange)) {
			t.Errorf("%d bytes from %d on: %q, %v", part.length, part.offset, got, err)
		}
	}
	_, err = folder.GetRange(t.Context(), "absent", 1, 1)
	wantKind(t, "a part of nothing", err, store.ErrNotFound)
	wantKeys(t, folder, "", true, "blob")
	for range 2 {
		must(t, folder.Remove(t.Context(), "blob"))
	}
	wantKeys(t, bucket, "", true, "neighbour", "x/y/neighbour")
	must(t, folder.PutContent(t.Context(), "a/b/blob", Content("new"), store.Retention{}))
	wantContent(t, bucket, "x/kopia/a/b/blob", "new")
	for _, offset := range []int64{-1, 0} {
		if _, err := folder.GetRange(t.Context(), "a/b/blob", offset, 0); err == nil {
			t.Errorf("there are 0 bytes from %d on", offset)
		}
	}
}

func testReadAfterWrite(t *testing.T, s Store) {
	for _, content := range []string{"", "first", "second, longer"} {
		must(t, s.Put(t.Context(), "a/b.json", []byte(content)))
		wantContent(t, s, "a/b.json", content)
		object, err := s.Attributes(t.Context(), "a/b.json")
		must(t, err)
		if object.Key != "a/b.json" || object.Size != int64(len(content)) || object.ModTime.IsZero() || object.IsFolder {
			t.Errorf("attributes after writing %q: %+v", content, object)
		}
		opened, err := s.Get(t.Context(), "a/b.json")
		must(t, err)
		if version := store.VersionOf(opened); version != "" && version != object.Version {
			t.Errorf("what is read has the version %s, and its attributes %s", version, object.Version)
		} else if listed := objects(t, s, "a/")[0].Version; version != "" && version != listed {
			t.Errorf("what is read has the version %s, and is listed with %s", version, listed)
		}
		must(t, opened.Close())
	}
}

func testMissing(t *testing.T, s Store) {
	must(t, s.Put(t.Context(), "folder/object", []byte("x")))
	for _, key := range []string{"absent", "folder", "folder/absent", "absent/object"} {
		_, err := s.Get(t.Context(), key)
		wantKind(t, "get "+key, err, store.ErrNotFound)
		_, err = s.Attributes(t.Context(), key)
		wantKind(t, "find "+key, err, store.ErrNotFound)
		if errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a missing object is not a missing store: %v", err)
		}
	}
}

func testCreateOnce(t *testing.T, s Store) {
	must(t, s.Create(t.Context(), "a/once", []byte("first")))
	wantKind(t, "second create", s.Create(t.Context(), "a/once", []byte("second")), store.ErrExists)
	wantContent(t, s, "a/once", "first")
	wantKeys(t, s, "", true, "a/once")
	must(t, s.Create(t.Context(), "a/empty", nil))
	wantContent(t, s, "a/empty", "")
	wantKind(t, "create over an empty object", s.Create(t.Context(), "a/empty", []byte("x")), store.ErrExists)
}

func testConcurrentCreators(t *testing.T, s Store) {
	const creators = 16
	for round := range 8 {
		key := fmt.Sprintf("race-%d/in/folders/object", round)
		errs := make([]error, creators)
		var group sync.WaitGroup
		for i := range creators {
			group.Go(func() { errs[i] = s.Create(t.Context(), key, []byte{byte('a' + i)}) })
		}
		group.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("both %d and %d created %s", winner, i, key)
			case err == nil:
				winner = i
			case !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrUnavailable):
				t.Errorf("creator %d: %v", i, err)
			}
		}
		if winner < 0 {
			t.Fatalf("nobody created %s: %v", key, errs)
		}
		wantContent(t, s, key, string(rune('a'+winner)))
	}
}

func testConcurrentWriters(t *testing.T, s Store) {
	const writers = 16
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			content := strings.Repeat(string(rune('a'+i)), 10_000)
			for _, key := range []string{"same", fmt.Sprintf("own/%02d/object", i)} {
				if err := s.Put(t.Context(), key, []byte(content)); err != nil {
					t.Errorf("writer %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	for i := range writers {
		wantContent(t, s, fmt.Sprintf("own/%02d/object", i), strings.Repeat(string(rune('a'+i)), 10_000))
	}
	same := read(t, s, "same")
	if len(same) != 10_000 || strings.Trim(same, same[:1]) != "" {
		t.Errorf("the object of all writers is a mixture of %d bytes", len(same))
	}
}

// levels has names around the slash in the order of bytes.
var levels = []string{"x/a-b", "x/a.b", "x/a/1", "x/a/2", "x/a0", "x/b/c/d/e", "x/c", "xx/a", "y"}

func testListLevel(t *testing.T, s Store) {
	fill(t, s, levels)
	wantKeys(t, s, "", false, "x/", "xx/", "y")
	wantKeys(t, s, "x/", false, "x/a-b", "x/a.b", "x/a/", "x/a0", "x/b/", "x/c")
	wantKeys(t, s, "x/b/c/d/", false, "x/b/c/d/e")
	for object, err := range s.List(t.Context(), "x/", store.ListOptions{}) {
		must(t, err)
		if object.IsFolder != strings.HasSuffix(object.Key, "/") || !object.IsFolder && object.Size != int64(len(object.Key)) {
			t.Errorf("listed as %+v", object)
		}
	}
}

func testListRecursive(t *testing.T, s Store) {
	fill(t, s, levels)
	wantKeys(t, s, "", true, levels...)
	wantKeys(t, s, "x/a/", true, "x/a/1", "x/a/2")
	wantKeys(t, s, "x/b/", true, "x/b/c/d/e")
}

func testStartAfter(t *testing.T, s Store) {
	fill(t, s, levels)
	for _, recursive := range []bool{false, true} {
		all := keys(t, s, "x/", store.ListOptions{Recursive: recursive})
		starts := append(slices.Clone(all), "x/", "x/a", "x/a/1x", "x/b/c", "x/zzz", "a", "z")
		for _, after := range starts {
			want := slices.DeleteFunc(slices.Clone(all), func(key string) bool { return key <= after })
			got := keys(t, s, "x/", store.ListOptions{Recursive: recursive, StartAfter: after})
			if diff := cmp.Diff(want, got); diff != "" && !(len(want) == 0 && len(got) == 0) {
				t.Errorf("recursive %v, after %q (-want +got):\n%s", recursive, after, diff)
			}
		}
	}
}

func testBeginning(t *testing.T, s Store) {
	fill(t, s, levels)
	for _, folder := range []string{"", "x/", "x/b/", "absent/"} {
		for _, recursive := range []bool{false, true} {
			all := keys(t, s, folder, store.ListOptions{Recursive: recursive})
			for _, beginning := range []string{"x", "x/a", "a", "a/1", "b/c", "c", "y", "z"} {
				if !recursive && strings.Contains(beginning, "/") {
					continue
				}
				for _, after := range []string{"", "x/a", "x/a/1"} {
					want := slices.DeleteFunc(slices.Clone(all), func(key string) bool { return !strings.HasPrefix(key, folder+beginning) || key <= after })
					got := keys(t, s, folder, store.ListOptions{Recursive: recursive, Beginning: beginning, StartAfter: after})
					if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
						t.Errorf("in %q, recursive %v, beginning with %q, after %q (-want +got):\n%s", folder, recursive, beginning, after, diff)
					}
				}
			}
		}
	}
}

func testFolderBoundaries(t *testing.T, s Store) {
	fill(t, s, []string{"a/1", "ab/2", "a.b/3"})
	wantKeys(t, s, "a/", true, "a/1")
	wantKeys(t, s, "a/", false, "a/1")
	wantKeys(t, s, "absent/", false)
	for _, folder := range []string{"a", "/", "a//", "../", "a/../"} {
		for _, err := range s.List(t.Context(), folder, store.ListOptions{}) {
			if err == nil {
				t.Errorf("%q was listed", folder)
			}
		}
	}
}

func testStopListing(t *testing.T, s Store) {
	fill(t, s, levels)
	seen := 0
	for range s.List(t.Context(), "", store.ListOptions{Recursive: true}) {
		if seen++; seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("the listing ended after %d objects", seen)
	}
}

var oddNames = []string{
	"backups/n.name/n.name-results.gz", "pod:web-0:data", "a b/c d", "ünï/cödé/日本", "x/.hidden", "a..b",
	"%2e%2e", "plus+and&", "q?x=1#f", "*[?]", `quote"and'back\slash`, "x.attrs", "x.tmp", "<xml>&amp;",
	strings.Repeat("l", 200) + "/" + strings.Repeat("m", 200),
}

func testNames(t *testing.T, s Store) {
	var names []string
	for _, key := range oddNames {
		// Azure's backend refuses a backslash, which Azure takes for a slash.
		err := s.Put(t.Context(), key, []byte(key))
		if errors.Is(err, store.ErrName) && strings.Contains(key, `\`) {
			continue
		}
		must(t, err)
		names = append(names, key)
	}
	for _, key := range names {
		wantContent(t, s, key, key)
	}
	want := slices.Sorted(slices.Values(names))
	wantKeys(t, s, "", true, want...)
	for _, object := range objects(t, s, "") {
		must(t, s.Delete(t.Context(), object))
	}
	wantKeys(t, s, "", true)
}

func testBadNames(t *testing.T, s Store) {
	for _, key := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "./a", "a/.", "nul\x00", "line\nbreak", "\xff", strings.Repeat("x", 1025)} {
		_, getErr := s.Get(t.Context(), key)
		_, findErr := s.Attributes(t.Context(), key)
		_, writeErr := s.NewWriter(t.Context(), key)
		for operation, err := range map[string]error{
			"get": getErr, "find": findErr, "stream": writeErr,
			"put": s.Put(t.Context(), key, nil), "create": s.Create(t.Context(), key, nil),
			"delete": s.Delete(t.Context(), store.Object{Key: key, Version: "1"}),
		} {
			if key == "" {
				continue
			}
			if err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s %q: %v", operation, key, err)
			}
		}
	}
}

func testStreamedWrite(t *testing.T, s Store) {
	const size = 32 << 20
	content := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(content)
	w, err := s.NewWriter(t.Context(), "big/object.tar.gz")
	must(t, err)
	defer w.Abort()
	for piece := range slices.Chunk(content, 300_001) { // divides no part size
		n, err := w.Write(piece)
		must(t, err)
		if n != len(piece) {
			t.Fatalf("wrote %d of %d bytes", n, len(piece))
		}
	}
	must(t, w.Commit())
	r, err := s.Get(t.Context(), "big/object.tar.gz")
	must(t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	must(t, err)
	if !bytes.Equal(got, content) {
		t.Errorf("read other bytes than were written, %d of %d", len(got), size)
	}
	if err := w.Commit(); err == nil {
		t.Error("a write was committed twice")
	}
	w.Abort()
	wantKeys(t, s, "", true, "big/object.tar.gz")
}

func testAbortedWrite(t *testing.T, s Store) {
	must(t, s.Put(t.Context(), "kept", []byte("before")))
	for _, key := range []string{"new", "kept"} {
		for _, size := range []int{0, 10, 20 << 20} { // 20 MiB is more than one part
			w, err := s.NewWriter(t.Context(), key)
			must(t, err)
			_, err = w.Write(make([]byte, size))
			must(t, err)
			w.Abort()
			if err := w.Commit(); err == nil {
				t.Error("an aborted write was committed")
			}
			w.Abort()
		}
	}
	wantKeys(t, s, "", true, "kept")
	wantContent(t, s, "kept", "before")
}

func testCancelledWrite(t *testing.T, s Store) {
	for _, size := range []int{0, 10, 20 << 20} {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := s.NewWriter(ctx, "new")
		must(t, err)
		_, err = w.Write(make([]byte, size))
		must(t, err)
		cancel()
		if _, err := w.Write([]byte("x")); !errors.Is(err, context.Canceled) {
			t.Errorf("write after the cancellation: %v", err)
		}
		if err := w.Commit(); !errors.Is(err, context.Canceled) {
			t.Errorf("commit after the cancellation: %v", err)
		}
	}
	wantKeys(t, s, "", true)
}

func testUnfinished(t *testing.T, s Store) {
	w, err := s.NewWriter(t.Context(), "folder/object")
	must(t, err)
	defer w.Abort()
	_, err = w.Write([]byte("half"))
	must(t, err)
	wantKeys(t, s, "", true)
	_, err = s.Get(t.Context(), "folder/object")
	wantKind(t, "get an unfinished object", err, store.ErrNotFound)
	must(t, w.Commit())
	wantKeys(t, s, "", true, "folder/object")
}

func testDelete(t *testing.T, s Store) {
	fill(t, s, []string{"a/b/c", "a/d"})
	object, err := s.Attributes(t.Context(), "a/b/c")
	must(t, err)
	for range 2 {
		must(t, s.Delete(t.Context(), object))
	}
	wantKeys(t, s, "", true, "a/d")
	wantKeys(t, s, "a/", false, "a/d")
	must(t, s.Create(t.Context(), "a/b/c", []byte("again")))
	wantContent(t, s, "a/b/c", "again")
}

func testDeleteChanged(t *testing.T, s Store) {
	must(t, s.Put(t.Context(), "a/b", []byte("one")))
	listed := objects(t, s, "a/")[0]
	found, err := s.Attributes(t.Context(), "a/b")
	must(t, err)
	if listed.Version == "" || listed.Version != found.Version {
		t.Errorf("listed with the version %q, and found with %q", listed.Version, found.Version)
	}
	must(t, s.Put(t.Context(), "a/b", []byte("two")))
	wantKind(t, "delete what was replaced", s.Delete(t.Context(), listed), store.ErrChanged)
	wantContent(t, s, "a/b", "two")
	must(t, s.Delete(t.Context(), objects(t, s, "a/")[0]))
	must(t, s.Create(t.Context(), "a/b", []byte("six")))
	wantKind(t, "delete what was made anew", s.Delete(t.Context(), found), store.ErrChanged)
	wantContent(t, s, "a/b", "six")
	wantKeys(t, s, "", true, "a/b")
	for _, object := range []store.Object{{Key: "a/b"}, {Key: "a/", IsFolder: true, Version: "1"}} {
		if err := s.Delete(t.Context(), object); err == nil {
			t.Errorf("%+v was removed", object)
		}
	}
}

// testConcurrentRemovers: see RemoveConcurrently. Another object stays, since some servers refuse
// writes into a folder that they are about to remove.
func testConcurrentRemovers(t *testing.T, s Store) {
	must(t, s.Put(t.Context(), "race/stays", nil))
	RemoveConcurrently(t, s, "race/object-%d")
}

// RemoveConcurrently checks that each successful write of an object was seen, or is stored, beside
// concurrent removals. It repeats that with numbers in the key.
func RemoveConcurrently(t *testing.T, s Store, pattern string) {
	t.Helper()
	for round := range 8 {
		key := fmt.Sprintf(pattern, round)
		must(t, s.Put(t.Context(), key, []byte("old")))
		old, err := s.Attributes(t.Context(), key)
		must(t, err)
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				if err := s.Delete(t.Context(), old); err != nil && !errors.Is(err, store.ErrChanged) {
					t.Errorf("delete: %v", err)
				}
			})
		}
		group.Go(func() {
			for {
				err := s.Create(t.Context(), key, []byte("new"))
				if err == nil {
					return
				}
				if !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("create: %v", err)
					return
				}
			}
		})
		group.Wait()
		wantContent(t, s, key, "new")
	}
}

func testStreamOnce(t *testing.T, s Store) {
	for _, size := range []int{10, 20 << 20} {
		key := fmt.Sprintf("a/%d", size)
		w, err := s.NewWriter(t.Context(), key)
		must(t, err)
		_, err = w.Write(make([]byte, size))
		must(t, err)
		must(t, s.Create(t.Context(), key, []byte("first")))
		wantKind(t, "commit over another object", w.Commit(), store.ErrExists)
		wantContent(t, s, key, "first")
	}
	wantKeys(t, s, "a/", true, "a/10", fmt.Sprintf("a/%d", 20<<20))
}

func testCancelled(t *testing.T, s Store) {
	must(t, s.Put(t.Context(), "a", []byte("a")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := s.Get(ctx, "a")
	var listErr error
	for _, err := range s.List(ctx, "", store.ListOptions{}) {
		listErr = err
	}
	for operation, err := range map[string]error{
		"get": getErr, "list": listErr, "put": s.Put(ctx, "b", nil), "create": s.Create(ctx, "b", nil),
		"delete": s.Delete(ctx, store.Object{Key: "a", Version: "1"}), "check": s.Check(ctx),
	} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	wantKeys(t, s, "", true, "a")
}

func testCheck(t *testing.T, s Store) {
	must(t, s.Check(t.Context()))
	fill(t, s, levels)
	must(t, s.Check(t.Context()))
}

func testManyObjects(t *testing.T, s Store) {
	const objects = 1_050 // more than a page of S3
	want := make([]string, objects)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < objects; i += 8 {
				want[i] = fmt.Sprintf("many/%05d/", i)
				if err := s.Put(t.Context(), want[i]+"object", nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	wantKeys(t, s, "many/", false, want...)
	got := keys(t, s, "many/", store.ListOptions{Recursive: true, StartAfter: "many/00020/object"})
	if len(got) != objects-21 || got[0] != "many/00021/object" {
		t.Errorf("listed %d objects, from %q on", len(got), got[0])
	}
}

func testEmpty(t *testing.T, s Store) {
	wantKeys(t, s, "", true)
	wantKeys(t, s, "backups/", false)
}
