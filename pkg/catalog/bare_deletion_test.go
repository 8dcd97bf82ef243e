// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// A volume backup of an entry that is no Backup is not listed from when its deletion is
// recorded until the store has it not any more, however often it is read meanwhile.
func TestDeletionOfWhatIsNoBackup(t *testing.T) {
	c := New(system, nil)
	put := func(names ...string) {
		var rows []Volume
		for _, name := range names {
			rows = append(rows, Volume{VolumeName: "v", BackupName: name, State: v1alpha1.VolumeBackupCompleted})
		}
		c.Put("lh", "v", Content{Volumes: rows}, t0)
	}
	listed := func(want ...string) {
		t.Helper()
		items, _ := c.History(system, "volume:v")
		if len(items) != len(want) {
			t.Fatalf("%d are listed, want %v", len(items), want)
		}
		for i, item := range items {
			if item.BackupName != want[i] || item.Of != nil {
				t.Errorf("listed is %+v, want %s", item, want[i])
			}
		}
	}
	put("a", "b", "c")
	listed("a", "b", "c")
	of := BackupID{Location: "lh", StoreName: "v"}
	c.SetVolumeDeletion("record", []VolumeInBackup{{Backup: of, BackupName: "b"}})
	listed("a", "c")
	put("a", "b", "c", "d")
	listed("a", "c", "d")
	if got := len(c.EntryVolumes("lh", "v")); got != 4 {
		t.Errorf("%d are known", got)
	}
	c.EndVolumeDeletion(types.UID("record"))
	listed("a", "c", "d")
	put("a", "c", "d")
	listed("a", "c", "d")
	if len(c.deletions) > 0 {
		t.Errorf("%v is still known", c.deletions)
	}
	c.SetVolumeDeletion("other", []VolumeInBackup{{Backup: of, BackupName: "a"}})
	c.SetVolumeDeletion("other", nil) // refused
	listed("a", "c", "d")
}
