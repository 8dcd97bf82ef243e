// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// unsignedMetadata is that of a backup as Velero would store it, changed.
func unsignedMetadata(t *testing.T, storeName string, change func(whole, metadata, spec map[string]any)) []byte {
	t.Helper()
	metadata, spec := map[string]any{"name": storeName, "creationTimestamp": "2026-11-20T10:00:00Z"}, map[string]any{}
	whole := map[string]any{"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": metadata, "spec": spec,
		"status": map[string]any{"phase": "Completed", "startTimestamp": "2026-11-20T10:00:00Z", "completionTimestamp": "2026-11-20T10:00:00Z"}}
	change(whole, metadata, spec)
	data, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Whoever may write to a bucket puts into it what he likes. What is kept of that in memory is
// little, and the cluster's own backups are listed whole.
func TestWhatOthersWriteIsBounded(t *testing.T) {
	const hostile = 40
	large := strings.Repeat("x", 1<<20)
	for name, change := range map[string]func(whole, metadata, spec map[string]any){
		"annotations": func(_, metadata, _ map[string]any) { metadata["annotations"] = map[string]any{"a": large} },
		"namespaces": func(_, _, spec map[string]any) {
			words := make([]string, 40_000)
			for i := range words {
				words[i] = fmt.Sprintf("namespace-%d", i)
			}
			spec["includedNamespaces"] = words
		},
		"unknown fields":      func(whole, _, _ map[string]any) { whole["other"] = large },
		"4 MB unknown fields": func(whole, _, _ map[string]any) { whole["other"] = strings.Repeat(large, 4) },
		"a long uid":          func(_, metadata, _ map[string]any) { metadata["uid"] = large },
		"an unknown phase":    func(whole, _, _ map[string]any) { whole["status"] = map[string]any{"phase": large} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{Interval: interval})
				own := madeBy(t, "here")
				f.catalog.SetIdentity(identity.Identity{UID: own.UID, Keys: []string{own.Key.PublicKey()}})
				f.store("default", "ours")
				for i := range hostile {
					storeName := fmt.Sprintf("theirs-%d", i)
					f.write("default", format.MetadataKey(storeName), unsignedMetadata(t, storeName, change))
				}
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				f.setLocations("default")
				f.run()
				settle()
				runtime.GC()
				runtime.ReadMemStats(&after)
				if kept := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / hostile; kept > 64<<10 {
					t.Errorf("%d bytes are kept of each backup, want 64 KiB at most", kept)
				}
				if got := f.catalog.Len("default"); got != hostile+1 {
					t.Errorf("%d backups are known, want %d", got, hostile+1)
				}
				if ours := f.catalog.Backup(system, "ours"); ours == nil || ours.Status.Phase != v1alpha1.BackupPhaseCompleted || ours.Status.Volumes == nil || catalog.IsAbridged(ours) {
					t.Errorf("our own backup is %+v", ours)
				}
				runtime.KeepAlive(f)
			})
		})
	}
}

// What has no room is said in a warning, and the state of the location has it; the refresher
// reads it no more.
func TestWhatIsLeftOutIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.catalog.SetForeignBytes(16 << 10)
		for i := range 20 {
			storeName := fmt.Sprintf("theirs-%02d", i)
			f.location("default")
			f.write("default", format.MetadataKey(storeName), unsignedMetadata(t, storeName, func(_, metadata, _ map[string]any) {
				metadata["creationTimestamp"] = fmt.Sprintf("2026-11-20T10:%02d:00Z", i)
			}))
		}
		f.setLocations("default")
		f.run()
		settle()
		state, _ := f.refresher.State("default")
		if state.LeftOut == 0 || state.Backups != 20 || state.Suspicion != "" || state.NewestLeftOut != fmt.Sprintf("theirs-%02d", state.LeftOut-1) {
			t.Errorf("the state is %+v", state)
		}
		if texts := f.refresher.LeftOuts(); len(texts) != 1 || !strings.Contains(texts[0], `storage location "default"`) || !strings.Contains(texts[0], fmt.Sprintf("%d backups are not listed", state.LeftOut)) {
			t.Errorf("it says %q", texts)
		}
		if doubts := f.refresher.Warnings(); len(doubts) > 0 {
			t.Errorf("that is a doubt: %q", doubts)
		}
		f.reset()
		pass(nextRefresh)
		if counts := f.stores["default"].Counts(); counts[storetest.Get] > 0 || len(f.changes()) > 0 {
			t.Errorf("the next poll asks %v, and changes %q", counts, f.changes())
		}
		// Some of those that were listed go, and there is room.
		for i := range 3 {
			f.remove("default", fmt.Sprintf("theirs-%02d", 19-i))
		}
		for range 4 {
			pass(nextRefresh)
		}
		if names := f.catalog.Backups(); !slices.ContainsFunc(names, func(b *v1alpha1.Backup) bool { return b.Name == state.NewestLeftOut }) {
			t.Errorf("%s is not listed though there is room", state.NewestLeftOut)
		}
	})
}

// A list of volumes of others is read so far only.
func TestForeignListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.location("default")
		var list bytes.Buffer
		compressed := gzip.NewWriter(&list)
		fmt.Fprintf(compressed, `[{"metadata":{"name":%q}}]`, strings.Repeat("x", format.MaxForeignListBytes))
		if err := compressed.Close(); err != nil {
			t.Fatal(err)
		}
		f.write("default", format.MetadataKey("theirs"), unsignedMetadata(t, "theirs", func(_, _, _ map[string]any) {}))
		f.write("default", format.PodVolumeBackupsKey("theirs"), list.Bytes())
		f.setLocations("default")
		f.run()
		settle()
		theirs := f.catalog.Backup(system, "theirs")
		if theirs == nil || !meta.IsStatusConditionFalse(theirs.Status.Conditions, v1alpha1.ConditionVolumesListed) {
			t.Errorf("the backup is %+v", theirs)
		}
	})
}
