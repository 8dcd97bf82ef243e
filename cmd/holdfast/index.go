// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/index/publish"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
)

type indexes struct {
	publisher *publish.Publisher
	namespace string
	secrets   location.Secrets
	cluster   string
	keys      []string
	locations engineinformers.StorageLocationInformer
	synced    []cache.InformerSynced
}

func newIndexes(namespace string, cluster format.Cluster, keys []string, secrets location.Secrets, records engineinformers.Interface) (*indexes, error) {
	i := &indexes{
		publisher: publish.New(publish.Options{Cluster: cluster, Keys: keys, Clock: clock.RealClock{}}),
		namespace: namespace, cluster: cluster.UID, keys: keys, secrets: secrets, locations: records.StorageLocations(),
	}
	relocate := func(any) { i.relocate() }
	located, err := records.StorageLocations().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: relocate, UpdateFunc: func(_, after any) { i.relocate() }, DeleteFunc: relocate,
	})
	if err != nil {
		return nil, err
	}
	i.synced = append(i.synced, located.HasSynced)
	_, err = records.BackupRuns().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, is := before.(*enginev1alpha1.BackupRun), after.(*enginev1alpha1.BackupRun)
		if is.Status.Stored && !(was.Status.Stored && was.UID == is.UID) {
			i.publisher.Ended(is.Spec.Backup.StorageLocation, is.Name)
		}
	}})
	return i, err
}

func (i *indexes) relocate() {
	records, err := i.locations.Lister().StorageLocations(i.namespace).List(labels.Everything())
	if err != nil {
		return
	}
	var locations []publish.Location
	for _, record := range records {
		if !record.Spec.IsWritten() || record.Cloned() {
			continue // not written
		}
		settings, err := location.Settings(record)
		if err != nil {
			continue
		}
		locations = append(locations, publish.Location{
			Name: record.Name, Settings: settings,
			Open: func(ctx context.Context) (publish.Store, error) { return location.Open(ctx, i.secrets, record) },
			Layout: &refresh.VeleroLayout{
				Location: record.Name, SystemNamespace: i.namespace, Clock: clock.RealClock{},
				Vouches: func(origin *v1alpha1.BackupOrigin) bool { return i.vouches(record, origin) },
			},
		})
	}
	i.publisher.SetLocations(locations)
}

// vouches reports whether this cluster, or one that the location trusts, has signed a backup.
func (i *indexes) vouches(record *enginev1alpha1.StorageLocation, origin *v1alpha1.BackupOrigin) bool {
	return origin.ClusterUID == i.cluster && slices.Contains(i.keys, origin.PublicKey) ||
		slices.ContainsFunc(record.Spec.TrustedClusters, func(trusted enginev1alpha1.TrustedCluster) bool {
			return trusted.UID == origin.ClusterUID && trusted.PublicKey == origin.PublicKey
		})
}

func (i *indexes) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), i.synced...) {
		return
	}
	i.publisher.Run(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "controller", "index")))
}
