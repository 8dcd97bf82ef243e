// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package location

import (
	"slices"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TrustsHandles reports whether a backup in a location may name any snapshot of the cluster's storage.
// This cluster (by its uid and keys), or one that the location trusts with all namespaces, must have
// signed the names; or the location's administrator trusts each writer. sealed says that the signature
// covers the names.
func TrustsHandles(location *enginev1alpha1.StorageLocation, origin *v1alpha1.BackupOrigin, clusterUID string, keys []string, sealed bool) bool {
	switch {
	case location.Spec.TrustSnapshotHandles:
		return true
	case !sealed || origin == nil || origin.Trust != "":
		return false
	case origin.ClusterUID == clusterUID && slices.Contains(keys, origin.PublicKey):
		return true
	}
	return slices.ContainsFunc(location.Spec.TrustedClusters, func(trusted enginev1alpha1.TrustedCluster) bool {
		return trusted.PublicKey == origin.PublicKey && trusted.UID == origin.ClusterUID && len(trusted.Namespaces) == 0
	})
}
