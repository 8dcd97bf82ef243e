// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func TestSkip(t *testing.T) {
	facts := Facts{
		Restored:       func(uid types.UID) bool { return uid == "there" || uid == "paused" },
		TakesNewVolume: func(namespace, name string) bool { return namespace == "shop" && name == "data" },
		Template: func(uid types.UID) string {
			paused := `paused: true, `
			if uid == "there" {
				paused = ""
			}
			return TemplateToMake(parse(t, `{kind: Deployment, spec: {`+paused+`template: {metadata: {}, spec: {containers: [{image: new}]}}}}`))
		},
		OpenShift: true,
	}
	spec := v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"moved": "copy"}}
	for name, test := range map[string]struct{ resource, object, says string }{
		"pitfall 6: a controller makes its pods":           {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: there, controller: true}]}}`, "ReplicaSet web-1 makes it"},
		"a pod whose controller is not restored":           {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: gone, controller: true}]}}`, ""},
		"a pod of an operator":                             {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{apiVersion: e/v1, kind: Cluster, name: db, uid: there, controller: true}]}}`, ""},
		"a lone pod":                                       {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Running}}`, ""},
		"a pod that has ended":                             {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Succeeded}}`, "had ended"},
		"a mirror pod":                                     {"pods", `{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {kubernetes.io/config.mirror: x}}}`, "from a file"},
		"pitfall 6: the current ReplicaSet":                {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: there, controller: true}]}, spec: {replicas: 3, template: {metadata: {}, spec: {containers: [{image: new}]}}}}`, "Deployment web makes it"},
		"a ReplicaSet to go back to":                       {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: there, controller: true}]}, spec: {replicas: 0}}`, ""},
		"the current ReplicaSet of no replicas":            {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: there, controller: true}]}, spec: {replicas: 0, template: {metadata: {labels: {pod-template-hash: x}}, spec: {containers: [{image: new}]}}}}`, "Deployment web makes it"},
		"the ReplicaSet of a paused Deployment":            {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: paused, controller: true}]}, spec: {replicas: 3, template: {metadata: {}, spec: {containers: [{image: new}]}}}}`, ""},
		"pitfall 24: a Job that has ended":                 {"jobs.batch", `{apiVersion: batch/v1, kind: Job, metadata: {name: a}, status: {conditions: [{type: Failed, status: "True"}]}}`, "had ended"},
		"pitfall 24: a Job of a CronJob":                   {"jobs.batch", `{apiVersion: batch/v1, kind: Job, metadata: {name: a, ownerReferences: [{kind: CronJob, name: c, uid: there, controller: true}]}}`, "CronJob c makes it"},
		"pitfall 24: a Job that waits":                     {"jobs.batch", `{apiVersion: batch/v1, kind: Job, metadata: {name: a}, status: {conditions: [{type: Suspended, status: "True"}]}}`, ""},
		"pitfall 23: a Lease":                              {"leases.coordination.k8s.io", `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: a}}`, "holds it"},
		"an upload by Velero's data mover":                 {"datauploads.velero.io", `{apiVersion: velero.io/v2alpha1, kind: DataUpload, metadata: {name: a, namespace: velero}}`, "what happened then"},
		"a deletion that Velero was asked for":             {"deletebackuprequests.velero.io", `{apiVersion: velero.io/v1, kind: DeleteBackupRequest, metadata: {name: a, namespace: velero}}`, "a request"},
		"pitfall 23: slices of a Service":                  {"endpointslices.discovery.k8s.io", `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, labels: {endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}, ownerReferences: [{apiVersion: v1, kind: Service, name: s, uid: u, controller: true}]}}`, "for the Service"},
		"slices that somebody copied with their labels":    {"endpointslices.discovery.k8s.io", `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, labels: {endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}}}`, ""},
		"endpoints of a Service":                           {"endpoints", `{apiVersion: v1, kind: Endpoints, metadata: {name: a, managedFields: [{manager: kube-controller-manager, operation: Update, fieldsV1: {"f:subsets": {}}}]}}`, "for the Service"},
		"endpoints of a Service, of an old backup":         {"endpoints", `{apiVersion: v1, kind: Endpoints, metadata: {name: a, labels: {endpoints.kubernetes.io/managed-by: endpoint-controller}}}`, "for the Service"},
		"endpoints that somebody copied with their labels": {"endpoints", `{apiVersion: v1, kind: Endpoints, metadata: {name: a, labels: {endpoints.kubernetes.io/managed-by: endpoint-controller}, annotations: {endpoints.kubernetes.io/last-change-trigger-time: x}, managedFields: [{manager: kubectl, operation: Update, fieldsV1: {"f:subsets": {}}}]}}`, ""},
		"slices that somebody wrote":                       {"endpointslices.discovery.k8s.io", `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}}`, ""},
		"pitfall 23: the cluster's certificates":           {"configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: shop}}`, "in each namespace"},
		"the authorities that the cluster publishes":       {"clustertrustbundles.certificates.k8s.io", `{apiVersion: certificates.k8s.io/v1beta1, kind: ClusterTrustBundle, metadata: {name: "kubernetes.io:kube-apiserver-serving:9e69806e"}, spec: {signerName: kubernetes.io/kube-apiserver-serving}}`, "kube-controller-manager makes it"},
		"authorities of another signer":                    {"clustertrustbundles.certificates.k8s.io", `{apiVersion: certificates.k8s.io/v1beta1, kind: ClusterTrustBundle, metadata: {name: "example.com:mesh:a"}, spec: {signerName: example.com/mesh}}`, ""},
		"a token that is named as old controllers did":     {"secrets", `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: bob-token-x, annotations: {kubernetes.io/service-account.name: bob}}}`, ""},
		"pitfall 19: a Secret that OpenShift made":         {"secrets", `{apiVersion: v1, kind: Secret, type: kubernetes.io/dockercfg, metadata: {name: bob-dockercfg-x, annotations: {openshift.io/internal-registry-auth-token.service-account: bob}}}`, "OpenShift makes it"},
		"OpenShift's certificates":                         {"configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: openshift-service-ca.crt, namespace: shop}}`, "in each namespace"},
		"a ReplicaSet that was just being replaced":        {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: there, controller: true}]}, spec: {replicas: 3, template: {spec: {containers: [{image: old}]}}}}`, ""},
		"the ReplicaSet that replaces it":                  {"replicasets.apps", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, ownerReferences: [{kind: Deployment, name: web, uid: there, controller: true}]}, spec: {replicas: 1, template: {metadata: {labels: {pod-template-hash: x}}, spec: {containers: [{image: new}]}}}}`, "Deployment web makes it"},
		"a token that somebody asked for":                  {"secrets", `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: mine, annotations: {kubernetes.io/service-account.name: bob}}}`, ""},
		"pitfall 21: an APIService of the server itself":   {"apiservices.apiregistration.k8s.io", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.apps}, spec: {group: apps}}`, "API server"},
		"pitfall 8: a volume whose data is restored":       {"persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {persistentVolumeReclaimPolicy: Retain, claimRef: {namespace: shop, name: data}}}`, "into a new volume"},
		"a volume that is kept":                            {"persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {persistentVolumeReclaimPolicy: Retain, claimRef: {namespace: shop, name: other}}}`, ""},
		"a volume that went with its claim":                {"persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {persistentVolumeReclaimPolicy: Delete, claimRef: {namespace: shop, name: other}}}`, "gets a new volume"},
		"pitfall 8: a volume of another namespace's claim": {"persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {persistentVolumeReclaimPolicy: Retain, claimRef: {namespace: moved, name: other}}}`, "may still use"},
		"a snapshot that Velero made for the backup":       {"volumesnapshots.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: velero-data-x, namespace: shop, labels: {velero.io/backup-name: daily}}, spec: {source: {persistentVolumeClaimName: data}}}`, "the snapshot of a claim"},
		"its content": {"volumesnapshotcontents.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: snapcontent-1, labels: {velero.io/backup-name: daily}}}`, "the snapshot of a claim"},
		"a snapshot that a backup of ours describes for Velero": {"volumesnapshots.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: snapshot-1, namespace: shop, labels: {holdfast.io/snapshot-of-claim: u}}}`, "the snapshot of a claim"},
		"a snapshot of a user":             {"volumesnapshots.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: mine, namespace: shop, labels: {app: db}}}`, ""},
		"a claim with the label of Velero": {"persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, labels: {velero.io/backup-name: daily}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := parse(t, test.object)
			resource := schema.ParseGroupResource(test.resource)
			got := SkipItem(itemOf(o, resource))
			if whole := newRules(t, spec, nil, facts).Skip(o, resource); ofSnapshot(resource, o.GetLabels()) != "" && whole != got {
				t.Errorf("without the labels of its item: %q, want %q", whole, got)
			}
			if got == "" {
				got = newRules(t, spec, nil, facts).Skip(o, resource)
			}
			if test.says == "" && got != "" || !strings.Contains(got, test.says) {
				t.Errorf("got %q, want %q", got, test.says)
			}
		})
	}
}

func itemOf(o *unstructured.Unstructured, resource schema.GroupResource) *manifest.Item {
	gvk := o.GroupVersionKind()
	return &manifest.Item{APIGroup: gvk.Group, APIVersion: gvk.Version, KindName: gvk.Kind, Resource: resource.Resource, Namespace: o.GetNamespace(), Name: o.GetName(), Labels: o.GetLabels()}
}
