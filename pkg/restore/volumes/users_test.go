// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestHolderOfAnotherRestore: the holder of a restore that has ended is waited for, but not for
// ever, and does not count as an application that has used the claim.
func TestHolderOfAnotherRestore(t *testing.T) {
	for name, goes := range map[string]bool{"it goes": true, "it stays": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				claim := h.claim("data")
				claim.Used = func(context.Context) error { t.Error("the holder counts as a user"); return nil }
				earlier := h.run.DeepCopy()
				earlier.Name, earlier.UID = "shop.before", "uid-of-earlier"
				live := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "uid-of-data"}}
				holder, err := h.volumes().Restorer(earlier, h.Kube.CoreV1()).holder("example.com/holdfast:v1", claim, live)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), holder, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				result := begin(t.Context(), h.restorer(), claim)
				if err, done := ended(result); done {
					t.Fatalf("it did not wait: %v", err)
				}
				if goes {
					if err := h.Kube.CoreV1().Pods("shop").Delete(t.Context(), holder.Name, metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					if err := <-result; err != nil || len(h.records()) != 1 {
						t.Errorf("%v, with %d records", err, len(h.records()))
					}
					return
				}
				if err := <-result; err == nil || !strings.Contains(err.Error(), holder.Name+" of another restore holds the claim") || len(h.records()) > 0 {
					t.Errorf("%v, with %d records", err, len(h.records()))
				}
			})
		})
	}
}

// TestStartedMeanwhile: a pod that ran on a claim while its data was written is told of, also
// by a process that finds the data complete. One that starts on complete data is not.
func TestStartedMeanwhile(t *testing.T) {
	at := func(after time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(after)) }
	for name, test := range map[string]struct {
		state func() corev1.ContainerState
		told  bool
	}{
		"it runs": {func() corev1.ContainerState {
			return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(-5 * time.Second)}}
		}, true},
		"it ran": {func() corev1.ContainerState {
			return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at(-5 * time.Second), FinishedAt: at(0)}}
		}, true},
		"it starts afterwards": {func() corev1.ContainerState {
			return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(time.Second)}}
		}, false},
		"it waits": {func() corev1.ContainerState {
			return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.kubelet = func(pod *corev1.Pod) bool { return pod.Name != "web" }
				h.agent = func(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
					_, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: types.UID("uid-of-web")},
						Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
							PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
						}}}},
						Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: test.state()}}},
					}, metav1.CreateOptions{})
					if err != nil {
						t.Error(err)
					}
					end := at(0)
					return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted, CompletionTimestamp: &end}
				}
				claim := h.claim("data")
				for range 2 { // by another process, too
					told := ""
					claim.Started = func(pod string) { told = pod }
					if err := h.restorer().Claim(t.Context(), claim); err != nil {
						t.Fatal(err)
					}
					if (told == "web") != test.told {
						t.Errorf("it is told of the pod %q", told)
					}
				}
			})
		})
	}
}
