// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	hashing "hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"k8s.io/klog/v2"
)

const (
	// oldAfter is after how long a blob that nobody has read is removed: its repository is
	// hardly used on this node any more.
	oldAfter = 30 * 24 * time.Hour
	// leftAfter is after how long an unfinished file is taken for that of a process that
	// has stopped.
	leftAfter = time.Hour
	// newBlob begins the names of unfinished files. No blob is called so.
	newBlob = ".new-"
	// diskBlock is what a file takes of the disk at least.
	diskBlock = 4 << 10
)

// Cache keeps on the disk what uploads read of repositories again and again: their indexes
// and the packs with folder listings. It is for all repositories of a node, and for the
// next process.
//
// What it promises:
//   - All that it keeps, and what it is about to keep, takes no more than its limit. What
//     was not read for the longest time makes room. Two processes that share a folder for
//     a while take twice that at most, until one opens another repository.
//   - It holds what the store holds, encrypted as there, and no contents of files.
//   - What it keeps is compared with its checksum before an opened repository uses it, and
//     else removed and read from the store. What is damaged later fails the reading, as what
//     Kopia decrypts is authentic; the next opening compares anew.
//   - Whatever fails here, the store is read.
//
// Kopia's own cache is not used: it has a bound for each repository and none for all; an
// index of it that is damaged, or a folder that is lost, has it try again without end; and
// it reads indexes from memory maps, which go away while they are listed when an index is
// replaced, and the process with them.
type Cache struct {
	dir   string
	limit int64
	// newBlob begins the names of this process's unfinished files.
	newBlob string

	mu sync.Mutex
	// kept are the blobs, by their path below dir, and bytes what they and the unfinished
	// ones take.
	kept       map[string]kept
	unfinished int64
	bytes      int64
}

type kept struct {
	bytes int64
	used  time.Time
}

// NewCache returns a cache in a folder, of so many bytes at most.
func NewCache(dir string, limit int64) (*Cache, error) {
	c := &Cache{dir: dir, limit: limit, newBlob: newBlob + uuid.NewString() + "-"}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the cache: %w", err)
	}
	if err := c.scan(); err != nil {
		return nil, err
	}
	return c, nil
}

// scan learns what there is, whoever made it, and removes what is old or strange.
func (c *Cache) scan() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.kept
	c.kept, c.bytes = map[string]kept{}, c.unfinished
	repositories, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("look into the cache: %w", err)
	}
	for _, repository := range repositories {
		if !isCacheName(repository.Name()) {
			continue // not ours
		}
		blobs, err := os.ReadDir(filepath.Join(c.dir, repository.Name()))
		if err != nil {
			_ = os.RemoveAll(filepath.Join(c.dir, repository.Name()))
			continue
		}
		for _, found := range blobs {
			path := filepath.Join(repository.Name(), found.Name())
			info, err := found.Info()
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err == nil && strings.HasPrefix(found.Name(), c.newBlob):
			case err == nil && strings.HasPrefix(found.Name(), newBlob) && time.Since(info.ModTime()) < leftAfter:
				c.bytes += onDisk(info.Size()) // another process's, which has stopped, perhaps
			case err != nil || !info.Mode().IsRegular() || !isCached(blob.ID(found.Name())) || time.Since(info.ModTime()) > oldAfter:
				_ = os.RemoveAll(filepath.Join(c.dir, path))
			default:
				used := info.ModTime()
				if known := before[path].used; known.After(used) {
					used = known
				}
				c.kept[path] = kept{onDisk(info.Size()), used}
				c.bytes += onDisk(info.Size())
			}
		}
		_ = os.Remove(filepath.Join(c.dir, repository.Name())) // if it is empty
	}
	c.makeRoomLocked(0)
	return nil
}

// onDisk is what a file of so many bytes takes.
func onDisk(bytes int64) int64 { return (bytes + diskBlock - 1) / diskBlock * diskBlock }

