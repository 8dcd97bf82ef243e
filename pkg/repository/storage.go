// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/sharded"
	"github.com/kopia/kopia/repo/format"
	"k8s.io/apimachinery/pkg/util/validation"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Location is a storage location with its access.
type Location struct {
	Spec enginev1alpha1.StorageLocationSpec
	// Secret is the data of the spec's Secret: accessKeyID, secretAccessKey and optionally
	// sessionToken. Unused by a filesystem.
	Secret map[string][]byte
	// StoreID is the store's id, if known: no other store is opened.
	StoreID string
	// Again reads the Secret again while the store is open. Optional.
	Again store.SecretReader `json:"-"`
}

func (l *Location) open(ctx context.Context) (*store.Bucket, error) {
	bucket, err := store.OpenFollowing(ctx, &l.Spec, l.Secret, l.Again)
	if err != nil || l.StoreID == "" {
		return bucket, err
	}
	if err := bucket.Expect(ctx, l.StoreID); err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	return bucket, nil
}

// Folder returns the folder of a namespace's repository below the location's root, with a trailing
// slash.
func Folder(prefix, namespace string) string {
	return path.Join(prefix, "kopia", namespace) + "/"
}

func folderOf(namespace string) (string, error) {
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return "", fmt.Errorf("%q is not the name of a namespace: %s", namespace, strings.Join(problems, ", "))
	}
	return Folder("", namespace), nil
}

// storage keeps a repository's blobs like Kopia's own storages: in a bucket under their names, in a
// folder with names cut into folders.
type storage struct {
	blob.DefaultProviderImplementation
	bucket *store.Bucket
	// shards says how names are cut; nil means not at all.
	shards *sharded.Parameters
	// packs keeps packs, if requested. It changes under keeping.
	packs   atomic.Pointer[Packs]
	keeping sync.Mutex
	cache   *blobCache
	// locks is kopia.blobcfg for Kopia, if the location has a lock. See lockBlobs.
	locks []byte
	// lockedUntil is the earliest end of a lock that the last maintenance found or extended.
	lockedUntil earliest
	// unextended is why the last maintenance could not extend a lock: Kopia only counts these.
	unextended atomic.Pointer[error]
	// uncached is true while reads must come from the store.
	uncached atomic.Bool
	answered atomic.Bool
	closed   sync.Once
	// lost ends, with the cause, when the repository is unusable.
	lost context.Context
	lose context.CancelCauseFunc
}

// defaultShards is how Kopia cuts names in a new repository; an existing one records its own.
var defaultShards = []int{1, 3}

const storageConfig = ".storageconfig"

// connect returns the storage of a namespace's repository, which owns the bucket on success. It
// fails with ErrNotInitialized if a folder does not exist.
func connect(ctx context.Context, bucket *store.Bucket, provider enginev1alpha1.StorageProvider, namespace string) (*storage, error) {
	folder, err := folderOf(namespace)
	if err != nil {
		return nil, err
	}
	bucket, err = bucket.Folder(ctx, folder)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", ErrNotInitialized, err)
	case err != nil:
		return nil, fmt.Errorf("open the repository's folder: %w", err)
	}
	s := &storage{bucket: bucket}
	s.lost, s.lose = context.WithCancelCause(context.Background())
	if provider == enginev1alpha1.StorageProviderFilesystem {
		if s.shards, err = shardsOf(ctx, bucket); err != nil {
			return nil, errors.Join(fmt.Errorf("learn the repository's layout: %w", err), bucket.Close())
		}
	}
	return s, nil
}

// shardsOf reads how the names of a repository are cut, and records it in a new one.
func shardsOf(ctx context.Context, bucket *store.Bucket) (*sharded.Parameters, error) {
	shards := sharded.DefaultParameters(defaultShards)
	var written bytes.Buffer
	if err := shards.Save(&written); err != nil {
		return nil, err
	}
	recorded, err := bucket.Get(ctx, sharded.ParametersFile)
	if errors.Is(err, store.ErrNotFound) {
		if err = bucket.Create(ctx, sharded.ParametersFile, written.Bytes()); !errors.Is(err, store.ErrExists) {
			return shards, err
		}
		recorded, err = bucket.Get(ctx, sharded.ParametersFile)
	}
	if err != nil {
		return nil, err
	}
	defer recorded.Close()
	shards = new(sharded.Parameters)
	return shards, shards.Load(recorded)
}

