// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package waits

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// PodReason says why a pod does not run yet, by its status; "" if unknown.
func PodReason(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "it is on no node: " + c.Message
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if w := status.State.Waiting; w != nil && w.Message != "" {
				return w.Reason + ": " + w.Message
			}
		}
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if status.State.Running != nil && (status.Started == nil || !*status.Started || !isSidecar(pod, status.Name)) {
			return fmt.Sprintf("its init container %s runs", status.Name)
		}
	}
	return ""
}

func isSidecar(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name && c.RestartPolicy != nil {
			return *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}
