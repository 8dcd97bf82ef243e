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
	oldAfter  = 30 * 24 * time.Hour
	leftAfter = time.Hour
	newBlob   = ".new-"
	diskBlock = 4 << 10
)

// Cache keeps on disk the blobs that uploads read repeatedly: indexes, and packs with folder
// listings. All repositories of a node, and the next process, share it. See docs/node-agent.md.
//
//   - Its files, also unfinished ones, take at most its limit; the blob unread for longest makes room.
//     Two processes in one folder take at most twice the limit.
//   - Blobs are encrypted as in the store, and no file contents are kept.
//   - A blob's checksum is verified before an opened repository uses it. A damaged one is read from
//     the store. Later damage fails a read, since Kopia authenticates what it decrypts.
//   - After any failure here the store is read.
//
// Kopia's own cache has no common limit, retries endlessly after damage, and maps indexes into
// memory, where a replaced file ends the process.
type Cache struct {
	dir     string
	limit   int64
	newBlob string

	mu sync.Mutex
	// kept has the blobs by path below dir; bytes is their size, with unfinished ones.
	kept       map[string]kept
	unfinished int64
	bytes      int64
}

type kept struct {
	bytes int64
	used  time.Time
}

// NewCache returns a cache in a folder, of at most limit bytes.
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
			continue
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
				c.bytes += onDisk(info.Size())
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
		_ = os.Remove(filepath.Join(c.dir, repository.Name()))
	}
	c.makeRoomLocked(0)
	return nil
}

func onDisk(bytes int64) int64 { return (bytes + diskBlock - 1) / diskBlock * diskBlock }

// makeRoomLocked removes the longest unread blobs until bytes fit, and reports whether they do.
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
	_ = os.Remove(filepath.Join(c.dir, path))
	c.bytes -= c.kept[path].bytes
	delete(c.kept, path)
}

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

// finished frees an unfinished blob's room. path is empty if it was not kept.
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

func isCacheName(name string) bool {
	decoded, err := hex.DecodeString(name)
	return err == nil && len(decoded) == cacheNameLength
}

// isCached reports whether a blob is kept: folder listings, manifests and indexes, whose names are
// unique.
func isCached(id blob.ID) bool {
	for _, r := range id {
		if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_') {
			return false
		}
	}
	return len(id) > 1 && (id[:1] == content.PackBlobIDPrefixSpecial || id[0] == 'x' || id[0] == 'n')
}

func (c *Cache) of(repository string) *blobCache {
	if c == nil {
		return nil
	}
	_ = c.scan()
	return &blobCache{Cache: c, repository: repository, blobs: map[blob.ID]*cachedBlob{}}
}

type blobCache struct {
	*Cache
	repository string

	mu    sync.Mutex
	blobs map[blob.ID]*cachedBlob
}

type cachedBlob struct {
	// turn is full during a lookup, and guards size: the verified content's, or -1.
	turn    chan struct{}
	size    int64
	fetched int
}

// maxFetched bounds fetched: if the blobs in use don't fit, reading parts costs less.
const maxFetched = 2

var errNoRoom = errors.New("there is no room for it in the cache")

// get reads a part of a blob, which it caches by read. It returns false if the store must be read.
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
			this.size = -1
			<-this.turn
		default:
		}
		return false
	}
	return true
}

// distrust removes the blobs read since the opening: the store may have lied.
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

func (b *blobCache) part(path string, offset, length int64, output blob.OutputBuffer) error {
	f, err := os.Open(filepath.Join(b.dir, path))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(output, io.NewSectionReader(f, offset, length), length)
	return err
}

func sum(id blob.ID) hashing.Hash {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", id)
	return h
}

// sound returns a cached blob's size, or -1. A damaged one is removed.
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
			_ = os.Chtimes(f.Name(), now, now)
			return size
		}
	}
	b.remove(path)
	return -1
}

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

type unfinished struct {
	cache *Cache
	file  *os.File
	id    blob.ID
	sum   hashing.Hash
	size  int64 // written
	taken int64 // reserved
	err   error
}

func (u *unfinished) Reset() {
	u.sum, u.size = sum(u.id), 0
	_, err := u.file.Seek(0, io.SeekStart)
	u.err = errors.Join(err, u.file.Truncate(0))
}

func (u *unfinished) Length() int { return int(u.size) }

func (u *unfinished) Write(p []byte) (int, error) {
	if more := onDisk(u.size+int64(len(p))) - u.taken; u.err == nil && more > 0 {
		// A blob larger than half of the cache would remove all others.
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
