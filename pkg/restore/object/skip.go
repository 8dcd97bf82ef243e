// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// neverRestored are resources that describe a cluster's present state.
var neverRestored = map[string]string{
	"nodes":                               "a node registers itself",
	"events":                              "it tells what happened then",
	"events.events.k8s.io":                "it tells what happened then",
	"componentstatuses":                   "it is computed",
	"bindings":                            "it is a request",
	"leases.coordination.k8s.io":          "whoever holds it now writes it",
	"csinodes.storage.k8s.io":             "a node registers itself",
	"volumeattachments.storage.k8s.io":    "it is made when a volume is attached",
	"csistoragecapacities.storage.k8s.io": "the driver of the storage publishes it",
	"certificatesigningrequests.certificates.k8s.io": "it is a request",
	"ipaddresses.networking.k8s.io":                  "it is made when an address is allotted",
	"resourceslices.resource.k8s.io":                 "the driver of the devices publishes it",
	"storageversions.internal.apiserver.k8s.io":      "the API server publishes it",
	"ciliumendpoints.cilium.io":                      "its agent makes it for the pod",
	"ciliumnodes.cilium.io":                          "its agent makes it for the node",
	"backups.velero.io":                              "backups are listed from the store",
	"restores.velero.io":                             "it tells what happened then",
	"backuprepositories.velero.io":                   "it is made when it is needed",
	"podvolumebackups.velero.io":                     "it tells what happened then",
	"podvolumerestores.velero.io":                    "it tells what happened then",
	"datauploads.velero.io":                          "it tells what happened then",
	"datadownloads.velero.io":                        "it tells what happened then",
	"deletebackuprequests.velero.io":                 "it is a request",
	"downloadrequests.velero.io":                     "it is a request",
	"serverstatusrequests.velero.io":                 "it is a request",
}

// SkipItem says why an item is never restored, or returns "".
func SkipItem(item *manifest.Item) string {
	resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
	if why, ok := neverRestored[resource.String()]; ok {
		return why
	}
	switch {
	case item.APIGroup == "engine.holdfast.io":
		return "it is a record of Holdfast, which makes it when it is needed"
	case item.APIGroup == "holdfast.io" && item.Resource != "schedules":
		return "backups and restores are listed from the store"
	case item.APIGroup == "metrics.k8s.io":
		return "it is computed"
	}
	switch resource.String() {
	case "endpoints", "endpointslices.discovery.k8s.io":
		if item.Namespace == corev1.NamespaceDefault && item.Name == "kubernetes" {
			return ByServer
		}
	case "services":
		if item.Namespace == corev1.NamespaceDefault && item.Name == "kubernetes" {
			return ByServer
		}
	case "configmaps":
		switch item.Name {
		case rootCA:
			return inEachNamespace
		case "extension-apiserver-authentication":
			if item.Namespace == "kube-system" {
				return ByServer
			}
		}
	case "customresourcedefinitions.apiextensions.k8s.io":
		if strings.HasSuffix(item.Name, ".engine.holdfast.io") {
			return "Holdfast's installation makes it"
		}
	case "apiservices.apiregistration.k8s.io":
		if strings.HasSuffix(item.Name, ".holdfast.io") {
			return "Holdfast's installation makes it"
		}
	case "clustertrustbundles.certificates.k8s.io":
		// Kubernetes' own signers have this prefix: these are the authorities of this cluster.
		if strings.HasPrefix(item.Name, "kubernetes.io:") {
			return "kube-controller-manager makes it"
		}
	case "priorityclasses.scheduling.k8s.io":
		if strings.HasPrefix(item.Name, "system-") {
			return ByServer
		}
	case "servicecidrs.networking.k8s.io":
		if item.Name == "kubernetes" {
			return ByServer
		}
	}
	return ofSnapshot(resource, item.Labels)
}

