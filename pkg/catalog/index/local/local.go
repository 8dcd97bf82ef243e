// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package local keeps on disk what a process has read of a storage location, for the next
// one: an index, as package index has it, in a folder that only its owner reads. The folder's
// name says of which store and cluster it is, so that what is of another one is never met.
// What was read there was judged when it was read, and is judged again when it is shown; and
// the store has the last word on it. A folder that is full, spoilt or gone costs time.
//
// The index is written now and then, so what leaves the catalogue meanwhile is also named in a
// list beside it, at once: a process that is killed leaves nothing that it had removed.
package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// interval is how often it is written at most, but at the end.
const interval = 5 * time.Minute

// Cache is what is kept of one location. A failure costs it: it does nothing from then on.
type Cache struct {
	folder, clusterUID string
	clock              clock.PassiveClock

	mu      sync.Mutex
	bucket  *store.Bucket // nil when it is not open; guarded by mu
	writer  *index.Writer // guarded by mu
	written time.Time     // guarded by mu

	// removing guards removed, and the file that has its names. It is taken after mu, and not
	// held while the index is written.
	removing sync.Mutex
	// removed are the names that the index may have, and that are not to be shown; nil when
	// the file was not read.
	removed map[string]bool
}

// New gives the cache of a store, which is identified by any text, as a cluster sees it.
func New(folder, ofStore, clusterUID string, clock clock.PassiveClock) *Cache {
	sum := sha256.Sum256([]byte(clusterUID + "\x00" + ofStore))
	return &Cache{folder: filepath.Join(folder, hex.EncodeToString(sum[:16])), clusterUID: clusterUID, clock: clock}
}

// Open reads what there is, and gives it. It must be called before anything is added.
func (c *Cache) Open(ctx context.Context) (iter.Seq[index.Entry], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := c.openLocked(ctx)
	if err != nil {
		c.closeLocked()
		return nil, fmt.Errorf("the cache of the catalogue in %s: %w", c.folder, err)
	}
	return entries, nil
}

func (c *Cache) openLocked(ctx context.Context) (iter.Seq[index.Entry], error) {
	if err := os.MkdirAll(c.folder, 0o700); err != nil {
		return nil, err
	}
	key, err := c.key()
	if err != nil {
		return nil, err
	}
	c.removing.Lock()
	err = c.readRemovedLocked()
	c.removing.Unlock()
	if err != nil {
		return nil, err
	}
	if c.bucket, err = store.Open(ctx, &engine.StorageLocationSpec{
		Provider: engine.StorageProviderFilesystem, Filesystem: &engine.FilesystemLocation{Path: c.folder},
	}, nil); err != nil {
		return nil, err
	}
	c.writer = index.NewWriter(c.bucket, format.Cluster{UID: c.clusterUID, Key: key}, nil, c.clock)
	c.writer.Grace, c.writer.Exact = 0, true // nobody else reads it, and all of it is shown
	if err := c.writer.Load(ctx); err != nil {
		return nil, err
	}
	c.written = c.clock.Now()
	found, err := index.Open(ctx, c.bucket, func(clusterUID string) bool { return clusterUID == c.clusterUID }, func(_, publicKey string) index.Standing {
		if publicKey == key.PublicKey() {
			return index.Own
		}
		return index.Ignored
	})
	if err != nil {
		return nil, err
	}
	return func(yield func(index.Entry) bool) {
		found.Fetch(ctx).Entries(func(name string) bool { return !c.isRemoved(name) })(yield)
	}, nil
}

// key is made for the folder. It only tells what was written here from what was not.
func (c *Cache) key() (*format.SigningKey, error) {
	name := filepath.Join(c.folder, "key")
	seed, err := os.ReadFile(name)
	if err == nil {
		if key, err := format.ParseSigningKey(seed); err == nil {
			return key, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(name, key.Seed(), 0o600)
}

// Add keeps what was read of an entry.
func (c *Cache) Add(ctx context.Context, storeName string, content catalog.Content) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil || !index.Indexable(&content) {
		return nil
	}
	c.removing.Lock()
	delete(c.removed, storeName) // the file keeps the name until this is on disk, too
	c.removing.Unlock()
	return c.failLocked(c.writer.Add(ctx, index.Entry{StoreName: storeName, Content: content}))
}

// Write writes what was added, unless that was done a short while ago, without what is not to
// be kept.
func (c *Cache) Write(ctx context.Context, keep func(storeName string) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil || c.clock.Since(c.written) < interval {
		return nil
	}
	return c.writeLocked(ctx, keep)
}

func (c *Cache) writeLocked(ctx context.Context, keep func(storeName string) bool) error {
	c.written = c.clock.Now()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return c.writer.Sweep(ctx, keep) }, c.writer.Commit, c.writer.Clean,
	} {
		if err := step(ctx); err != nil {
			return c.failLocked(err)
		}
	}
	c.removing.Lock()
	defer c.removing.Unlock()
	maps.DeleteFunc(c.removed, func(name string, _ bool) bool { return !c.writer.Has(name, "") })
	return c.failLocked(c.writeRemovedLocked())
}

// Remove has names not be shown by the next process, whenever this one ends, unless they are
// added again. The folder is removed if it can't be written.
func (c *Cache) Remove(storeNames ...string) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	var lines []byte
	for _, name := range storeNames {
		if !c.removed[name] {
			lines = strconv.AppendQuote(append(lines, '\n'), name) // what was cut short before it is a line
		}
	}
	if len(lines) == 0 {
		return nil
	}
	err := writeSynced(c.removedFile(), os.O_APPEND, lines)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no folder
	}
	if err != nil {
		return fmt.Errorf("the cache of the catalogue, which is removed: %w", errors.Join(err, os.RemoveAll(c.folder)))
	}
	if c.removed != nil {
		for _, name := range storeNames {
			c.removed[name] = true
		}
	}
	return nil
}

func (c *Cache) removedFile() string { return filepath.Join(c.folder, "removed") }

func (c *Cache) isRemoved(storeName string) bool {
	c.removing.Lock()
	defer c.removing.Unlock()
	return c.removed[storeName]
}

func (c *Cache) readRemovedLocked() error {
	data, err := os.ReadFile(c.removedFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.removed = map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if name, err := strconv.Unquote(strings.TrimSuffix(line, "\n")); err == nil {
			c.removed[name] = true
		}
	}
	return nil
}

// writeRemovedLocked leaves in the file what is removed still.
func (c *Cache) writeRemovedLocked() error {
	if len(c.removed) == 0 {
		if err := os.Remove(c.removedFile()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var lines []byte
	for name := range c.removed {
		lines = strconv.AppendQuote(append(lines, '\n'), name)
	}
	next := c.removedFile() + ".next"
	if err := writeSynced(next, os.O_TRUNC, lines); err != nil {
		return err
	}
	return os.Rename(next, c.removedFile())
}

func writeSynced(name string, how int, data []byte) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|how, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// Close writes what was added. Nothing is added after it.
func (c *Cache) Close(ctx context.Context, keep func(storeName string) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil {
		return nil
	}
	err := c.writeLocked(ctx, keep)
	c.closeLocked()
	return err
}

func (c *Cache) failLocked(err error) error {
	if err != nil {
		c.closeLocked()
		err = fmt.Errorf("the cache of the catalogue in %s: %w", c.folder, err)
	}
	return err
}

func (c *Cache) closeLocked() {
	if c.bucket != nil {
		_ = c.bucket.Close()
	}
	c.bucket, c.writer = nil, nil
}
