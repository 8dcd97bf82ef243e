// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import "github.com/holdfast-io/holdfast/pkg/manifest"

// Velero can store objects in all versions of their cluster (EnableAPIGroupVersions), Holdfast only
// in the preferred one.

type spot struct{ group, resource, namespace, name string }

func spotOf(item *manifest.Item) spot {
	return spot{item.APIGroup, item.Resource, item.Namespace, item.Name}
}

// TakeVersions chooses by best the version in which each object is restored; "" keeps the item's.
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

// Instead returns the original version of an item that is read in another version, or "".
func (b *Backup) Instead(item *manifest.Item) string { return b.instead[item] }
