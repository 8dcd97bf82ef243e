// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet stands for a kubelet in labs without nodes.
package kubelet

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// interval is the time between two looks.
const interval = 50 * time.Millisecond

// Run runs each pod of a namespace with a claim, on a node, until the test ends: when the claim is bound,
// the pod is bound, its volume is mounted, and then it is Running. mount is optional.
func Run(t testing.TB, kube kubernetes.Interface, namespace, node string, mount func(*corev1.Pod, *corev1.PersistentVolume) error) {
	t.Helper()
	k := kubelet{kube, namespace, node, mount}
	var running wait.Group
	running.StartWithContext(t.Context(), func(ctx context.Context) {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			for i := 0; err == nil && i < len(pods.Items); i++ {
				if failure := k.work(ctx, &pods.Items[i]); failure != nil && ctx.Err() == nil {
					t.Log("the kubelet: ", failure)
				}
			}
		}, interval)
	})
	t.Cleanup(running.Wait)
}

type kubelet struct {
	kube            kubernetes.Interface
	namespace, node string
	mount           func(*corev1.Pod, *corev1.PersistentVolume) error
}

func (k *kubelet) work(ctx context.Context, pod *corev1.Pod) error {
	pods := k.kube.CoreV1().Pods(k.namespace)
	if pod.DeletionTimestamp != nil {
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	name := ""
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			name = volume.PersistentVolumeClaim.ClaimName
		}
	}
	claim, err := k.kube.CoreV1().PersistentVolumeClaims(k.namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil || claim.Status.Phase != corev1.ClaimBound || len(pod.Status.ContainerStatuses) > 0:
		return err
	case pod.Spec.NodeName == "":
		return pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: k.namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: k.node}}, metav1.CreateOptions{})
	}
	volume, err := k.kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err == nil && k.mount != nil {
		err = k.mount(pod, volume)
	}
	if err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
