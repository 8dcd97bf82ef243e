// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

const (
	// MaxObjectBytes bounds an object: no API server takes more.
	MaxObjectBytes = 16 << 20
	// gapBytes are read over in place of another request.
	gapBytes = 4 << 20
	// maxParts bounds the requests; beyond, all is read.
	maxParts = 16
)

// Object is a backup's object, as it was read.
type Object struct {
	Item *manifest.Item
	// Content belongs to the caller.
	Content *unstructured.Unstructured
}

// ObjectsOf yields the objects of items in the order of the tarball, reading little else. An error
// with an item is about that object, and the next follows; one without item ends it.
func (b *Backup) ObjectsOf(ctx context.Context, items []*manifest.Item) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		wanted := slices.SortedFunc(slices.Values(items), comparePlaces)
		for _, part := range parts(wanted) {
			if !b.readPart(ctx, part, yield) {
				return
			}
		}
	}
}

// Object reads one object.
func (b *Backup) Object(ctx context.Context, item *manifest.Item) (*unstructured.Unstructured, error) {
	var found *unstructured.Unstructured
	err := fmt.Errorf("%s: %w", identity(item), io.ErrUnexpectedEOF)
	b.readPart(ctx, []*manifest.Item{item}, func(object Object, failed error) bool {
		found, err = object.Content, failed
		return false
	})
	return found, err
}

func comparePlaces(a, b *manifest.Item) int {
	return cmp.Or(cmp.Compare(a.Place.Member, b.Place.Member), cmp.Compare(a.Place.Offset, b.Place.Offset))
}

func parts(wanted []*manifest.Item) [][]*manifest.Item {
	var parts [][]*manifest.Item
	for i, item := range wanted {
		if i == 0 || item.Place.Member-wanted[i-1].Place.Member > gapBytes {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], item)
	}
	if len(parts) > maxParts {
		return [][]*manifest.Item{wanted}
	}
	return parts
}

// readPart reads one group, and returns false when the caller stops.
func (b *Backup) readPart(ctx context.Context, part []*manifest.Item, yield func(Object, error) bool) bool {
	first := part[0].Place
	content, err := b.tarball.GetRange(ctx, first.Member, b.end(part[len(part)-1].Place)-first.Member)
	if err != nil {
		yield(Object{}, fmt.Errorf("read the objects of the backup: %w", err))
		return false
	}
	defer func() { _ = content.Close() }()
	entries, err := archive.NewReaderAt(content, first.Offset)
	if err != nil {
		yield(Object{}, refused("%w", err))
		return false
	}
	var buffer bytes.Buffer
	for _, item := range part {
		object, err := b.find(entries, item, &buffer)
		if errors.Is(err, errTarball) {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			yield(Object{}, fmt.Errorf("read %s: %w", identity(item), err))
			return false
		}
		if !yield(Object{Item: item, Content: object}, err) {
			return false
		}
	}
	return true
}

// end returns where the gzip member with an object's first copy may end: it ends in a second copy,
// and the next begins with another object.
func (b *Backup) end(place manifest.Place) int64 {
	i, _ := slices.BinarySearch(b.members, place.Member+1)
	if i < len(b.members) && b.members[i] < b.size {
		return b.members[i]
	}
	return max(b.size, place.Member+1)
}

var errTarball = errors.New("the tarball can't be read to its end")

// find reads on to an item, in the first copy or in its other version.
func (b *Backup) find(entries *archive.Reader, item *manifest.Item, buffer *bytes.Buffer) (*unstructured.Unstructured, error) {
	version := ""
	if b.instead[item] != "" {
		version = item.APIVersion
	}
	for {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil, refused("%w: %s is not in it", errTarball, identity(item))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errTarball, err)
		}
		if entry.Preferred || entry.Version != version || entry.Name != item.Name || entry.Namespace != item.Namespace ||
			entry.Resource != (schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}) {
			continue
		}
		if entry.Size != item.Size {
			return nil, refused("%s has %d bytes in the tarball, and %d by the manifest", identity(item), entry.Size, item.Size)
		}
		buffer.Reset()
		if _, err := io.Copy(buffer, entries); err != nil {
			return nil, fmt.Errorf("%w: %w", errTarball, err)
		}
		return b.decode(item, buffer.Bytes())
	}
}

// decode reads an object, and refuses another than its item's.
func (b *Backup) decode(item *manifest.Item, raw []byte) (*unstructured.Unstructured, error) {
	digest := b.tarball.Digest
	if b.others != nil { // the tarball was read in place of the manifest
		digest = func(content []byte) string { return format.NewContent(content).SHA256 }
	}
	if digest(raw) != item.SHA256 {
		return nil, refused("%s is not the object that the manifest speaks of: its digest differs", identity(item))
	}
	var content map[string]any
	if err := utiljson.UnmarshalCaseSensitivePreserveInts(raw, &content); err != nil {
		return nil, refused("%s is not JSON: %w", identity(item), err)
	}
	object := &unstructured.Unstructured{Object: content}
	gvk := object.GroupVersionKind()
	if gvk.Group != item.APIGroup || gvk.Version != item.APIVersion || gvk.Kind != item.KindName ||
		object.GetName() != item.Name || object.GetNamespace() != item.Namespace || string(object.GetUID()) != item.UID {
		return nil, refused("%s is, by its content, the %s %s/%s in version %s", identity(item), gvk.Kind, object.GetNamespace(), object.GetName(), gvk.GroupVersion())
	}
	return object, nil
}
