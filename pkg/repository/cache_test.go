// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
)

func newCache(t *testing.T, dir string, limit int64) *Cache {
	t.Helper()
	cache, err := NewCache(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// files are the names of what is in a folder.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, path[len(dir)+1:])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// stored answers for a store, and counts how often.
type stored struct {
	bytes int
	reads atomic.Int64
	err   error
}

func (s *stored) read(_ context.Context, output blob.OutputBuffer) error {
	s.reads.Add(1)
	output.Reset()
	for range s.bytes / 100 { // in pieces
		if _, err := output.Write(bytes.Repeat([]byte{'c'}, 100)); err != nil {
			return err
		}
	}
	return s.err
}

const (
	oneRepository     = "00000000000000000000000000000001"
	anotherRepository = "00000000000000000000000000000002"
)

// All that is kept takes no more than the limit: what was not read for the longest time
// goes, of whichever repository, whoever kept it.
func TestCacheKeepsToItsLimit(t *testing.T) {
	dir := t.TempDir()
	const limit = 10 * 12 << 10
	from := &stored{bytes: 10_000} // that takes three blocks
	take := func(cache *Cache, repository string, id int) {
		t.Helper()
		got := new(output)
		if !cache.of(repository).get(t.Context(), blob.ID(fmt.Sprintf("q%d", id)), 5, 100, got, from.read) || got.Length() != 100 {
			t.Fatalf("q%d was not read", id)
		}
		var taken int64
		for _, name := range files(t, dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			taken += onDisk(info.Size())
		}
		if taken > limit {
			t.Fatalf("%d bytes are taken, of %d", taken, limit)
		}
	}
	cache := newCache(t, dir, limit)
	for id := range 9 {
		take(cache, oneRepository, id)
	}
	take(cache, anotherRepository, 0)
	take(cache, oneRepository, 0)
	if got := from.reads.Load(); got != 10 {
		t.Errorf("10 blobs were read %d times", got)
	}
	take(cache, oneRepository, 10) // in the place of q1
	kept := strings.Join(files(t, dir), " ")
	if strings.Contains(kept, oneRepository+"/q1 ") || len(files(t, dir)) != 10 || !strings.Contains(kept, oneRepository+"/q0") {
		t.Errorf("kept: %s", kept)
	}
	// The next process goes on with it, and a lower limit holds at once.
	from.reads.Store(0)
	take(newCache(t, dir, limit), oneRepository, 10)
	if got := from.reads.Load(); got != 0 {
		t.Error("nothing was left for the next process")
	}
	newCache(t, dir, limit/2)
	if got := len(files(t, dir)); got != 5 {
		t.Errorf("with half of the limit %d are left", got)
	}

	// Several at once, by two processes' caches for one folder.
	cache = newCache(t, dir, limit)
	var reading sync.WaitGroup
	for reader := range 4 {
		reading.Go(func() {
			of := cache.of([]string{oneRepository, anotherRepository}[reader%2])
			random := rand.New(rand.NewPCG(uint64(reader), 1))
			for range 200 {
				got := new(output)
				// It may have to make room at once.
				if of.get(t.Context(), blob.ID(fmt.Sprintf("x%d", random.IntN(20))), 0, -1, got, from.read) && got.Length() != from.bytes {
					t.Errorf("%d of %d bytes", got.Length(), from.bytes)
				}
			}
		})
	}
	reading.Wait()
	if cache.unfinished != 0 || cache.bytes > limit || cache.bytes != int64(len(files(t, dir)))*12<<10 {
		t.Errorf("it counts %d bytes, and %d unfinished, and has %d files", cache.bytes, cache.unfinished, len(files(t, dir)))
	}
}

// What is left over goes: blobs that nobody reads any more, what a process was about to
// keep, and Kopia's own cache of an earlier version. What is not ours stays.
func TestCacheIsCleaned(t *testing.T) {
	dir := t.TempDir()
	old, recent := time.Now().Add(-oldAfter-time.Minute), time.Now().Add(-time.Minute)
	for name, when := range map[string]time.Time{
		oneRepository + "/qold": old, oneRepository + "/qrecent": recent, anotherRepository + "/xold": old,
		oneRepository + "/.new-1": recent, oneRepository + "/.new-2": time.Now().Add(-leftAfter - time.Minute),
		anotherRepository + "/metadata/ab/cd.f": recent, anotherRepository + "/CACHEDIR.TAG": recent,
		"lost+found/qfile": old, "file": old,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("content"), 0o600), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	cache := newCache(t, dir, 1<<20)
	if cache.bytes != 2*diskBlock {
		t.Errorf("it counts %d bytes, with what another process was about to keep", cache.bytes)
	}
	if got, want := strings.Join(files(t, dir), " "), oneRepository+"/.new-1 "+oneRepository+"/qrecent file lost+found/qfile"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, anotherRepository)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty folder is left: %v", err)
	}
}