// ofSnapshot says that an object is about a backup's snapshot of a claim, or returns "". Velero
// stores these objects with the backup's name. From its old source, a VolumeSnapshot would be cut
// anew, and a VolumeSnapshotContent never bound. Holdfast's own are for Velero.
func ofSnapshot(resource schema.GroupResource, labels map[string]string) string {
	switch resource.String() {
	case "volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io":
		if labels["velero.io/backup-name"] != "" || labels[format.LabelSnapshotOfClaim] != "" {
			return "it is about the snapshot of a claim, which the claim is made from"
		}
	}
	return ""
}

// podClaim is on a claim for devices that Kubernetes made for one pod, from a template.
const podClaim = "resource.kubernetes.io/pod-claim-name"

// PodMakers are the kinds whose controllers make pods.
var PodMakers = []string{"ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job"}

// Skip says why an object is not restored, or returns "". The object is as read.
func (r *Rules) Skip(o *unstructured.Unstructured, resource schema.GroupResource) string {
	annotations := o.GetAnnotations()
	if why := ofSnapshot(resource, o.GetLabels()); why != "" {
		return why // of a large backup its item has no labels
	}
	switch resource.String() {
	case "pods":
		phase := corev1.PodPhase(text(o.Object, "status", "phase"))
		switch {
		case annotations[corev1.MirrorPodAnnotationKey] != "":
			return "its node makes it, from a file"
		case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
			return "it had ended"
		}
		return r.madeBy(o, PodMakers...)
	case "replicasets.apps":
		if r.makesReplicaSet(o) {
			return r.madeBy(o, "Deployment")
		}
	case "jobs.batch":
		for _, condition := range list(o.Object, "status", "conditions") {
			if kind := text(condition, "type"); (kind == "Complete" || kind == "Failed") && text(condition, "status") == "True" {
				return "it had ended"
			}
		}
		return r.madeBy(o, "CronJob")
	case "endpoints", "endpointslices.discovery.k8s.io":
		if isOfController(o) {
			return ForService
		}
	case "configmaps":
		if r.facts.OpenShift && o.GetName() == serviceCA {
			return inEachNamespace
		}
	case "secrets":
		if r.facts.OpenShift && IsMadeForAccount(o) {
			return "OpenShift makes it anew for its account"
		}
	case "flowschemas.flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io":
		if annotations["apf.kubernetes.io/autoupdate-spec"] == "true" {
			return ByServer
		}
	case "apiservices.apiregistration.k8s.io":
		if nested(o.Object, "spec", "service") == nil {
			return ByServer
		}
	case "resourceclaims.resource.k8s.io":
		if annotations[podClaim] != "" {
			return r.madeBy(o, "Pod")
		}
	case "persistentvolumes":
		return r.skipVolume(o)
	}
	return ""
}

func (r *Rules) madeBy(o *unstructured.Unstructured, kinds ...string) string {
	for _, owner := range o.GetOwnerReferences() {
		if owner.Controller == nil || !*owner.Controller || !r.facts.Restored(types.UID(owner.UID)) {
			continue
		}
		for _, kind := range kinds {
			if owner.Kind == kind {
				return "the " + kind + " " + owner.Name + " makes it"
			}
		}
	}
	return ""
}

// skipVolume says why a PersistentVolume is not restored: two claims must never write to one
// volume.
func (r *Rules) skipVolume(o *unstructured.Unstructured) string {
	claim := nested(o.Object, "spec", "claimRef")
	if claim == nil {
		return ""
	}
	namespace, name := text(claim, "namespace"), text(claim, "name")
	switch {
	case r.facts.TakesNewVolume(namespace, name):
		return "the data of its claim is restored into a new volume"
	case text(o.Object, "spec", "persistentVolumeReclaimPolicy") != string(corev1.PersistentVolumeReclaimRetain):
		return "its storage goes with its claim: the claim gets a new volume"
	case r.Namespace(namespace) != namespace:
		return "the claim in " + namespace + " may still use its storage: the one in " + r.Namespace(namespace) + " gets a new volume"
	}
	return ""
}