func (s *storage) key(id blob.ID) string {
	if s.shards == nil {
		return string(id)
	}
	folder, rest := s.shards.GetShardDirectoryAndBlob("", id)
	return path.Join(folder, string(rest)+sharded.CompleteBlobSuffix)
}

// While a store that has answered is unavailable, operations are repeated with doubling pauses: a
// restart or throttling of half a minute must not end an upload of hours.
const (
	attempts   = 9
	firstPause = 100 * time.Millisecond
	// patience is how long after the first attempt another may begin: with a silent store each
	// takes minutes.
	patience = 2 * time.Minute
)

// persist repeats an operation until it succeeds or is hopeless, and translates errors for Kopia.
func (s *storage) persist(ctx context.Context, do func() error) error {
	pause, began := firstPause, time.Now()
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || errors.Is(err, store.ErrNotFound) {
			s.answered.Store(true)
		}
		switch {
		case errors.Is(err, store.ErrNotFound):
			return fmt.Errorf("%w: %w", blob.ErrBlobNotFound, err)
		case errors.Is(err, store.ErrRange):
			return fmt.Errorf("%w: %w", blob.ErrInvalidRange, err)
		case !errors.Is(err, store.ErrUnavailable) || attempt == attempts || time.Since(began) > patience || !s.answered.Load():
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return err
		}
	}
}

func (s *storage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	output.Reset()
	if offset < 0 {
		return blob.ErrInvalidRange
	}
	if s.locks != nil && id == format.KopiaBlobCfgBlobID {
		_, err := output.Write(s.locks)
		return err
	}
	if length == 0 {
		_, err := s.GetMetadata(ctx, id)
		return err
	}
	if packs := s.packs.Load(); packs != nil && packs.get(ctx, id, offset, length, output) {
		return nil
	}
	whole := func(ctx context.Context, output blob.OutputBuffer) error { return s.piece(ctx, id, 0, -1, output) }
	if !s.uncached.Load() && s.cache.get(ctx, id, offset, length, output, whole) {
		return nil
	}
	return s.piece(ctx, id, offset, length, output)
}

func (s *storage) piece(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	err := s.persist(ctx, func() error {
		content, err := s.bucket.GetRange(ctx, s.key(id), offset, length)
		if err != nil {
			return err
		}
		defer content.Close()
		buffer := buffers.Get().(*[]byte)
		defer buffers.Put(buffer)
		output.Reset()
		_, err = io.CopyBuffer(output, content, *buffer)
		return err
	})
	if err != nil {
		return err
	}
	return blob.EnsureLengthExactly(output.Length(), length)
}

var buffers = sync.Pool{New: func() any { return new(make([]byte, 64<<10)) }}

func (s *storage) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	var found store.Object
	err := s.persist(ctx, func() (err error) {
		found, err = s.bucket.Attributes(ctx, s.key(id))
		return err
	})
	return blob.Metadata{BlobID: id, Length: found.Size, Timestamp: found.ModTime}, err
}

// PutBlob replaces an existing blob.
func (s *storage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, opts blob.PutOptions) error {
	var retention store.Retention
	switch {
	case !opts.SetModTime.IsZero():
		return blob.ErrSetTimeUnsupported
	case opts.DoNotRecreate, opts.HasRetentionOptions() && s.shards != nil:
		return blob.ErrUnsupportedPutBlobOption
	}
	err := s.persist(ctx, func() (err error) {
		if opts.HasRetentionOptions() {
			if retention, err = s.bucket.Retain(ctx, string(opts.RetentionMode), opts.RetentionPeriod); err != nil {
				return err
			}
		}
		return s.bucket.PutContent(ctx, s.key(id), data, retention)
	})
	if err == nil && opts.GetModTime != nil {
		var written blob.Metadata
		written, err = s.GetMetadata(ctx, id)
		*opts.GetModTime = written.Timestamp
	}
	return err
}

