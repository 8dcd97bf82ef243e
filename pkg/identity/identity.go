// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity says who a cluster is, for all who have to know its backups
// again: the ConfigMap that the controller writes and the API server reads. It is
// pure, and holds nothing secret.
package identity

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Name is that of the ConfigMap, in the system namespace.
	Name = "holdfast-identity"
	// ClusterUIDKey is its key of the uid of the namespace kube-system.
	ClusterUIDKey = "cluster-uid"
	// PublicKeysKey is its key of the public keys: one a line, the present one first.
	PublicKeysKey = "public-keys"
)

// Identity is who a cluster is.
type Identity struct {
	// UID is that of the namespace kube-system.
	UID string
	// Keys are the public keys that the cluster signs its backups with, or has signed
	// with, the present one first.
	Keys []string
}

// Of reads the ConfigMap; nil is an empty one.
func Of(stored *corev1.ConfigMap) Identity {
	if stored == nil {
		return Identity{}
	}
	return Identity{UID: stored.Data[ClusterUIDKey], Keys: strings.Fields(stored.Data[PublicKeysKey])}
}

// Publish writes an identity into the ConfigMap, and reports whether that changed it.
// Keys stay that the same cluster has signed with before: their loss would make
// strangers of its backups.
func (i Identity) Publish(into *corev1.ConfigMap) bool {
	before := Of(into)
	keys := slices.Clone(i.Keys)
	if before.UID == i.UID {
		for _, key := range before.Keys {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if before.UID == i.UID && slices.Equal(before.Keys, keys) {
		return false
	}
	if into.Data == nil {
		into.Data = map[string]string{}
	}
	into.Data[ClusterUIDKey] = i.UID
	into.Data[PublicKeysKey] = strings.Join(keys, "\n") + "\n"
	return true
}
