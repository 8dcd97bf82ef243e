// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// ChangesOf returns the keys of expiration changes to read with a backup.
func ChangesOf(keys []string, backup types.UID) []string { return changesOf(keys, backup) }

// KnowsCluster reports whether a location trusts a cluster, or it is this one.
func (c *Catalog) KnowsCluster(location, clusterUID string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return clusterUID != "" && (clusterUID == c.trust.identity.UID || slices.ContainsFunc(c.trust.clusters[location], func(trusted enginev1alpha1.TrustedCluster) bool {
		return trusted.UID == clusterUID
	}))
}

// KnowsKey reports whether a key is this cluster's, or of one that the location trusts.
func (c *Catalog) KnowsKey(location, clusterUID, publicKey string) (own, trusted bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	verdict := c.trust.judge(location, &v1alpha1.BackupOrigin{ClusterUID: clusterUID, PublicKey: publicKey})
	return verdict.own, len(verdict.grants) > 0
}

// ClusterUID returns this cluster's uid; empty if unknown.
func (c *Catalog) ClusterUID() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.trust.identity.UID
}

// Lists reports whether an entry of a location is listed.
func (c *Catalog) Lists(location, storeName string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	return e != nil && e.known()
}
