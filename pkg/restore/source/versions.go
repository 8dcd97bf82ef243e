// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import "github.com/holdfast-io/holdfast/pkg/manifest"

// Velero can store objects in all versions that their cluster serves (its feature
// EnableAPIGroupVersions). Ours are stored in the one that it prefers.

// spot is where an object is, in whatever version.
type spot struct{ group, resource, namespace, name string }

func spotOf(item *manifest.Item) spot {
	return spot{item.APIGroup, item.Resource, item.Namespace, item.Name}
}

// TakeVersions has objects of which the backup holds other versions restored in the one that
// best gives, of those that it gets; in theirs if that is "".
func (b *Backup) TakeVersions(best func(item *manifest.Item, versions []string) string) {
	b.instead = map[*manifest.Item]string{}
	if len(b.others) == 0 {
		return
	}
	for _, item := range b.Items {
		others := b.others[spotOf(item)]
		if len(others) == 0 {
			continue
		}
		var versions []string
		for _, other := range others {
			versions = append(versions, other.APIVersion)
		}
		version := best(item, versions)
		for _, other := range others {
			if version != "" && other.APIVersion == version && other.KindName == item.KindName && other.UID == item.UID {
				b.instead[item] = item.APIVersion
				item.APIVersion, item.Place, item.Size, item.SHA256 = other.APIVersion, other.Place, other.Size, other.SHA256
				break
			}
		}
	}
}

// Instead is the version in which every other restore reads an item that is read in another
// one; else "".
func (b *Backup) Instead(item *manifest.Item) string { return b.instead[item] }
