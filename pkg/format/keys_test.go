// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	var keys []string
	for _, key := range []func(string) string{
		BackupPrefix, OwnerKey, MetadataKey, CopyKey, TarballKey, LogKey, ResultsKey, ResourceListKey, VolumeInfoKey,
		PodVolumeBackupsKey, VolumeSnapshotsKey, ItemOperationsKey, RepositoryPrefix,
	} {
		keys = append(keys, key("n.b"))
	}
	keys = append(keys, RemovalKey("cluster", "n", "uid/of a backup"))
	golden(t, "keys.txt", []byte(strings.Join(keys, "\n")+"\n"))
}

func TestStoreName(t *testing.T) {
	if got := StoreName("holdfast", "daily", "holdfast"); got != "daily" {
		t.Errorf("system namespace: %s", got)
	}
	if got := StoreName("shop", "daily", "holdfast"); got != "shop.daily" {
		t.Errorf("another namespace: %s", got)
	}
}

func TestStoreNameOf(t *testing.T) {
	for folder, want := range map[string]string{
		"backups/daily/":      "daily",
		"backups/shop.daily/": "shop.daily",
		"backups/daily":       "", // an object
		"backups/":            "",
		"backups//":           "",
		"backups/a/b/":        "",
		"backups/../":         "",
		"backups/Daily/":      "",
		"backups/a@b/":        "",
		"backups/lost+found/": "",
		"backups/" + strings.Repeat("x", 254) + "/": "",
	} {
		if got, ok := StoreNameOf(folder); ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %q, %v", folder, got, ok)
		}
	}
}
