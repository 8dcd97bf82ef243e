// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stored reads single things of a finished backup in its store, without the rest
// of it: what its manifest says of some objects, and the bytes of one. One object costs
// four requests, and no more of the manifest and the tarball than lies around it.
//
// What a manifest says is the word of whoever can write to the store. An object's bytes are
// given out only if they are what the manifest says, and lie at the very path of the
// resource, namespace and name that were asked for: so nobody gets one thing by the right
// to another. A manifest that is small, or read as a whole, is believed only if its digest is
// the one that the signed metadata has, where that is known.
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

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
)

var (
	// ErrDamaged says that an object's bytes are not those that the manifest describes.
	ErrDamaged = errors.New("the object is not what the manifest says")
	// ErrManifest says that the manifest is not the one that the metadata names.
	ErrManifest = errors.New("the manifest is not the one that the backup was stored with: somebody has replaced or removed it")
)

// wholeBytes is up to which size a manifest is read as a whole, and compared with its digest:
// that of some 15,000 items.
const wholeBytes = 1 << 20

// Backup is one in its store.
type Backup struct {
	Store     store.Ranger
	StoreName string
	// ManifestDigest is the SHA-256 of the manifest as it is stored, in hexadecimal; empty if
	// that is not known.
	ManifestDigest string
}

// Index reads the index of the manifest, in two requests. It fails with store.ErrNotFound
// if the backup has none. A small manifest is read with it, and fails with ErrManifest if it has
// another digest than it should; a large one is not compared.
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

// lacking is why a manifest can't be read. One that the backup was stored with does not just
// lack.
func (b Backup) lacking(err error) error {
	if b.ManifestDigest != "" && errors.Is(err, store.ErrNotFound) {
		return ErrManifest
	}
	return err
}

// Items yields all items of the manifest, with memory for one of them, in one request. It fails
// with ErrManifest at its end if the manifest has another digest than it should.
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

// errEnough ends a scan.
var errEnough = errors.New("that is enough")

// Scan yields the items of a backup without a manifest, as Velero makes them, and the JSON
// of each, which is the caller's until the next one. The tarball is read in one pass, and
// its order is theirs.
func (b Backup) Scan(ctx context.Context) iter.Seq2[Scanned, error] {
	return func(yield func(Scanned, error) bool) {
		tarball, err := b.Store.Get(ctx, format.TarballKey(b.StoreName))
		if err != nil {
			yield(Scanned{}, err)
			return
		}
		defer func() { _ = tarball.Close() }()
		err = source.Scan(bufio.NewReader(tarball), func(item *manifest.Item, content []byte) error {
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

// Object reads the JSON of an item of the manifest, in one request.
func (b Backup) Object(ctx context.Context, item *manifest.Item) ([]byte, error) {
	length, err := archive.PartBytes(item.Place.Offset, item.Size)
	if err != nil {
		return nil, err
	}
	if item.Place.Member < 0 {
		return nil, fmt.Errorf("%w: it begins at %d", archive.ErrPlace, item.Place.Member)
	}
	part, err := b.Store.GetRange(ctx, format.TarballKey(b.StoreName), item.Place.Member, length)
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
	if format.NewContent(content).SHA256 != item.SHA256 {
		return nil, ErrDamaged
	}
	return content, nil
}
