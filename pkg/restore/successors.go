// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// successors replace kinds that Kubernetes has removed.
var successors = map[schema.GroupKind]string{
	{Group: "extensions", Kind: "Deployment"}:                                           "apps/v1 Deployment",
	{Group: "extensions", Kind: "DaemonSet"}:                                            "apps/v1 DaemonSet",
	{Group: "extensions", Kind: "ReplicaSet"}:                                           "apps/v1 ReplicaSet",
	{Group: "extensions", Kind: "Ingress"}:                                              "networking.k8s.io/v1 Ingress",
	{Group: "extensions", Kind: "NetworkPolicy"}:                                        "networking.k8s.io/v1 NetworkPolicy",
	{Group: "extensions", Kind: "Job"}:                                                  "batch/v1 Job",
	{Group: "extensions", Kind: "HorizontalPodAutoscaler"}:                              "autoscaling/v2 HorizontalPodAutoscaler",
	{Group: "extensions", Kind: "ThirdPartyResource"}:                                   "apiextensions.k8s.io/v1 CustomResourceDefinition",
	{Group: "extensions", Kind: "PodSecurityPolicy"}:                                    podSecurity,
	{Group: "policy", Kind: "PodSecurityPolicy"}:                                        podSecurity,
	{Group: "apps", Kind: "PetSet"}:                                                     "apps/v1 StatefulSet",
	{Group: "batch", Kind: "ScheduledJob"}:                                              "batch/v1 CronJob",
	{Group: "settings.k8s.io", Kind: "PodPreset"}:                                       "a mutating webhook, or a MutatingAdmissionPolicy",
	{Group: "auditregistration.k8s.io", Kind: "AuditSink"}:                              "the API server's flag --audit-webhook-config-file",
	{Group: "admissionregistration.k8s.io", Kind: "InitializerConfiguration"}:           "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration",
	{Group: "admissionregistration.k8s.io", Kind: "ExternalAdmissionHookConfiguration"}: "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration",
	{Group: "resource.k8s.io", Kind: "ResourceClass"}:                                   "resource.k8s.io/v1 DeviceClass",
	{Group: "resource.k8s.io", Kind: "ResourceClaimParameters"}:                         "the field spec.devices of resource.k8s.io/v1 ResourceClaim",
	{Group: "resource.k8s.io", Kind: "ResourceClassParameters"}:                         "resource.k8s.io/v1 DeviceClass",
	{Group: "networking.k8s.io", Kind: "ClusterCIDR"}:                                   "the settings of the network plugin",
}

const podSecurity = "Pod Security admission: the label pod-security.kubernetes.io/enforce of namespaces"

func notServed(item *manifest.Item) error {
	gk := schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}
	switch successor := successors[gk]; {
	case successor != "":
		return fmt.Errorf("the cluster does not serve %s, which Kubernetes has removed; its successor is %s: convert it by hand", item.GroupKind(), successor)
	case item.APIGroup == "extensions" || scheme.Scheme.IsGroupRegistered(item.APIGroup):
		return fmt.Errorf("the cluster does not serve %s, which its version of Kubernetes has in no version: convert it by hand, or restore it into a cluster that has it", item.GroupKind())
	}
	return fmt.Errorf("the cluster does not serve %s: install what defines it, and restore this again", item.GroupKind())
}

// rescoped fails if the kind's scope differs from the backup's: objects of several namespaces would
// collide.
func rescoped(item *manifest.Item, k *kind) error {
	switch {
	case k.namespaced == (item.Namespace != ""):
		return nil
	case k.namespaced:
		return fmt.Errorf("the cluster has %s in namespaces, and the backup holds it outside of all: decide about its namespace, and create it by hand", k.name())
	}
	return fmt.Errorf("the cluster has %s outside of all namespaces, and the backup holds it in %s: create it by hand, or restore it where its definition has the scope Namespaced", k.name(), item.Namespace)
}
