// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const interval = 5 * time.Minute

// LocalCache keeps what a process has read of one location on disk, for the next process. Its entries
// are judged again when shown, and the store decides. A full, damaged or missing folder only costs
// time. Removals are written at once. After a failure it does nothing.
type LocalCache struct {
	folder, clusterUID string
	clock              clock.PassiveClock

	mu      sync.Mutex
	bucket  *store.Bucket // nil if closed; guarded by mu
	writer  *Writer       // guarded by mu
	written time.Time     // guarded by mu

	// removing guards removed and its file. It is locked after mu, and not held while the index is
	// written.
	removing sync.Mutex
	// removed has names not to show; nil until the file was read.
	removed map[string]bool
}

// NewLocalCache returns a cluster's cache for a store, identified by any text.
func NewLocalCache(folder, ofStore, clusterUID string, clock clock.PassiveClock) *LocalCache {
	sum := sha256.Sum256([]byte(clusterUID + "\x00" + ofStore))
	return &LocalCache{folder: filepath.Join(folder, hex.EncodeToString(sum[:16])), clusterUID: clusterUID, clock: clock}
}

// Open reads the former entries. It precedes Add.
func (c *LocalCache) Open(ctx context.Context) (iter.Seq[Entry], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := c.openLocked(ctx)
	if err != nil {
		c.closeLocked()
		return nil, fmt.Errorf("the cache of the catalogue in %s: %w", c.folder, err)
	}
	return entries, nil
}

func (c *LocalCache) openLocked(ctx context.Context) (iter.Seq[Entry], error) {
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
	if c.bucket, err = store.Open(ctx, &enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: c.folder},
	}, nil); err != nil {
		return nil, err
	}
	c.writer = NewWriter(c.bucket, format.Cluster{UID: c.clusterUID, Key: key}, nil, c.clock)
	c.writer.Grace, c.writer.Exact = 0, true // there is no other reader, and all is shown
	if err := c.writer.Load(ctx); err != nil {
		return nil, err
	}
	c.written = c.clock.Now()
	found, err := Open(ctx, c.bucket, func(clusterUID string) bool { return clusterUID == c.clusterUID }, func(_, publicKey string) Standing {
		if publicKey == key.PublicKey() {
			return Own
		}
		return Ignored
	})
	if err != nil {
		return nil, err
	}
	return func(yield func(Entry) bool) {
		found.Fetch(ctx).Entries(func(name string) bool { return !c.isRemoved(name) })(yield)
	}, nil
}

// key reads or creates the folder's key, which marks this cluster's writes.
func (c *LocalCache) key() (*format.SigningKey, error) {
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

// Add keeps an entry's content.
func (c *LocalCache) Add(ctx context.Context, storeName string, content catalog.Content) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil || !Indexable(&content) {
		return nil
	}
	c.removing.Lock()
	delete(c.removed, storeName) // the file keeps the name until the entry is on disk
	c.removing.Unlock()
	return c.failLocked(c.writer.Add(ctx, Entry{StoreName: storeName, Content: content}))
}

// Write writes the entries that keep accepts, unless it did so recently.
func (c *LocalCache) Write(ctx context.Context, keep func(storeName string) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil || c.clock.Since(c.written) < interval {
		return nil
	}
	return c.writeLocked(ctx, keep)
}

func (c *LocalCache) writeLocked(ctx context.Context, keep func(storeName string) bool) error {
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

// Remove hides names from the next process, however this one ends, until they are added again. If that
// can't be written, it removes the folder.
func (c *LocalCache) Remove(storeNames ...string) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	var lines []byte
	for _, name := range storeNames {
		if !c.removed[name] {
			lines = strconv.AppendQuote(append(lines, '\n'), name) // ends a line that was cut off
		}
	}
	if len(lines) == 0 {
		return nil
	}
	err := writeSynced(c.removedFile(), os.O_APPEND, lines)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
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

func (c *LocalCache) removedFile() string { return filepath.Join(c.folder, "removed") }

func (c *LocalCache) isRemoved(storeName string) bool {
	c.removing.Lock()
	defer c.removing.Unlock()
	return c.removed[storeName]
}

func (c *LocalCache) readRemovedLocked() error {
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

func (c *LocalCache) writeRemovedLocked() error {
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

// Close also writes the entries that keep accepts.
func (c *LocalCache) Close(ctx context.Context, keep func(storeName string) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writer == nil {
		return nil
	}
	err := c.writeLocked(ctx, keep)
	c.closeLocked()
	return err
}

func (c *LocalCache) failLocked(err error) error {
	if err != nil {
		c.closeLocked()
		err = fmt.Errorf("the cache of the catalogue in %s: %w", c.folder, err)
	}
	return err
}

func (c *LocalCache) closeLocked() {
	if c.bucket != nil {
		_ = c.bucket.Close()
	}
	c.bucket, c.writer = nil, nil
}
