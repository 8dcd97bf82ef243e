// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// onDamage tells the catalogue what the stores of repositories have lost.
func (p *Projector) onDamage() cache.ResourceEventHandler {
	set := func(record *enginev1alpha1.VolumeRepository, damage *enginev1alpha1.RepositoryDamage) {
		p.stores.catalog.SetDamage(record.Spec.BackupStorageLocation, record.Spec.VolumeNamespace, damage)
	}
	changed := func(obj any) {
		record := obj.(*enginev1alpha1.VolumeRepository)
		set(record, record.Status.Damage)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, obj any) { changed(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if record, ok := obj.(*enginev1alpha1.VolumeRepository); ok {
				set(record, nil)
			}
		},
	}
}
