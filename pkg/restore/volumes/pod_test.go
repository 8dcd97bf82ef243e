// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// lone is a pod with an emptyDir, as it is before it is created.
func lone(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "lone", Namespace: "shop"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "own", Image: "a"}},
			Containers:     []corev1.Container{{Name: "app", Image: "b"}},
			Volumes:        []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: object}
}

func scratch() []format.Volume {
	return []format.Volume{{
		Pod: enginev1alpha1.PodReference{Namespace: "origin", Name: "lone"}, Name: "scratch",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k1"},
	}}
}

// create creates the pod.
func (h *harness) create(object *unstructured.Unstructured) {
	h.Helper()
	pod := &corev1.Pod{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod)
	if err == nil {
		_, err = h.Kube.CoreV1().Pods("shop").Create(h.Context(), pod, metav1.CreateOptions{})
	}
	if err != nil {
		h.Fatal(err)
	}
}

// goOn ends the container that waits, as it does when the agent has told it so.
func (h *harness) goOn(code int32) {
	h.Helper()
	pod, err := h.Kube.CoreV1().Pods("shop").Get(h.Context(), "lone", metav1.GetOptions{})
	if err == nil {
		pod.Status.InitContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
		_, err = h.Kube.CoreV1().Pods("shop").Update(h.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		h.Fatal(err)
	}
}

// TestPod: a pod waits before its own containers, and Pod has its data brought, until it
// goes on. The same again writes nothing.
func TestPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		r := h.restorer()
		object := lone(t)
		if err := r.Hold(t.Context(), object, scratch()); err != nil {
			t.Fatal(err)
		}
		if names, _, _ := unstructured.NestedSlice(object.Object, "spec", "initContainers"); len(names) != 2 {
			t.Fatalf("init containers: %v", names)
		}
		h.create(object)
		result := make(chan error, 1)
		// An earlier backup may have the volume in which the pod was told then: as data, it would
		// let the pod go on at once.
		earlier := scratch()[0]
		earlier.Name = "holdfast-restore"
		go func() { result <- r.Pod(t.Context(), "shop", "lone", append(scratch(), earlier)) }()
		if _, yes := ended(result); yes {
			t.Fatal("it has ended, and the pod has not gone on")
		}
		records := h.records()
		if len(records) != 1 || records[0].Spec.Volume != "scratch" || records[0].Spec.PersistentVolume != "" || records[0].Spec.WaitVolume != "holdfast-restore" {
			t.Fatalf("records: %+v", records)
		}
		h.goOn(0)
		if err, _ := ended(result); err != nil {
			t.Error(err)
		}
		h.ClearActions()
		if err := h.restorer().Pod(t.Context(), "shop", "lone", scratch()); err != nil || len(h.Writes("volumerestores")) > 0 {
			t.Errorf("the second time: %v, %v", err, h.Writes("volumerestores"))
		}
	})
}

// TestEphemeralVolumeOfPod: the agent is told the persistent volume of the claim that Kubernetes
// made for the pod. A claim of that name that is another's is not written.
func TestEphemeralVolumeOfPod(t *testing.T) {
	for name, owner := range map[string]types.UID{"the pod's": "uid-of-lone", "of an earlier pod": "another"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.claim("lone-scratch")
				live, err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "lone-scratch", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				live.Spec.VolumeName, live.Status.Phase = "pv-of-scratch", corev1.ClaimBound
				live.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "lone", UID: owner}}, corev1.SchemeGroupVersion.WithKind("Pod"))}
				if _, err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				r, object := h.restorer(), lone(t)
				if err := r.Hold(t.Context(), object, scratch()); err != nil {
					t.Fatal(err)
				}
				object.SetUID("uid-of-lone")
				volumes, _, _ := unstructured.NestedSlice(object.Object, "spec", "volumes")
				delete(volumes[0].(map[string]any), "emptyDir")
				volumes[0].(map[string]any)["ephemeral"] = map[string]any{"volumeClaimTemplate": map[string]any{"spec": map[string]any{}}}
				if err := unstructured.SetNestedSlice(object.Object, volumes, "spec", "volumes"); err != nil {
					t.Fatal(err)
				}
				h.create(object)
				result := make(chan error, 1)
				go func() { result <- r.Pod(t.Context(), "shop", "lone", scratch()) }()
				err, done := ended(result)
				if owner != "uid-of-lone" {
					if !done || err == nil || !strings.Contains(err.Error(), "is not the pod's") || len(h.records()) > 0 {
						t.Errorf("%v, with the records %+v", err, h.records())
					}
					return
				}
				if records := h.records(); len(records) != 1 || records[0].Spec.PersistentVolume != "pv-of-scratch" || records[0].Spec.Volume != "scratch" {
					t.Fatalf("records: %+v", records)
				}
				h.goOn(0)
				if err, _ := ended(result); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHowLongAPodWaits: longer than any volume of its node takes, and than those before it,
