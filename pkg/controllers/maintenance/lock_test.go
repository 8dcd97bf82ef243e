// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

// With a lock of its location, a repository is maintained at least four times in the lock's days.
func TestFrequencyOfALockedRepository(t *testing.T) {
	const day = 24 * time.Hour
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	c := &Controller{Config: Config{Frequency: time.Hour}, locations: enginelisters.NewStorageLocationLister(known).StorageLocations(system)}
	for name, days := range map[string]int32{"plain": 0, "short": 2, "long": 400} {
		location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
		if days > 0 {
			location.Spec.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: days}
		}
		if err := known.Add(location); err != nil {
			t.Fatal(err)
		}
	}
	for _, one := range []struct {
		location  string
		own, want time.Duration
	}{
		{"plain", 0, time.Hour}, {"plain", 30 * day, 30 * day}, {"unknown", 30 * day, 30 * day},
		{"short", 0, time.Hour}, {"short", 30 * day, 12 * time.Hour},
		{"long", 30 * day, 30 * day}, {"long", 200 * day, 100 * day},
	} {
		record := &enginev1alpha1.VolumeRepository{Spec: enginev1alpha1.VolumeRepositorySpec{BackupStorageLocation: one.location}}
		if one.own > 0 {
			record.Spec.MaintenanceFrequency = &metav1.Duration{Duration: one.own}
		}
		if got := c.frequency(record); got != one.want {
			t.Errorf("%s with %s of its own: %s, want %s", one.location, one.own, got, one.want)
		}
	}
}
