// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

var (
	ErrWrongKey       = errors.New("the key does not open the repository")
	ErrNotInitialized = errors.New("there is no repository")
	// ErrDamaged: the repository has data, but no format blob.
	ErrDamaged = errors.New("the repository lost its format blob kopia.repository; bring it back from a copy or an older version of the object")
	// ErrReplaced: another repository is in the place of the open one.
	ErrReplaced = errors.New("another repository was made in its place")
)

// Velero's identity of the client, and the owner of the maintenance.
const (
	clientUser = "default"
	clientHost = "default"
)

// Options are an opened repository's local disk and keys.
type Options struct {
	// WorkDir gets a configuration without secrets while the repository is open. Default: the
	// system's temporary folder.
	WorkDir string
	// Others may open it instead, during a change of the key.
	Others []Key
	// Cache keeps blobs for the next opening; nil, which is best for reading files, keeps none.
	// Filesystem locations use none.
	Cache *Cache
	// Damaged packs have other bytes than were written: their contents are not used.
	Damaged []string
}

// Repository is an open repository. It is safe for concurrent use.
type Repository struct {
	direct   repo.DirectRepository
	storage  *storage
	workDir  string
	release  func()
	damaged  map[blob.ID]struct{}
	compared comparison
}

// Open opens a namespace's repository. It fails with ErrNotInitialized, ErrWrongKey, or the store's
// error.
func Open(ctx context.Context, loc Location, namespace string, key Key, opts Options) (*Repository, error) {
	bucket, err := loc.open(ctx)
	if err != nil {
		return nil, err
	}
	var cache *blobCache
	if loc.Spec.Provider != enginev1alpha1.StorageProviderFilesystem {
		cache = opts.Cache.of(cacheName(loc.Spec, namespace))
	}
	r, err := open(ctx, bucket, loc.Spec.Provider, namespace, key, opts.WorkDir, cache)
	if len(opts.Others) > 0 && errors.Is(err, ErrWrongKey) {
		key, opts.Others = opts.Others[0], opts.Others[1:]
		return Open(ctx, loc, namespace, key, opts)
	}
	if err == nil {
		r.distrust(opts.Damaged)
	}
	return r, err
}

func (r *Repository) distrust(packs []string) {
	r.damaged = map[blob.ID]struct{}{}
	for _, id := range packs {
		r.damaged[blob.ID(id)] = struct{}{}
	}
}