// makeRoomLocked has what was not read for the longest time go until there is room for so
// many bytes. It reports whether there is.
func (c *Cache) makeRoomLocked(bytes int64) bool {
	for c.bytes+bytes > c.limit && len(c.kept) > 0 {
		oldest := ""
		for path, this := range c.kept {
			if oldest == "" || this.used.Before(c.kept[oldest].used) {
				oldest = path
			}
		}
		c.removeLocked(oldest)
	}
	return c.bytes+bytes <= c.limit
}

func (c *Cache) removeLocked(path string) {
	_ = os.Remove(filepath.Join(c.dir, path)) // who reads it has it open
	c.bytes -= c.kept[path].bytes
	delete(c.kept, path)
}

// grow takes room for an unfinished blob.
func (c *Cache) grow(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.makeRoomLocked(bytes) {
		return false
	}
	c.bytes += bytes
	c.unfinished += bytes
	return true
}

// finished gives back the room of an unfinished blob, which has got its name if that is not
// empty.
func (c *Cache) finished(path string, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unfinished -= bytes
	c.bytes -= bytes
	if path != "" {
		c.bytes += bytes - c.kept[path].bytes
		c.kept[path] = kept{bytes, time.Now()}
	}
}

// use takes note that a blob is read.
func (c *Cache) use(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if this, ok := c.kept[path]; ok {
		this.used = time.Now()
		c.kept[path] = this
	}
}

func (c *Cache) remove(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(path)
}

// isCacheName reports whether a folder is one that cacheName names.
func isCacheName(name string) bool {
	decoded, err := hex.DecodeString(name)
	return err == nil && len(decoded) == cacheNameLength
}

// isCached says which blobs are kept: folder listings and manifests, and indexes. Their
// names are never used twice. A name that is no file's is none of Kopia's.
func isCached(id blob.ID) bool {
	for _, r := range id {
		if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_') {
			return false
		}
	}
	return len(id) > 1 && (id[:1] == content.PackBlobIDPrefixSpecial || id[0] == 'x' || id[0] == 'n')
}

// of returns the cache of a repository that is being opened. That of no cache is none.
func (c *Cache) of(repository string) *blobCache {
	if c == nil {
		return nil
	}
	// What another process has left, and what has become old.
	_ = c.scan()
	return &blobCache{Cache: c, repository: repository, blobs: map[blob.ID]*cachedBlob{}}
}

// blobCache is the part of a Cache that an open repository reads.
type blobCache struct {
	*Cache
	repository string

	mu    sync.Mutex
	blobs map[blob.ID]*cachedBlob
}

// cachedBlob is what the open repository knows of a blob.
type cachedBlob struct {
	// turn is full while somebody looks for it, and guards size: of the content, which is
	// known to be sound; -1 if nothing is known.
	turn chan struct{}
	size int64
	// fetched is how often it was read from the store as a whole.
	fetched int
}

// maxFetched is how often that may be: where blobs that are needed at once don't fit into the
// cache together, to read parts of them costs less.
const maxFetched = 2

// errNoRoom: a blob can't be kept.
var errNoRoom = errors.New("there is no room for it in the cache")

// get reads a part of a blob, and keeps the blob. It returns false if it can't: then the
// store is to be asked. read reads all of it.
func (b *blobCache) get(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer, read func(context.Context, blob.OutputBuffer) error) bool {
	if b == nil || !isCached(id) {
		return false
	}
	b.mu.Lock()
	this := b.blobs[id]
	if this == nil {
		this = &cachedBlob{turn: make(chan struct{}, 1), size: -1}
		b.blobs[id] = this
	}
	b.mu.Unlock()
	select {
	case this.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	path := filepath.Join(b.repository, string(id))
	if this.size < 0 {
		this.size = b.sound(path, id)
	}
	if this.size < 0 && this.fetched < maxFetched {
		this.fetched++
		var err error
		if this.size, err = b.keep(ctx, path, id, read); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("A blob of a repository is not cached", "blob", id, "err", err)
		}
	}
	size := this.size
	<-this.turn
	if length < 0 {
		length = size - offset
	}
	if size < 0 || offset+length > size {
		return false
	}
	b.use(path)
	if err := b.part(path, offset, length, output); err != nil {
		output.Reset()
		select {
		case this.turn <- struct{}{}:
			this.size = -1 // it had to make room, perhaps
			<-this.turn
		default:
		}
		return false
	}
	return true
}

