// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// TestLastDataByRecords: a kept snapshot without its record in the cluster lets none go that has one.
func TestLastDataByRecords(t *testing.T) {
	f := newFixture(t)
	f.stores.catalog.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
	for i, name := range []string{"old", "new"} {
		f.stores.catalog.Put("default", name, catalog.Content{
			Backup:  storedOf(f.run(system, name, enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted})),
			Volumes: []catalog.Volume{{Namespace: "shop", ClaimName: "data", Method: catalog.MethodInStorage, State: v1alpha1.VolumeBackupCompleted, Completion: metav1.Unix(int64(1000+i), 0)}},
		}, time.Now())
	}
	record := func(backup types.UID) any {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: string(backup), Finalizers: []string{snapshots.Finalizer}, Labels: map[string]string{
			snapshots.LabelCluster: "cluster", snapshots.LabelBackup: string(backup), snapshots.LabelVolume: snapshots.VolumeLabel("shop", "data"),
		}}}
	}
	expect := func(when, want string) {
		t.Helper()
		if got := fmt.Sprint(f.LastData(system, "old")); got != want {
			t.Errorf("%s: the older one holds the last data of %s, want %s", when, got, want)
		}
	}
	expect("without snapshots", "[]")
	f.Snapshots = snapshots.NewRecords(nil)
	expect("before the records are known", "[]")
	f.add(f.Snapshots.Replace([]any{record("uid-old"), record("uid-new")}, ""))
	expect("both have a record", "[]")
	f.add(f.Snapshots.Delete(record("uid-new")))
	expect("the newer one has none", "[shop/data]")
}