// since a pod that is not restarted has failed for good.
func TestHowLongAPodWaits(t *testing.T) {
	for timeout, want := range map[time.Duration]string{time.Hour: "--timeout=48h0m0s", 4 * time.Hour: "--timeout=48h0m0s", 40 * time.Hour: "--timeout=480h0m0s"} {
		r := &Restorer{run: &enginev1alpha1.RestoreRun{}, Volumes: &Volumes{Config: Config{
			VolumeTimeout: timeout, Kube: kubefake.NewSimpleClientset(), Image: func(context.Context) (string, error) { return "example.com/holdfast:v1", nil },
		}}}
		object := lone(t)
		if err := r.Hold(t.Context(), object, scratch()); err != nil {
			t.Fatal(err)
		}
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "initContainers")
		if args := fmt.Sprint(containers[0].(map[string]any)["args"]); !strings.Contains(args, want) {
			t.Errorf("with --pod-volume-timeout=%s it waits by %s, want %s", timeout, args, want)
		}
		holder, err := r.holder("example.com/holdfast:v1", Claim{}, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}})
		if err != nil || !slices.Contains(holder.Spec.Containers[0].Args, want) {
			t.Errorf("with --pod-volume-timeout=%s what holds a claim waits by %v, %v", timeout, holder.Spec.Containers[0].Args, err)
		}
	}
}

// TestPodThatDoesNotStart: what its volumes lack is said, and within a bound.
func TestPodThatDoesNotStart(t *testing.T) {
	for name, test := range map[string]struct {
		break_ func(h *harness)
		want   string
		after  time.Duration
	}{
		"a volume fails":        {func(h *harness) { h.agent = failed("no space left") }, "volume scratch: no space left", 0},
		"it is on no node":      {func(h *harness) { h.kubelet = unschedulable(h) }, "it is on no node", startTimeout},
		"it is deleted":         {func(h *harness) { h.agent = nil; go func() { time.Sleep(time.Minute); h.deletePod("lone") }() }, "has begun and ended no other one", volumeTimeout},
		"deleted while it goes": {func(h *harness) { go func() { time.Sleep(time.Minute); h.deletePod("lone") }() }, "was deleted before its volumes were restored", time.Minute},
		"it never goes on":      {func(*harness) {}, "did not start within", startTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				r := h.restorer()
				object := lone(t)
				if err := r.Hold(t.Context(), object, scratch()); err != nil {
					t.Fatal(err)
				}
				test.break_(h)
				h.create(object)
				begun := time.Now()
				err := r.Pod(t.Context(), "shop", "lone", scratch())
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if took := time.Since(begun); took < test.after || took > test.after+time.Minute {
					t.Errorf("it took %s, want %s", took, test.after)
				}
			})
		})
	}
}

// TestPodOfSomebodyElse: a pod that waits for nothing is not one that Hold has prepared.
func TestPodOfSomebodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.create(lone(t))
		if err := h.restorer().Pod(t.Context(), "shop", "lone", scratch()); err == nil || len(h.records()) > 0 {
			t.Errorf("got %v, %d records", err, len(h.records()))
		}
	})
}

func (h *harness) deletePod(name string) {
	if err := h.Kube.CoreV1().Pods("shop").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		h.Error(err)
	}
}

// TestSweep removes what restores have left that have ended or are gone, and nothing else.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.agent = inProgress
		v := h.volumes()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := v.Restorer(h.run, h.Kube.CoreV1())
		defer r.Close()
		begin(ctx, r, h.claim("data"))
		other := lone(t) // with our label, which anybody may set
		other.SetLabels(map[string]string{enginev1alpha1.LabelRestore: "another"})
		h.create(other)
		if _, err := h.EngineV1alpha1().RestoreRuns(system).Create(t.Context(), h.run.DeepCopy(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		look := func(when string, pods, records int) {
			t.Helper()
			if err := v.sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if p, r := len(h.livePods()), len(h.records()); p != pods || r != records {
				t.Errorf("%s: %d pods and %d records, want %d and %d", when, p, r, pods, records)
			}
		}
		look("while it goes on", 2, 1)
		cancel()
		if err := h.EngineV1alpha1().RestoreRuns(system).Delete(t.Context(), h.run.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		look("when it is gone", 1, 0)
	})
}

// TestPullSecrets: a pod that waits may be given our image by a private registry, and keeps the
// pull secrets that it has, or would have from its account.
func TestPullSecrets(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "shop"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-account"}}}
	other := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "shop"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-other"}}}
	for name, c := range map[string]struct {
		ours []string
		own  []any
		want string
	}{
		"none":                         {want: "[]"},
		"none of ours":                 {own: []any{map[string]any{"name": "own"}}, want: "[map[name:own]]"},
		"beside those of its account":  {ours: []string{"registry"}, want: "[map[name:of-account] map[name:registry]]"},
		"beside its own":               {ours: []string{"registry"}, own: []any{map[string]any{"name": "own"}}, want: "[map[name:own] map[name:registry]]"},
		"once, if it has the same one": {ours: []string{"own"}, own: []any{map[string]any{"name": "own"}}, want: "[map[name:own]]"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Restorer{run: &enginev1alpha1.RestoreRun{}, Volumes: &Volumes{Config: Config{
				Kube: kubefake.NewSimpleClientset(account, other), Image: func(context.Context) (string, error) { return "example.com/holdfast:v1", nil },
				PullSecrets: c.ours,
			}}}
			object := lone(t)
			if c.own != nil {
				if err := unstructured.SetNestedSlice(object.Object, c.own, "spec", "imagePullSecrets"); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Hold(t.Context(), object, scratch()); err != nil {
				t.Fatal(err)
			}
			secrets, _, _ := unstructured.NestedSlice(object.Object, "spec", "imagePullSecrets")
			if got := fmt.Sprint(secrets); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
