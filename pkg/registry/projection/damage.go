// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
)

func (p *Projector) onDamage() cache.ResourceEventHandler {
	set := func(record *enginev1alpha1.VolumeRepository, damage *enginev1alpha1.RepositoryDamage) {
		p.stores.catalog.SetDamage(record.Spec.BackupStorageLocation, record.Spec.VolumeNamespace, damage)
	}
	return clustercache.Handler(
		func(record *enginev1alpha1.VolumeRepository) { set(record, record.Status.Damage) },
		func(record *enginev1alpha1.VolumeRepository) { set(record, nil) })
}
