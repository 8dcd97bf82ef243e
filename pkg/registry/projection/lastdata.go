// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
)

// HeldClaims returns the claims whose data a stored backup holds.
func (p *Projector) HeldClaims(namespace, name string) []types.NamespacedName {
	return p.stores.catalog.HeldClaims(namespace, name)
}

// LastData returns the claims of existing namespaces whose newest data in good backups only this backup holds. A
// backup whose deletion was asked for holds nothing.
func (p *Projector) LastData(namespace, name string) []types.NamespacedName {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stores.catalog.LastData(namespace, name, func(other v1alpha1.BackupReference) bool {
		run := p.runs.byBackup.Get(backupKey{Namespace: other.Namespace, Name: other.Name})
		return run != nil && run.Deleting()
	}, func(v catalog.OwnVolume) bool {
		if p.Snapshots == nil {
			return false
		}
		found, known := p.Snapshots.Has(v.Cluster, v.Backup, v.Namespace, v.Claim, false)
		return known && !found
	})
}

// IsGood reports whether a shown backup is this cluster's own, stored and restorable.
func (p *Projector) IsGood(namespace, name string, uid types.UID) bool {
	return p.stores.catalog.IsGood(namespace, name, uid)
}

// Holders returns the uids of good backups that hold data of a claim, see catalog.Holders.
func (p *Projector) Holders(claim types.NamespacedName, most int) []types.UID {
	return p.stores.catalog.Holders(claim, most)
}
