// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// hold creates a pod that waits for its volume.
func (h *harness) hold(r *Restorer) {
	h.Helper()
	object := lone(h.T)
	if err := r.Hold(h.Context(), object, scratch()); err != nil {
		h.Fatal(err)
	}
	h.create(object)
	settle()
}

// told fails unless the agent is to tell the pod, and nothing else is left.
func (h *harness) told(when string) {
	h.Helper()
	records := h.records()
	if len(records) != 1 {
		h.Fatalf("%s: %d records: %+v", when, len(records), records)
	}
	pod, err := h.Kube.CoreV1().Pods("shop").Get(context.Background(), "lone", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	record := records[0]
	if record.Spec.Node != "node-1" || record.Spec.Pod != (enginev1alpha1.PodReference{Namespace: "shop", Name: "lone", UID: pod.UID}) ||
		record.Spec.Volume != "scratch" || record.Spec.WaitVolume != "holdfast-restore" || !record.Spec.Cancel ||
		record.Labels[enginev1alpha1.LabelNode] != "node-1" || len(record.OwnerReferences) > 0 {
		h.Errorf("%s: the agent is told %+v", when, record)
	}
}

func (h *harness) sweep(v *Volumes) {
	h.Helper()
	if err := v.sweep(context.Background()); err != nil {
		h.Error(err)
	}
}

// TestPodsAreTold: a pod that waits is told by its agent when its restore has ended without
// it, however it ended, also by one that comes back later: its record stays until then.
func TestPodsAreTold(t *testing.T) {
	fails := func(h *harness, r *Restorer) {
		h.Helper()
		if err := r.Pod(h.Context(), "shop", "lone", scratch()); err == nil {
			h.Error("its volume is complete")
		}
	}
	for name, try := range map[string]func(h *harness, r *Restorer){
		"its agent begins nothing": fails,
		"it is cancelled before the agent begins": func(h *harness, r *Restorer) {
			ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
			defer cancel()
			if err := r.Pod(ctx, "shop", "lone", scratch()); err == nil || len(h.records()) != 1 {
				h.Errorf("%v, %d records", err, len(h.records()))
			}
		},
		"its agent is gone": func(h *harness, r *Restorer) {
			h.agents.leave(h.node)
			fails(h, r)
		},
		"its agent goes in the middle of it": func(h *harness, r *Restorer) {
			h.agent = func(record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
				h.agents.leave(h.node)
				return inProgress(record)
			}
			fails(h, r)
		},
		"the agent has not said that it failed": func(h *harness, r *Restorer) {
			h.agent = failed("no space left")
			fails(h, r)
			h.agent = nil
		},
		"nothing was asked for yet": func(*harness, *Restorer) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.agent = nil
				v := h.volumes()
				r := v.Restorer(h.run, h.Kube.CoreV1())
				defer r.Close()
				h.hold(r)
				try(h, r)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := r.End(ctx); err != nil {
					t.Error(err)
				}
				for _, record := range h.records() {
					if !record.Status.Phase.Done() && record.Status.Phase != enginev1alpha1.VolumePhaseNew && !record.Spec.Cancel {
						t.Errorf("the agent would go on with it when it is back: %+v", record)
					}
				}
				for range 2 {
					if err := v.Forget(t.Context(), h.run); err != nil {
						t.Error(err)
					}
					h.told("at the end")
				}
				h.sweep(v)
				h.told("after a sweep")
				h.deletePod("lone")
				h.sweep(v)
				if left := h.records(); len(left) > 0 {
					t.Errorf("the pod is gone, and %+v is left", left)
				}
			})
		})
	}
}

// TestPodsAreToldBySweeps: also those that come to a node when the restore has ended, and
// those whose restore was removed. What goes on, or waits no more, is left alone.
func TestPodsAreToldBySweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.kubelet = func(*corev1.Pod) bool { return false }
		h.agent = nil
		v := h.volumes()
		r := v.Restorer(h.run, h.Kube.CoreV1())
		defer r.Close()
		h.hold(r)
		runs := h.EngineV1alpha1().RestoreRuns(system)
		if _, err := runs.Create(t.Context(), h.run.DeepCopy(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		none := func(when string) {
			t.Helper()
			h.sweep(v)
			if records := h.records(); len(records) > 0 {
				t.Errorf("%s: %+v", when, records)
			}
		}
		pod, err := h.Kube.CoreV1().Pods("shop").Get(t.Context(), "lone", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		none("while the restore goes on")
		if err := runs.Delete(t.Context(), h.run.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		none("while it is on no node")
		h.start(pod)
		h.sweep(v)
		h.told("when it is on a node")
		h.goOn(0)
		none("when it waits no more")
	})
}

// TestGivingUpIsBounded: whoever writes a pod says what it waits for. That makes so many records and no
// more, and each of them once.
func TestGivingUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.agent = nil
		v := h.volumes()
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "lone", Namespace: "shop", UID: "many", Labels: map[string]string{enginev1alpha1.LabelWaits: "gone"}},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		}
		var names []string
		for i := range 3 * givenUpMost {
			name := fmt.Sprint("scratch-", i)
			names = append(names, name)
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		if _, err := restorewait.Add(pod, "image", names, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.sweep(v)
		if got := len(h.records()); got != givenUpMost {
			t.Errorf("%d records, want %d", got, givenUpMost)
		}
		h.ClearActions()
		h.sweep(v)
		if got := len(h.Writes("volumerestores")); got > 0 {
			t.Errorf("the second sweep writes %d times", got)
		}

		// More pods of a namespace make no more, and those of another one are told all the same.
		for i := range 10 {
			more := pod.DeepCopy()
			more.Name, more.UID = fmt.Sprint("more-", i), types.UID(fmt.Sprint("many-", i))
			if i == 9 {
				more.Namespace = "blog"
			}
			if _, err := h.Kube.CoreV1().Pods(more.Namespace).Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		h.sweep(v)
		if got := len(h.records()); got != givenUpPerNamespace+givenUpMost {
			t.Errorf("%d records, want %d", got, givenUpPerNamespace+givenUpMost)
		}
	})
}
