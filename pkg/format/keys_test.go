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
		BackupPrefix, OwnerKey, MetadataKey, CopyKey, TarballKey, EncryptedTarballKey, LogKey, ResultsKey, ResourceListKey, VolumeInfoKey,
		PodVolumeBackupsKey, VolumeSnapshotsKey, ItemOperationsKey, RepositoryPrefix,
	} {
		keys = append(keys, key("n.b"))
	}
	keys = append(keys, RemovalKey("cluster", "n", "uid/of a backup"), StoreIdentityKey, ClaimKey("cluster"), ProbesPrefix("cluster", "default"))
	keys = append(keys, WrappedKey{ClusterUID: "cluster", VolumeNamespace: "n", Fingerprint: strings.Repeat("0a", 16), RecoveryKeys: []string{"age1b", "age1a"}}.Key(),
		WrappedKey{ClusterUID: "cluster", Fingerprint: strings.Repeat("0b", 16), RecoveryKeys: []string{"age1b", "age1a"}}.Key())
	golden(t, "keys.txt", []byte(strings.Join(keys, "\n")+"\n"))
}

func TestAttemptKeys(t *testing.T) {
	for attempt, want := range map[int]string{0: CopyKey("n.b"), 1: CopyKey("n.b"), 2: "backups/n.b/holdfast-backup-2.json", MaxAttemptKeys: "backups/n.b/holdfast-backup-100.json"} {
		if got := AttemptKey("n.b", attempt); got != want || !IsAttemptKey("n.b", got) || IsAttemptKey("n", got) {
			t.Errorf("attempt %d: %s", attempt, got)
		}
	}
	for _, key := range []string{OwnerKey("n.b"), MetadataKey("n.b"), "backups/n.b/holdfast-backup/x.json", "backups/n.b/holdfast-backup-2", "holdfast-backup.json"} {
		if IsAttemptKey("n.b", key) {
			t.Errorf("%s is that of an attempt", key)
		}
	}
}

func TestRemovalKeysDiffer(t *testing.T) {
	if of := RemovalKey("c", "n", "u"); IsVolumeRemovalKey(of) {
		t.Errorf("%s is one of volumes", of)
	}
	if of := VolumeRemovalKey("c", "volumes-n", "u"); !IsVolumeRemovalKey(of) {
		t.Errorf("%s is none of volumes", of)
	}
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
