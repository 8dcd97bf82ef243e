// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package waits

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodReason shows what the status of a pod says about why it does not run.
func TestPodReason(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	for name, test := range map[string]struct {
		pod  corev1.Pod
		want string
	}{
		"nothing is known": {corev1.Pod{}, ""},
		"no node": {corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"},
		}}}, "it is on no node: 0/2 nodes are available"},
		"no image": {corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", State: waiting("ErrImagePull", "not found")},
		}}}, "ErrImagePull: not found"},
		"an init container": {corev1.Pod{Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "migrate", State: runs}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "c", State: waiting("PodInitializing", "")}},
		}}, "its init container migrate runs"},
		"a sidecar, and an init container": {corev1.Pod{
			Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "proxy", RestartPolicy: &always}, {Name: "migrate"}}},
			Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "proxy", State: runs, Started: new(true)}, {Name: "migrate", State: runs, Started: new(true)},
			}},
		}, "its init container migrate runs"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := PodReason(&test.pod); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
