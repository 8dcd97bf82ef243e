// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// othersTimeout bounds the wait for another restore's holder, which a restore deletes at its
	// end; a kubelet needs seconds to unmount.
	othersTimeout = 2 * time.Minute
	othersLook    = time.Second
)

// user returns a pod that uses a claim, a running one first, or nil. Files would change beneath it,
// or it has started without.
func (r *Restorer) user(ctx context.Context, claim *corev1.PersistentVolumeClaim) (user *corev1.Pod, err error) {
	list, err := r.Kube.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("looking for pods that use the claim: %w", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if hasEnded(pod) || holds(pod, r.run.UID, claim.Name) || volumeOf(pod, claim.Name) == "" {
			continue
		}
		if user == nil || user.Status.Phase != corev1.PodRunning {
			user = pod
		}
	}
	return user, nil
}

func volumeOf(pod *corev1.Pod, claim string) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim ||
			v.Ephemeral != nil && pod.Name+"-"+v.Name == claim {
			return v.Name
		}
	}
	return ""
}

func (r *Restorer) awaitOthers(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for since := r.Clock.Now(); ; {
		holder, err := r.otherHolder(ctx, claim)
		if err != nil || holder == nil {
			return err
		}
		if r.Clock.Since(since) >= othersTimeout {
			return fmt.Errorf("the pod %s of another restore holds the claim, and did not go within %s: wait for the end of that restore, and restore again", holder.Name, othersTimeout)
		}
		if waiting == nil {
			waiting = waits.For(ctx, claim.Namespace, fmt.Sprintf("pod %s in %s, which holds claim %s for another restore, to go", holder.Name, claim.Namespace, claim.Name))
		}
		select {
		case <-r.Clock.After(othersLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Restorer) otherHolder(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	list, err := r.Kube.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore})
	if err != nil {
		return nil, fmt.Errorf("looking for pods that hold the claim for other restores: %w", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		restore := types.UID(pod.Labels[enginev1alpha1.LabelRestore])
		if restore != r.run.UID && strings.HasPrefix(pod.Name, holderPrefix) && holds(pod, restore, claim.Name) && !hasEnded(pod) {
			return pod, nil
		}
	}
	return nil, nil
}

// tellStarted calls Started if a pod, perhaps a controller's, started on a claim during the write.
func (r *Restorer) tellStarted(ctx context.Context, claim Claim, live *corev1.PersistentVolumeClaim, record *enginev1alpha1.VolumeRestore, status enginev1alpha1.VolumeRestoreStatus) {
	if claim.Started == nil || status.Phase != enginev1alpha1.VolumePhaseCompleted || status.CompletionTimestamp == nil || !r.isHolder(record.Spec.Pod.Name, live) {
		return
	}
	list, err := r.Kube.CoreV1().Pods(live.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("Looking for pods that started on a claim while its data was written failed", "claim", klog.KObj(live), "err", err)
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		restore := types.UID(pod.Labels[enginev1alpha1.LabelRestore])
		if volumeOf(pod, live.Name) == "" || strings.HasPrefix(pod.Name, holderPrefix) && holds(pod, restore, live.Name) {
			continue
		}
		if ranBetween(pod, record.CreationTimestamp, *status.CompletionTimestamp) {
			claim.Started(pod.Name)
			return
		}
	}
}

// ranBetween reports whether a container of a pod ran between two times. Kubernetes has whole
// seconds: a container that began in the last one did not.
func ranBetween(pod *corev1.Pod, begin, end metav1.Time) bool {
	ran := func(state corev1.ContainerState) bool {
		switch {
		case state.Running != nil:
			return state.Running.StartedAt.Time.Before(end.Time)
		case state.Terminated != nil:
			return state.Terminated.StartedAt.Time.Before(end.Time) && !state.Terminated.FinishedAt.Time.Before(begin.Time)
		}
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if ran(status.State) || ran(status.LastTerminationState) {
				return true
			}
		}
	}
	return false
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
