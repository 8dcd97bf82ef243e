// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		UID       string            `json:"uid"`
		Labels    map[string]string `json:"labels"`
		Owners    []struct {
			UID string `json:"uid"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
}

func (b *Backup) scan(ctx context.Context, add, addOther func(*manifest.Item) error) error {
	return b.summed(ctx, b.tarball.Key, func(r io.Reader) error {
		plain, err := b.tarball.Decrypt(r)
		if err != nil {
			return refused("%w", err)
		}
		return scan(plain, func(item *manifest.Item, _ []byte) error { return add(item) }, addOther)
	})
}

// Scan computes a tarball's items in one pass, with one object in memory; content is valid until
// each returns. Of several versions, the one that every restore reads counts. An error of each ends
// it.
func Scan(tarball io.Reader, each func(item *manifest.Item, content []byte) error) error {
	return scan(tarball, each, nil)
}

// scan also passes copies in other versions to other, if set.
func scan(tarball io.Reader, each func(item *manifest.Item, content []byte) error, other func(item *manifest.Item) error) error {
	entries, err := archive.NewReader(tarball)
	if err != nil {
		return refused("%w", err)
	}
	var buffer bytes.Buffer
	for {
		entry, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return refused("%w", err)
		case entry.Versioned && (other == nil || entry.Preferred):
			continue
		case entry.Size > MaxObjectBytes:
			return refused("%s has %d bytes, more than an object has", entry.Path, entry.Size)
		}
		buffer.Reset()
		if _, err := io.Copy(&buffer, entries); err != nil {
			return refused("%s: %w", entry.Path, err)
		}
		item, err := describe(entry, buffer.Bytes())
		if err != nil {
			return err
		}
		item.Place.Offset = entry.Offset
		if entry.Versioned {
			if item.APIVersion != entry.Version {
				return refused("%s is, by its content, of version %s", entry.Path, item.APIVersion)
			}
			if err := other(item); err != nil {
				return err
			}
			continue
		}
		if err := each(item, buffer.Bytes()); err != nil {
			return err
		}
	}
}

// describe returns an object's item; content and path must match.
func describe(entry archive.Entry, raw []byte) (*manifest.Item, error) {
	var h head
	if err := utiljson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		return nil, refused("%s: %w", entry.Path, err)
	}
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil || gv.Version == "" || h.Kind == "" {
		return nil, refused("%s has the apiVersion %q and the kind %q, which can't be", entry.Path, h.APIVersion, h.Kind)
	}
	if gv.Group != entry.Resource.Group || h.Metadata.Name != entry.Name || h.Metadata.Namespace != entry.Namespace {
		return nil, refused("%s is, by its content, %q in the namespace %q and the group %q", entry.Path, h.Metadata.Name, h.Metadata.Namespace, gv.Group)
	}
	content := format.NewContent(raw)
	item := &manifest.Item{
		APIGroup: gv.Group, APIVersion: gv.Version, KindName: h.Kind, Resource: entry.Resource.Resource,
		Namespace: entry.Namespace, Name: entry.Name, UID: h.Metadata.UID, Labels: h.Metadata.Labels,
		References: manifest.ReferencesOf(schema.GroupKind{Group: gv.Group, Kind: h.Kind}, entry.Namespace, raw),
		Size:       content.Size, SHA256: content.SHA256,
	}
	for _, owner := range h.Metadata.Owners {
		item.OwnerUIDs = append(item.OwnerUIDs, owner.UID)
	}
	return item, nil
}
