// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store reads a store.
type Store interface {
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	Attributes(ctx context.Context, key string) (store.Object, error)
}

var (
	// ErrRefused means that no writer of backups makes this.
	ErrRefused = errors.New("the backup is damaged, or was made to do harm")
	// ErrNoBackup means that there is no such backup, or it can't be restored.
	ErrNoBackup = errors.New("there is no such backup to restore")
)

func refused(text string, arguments ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(text, arguments...))
}

// Backup is an opened backup.
type Backup struct {
	Metadata *v1alpha1.Backup
	// Items are its objects in the order of manifest.Compare, without annotations; without a
	// manifest they have no reason.
	Items []*manifest.Item
	// Volumes are the volumes whose data it has, or should have.
	Volumes []Volume
	// NotTaken are claims without data, with the reason, if known.
	NotTaken map[types.NamespacedName]string
	// Warnings are defects that don't prevent a restore.
	Warnings []string
	// ListsSealed says that the metadata has the digests of the lists of volumes.
	ListsSealed bool

	store    Store
	tarball  *encryption.Tarball
	contents format.Contents
	size     int64
	members  []int64
	// uploads says that records of uploads tell of volumes.
	uploads bool
	// others are copies in other versions; instead has the original version of an item read from
	// one.
	others  map[spot][]*manifest.Item
	instead map[*manifest.Item]string
}

// Open reads a backup; with a uid it must be that backup. It tries the copy if Velero has replaced
// the metadata. The keys are for encrypted backups; without any, Open fails with
// encryption.ErrNoKey for those.
func Open(ctx context.Context, bucket Store, place format.Place, uid types.UID, keys encryption.Source) (*Backup, error) {
	if err := format.ValidateStoreName(place.StoreName); err != nil {
		return nil, err
	}
	b := &Backup{store: bucket}
	err := b.readMetadata(ctx, place, uid)
	if err != nil {
		return nil, err
	}
	b.tarball, err = encryption.Open(ctx, bucket, place.StoreName, b.Metadata.Status.Encryption, keys)
	if errors.Is(err, encryption.ErrDamaged) {
		return nil, refused("%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the objects of the backup %s: %w", place.StoreName, err)
	}
	tarball, err := bucket.Attributes(ctx, b.tarball.Key)
	if err != nil {
		return nil, fmt.Errorf("find the objects of the backup %s: %w", place.StoreName, err)
	}
	if want, ok := b.contents.Of(b.tarball.Key); ok && want.Size != tarball.Size {
		return nil, refused("its tarball has %d bytes, and had %d when the backup was made", tarball.Size, want.Size)
	}
	b.size = b.tarball.Bytes(tarball.Size)
	if err := b.readVolumes(ctx, place.StoreName); err != nil {
		return nil, err
	}
	if err := b.readItems(ctx, place.StoreName); err != nil {
		return nil, err
	}
	if err := b.readMoved(ctx); err != nil {
		return nil, fmt.Errorf("read what the backup %s says of its volumes: %w", place.StoreName, err)
	}
	return b, nil
}

// OpenVolumes is Open for volumes alone: it reads neither the tarball nor the manifest.
func OpenVolumes(ctx context.Context, bucket Store, place format.Place, uid types.UID) (*Backup, error) {
	if err := format.ValidateStoreName(place.StoreName); err != nil {
		return nil, err
	}
	b := &Backup{store: bucket}
	if err := b.readMetadata(ctx, place, uid); err != nil {
		return nil, err
	}
	return b, b.readVolumes(ctx, place.StoreName)
}

func (b *Backup) readMetadata(ctx context.Context, place format.Place, uid types.UID) error {
	var found error
	keys := []string{format.MetadataKey(place.StoreName), format.CopyKey(place.StoreName)}
	for i := 0; i < len(keys); i++ {
		data, err := read(ctx, b.store, keys[i], format.MaxMetadataBytes)
		switch {
		case errors.Is(err, store.ErrNotFound):
			if found == nil {
				found = fmt.Errorf("%w: %s has no metadata in the store", ErrNoBackup, place.StoreName)
			}
			continue
		case err != nil:
			return err
		}
		metadata, err := format.DecodeBackup(data, place)
		if errors.Is(err, format.ErrUnfinished) && 1 <= i && i < format.MaxAttemptKeys {
			keys = append(keys, format.AttemptKey(place.StoreName, i+1))
			continue
		}
		if err != nil {
			found = fmt.Errorf("%w: the metadata of %s: %w", ErrRefused, place.StoreName, err)
			continue
		}
		// One of several backups of a name has a derived uid.
		if uid != "" && metadata.UID != uid && format.DerivedUID("backup", place.Location, place.StoreName, string(metadata.UID)) != uid {
			found = fmt.Errorf("%w: what is in the store as %s is another backup by now, of uid %s", ErrNoBackup, place.StoreName, metadata.UID)
			continue
		}
		if phase := metadata.Status.Phase; phase != v1alpha1.BackupPhaseCompleted && phase != v1alpha1.BackupPhasePartiallyFailed {
			return fmt.Errorf("%w: the backup %s is %s", ErrNoBackup, place.StoreName, phase)
		}
		if b.contents, err = format.TakeContents(metadata); err != nil {
			return refused("its metadata: %w", err)
		}
		b.Metadata = metadata
		return nil
	}
	return found
}

func read(ctx context.Context, bucket Store, key string, limit int64) ([]byte, error) {
	content, err := bucket.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	return io.ReadAll(io.LimitReader(content, limit+1))
}

var errSum = errors.New("its digest is not the one in the metadata")

// summed reads an object, and then compares its digest with the metadata's, if known. If it fails,
// read must keep nothing.
func (b *Backup) summed(ctx context.Context, key string, read func(io.Reader) error) error {
	content, err := b.store.Get(ctx, key)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	want, known := b.contents.Of(key)
	if !known {
		return read(content)
	}
	sum := sha256.New()
	tee := io.TeeReader(content, sum)
	if err := read(tee); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != strings.ToLower(want.SHA256) {
		return errSum
	}
	return nil
}
