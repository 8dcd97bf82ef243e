// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

// Deleted volumes are left out from when a record says so: also if the store is read after that,
// until it is refused, and, once it was carried out, for good.
func TestDeletionsOfVolumes(t *testing.T) {
	c := New("holdfast", nil)
	c.SetIdentity(identity.Identity{UID: "cluster", Keys: []string{"key"}})
	put := func(storeName string, changes ...format.Expiration) types.UID {
		content := Content{Backup: stored("default", storeName, 5), Changes: changes}
		content.Backup.Status.Origin.ClusterUID, content.Backup.Status.Origin.PublicKey = "cluster", "key"
		for i, claim := range []string{"data", "data", "logs"} {
			content.Volumes = append(content.Volumes, Volume{Namespace: "shop", ClaimName: claim, PodName: fmt.Sprintf("pod-%d", i), PodVolume: "v", State: "Completed", SizeBytes: 10})
		}
		c.Put("default", storeName, content, time.Unix(1, 0))
		return content.Backup.UID
	}
	listed := func(when, want string) {
		t.Helper()
		got := []string{}
		for _, name := range []string{"data", "logs"} {
			for _, place := range []string{name, name + "@shop"} {
				for _, namespace := range []string{"shop", "holdfast"} {
					items, _ := c.History(namespace, place)
					for _, item := range items {
						got = append(got, fmt.Sprintf("%s/%s/%d", item.Backup.StoreName, item.Volume.Name, item.Volume.Repeat))
					}
				}
			}
		}
		if said := strings.Join(got, " "); said != want {
			t.Errorf("%s it lists\n%s, want\n%s", when, said, want)
		}
		for _, backup := range c.Backups() {
			var here int32
			for _, item := range got {
				if strings.HasPrefix(item, backup.Name+"/") || strings.HasPrefix(item, "shop."+backup.Name+"/") {
					here++
				}
			}
			if sum := backup.Status.Volumes; sum.Total != here || sum.Deleted != 3-here || sum.TotalBytes != int64(10*here) || sum.Completed != here {
				t.Errorf("%s the backup %s counts %+v, of %d", when, backup.Name, sum, here)
			}
		}
	}
	target := func(uid types.UID, storeName string, repeat int32) VolumeInBackup {
		return VolumeInBackup{BackupID{"default", storeName, uid}, format.VolumeID{Namespace: "shop", Name: "data", Repeat: repeat}, ""}
	}
	const all = "shop.a/data/0 shop.a/data/1 shop.b/data/0 shop.b/data/1 shop.a/logs/0 shop.b/logs/0"
	const without = "shop.b/data/1 shop.a/logs/0 shop.b/logs/0"
	uidA, uidB := put("shop.a"), put("shop.b")
	listed("at first", all)
	deleted := []VolumeInBackup{target(uidA, "shop.a", 0), target(uidA, "shop.a", 1), target(uidB, "shop.b", 0)}
	c.SetVolumeDeletion("record", deleted)
	listed("with the record", without)
	put("shop.a")
	put("shop.b")
	listed("read again", without)
	c.SetVolumeDeletion("record", deleted[:2])
	listed("when one is refused", "shop.b/data/0 shop.b/data/1 shop.a/logs/0 shop.b/logs/0")
	c.SetVolumeDeletion("record", nil)
	listed("when it was given up", all)
	c.SetVolumeDeletion("of another uid", []VolumeInBackup{target("another", "shop.a", 0)})
	listed("of another backup of the name", all)

	// Without the record, until the store was read, and from then on.
	c.SetVolumeDeletion("record", deleted)
	c.EndVolumeDeletion("record")
	listed("when it was carried out", without)
	change := func(believed bool, of ...VolumeInBackup) format.Expiration {
		e := format.Expiration{Number: 1, ClusterUID: "cluster", PublicKey: "key"}
		if !believed {
			e.PublicKey = "stolen"
		}
		for _, d := range of {
			e.Deleted = append(e.Deleted, format.DeletedVolume{VolumeID: d.Volume})
		}
		return e
	}
	put("shop.a", change(true, deleted[:2]...))
	put("shop.b", change(true, deleted[2]))
	listed("read from the store", without)
	if len(c.deletions) != 1 || len(c.recorded) != 1 { // of another uid
		t.Errorf("it remembers %v", c.deletions)
	}
	put("shop.a", change(false, deleted[:2]...))
	listed("a change that nobody has made", "shop.a/data/0 shop.a/data/1 "+without)
}

// A record that is known before the store is read first, as after a restart, is never
// contradicted.
func TestDeletionBeforeTheStore(t *testing.T) {
	seen := 0
	c := New("holdfast", func(changes Changes) { seen += len(changes.Volumes.Set) })
	backup := stored("default", "shop.a", 5)
	c.SetVolumeDeletion("record", []VolumeInBackup{{BackupID{"default", "shop.a", backup.UID}, format.VolumeID{Namespace: "shop", Name: "data"}, ""}})
	c.Put("default", "shop.a", Content{Backup: backup, Volumes: []Volume{{Namespace: "shop", ClaimName: "data", State: "Completed"}}}, time.Unix(1, 0))
	if seen != 0 {
		t.Errorf("%d volumes were listed", seen)
	}
}
