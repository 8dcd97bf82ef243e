// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stored reads single objects of a finished backup, in four requests, with only the needed
// parts of the manifest and the tarball. An encrypted tarball takes two or three more.
//
// A manifest may be forged. An object is returned only if its bytes match the manifest, at the path of
// the requested resource, namespace and name. So a right to one object gives no other. A small or fully
// read manifest must have the digest in the signed metadata, if known.
package stored

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
)

var (
	ErrDamaged = errors.New("the object is not what the manifest says")
	// ErrManifest means that the manifest is not the signed one.
	ErrManifest = errors.New("the manifest is not the one that the backup was stored with: somebody has replaced or removed it")
)

// wholeBytes bounds manifests that are read in full and compared: some 15,000 items.
const wholeBytes = 1 << 20

// Backup is a backup in its store.
type Backup struct {
	Store     store.Ranger
	StoreName string
	// ManifestDigest is the manifest's SHA-256 in hexadecimal; empty if unknown.
	ManifestDigest string
	// Encryption is the Backup's status.encryption, with its Keys.
	Encryption *v1alpha1.BackupEncryption
	Keys       encryption.Source
}

func (b Backup) tarball(ctx context.Context) (*encryption.Tarball, error) {
	return encryption.Open(ctx, b.Store, b.StoreName, b.Encryption, b.Keys)
}

// Index reads the manifest's index, in two requests. It fails with store.ErrNotFound without a
// manifest, and with ErrManifest for a small one with another digest.
func (b Backup) Index(ctx context.Context) (*manifest.Index, error) {
	key := format.ManifestKey(b.StoreName)
	found, err := b.Store.Attributes(ctx, key)
	if err != nil {
		return nil, b.lacking(err)
	}
	if found.Size == 0 || found.Size > wholeBytes {
		return manifest.ReadIndex(ctx, func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
			return b.Store.GetRange(ctx, key, offset, length)
		}, found.Size)
	}
	content, err := b.Store.GetRange(ctx, key, 0, found.Size)
	if err != nil {
		return nil, b.lacking(err)
	}
	defer func() { _ = content.Close() }()
	whole, err := io.ReadAll(io.LimitReader(content, wholeBytes))
	if err != nil {
		return nil, err
	}
	if b.ManifestDigest != "" && format.NewContent(whole).SHA256 != b.ManifestDigest {
		return nil, ErrManifest
	}
	return manifest.ReadIndex(ctx, func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(whole), offset, length)), nil
	}, int64(len(whole)))
}

// lacking returns ErrManifest for a missing manifest that was stored.
func (b Backup) lacking(err error) error {
	if b.ManifestDigest != "" && errors.Is(err, store.ErrNotFound) {
		return ErrManifest
	}
	return err
}

// Items yields the manifest's items, in one request and constant memory. It fails with ErrManifest at
// its end for another digest.
func (b Backup) Items(ctx context.Context) manifest.Sequence {
	return func(yield func(*manifest.Item, error) bool) {
		content, err := b.Store.Get(ctx, format.ManifestKey(b.StoreName))
		if err != nil {
			yield(nil, b.lacking(err))
			return
		}
		defer func() { _ = content.Close() }()
		sum := sha256.New()
		seen := io.TeeReader(content, sum)
		for item, err := range manifest.Read(seen) {
			if !yield(item, err) || err != nil {
				return
			}
		}
		if _, err := io.Copy(io.Discard, seen); err != nil {
			yield(nil, err)
		} else if b.ManifestDigest != "" && hex.EncodeToString(sum.Sum(nil)) != b.ManifestDigest {
			yield(nil, ErrManifest)
		}
	}
}

var errEnough = errors.New("that is enough")

// Scan yields the items of a backup without a manifest, as Velero's, in the tarball's order. The JSON
// is valid until the next one.
func (b Backup) Scan(ctx context.Context) iter.Seq2[Scanned, error] {
	return func(yield func(Scanned, error) bool) {
		tarball, err := b.tarball(ctx)
		if err != nil {
			yield(Scanned{}, err)
			return
		}
		content, err := tarball.Get(ctx)
		if err != nil {
			yield(Scanned{}, err)
			return
		}
		defer func() { _ = content.Close() }()
		err = source.Scan(bufio.NewReader(content), func(item *manifest.Item, content []byte) error {
			if !yield(Scanned{item, content}, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && err != errEnough {
			yield(Scanned{}, err)
		}
	}
}

// Scanned is an object of a backup without a manifest.
type Scanned struct {
	*manifest.Item
	Content []byte
}

// Object reads an item's JSON, in one request, or up to four if encrypted.
func (b Backup) Object(ctx context.Context, item *manifest.Item) ([]byte, error) {
	length, err := archive.PartBytes(item.Place.Offset, item.Size)
	if err != nil {
		return nil, err
	}
	if item.Place.Member < 0 {
		return nil, fmt.Errorf("%w: it begins at %d", archive.ErrPlace, item.Place.Member)
	}
	tarball, err := b.tarball(ctx)
	if err != nil {
		return nil, err
	}
	part, err := tarball.GetRange(ctx, item.Place.Member, length)
	if errors.Is(err, store.ErrRange) {
		return nil, fmt.Errorf("%w: %w", archive.ErrPlace, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = part.Close() }()
	content, err := archive.ReadObject(part, item.Place.Offset, archive.Item{
		Resource:  schema.GroupResource{Group: item.APIGroup, Resource: item.Resource},
		Namespace: item.Namespace, Name: item.Name,
	}, item.Size)
	if err != nil {
		return nil, err
	}
	if tarball.Digest(content) != item.SHA256 {
		return nil, ErrDamaged
	}
	return content, nil
}