func (s *storage) DeleteBlob(ctx context.Context, id blob.ID) error {
	return s.persist(ctx, func() error { return s.bucket.Remove(ctx, s.key(id)) })
}

func (s *storage) ListBlobs(ctx context.Context, prefix blob.ID, callback func(blob.Metadata) error) error {
	return s.list(ctx, "", "", string(prefix), callback)
}

// list lists the blobs of a folder; name is the folders' part of their names. A repetition
// continues after the last.
func (s *storage) list(ctx context.Context, folder, name, prefix string, callback func(blob.Metadata) error) error {
	var options store.ListOptions
	if s.shards == nil {
		options.Beginning = prefix
	}
	var stopped error
	err := s.persist(ctx, func() error {
		for object, err := range s.bucket.List(ctx, folder, options) {
			if err != nil {
				return err
			}
			options.StartAfter = object.Key
			if stopped = s.visit(ctx, object, name+strings.TrimPrefix(object.Key, folder), prefix, callback); stopped != nil {
				return nil
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		// Kopia would list again endlessly, and block others.
		s.lose(err)
	}
	return cmp.Or(stopped, err)
}

func (s *storage) visit(ctx context.Context, object store.Object, name, prefix string, callback func(blob.Metadata) error) error {
	isBlob := name != storageConfig
	switch {
	case s.shards == nil && object.IsFolder:
		return nil
	case object.IsFolder:
		name = strings.TrimSuffix(name, "/")
		if !strings.HasPrefix(name, prefix) && !strings.HasPrefix(prefix, name) {
			return nil
		}
		return s.list(ctx, object.Key, name, prefix, callback)
	case s.shards != nil:
		name, isBlob = strings.CutSuffix(name, sharded.CompleteBlobSuffix)
	}
	if !isBlob || !strings.HasPrefix(name, prefix) {
		return nil
	}
	return callback(blob.Metadata{BlobID: blob.ID(name), Length: object.Size, Timestamp: object.ModTime})
}

func (s *storage) while(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if s.lost.Err() != nil {
		cancel(context.Cause(s.lost))
	}
	stop := context.AfterFunc(s.lost, func() { cancel(context.Cause(s.lost)) })
	return ctx, func() { stop(); cancel(nil) }
}

func (s *storage) uniqueID(ctx context.Context) (id []byte, err error) {
	parsed, err := s.format(ctx)
	if err != nil {
		return nil, err
	}
	return parsed.UniqueID, nil
}

func (s *storage) format(ctx context.Context) (parsed *format.KopiaRepositoryJSON, err error) {
	err = s.persist(ctx, func() error {
		found, err := s.bucket.Get(ctx, s.key(format.KopiaRepositoryBlobID))
		if err != nil {
			return err
		}
		defer found.Close()
		content, err := io.ReadAll(io.LimitReader(found, maxFormatBytes))
		if err != nil {
			return err
		}
		parsed, err = format.ParseKopiaRepositoryJSON(content)
		return err
	})
	return parsed, err
}

// ConnectionInfo is unused: see lend.
func (s *storage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: storageType}
}

func (s *storage) DisplayName() string { return "storage location" }

// Close may be called twice, as Kopia does.
func (s *storage) Close(context.Context) (err error) {
	s.closed.Do(func() { err = s.bucket.Close() })
	return err
}

// Kopia opens repositories by a configuration file with credentials. Ours only names a storage that
// this process has connected.
const storageType = "holdfast-connected"

type storageHandle struct {
	ID string `json:"id"`
}

var connected sync.Map

func init() {
	blob.AddSupportedStorage(storageType, storageHandle{}, func(_ context.Context, h *storageHandle, _ bool) (blob.Storage, error) {
		if st, ok := connected.Load(h.ID); ok {
			return st.(blob.Storage), nil
		}
		return nil, errors.New("this storage belongs to another process")
	})
}

// lend registers a storage for Kopia until release.
func lend(st blob.Storage) (info blob.ConnectionInfo, release func()) {
	id := uuid.NewString()
	connected.Store(id, st)
	return blob.ConnectionInfo{Type: storageType, Config: storageHandle{ID: id}}, func() { connected.Delete(id) }
}
