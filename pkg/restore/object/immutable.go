// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// immutableFields are fields that API servers don't change, by kind.group. The server's refusal
// shows others.
var immutableFields = map[string][]string{
	"PersistentVolumeClaim":                 {"spec.accessModes", "spec.storageClassName", "spec.volumeMode", "spec.selector", "spec.volumeName", "spec.dataSource", "spec.dataSourceRef"},
	"PersistentVolume":                      {"spec.csi", "spec.hostPath", "spec.nfs", "spec.local", "spec.volumeMode", "spec.nodeAffinity"},
	"Service":                               {"spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.loadBalancerClass"},
	"Secret":                                {"type"},
	"Deployment.apps":                       {"spec.selector"},
	"ReplicaSet.apps":                       {"spec.selector"},
	"DaemonSet.apps":                        {"spec.selector"},
	"StatefulSet.apps":                      {"spec.selector", "spec.serviceName", "spec.volumeClaimTemplates", "spec.podManagementPolicy"},
	"ControllerRevision.apps":               {"data"},
	"Job.batch":                             {"spec.selector", "spec.template", "spec.completionMode", "spec.podFailurePolicy", "spec.manualSelector"},
	"RoleBinding.rbac.authorization.k8s.io": {"roleRef"},
	"ClusterRoleBinding.rbac.authorization.k8s.io":  {"roleRef"},
	"StorageClass.storage.k8s.io":                   {"provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"},
	"CSIDriver.storage.k8s.io":                      {"spec.attachRequired", "spec.podInfoOnMount", "spec.volumeLifecycleModes"},
	"PriorityClass.scheduling.k8s.io":               {"value", "preemptionPolicy"},
	"RuntimeClass.node.k8s.io":                      {"handler"},
	"IngressClass.networking.k8s.io":                {"spec.controller"},
	"EndpointSlice.discovery.k8s.io":                {"addressType"},
	"CustomResourceDefinition.apiextensions.k8s.io": {"spec.group", "spec.scope", "spec.names.kind", "spec.names.plural"},
}

// mutableOfPods are the changeable fields of a pod's spec besides images.
var mutableOfPods = []string{"spec.activeDeadlineSeconds", "spec.tolerations", "spec.terminationGracePeriodSeconds"}

func immutable(live *unstructured.Unstructured) func(path string) bool {
	gk := live.GroupVersionKind().GroupKind().String()
	fields := immutableFields[gk]
	if set, _, _ := unstructured.NestedBool(live.Object, "immutable"); set && (gk == "Secret" || gk == "ConfigMap") {
		fields = append([]string{"data", "binaryData", "immutable"}, fields...)
	}
	within := func(path string) func(string) bool {
		return func(field string) bool {
			rest, ok := strings.CutPrefix(path, field)
			return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
		}
	}
	if gk == "Pod" {
		return func(path string) bool {
			image := strings.HasSuffix(path, "].image") && (strings.HasPrefix(path, "spec.containers[") || strings.HasPrefix(path, "spec.initContainers["))
			return within(path)("spec") && !image && !slices.ContainsFunc(mutableOfPods, within(path))
		}
	}
	return func(path string) bool { return slices.ContainsFunc(fields, within(path)) }
}
