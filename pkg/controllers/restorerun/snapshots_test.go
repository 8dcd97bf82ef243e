// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// asked is what was wanted of the stored snapshots; nil of none.
type asked struct {
	restore.StoredSnapshots
	wanted *snapshots.Wanted
}

func (a *asked) Locate(_ context.Context, w snapshots.Wanted) (snapshots.Found, error) {
	a.wanted = &w
	return snapshots.Found{}, nil
}

// TestWhoseHandlesCount: only an administrator's restore uses a snapshot by its handle: of a backup whose lists
// this cluster has signed, or a cluster that is trusted with all namespaces, or from a location whose
// handles are trusted. A tenant's uses the cluster's own records, of the cluster's own backups.
func TestWhoseHandlesCount(t *testing.T) {
	const none, records, handles = "none", "the cluster's records", "handles too"
	locations := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, of := range []*enginev1alpha1.StorageLocation{
		{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: enginev1alpha1.StorageLocationSpec{TrustedClusters: []enginev1alpha1.TrustedCluster{
			{UID: "other", PublicKey: "trusted"}, {UID: "third", PublicKey: "in-part", Namespaces: []string{"shop"}},
		}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "velero"}, Spec: enginev1alpha1.StorageLocationSpec{TrustSnapshotHandles: true}},
	} {
		of.Namespace = "holdfast"
		if err := locations.Add(of); err != nil {
			t.Fatal(err)
		}
	}
	signed := func(key, cluster string) *v1alpha1.BackupOrigin {
		return &v1alpha1.BackupOrigin{PublicKey: key, ClusterUID: cluster}
	}
	ours, foreign := signed("ours", "us"), &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, ClusterUID: "us"}
	unsealed := func(b *source.Backup) { b.ListsSealed = false }
	for name, test := range map[string]struct {
		namespace, location string
		origin              *v1alpha1.BackupOrigin
		change              func(*source.Backup)
		want                string
	}{
		"our own, for an administrator":            {"holdfast", "default", ours, nil, handles},
		"our own, for a tenant":                    {"shop", "default", ours, nil, records},
		"our own, with lists that nobody signed":   {"holdfast", "default", ours, unsealed, records},
		"of a trusted cluster":                     {"holdfast", "default", signed("trusted", "other"), nil, handles},
		"of a trusted cluster, for a tenant":       {"shop", "default", signed("trusted", "other"), nil, none},
		"of a trusted cluster, with other lists":   {"holdfast", "default", signed("trusted", "other"), unsealed, none},
		"of one that is trusted with a namespace":  {"holdfast", "default", signed("in-part", "third"), nil, none},
		"the same, for a tenant of that namespace": {"shop", "default", signed("in-part", "third"), nil, none},
		"of an unknown cluster":                    {"holdfast", "default", signed("unknown", "fourth"), nil, none},
		"in the name of a trusted cluster":         {"holdfast", "default", signed("ours", "other"), nil, none},
		"not signed":                               {"holdfast", "default", foreign, unsealed, none},
		"not signed, with digests":                 {"holdfast", "default", foreign, nil, none},
		"not signed, of a trusted location":        {"holdfast", "velero", foreign, unsealed, handles},
		"the same, for a tenant":                   {"shop", "velero", foreign, unsealed, none},
		"our own, of a trusted location, a tenant": {"shop", "velero", ours, nil, records},
	} {
		t.Run(name, func(t *testing.T) {
			storage := &asked{}
			e := &Executor{
				Namespace: "holdfast", Cluster: format.Cluster{UID: "us"}, Keys: []string{"ours"}, Snapshots: storage,
				Locations: enginelisters.NewStorageLocationLister(locations).StorageLocations("holdfast"),
			}
			run := &enginev1alpha1.RestoreRun{Spec: enginev1alpha1.RestoreRunSpec{RestoreRef: v1alpha1.BackupReference{Namespace: test.namespace, Name: "r"}}}
			run.Spec.Backup.StorageLocation = test.location
			backup := &source.Backup{Metadata: &v1alpha1.Backup{Status: v1alpha1.BackupStatus{Origin: test.origin}}, ListsSealed: true}
			if test.change != nil {
				test.change(backup)
			}
			of, err := e.snapshotsOf(run, backup)
			if err != nil {
				t.Fatal(err)
			}
			_, err = of.Locate(t.Context(), snapshots.Wanted{Handle: "h"})
			got := none
			switch {
			case storage.wanted != nil && storage.wanted.ByHandle:
				got = handles
			case storage.wanted != nil:
				got = records
			}
			if got != test.want || (err != nil) != (test.want == none) || err != nil && !strings.Contains(err.Error(), "spec.trustSnapshotHandles") {
				t.Errorf("it uses %s, %v, want %s", got, err, test.want)
			}
			e.Snapshots = nil
			if of, err := e.snapshotsOf(run, backup); of != nil || err != nil {
				t.Errorf("without snapshots it uses %v, %v", of, err)
			}
		})
	}
}