func cacheName(spec enginev1alpha1.StorageLocationSpec, namespace string) string {
	id := []string{namespace, spec.Prefix}
	switch {
	case spec.S3 != nil:
		id = append(id, spec.S3.Endpoint, spec.S3.Bucket)
		if at := spec.AsOf(); at != nil { // blobs may have had other contents then
			id = append(id, at.UTC().Format(time.RFC3339))
		}
	case spec.GCS != nil:
		id = append(id, string(spec.Provider), spec.GCS.Endpoint, spec.GCS.Bucket)
	case spec.Azure != nil:
		id = append(id, string(spec.Provider), spec.Azure.Endpoint, spec.Azure.StorageAccount, spec.Azure.Container)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", id))
	return hex.EncodeToString(sum[:cacheNameLength])
}

const cacheNameLength = 16

// open closes the bucket on failure.
func open(ctx context.Context, bucket *store.Bucket, provider enginev1alpha1.StorageProvider, namespace string, key Key, workDir string, cache *blobCache) (*Repository, error) {
	st, err := connect(ctx, bucket, provider, namespace)
	if err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	st.cache = cache
	if err := st.lockBlobs(ctx, key); err != nil {
		return nil, errors.Join(err, st.Close(ctx))
	}
	r, err := openStorage(ctx, st, key, workDir)
	if err != nil {
		if ctx.Err() == nil {
			cache.distrust()
		}
		return nil, errors.Join(err, st.Close(ctx))
	}
	return r, nil
}

// openStorage owns st on success.
func openStorage(ctx context.Context, st *storage, key Key, workDir string) (_ *Repository, err error) {
	workDir, err = os.MkdirTemp(workDir, "repository-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the open repository: %w", err)
	}
	turn := &inTurn{Storage: st}
	info, release := lend(turn)
	ctx, stop := st.while(ctx)
	defer func() {
		turn.opened.Store(true)
		turn.derived()
		if err != nil && st.lost.Err() != nil {
			err = fmt.Errorf("open the repository: %w", context.Cause(st.lost))
		}
		stop()
		if err != nil {
			release()
			err = errors.Join(err, os.RemoveAll(workDir))
		}
	}()

	// Kopia's Connect would open the repository again as a test, with options to wait endlessly,
	// and to exit.
	config := repo.LocalConfig{
		Storage: &info,
		Caching: &content.CachingOptions{},
		ClientOptions: repo.ClientOptions{
			Username: clientUser,
			Hostname: clientHost,
			// Negative: no cached format blob, since the repository may have been replaced.
			FormatBlobCacheDuration: -1,
		},
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	configFile := filepath.Join(workDir, "repository.config")
	if err := os.WriteFile(configFile, data, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of the open repository: %w", err)
	}

	logger := klog.FromContext(ctx)
	opened, err := repo.Open(ctx, configFile, string(key), &repo.Options{
		DisableRepositoryLog: true,
		DoNotWaitForUpgrade:  true,
		// Kopia's default ends the process.
		OnFatalError: func(err error) {
			logger.Error(err, "The repository can't be used any more")
			st.lose(err)
		},
	})
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		return nil, ErrWrongKey
	case errors.Is(err, blob.ErrBlobNotFound):
		return nil, ErrNotInitialized
	case err != nil:
		return nil, fmt.Errorf("open the repository: %w", err)
	}
	return &Repository{direct: opened.(repo.DirectRepository), storage: st, workDir: workDir, release: release}, nil
}

// Kopia returns the open repository for reading and writing snapshots.
func (r *Repository) Kopia() repo.DirectRepository { return r.direct }

// Refresh makes everything visible that others stored before. It fails with ErrReplaced for another
// repository.
func (r *Repository) Refresh(ctx context.Context) error {
	ctx, stop := r.While(ctx)
	defer stop()
	stored, err := r.storage.uniqueID(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look for the repository: %w", err)
	case !bytes.Equal(stored, r.direct.UniqueID()):
		return ErrReplaced
	}
	if err := r.direct.Refresh(ctx); err != nil {
		return fmt.Errorf("read the indexes of the repository: %w", cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// IndexBytes returns the size of the indexes in memory, as of the opening or last refresh.
func (r *Repository) IndexBytes(ctx context.Context) (bytes int64, err error) {
	indexes, err := r.direct.IndexBlobs(ctx, false)
	if err != nil {
		return 0, fmt.Errorf("look at the indexes of the repository: %w", cmp.Or(context.Cause(ctx), err))
	}
	for _, index := range indexes {
		bytes += index.Length
	}
	return bytes, nil
}

// While returns a context that also ends, with the cause, when the repository becomes unusable.
// Kopia would wait endlessly.
func (r *Repository) While(ctx context.Context) (context.Context, func()) {
	return r.storage.while(ctx)
}

// KeepPacks keeps packs in memory until Release, at most limit bytes. Concurrent callers share
// them.
func (r *Repository) KeepPacks(limit int64) *Packs {
	r.storage.keeping.Lock()
	defer r.storage.keeping.Unlock()
	packs := r.storage.packs.Load()
	if packs == nil {
		packs = &Packs{limit: limit, from: wholeFrom, storage: r.storage, known: map[blob.ID]*keptPack{}}
		if r.storage.shards != nil {
			packs.from = wholeFromFolder
		}
		r.storage.packs.Store(packs)
	}
	packs.users++
	return packs
}

// Close closes the repository and removes its files, except the cache.
func (r *Repository) Close(ctx context.Context) error {
	defer r.release()
	return errors.Join(r.direct.Close(context.WithoutCancel(ctx)), os.RemoveAll(r.workDir))
}
