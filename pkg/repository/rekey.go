// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/sharded"
	"github.com/kopia/kopia/repo/format"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrRetention: the repository has a retention, in an object that its key locks too.
var ErrRetention = errors.New("the repository has an object kopia.blobcfg, which its key locks as well, and two objects can't be changed at once: change the key with Kopia's own command (kopia repository change-password)")

const maxFormatBytes = 1 << 20

// ChangeKey changes the key of a namespace's repository. It writes one object, so exactly one key
// opens it at any time. The inner keys, which encrypt and name all contents, stay. It fails with
// ErrWrongKey if neither key opens it, and does nothing if the new one does. It does not check for
// uploads.
func ChangeKey(ctx context.Context, loc Location, namespace string, from, to Key) (err error) {
	if to == "" {
		return errors.New("the key of the repository is empty")
	}
	folder, err := folderOf(namespace)
	if err != nil {
		return err
	}
	bucket, err := loc.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	suffix := ""
	if loc.Spec.Provider == enginev1alpha1.StorageProviderFilesystem {
		suffix = sharded.CompleteBlobSuffix
	}
	_, err = bucket.Attributes(ctx, folder+format.KopiaBlobCfgBlobID+suffix)
	switch {
	case err == nil:
		return ErrRetention
	case !errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("look for the retention of the repository: %w", err)
	}
	key := folder + format.KopiaRepositoryBlobID + suffix
	data, err := readFormat(ctx, bucket, key)
	if err != nil {
		return err
	}
	locked, err := relock(ctx, data, from, to)
	if err != nil || locked == nil {
		return err
	}
	if err := bucket.Put(ctx, key, locked); err != nil {
		return fmt.Errorf("write the repository's format: %w", err)
	}
	return nil
}

// Opens fails with ErrWrongKey unless a key opens the repository of a namespace, and with
// ErrNotInitialized without one. It reads one object. A folder may be a copy of a bucket.
func Opens(ctx context.Context, loc Location, namespace string, key Key) (err error) {
	folder, err := folderOf(namespace)
	if err != nil {
		return err
	}
	bucket, err := loc.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	data, err := readFormat(ctx, bucket, folder+format.KopiaRepositoryBlobID)
	if errors.Is(err, ErrNotInitialized) {
		data, err = readFormat(ctx, bucket, folder+format.KopiaRepositoryBlobID+sharded.CompleteBlobSuffix)
	}
	if err != nil {
		return err
	}
	_, _, err = unlock(ctx, data, key)
	return err
}

func readFormat(ctx context.Context, bucket store.Reader, key string) ([]byte, error) {
	content, err := bucket.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrNotInitialized
	}
	if err != nil {
		return nil, fmt.Errorf("read the repository's format: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(content, maxFormatBytes))
	if err = errors.Join(err, content.Close()); err != nil {
		return nil, fmt.Errorf("read the repository's format: %w", err)
	}
	return data, nil
}

func unlock(ctx context.Context, data []byte, key Key) (*format.Manager, *formatOnly, error) {
	st := &formatOnly{staging: staging{blobs: map[blob.ID][]byte{}}, data: data}
	manager, err := format.NewManager(ctx, st, "", -1, string(key), time.Now)
	if errors.Is(err, format.ErrInvalidPassword) {
		err = ErrWrongKey
	}
	return manager, st, err
}

// relock returns the format locked by another key; nil if it already is.
func relock(ctx context.Context, data []byte, from, to Key) ([]byte, error) {
	if _, _, err := unlock(ctx, data, to); !errors.Is(err, ErrWrongKey) {
		return nil, err
	}
	manager, st, err := unlock(ctx, data, from)
	if err != nil {
		return nil, err
	}
	if err := manager.ChangePassword(ctx, string(to)); err != nil {
		return nil, fmt.Errorf("lock the repository's format: %w", err)
	}
	return st.blobs[format.KopiaRepositoryBlobID], nil
}

type formatOnly struct {
	staging
	data []byte
}

func (f *formatOnly) GetBlob(_ context.Context, id blob.ID, _, _ int64, output blob.OutputBuffer) error {
	if id != format.KopiaRepositoryBlobID {
		return blob.ErrBlobNotFound
	}
	output.Reset()
	_, err := output.Write(f.data)
	return err
}

func (f *formatOnly) GetMetadata(_ context.Context, id blob.ID) (blob.Metadata, error) {
	if id != format.KopiaRepositoryBlobID {
		return blob.Metadata{}, blob.ErrBlobNotFound
	}
	return blob.Metadata{BlobID: id, Length: int64(len(f.data))}, nil
}
