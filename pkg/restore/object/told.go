// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// warnOfProfiles warns of seccomp profiles that only annotations of pods name, which Kubernetes
// obeys before 1.27 only. The field stays: only people know whether the pod did without the
// profile. AppArmor's annotations still fill in the field.
func (c *change) warnOfProfiles(resource schema.GroupResource) {
	path, ok := podSpecs[resource.String()]
	if !ok || resource.Resource == "replicasets" || resource.Resource == "controllerrevisions" {
		return // as the objects that own them
	}
	spec := nested(c.object.Object, path...)
	annotations, _, _ := unstructured.NestedStringMap(c.object.Object, slices.Concat(path[:len(path)-1], []string{"metadata", "annotations"})...)
	if text(spec, "securityContext", "seccompProfile", "type") != "" {
		return
	}
	without := map[string]bool{}
	for _, field := range []string{"initContainers", "containers"} {
		for _, container := range list(spec, field) {
			without[text(container, "name")] = text(container, "securityContext", "seccompProfile", "type") == ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		container, ofContainer := strings.CutPrefix(name, corev1.SeccompContainerAnnotationKeyPrefix)
		if annotations[name] == corev1.SeccompProfileNameUnconfined {
			continue
		}
		if name == corev1.SeccompPodAnnotationKey && slices.Contains(slices.Collect(maps.Values(without)), true) || ofContainer && without[container] {
			c.warn("its pods' annotation %s names the seccomp profile %s, which Kubernetes has not obeyed since version 1.27: set securityContext.seccompProfile", name, annotations[name])
		}
	}
}

// warnOfRollout warns of a StatefulSet or a DaemonSet with pods of an earlier template, which a new
// one does not have.
func (c *change) warnOfRollout(before map[string]any, resource schema.GroupResource) {
	status := nested(before, "status")
	switch resource.String() {
	case "statefulsets.apps":
		updated, _, _ := unstructured.NestedInt64(status, "updatedReplicas")
		count, _, _ := unstructured.NestedInt64(status, "replicas")
		if from, to := text(status, "currentRevision"), text(status, "updateRevision"); from != to && updated < count {
			c.warn("a rollout from the revision %s to %s had not ended, or a partition held it: all its pods come back in %s", from, to, to)
		}
	case "daemonsets.apps":
		updated, _, _ := unstructured.NestedInt64(status, "updatedNumberScheduled")
		if count, _, _ := unstructured.NestedInt64(status, "currentNumberScheduled"); updated < count {
			c.warn("%d of its %d pods were of an earlier template: all come back in the one that it has", count-updated, count)
		}
	}
}
