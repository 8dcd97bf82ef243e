// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// keepPods does for the pods of the operators what a scheduler and a kubelet do, until the test ends: they
// are bound to a node, and are ready, or have done their work if they are of a Job. So Services have
// endpoints, for which a restore waits.
func keepPods(t *testing.T, in *labtest.Lab, all []operator) {
	t.Helper()
	theirs := map[string]bool{}
	for _, o := range all {
		theirs[o.namespace()], theirs[o.copied()] = true, true
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			pods, err := in.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				return // the cluster is asked again
			}
			for i, pod := range pods.Items {
				if theirs[pod.Namespace] {
					if err := keepPod(ctx, in, &pod, i); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
						t.Errorf("the pod %s in %s: %v", pod.Name, pod.Namespace, err)
					}
				}
			}
		}, 200*time.Millisecond)
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func keepPod(ctx context.Context, in *labtest.Lab, pod *corev1.Pod, number int) error {
	pods := in.Kube.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	case pod.Spec.NodeName == "":
		return pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: labtest.Node}}, metav1.CreateOptions{})
	case pod.Status.Phase != corev1.PodPending:
		return nil
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = fmt.Sprintf("10.89.0.%d", 1+number%250)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.Conditions = nil
	}
	_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
