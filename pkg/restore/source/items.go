// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	MaxItems      = archive.MaxItems
	maxItemsBytes = 1 << 30
	// itemBytes is an item's size without texts; plainBytes bounds it without labels, owners and
	// references.
	itemBytes  = 256
	plainBytes = 700
)

func (b *Backup) readItems(ctx context.Context, storeName string) error {
	key := format.ManifestKey(storeName)
	collected := b.newCollector()
	err := b.summed(ctx, key, func(r io.Reader) error {
		for item, err := range manifest.Read(r) {
			if err != nil {
				return err
			}
			if !validPlace(item) {
				return fmt.Errorf("%w: %s has no place in a tarball", manifest.ErrFormat, item)
			}
			if err := collected.add(item); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
		return b.take(&collected)
	case errors.Is(err, store.ErrNotFound):
		if _, ok := b.contents.Of(key); ok {
			b.Warnings = append(b.Warnings, "the manifest of the backup is missing: its tarball was read instead")
		}
	case errors.Is(err, manifest.ErrFormat), errors.Is(err, errSum):
		b.Warnings = append(b.Warnings, fmt.Sprintf("the manifest of the backup is not used, and its tarball was read instead: %v", err))
	default:
		return fmt.Errorf("read the manifest of the backup %s: %w", storeName, err)
	}
	collected = b.newCollector()
	b.others = map[spot][]*manifest.Item{}
	if err := b.scan(ctx, collected.add, func(other *manifest.Item) error {
		other.References, other.Labels, other.OwnerUIDs = nil, nil, nil // the first copy's count
		b.others[spotOf(other)] = append(b.others[spotOf(other)], other)
		return collected.count(other)
	}); err != nil {
		return fmt.Errorf("read the objects of the backup %s: %w", storeName, err)
	}
	return b.take(&collected)
}

func (b *Backup) take(collected *collector) error {
	if err := collected.sort(); err != nil {
		return err
	}
	if collected.shortened > 0 {
		b.Warnings = append(b.Warnings, fmt.Sprintf("the labels, owners and references of %d objects are not known, since they are too many: a labelSelector leaves these objects out, and they are not restored in the order of what they refer to, but for what may use claims, which waits for the data of all claims of its namespace", collected.shortened))
	}
	b.Items = collected.items
	b.members = nil
	for _, item := range b.Items {
		if n := len(b.members); n == 0 || b.members[n-1] != item.Place.Member {
			b.members = append(b.members, item.Place.Member)
		}
	}
	slices.Sort(b.members)
	b.members = slices.Compact(b.members)
	return nil
}

func validPlace(item *manifest.Item) bool {
	return item.Resource != "" && item.Place.Member >= 0 && item.Place.Offset >= 0 && item.Size > 0 && item.Size <= MaxObjectBytes && item.SHA256 != ""
}

type collector struct {
	items []*manifest.Item
	bytes int64
	// words and labels are shared.
	words  map[string]string
	labels map[string]map[string]string
	names  []string
	key    []byte
	// expected is the number of items to come. Labels, owners and references are kept while the
	// other items fit into most bytes: no backup is refused for its labels. shortened counts items
	// without them.
	expected, most int64
	shortened      int
}

// newCollector expects the backup's own count of objects. A backup with more that don't fit is
// refused.
func (b *Backup) newCollector() collector {
	expected := int64(MaxItems)
	if p := b.Metadata.Status.Progress; p != nil && p.ItemsBackedUp > 0 {
		expected = min(expected, p.ItemsBackedUp)
	}
	return collector{expected: expected, most: maxItemsBytes - 32<<20}
}

func (c *collector) hasRoom() bool {
	return c.bytes+plainBytes*max(c.expected-int64(len(c.items)), 1) <= c.most
}

const maxExtras = 10_000

func (c *collector) add(item *manifest.Item) error {
	for _, segment := range []string{item.APIGroup, item.APIVersion, item.Resource, item.Namespace, item.Name} {
		if segment != "" && len(content.IsPathSegmentName(segment)) > 0 {
			return refused("%s can't be the name of an object", identity(item))
		}
	}
	if !c.hasRoom() || len(item.Labels)+len(item.OwnerUIDs)+len(item.References) > maxExtras {
		item.Labels, item.OwnerUIDs, item.References, item.Shortened = nil, nil, nil, true
	}
	if item.Shortened {
		c.shortened++
	}
	c.bytes += 48 * int64(len(item.OwnerUIDs))
	for _, reference := range item.References {
		c.bytes += int64(64 + len(reference.Name))
	}
	if item.Labels = c.shared(item.Labels); item.Labels != nil {
		c.bytes += 8
	}
	for i := range item.References {
		r := &item.References[i]
		r.APIGroup, r.KindName, r.Namespace = c.word(r.APIGroup), c.word(r.KindName), c.word(r.Namespace)
	}
	if err := c.count(item); err != nil {
		return err
	}
	for _, word := range []*string{&item.APIGroup, &item.APIVersion, &item.KindName, &item.Resource, &item.Namespace, &item.Reason} {
		*word = c.word(*word)
	}
	item.Annotations, item.Images = nil, ""
	c.items = append(c.items, item)
	return nil
}

func (c *collector) count(item *manifest.Item) error {
	c.bytes += itemBytes + int64(len(item.Namespace)+len(item.Name)+len(item.UID)+len(item.SHA256))
	if len(c.items) >= MaxItems || c.bytes > maxItemsBytes {
		return refused("it has too many objects for one restore, more than %d, or ones whose names are too long", len(c.items))
	}
	return nil
}

func (c *collector) word(word string) string {
	if word == "" {
		return ""
	}
	if known, ok := c.words[word]; ok {
		return known
	}
	if c.words == nil {
		c.words = map[string]string{}
	}
	word = strings.Clone(word)
	c.words[word] = word
	c.bytes += int64(len(word)) + 48
	return word
}

func (c *collector) shared(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	c.names = slices.AppendSeq(c.names[:0], maps.Keys(labels))
	slices.Sort(c.names)
	c.key = c.key[:0]
	for _, name := range c.names {
		c.key = append(strconv.AppendQuote(append(strconv.AppendQuote(c.key, name), '='), labels[name]), ',')
	}
	if known, ok := c.labels[string(c.key)]; ok {
		return known
	}
	if c.labels == nil {
		c.labels = map[string]map[string]string{}
	}
	copied := make(map[string]string, len(labels))
	for name, value := range labels {
		copied[c.word(name)] = c.word(value)
	}
	c.labels[string(c.key)] = copied
	c.bytes += int64(len(c.key)) + 64*int64(len(labels)) + 64
	return copied
}

func (c *collector) sort() error {
	if !slices.IsSortedFunc(c.items, manifest.Compare) {
		slices.SortFunc(c.items, manifest.Compare)
	}
	for i := 1; i < len(c.items); i++ {
		if manifest.Compare(c.items[i-1], c.items[i]) == 0 {
			return refused("%s is in it twice", identity(c.items[i]))
		}
	}
	return nil
}

func identity(item *manifest.Item) string {
	resource := archive.Item{}
	resource.Resource.Group, resource.Resource.Resource = item.APIGroup, item.Resource
	if item.Namespace == "" {
		return resource.Resource.String() + " " + item.Name
	}
	return resource.Resource.String() + " " + item.Namespace + "/" + item.Name
}