// distrust removes the blobs that were read since the repository was opened: they are what the
// store has answered, but that may have been wrong.
func (b *blobCache) distrust() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.blobs {
		b.remove(filepath.Join(b.repository, string(id)))
	}
}

// part reads a part of a blob that is kept.
func (b *blobCache) part(path string, offset, length int64, output blob.OutputBuffer) error {
	f, err := os.Open(filepath.Join(b.dir, path))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(output, io.NewSectionReader(f, offset, length), length)
	return err
}

// sum begins the checksum of a blob. Its name is in it, so that no other takes its place.
func sum(id blob.ID) hashing.Hash {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", id)
	return h
}

// sound returns the size of a blob that is kept, and -1 if none is: one that is not what was
// kept is removed.
func (b *blobCache) sound(path string, id blob.ID) int64 {
	f, err := os.Open(filepath.Join(b.dir, path))
	if err != nil {
		return -1
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		expected, h := make([]byte, sha256.Size), sum(id)
		size := info.Size() - sha256.Size
		_, err = io.CopyN(h, f, max(size, 0))
		if err == nil {
			_, err = io.ReadFull(f, expected)
		}
		if err == nil && bytes.Equal(h.Sum(nil), expected) {
			now := time.Now()
			_ = os.Chtimes(f.Name(), now, now) // for the next process
			return size
		}
	}
	b.remove(path)
	return -1
}

// keep reads a blob from the store, and returns its size.
func (b *blobCache) keep(ctx context.Context, path string, id blob.ID, read func(context.Context, blob.OutputBuffer) error) (size int64, err error) {
	folder := filepath.Join(b.dir, b.repository)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return -1, err
	}
	f, err := os.CreateTemp(folder, b.newBlob)
	if err != nil {
		return -1, err
	}
	w := &unfinished{cache: b.Cache, file: f, id: id}
	w.Reset()
	err = errors.Join(read(ctx, w), w.err)
	if err == nil {
		size = w.size
		_, err = w.Write(w.sum.Sum(nil))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(b.dir, path))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		b.finished("", w.taken)
		return -1, err
	}
	b.finished(path, w.taken)
	return size, nil
}

// unfinished is a blob that is being written.
type unfinished struct {
	cache *Cache
	file  *os.File
	id    blob.ID
	sum   hashing.Hash
	size  int64 // of what was written
	taken int64 // of the cache's room
	err   error
}

// Reset implements blob.OutputBuffer.
func (u *unfinished) Reset() {
	u.sum, u.size = sum(u.id), 0
	_, err := u.file.Seek(0, io.SeekStart)
	u.err = errors.Join(err, u.file.Truncate(0))
}

// Length implements blob.OutputBuffer.
func (u *unfinished) Length() int { return int(u.size) }

// Write implements blob.OutputBuffer.
func (u *unfinished) Write(p []byte) (int, error) {
	if more := onDisk(u.size+int64(len(p))) - u.taken; u.err == nil && more > 0 {
		// One that is larger than half of the cache would cost all others.
		if u.taken+more <= u.cache.limit/2 && u.cache.grow(more) {
			u.taken += more
		} else {
			u.err = errNoRoom
		}
	}
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.file.Write(p)
	u.size += int64(n)
	u.sum.Write(p[:n])
	u.err = err
	return n, err
}