// What can't be kept is read from the store all the same, and leaves nothing.
func TestCacheThatFails(t *testing.T) {
	dir := t.TempDir()
	refuses := errors.New("refused")
	for name, test := range map[string]struct {
		limit int64
		from  *stored
		spoil func(cache *Cache)
	}{
		"larger than the limit": {limit: 4 << 10, from: &stored{bytes: 5_000}},
		"the store refuses":     {limit: 1 << 20, from: &stored{bytes: 5_000, err: refuses}},
		"no folder any more": {limit: 1 << 20, from: &stored{bytes: 5_000}, spoil: func(*Cache) {
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		cache := newCache(t, dir, test.limit)
		of := cache.of(oneRepository)
		if test.spoil != nil {
			test.spoil(cache)
		}
		if got := new(output); of.get(t.Context(), "q1", 0, 100, got, test.from.read) || got.Length() != 0 {
			t.Errorf("%s: %q was read", name, got)
		}
		if cache.bytes != 0 || cache.unfinished != 0 {
			t.Errorf("%s: %d bytes count, and %d unfinished", name, cache.bytes, cache.unfinished)
		}
		if found, _ := filepath.Glob(dir + "/*/*"); len(found) > 0 {
			t.Errorf("%s: left is %v", name, found)
		}
	}
	for _, id := range []blob.ID{"p1", "kopia.repository", "q", "q/../x", "q..", "_log_1", ""} {
		if isCached(id) {
			t.Errorf("%s is cached", id)
		}
	}
}

// What does not fit costs no other blob, and is not fetched again and again.
func TestCacheOfWhatDoesNotFit(t *testing.T) {
	cache := newCache(t, t.TempDir(), 64<<10)
	other, large := cache.of(anotherRepository), &stored{bytes: 40 << 10}
	if !other.get(t.Context(), "q0", 0, 100, new(output), (&stored{bytes: 5_000}).read) {
		t.Fatal("a small blob is not kept")
	}
	of := cache.of(oneRepository)
	for range 10 {
		if of.get(t.Context(), "q1", 0, 100, new(output), large.read) {
			t.Error("a blob is kept that is larger than half of the cache")
		}
	}
	if large.reads.Load() > maxFetched {
		t.Errorf("it was fetched %d times", large.reads.Load())
	}
	if !other.get(t.Context(), "q0", 0, 100, new(output), func(context.Context, blob.OutputBuffer) error { return errors.New("fetched again") }) {
		t.Error("another repository's blob had to go")
	}
}

// What the store has answered wrongly once is asked for anew when a repository could not be
// opened with it.
func TestCacheOfAWrongAnswer(t *testing.T) {
	cache := newCache(t, t.TempDir(), 1<<20)
	from := &stored{bytes: 5_000}
	of := cache.of(oneRepository)
	for range 2 {
		if !of.get(t.Context(), "x1", 0, 100, new(output), from.read) {
			t.Fatal("it is not kept")
		}
	}
	of.distrust()
	if !cache.of(oneRepository).get(t.Context(), "x1", 0, 100, new(output), from.read) || from.reads.Load() != 2 {
		t.Errorf("it was fetched %d times", from.reads.Load())
	}
}

// A cache that is damaged, in whichever of its files and ways, is not believed: the work
// goes on as without one, and repairs it.
func TestDamagedCache(t *testing.T) {
	loc, key, dir := s3Location(t, false), NewKey(), t.TempDir()
	if err := Create(t.Context(), loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	ids, cache := 0, newCache(t, dir, 1<<30)
	use := func(name string, meanwhile func()) {
		t.Helper()
		r := open1(t, loc, key, Options{Cache: cache})
		meanwhile()
		put(t, r)
		ids++
		if err := r.Refresh(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		found, err := r.direct.FindManifests(t.Context(), map[string]string{manifest.TypeLabelKey: "test"})
		if err != nil || len(found) != ids {
			t.Errorf("%s: found %d of %d, %v", name, len(found), ids, err)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	nothing := func() {}
	use("new", nothing)
	use("again", nothing)
	each := func(damage func(path string, content []byte) error) func() {
		return func() {
			names := files(t, dir)
			if len(names) < 2 {
				t.Fatalf("cached are only %v", names)
			}
			for _, name := range names {
				content, err := os.ReadFile(filepath.Join(dir, name))
				if err == nil {
					err = damage(filepath.Join(dir, name), content)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	write := func(change func(content []byte) []byte) func() {
		return each(func(path string, content []byte) error { return os.WriteFile(path, change(content), 0o600) })
	}
	var previous []byte
	for name, damage := range map[string]func(){
		"one bit":      write(func(content []byte) []byte { content[len(content)/2] ^= 1; return content }),
		"the checksum": write(func(content []byte) []byte { content[len(content)-1] ^= 1; return content }),
		"cut":          write(func(content []byte) []byte { return content[:len(content)/2] }),
		"longer":       write(func(content []byte) []byte { return append(content, 0) }),
		"empty":        write(func([]byte) []byte { return nil }),
		"each another": write(func(content []byte) []byte { content, previous = previous, content; return content }),
		"folders": each(func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), os.MkdirAll(path+"/folder", 0o700))
		}),
		"all is removed": func() { _ = os.RemoveAll(dir) },
	} {
		damage()
		use(name, nothing)
		use(name+", repaired", nothing)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	use("removed in the middle", func() { _ = os.RemoveAll(dir) })
}

// putObjects stores so many small objects, with an index of their own.
func putObjects(t *testing.T, r *Repository, name string, count int) {
	t.Helper()
	err := repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		for i := range count {
			writer := w.NewObjectWriter(ctx, object.WriterOptions{})
			if _, err := fmt.Fprintf(writer, "%s %d", name, i); err != nil {
				return err
			}
			if _, err := writer.Result(); err != nil {
				return err
			}
			if err := writer.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Indexes may be replaced while somebody lists what is in them, as a listing of
// snapshots does. With Kopia's cache on disk the process would end: what is listed is
// in the memory map of a file, which is gone then.
func TestIndexesAreReplacedInTheMiddle(t *testing.T) {
	loc, key := s3Location(t, false), NewKey()
	if err := Create(t.Context(), loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	r := open1(t, loc, key, Options{Cache: newCache(t, t.TempDir(), 1<<30)})
	defer r.Close(t.Context())
	const each = 200 // Kopia brings smaller indexes together in memory
	putObjects(t, r, "first", each)
	putObjects(t, r, "second", each)
	listed := 0
	err := r.Kopia().ContentReader().IterateContents(t.Context(), content.IterateOptions{}, func(content.Info) error {
		if listed++; listed > 1 {
			return nil
		}
		err := r.storage.ListBlobs(t.Context(), "xn", func(found blob.Metadata) error { return r.storage.DeleteBlob(t.Context(), found.BlobID) })
		if err != nil {
			return err
		}
		return r.Refresh(t.Context())
	})
	if err != nil || listed < 2*each {
		t.Errorf("listed %d contents of %d: %v", listed, 2*each, err)
	}
}
