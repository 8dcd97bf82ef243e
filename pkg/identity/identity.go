// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity is a cluster's public identity, by which its backups are recognised: a ConfigMap that the
// controller writes and the API server reads.
package identity

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	Name = "holdfast-identity"
	// ClusterUIDKey has the uid of the namespace kube-system.
	ClusterUIDKey = "cluster-uid"
	// PublicKeysKey has the public keys, one a line, the present one first.
	PublicKeysKey = "public-keys"
)

// Identity tells a cluster from all others.
type Identity struct {
	UID  string
	Keys []string // present and former ones, the present one first
}

// Of reads the ConfigMap; nil is empty.
func Of(stored *corev1.ConfigMap) Identity {
	if stored == nil {
		return Identity{}
	}
	return Identity{UID: stored.Data[ClusterUIDKey], Keys: strings.Fields(stored.Data[PublicKeysKey])}
}

// Publish writes an identity into the ConfigMap, and reports a change. The cluster's former keys stay, so that its
// old backups stay trusted.
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
