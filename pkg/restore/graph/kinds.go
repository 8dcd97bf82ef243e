// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

type sort int8

const (
	// ordinary may need objects of its namespace; no rule needs it.
	ordinary sort = iota
	// account, secret and base are needed by workloads.
	account
	secret
	base
	// class is cluster-scoped; claims and pods name it.
	class
	workload
	// first has no rule before it.
	first
	// final interferes with the creation of others.
	final
)

var sorts = map[schema.GroupKind]sort{
	{Kind: "Namespace"}: first,
	{Group: extensionsGroup, Kind: "CustomResourceDefinition"}: first,
	{Group: rbacGroup, Kind: "ClusterRole"}:                    first,
	{Group: rbacGroup, Kind: "ClusterRoleBinding"}:             first,
	{Group: aggregatorGroup, Kind: "APIService"}:               first,

	{Kind: "ServiceAccount"}:                account,
	{Kind: "Secret"}:                        secret,
	{Kind: "ConfigMap"}:                     base,
	{Kind: "LimitRange"}:                    base,
	{Kind: "ResourceQuota"}:                 base,
	{Group: rbacGroup, Kind: "Role"}:        base,
	{Group: rbacGroup, Kind: "RoleBinding"}: base,

	{Group: "storage.k8s.io", Kind: "StorageClass"}:          class,
	{Group: "storage.k8s.io", Kind: "CSIDriver"}:             class,
	{Group: "storage.k8s.io", Kind: "VolumeAttributesClass"}: class,
	{Group: snapshotGroup, Kind: "VolumeSnapshotClass"}:      class,
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:      class,
	{Group: "node.k8s.io", Kind: "RuntimeClass"}:             class,
	{Group: "networking.k8s.io", Kind: "IngressClass"}:       class,

	{Kind: "Pod"}:                        workload,
	{Kind: "ReplicationController"}:      workload,
	{Group: "apps", Kind: "Deployment"}:  workload,
	{Group: "apps", Kind: "ReplicaSet"}:  workload,
	{Group: "apps", Kind: "DaemonSet"}:   workload,
	{Group: "apps", Kind: "StatefulSet"}: workload,
	{Group: "batch", Kind: "Job"}:        workload,
	{Group: "batch", Kind: "CronJob"}:    workload,

	{Group: admissionGroup, Kind: "ValidatingWebhookConfiguration"}:   final,
	{Group: admissionGroup, Kind: "MutatingWebhookConfiguration"}:     final,
	{Group: admissionGroup, Kind: "ValidatingAdmissionPolicyBinding"}: final,
	{Group: admissionGroup, Kind: "MutatingAdmissionPolicyBinding"}:   final,
}

func sortOf(item *manifest.Item) sort {
	return sorts[schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}]
}

// builtIn reports whether every API server has the group; other groups need a definition.
func builtIn(group string) bool {
	switch group {
	case "", "apps", "batch", "autoscaling", "policy", "extensions":
		return true
	case "snapshot.storage.k8s.io", "gateway.networking.k8s.io", "metrics.k8s.io":
		return false
	}
	parent, ok := strings.CutSuffix(group, ".k8s.io")
	return ok && !strings.Contains(parent, ".") || group == rbacGroup || group == flowGroup
}
