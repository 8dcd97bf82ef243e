// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// provisioned creates a claim that is not bound, and whose volume is made with its data.
func (h *harness) provisioned(name string) Claim {
	h.Helper()
	claim := h.claim(name)
	claim.Provisioned = true
	claim.Data.Status.SnapshotID = ""
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-of-" + name}}
	if _, err := h.Kube.CoreV1().PersistentVolumes().Create(h.Context(), volume, metav1.CreateOptions{}); err != nil {
		h.Fatal(err)
	}
	claim.Data.Snapshot = &format.SnapshotSource{Driver: "driver", Kept: true, Cut: &format.SnapshotCut{Handle: "snap-1"}}
	return claim
}

// change changes a live claim.
func (h *harness) change(name string, change func(*corev1.PersistentVolumeClaim)) {
	h.Helper()
	claims := h.Kube.CoreV1().PersistentVolumeClaims("shop")
	live, err := claims.Get(h.Context(), name, metav1.GetOptions{})
	if err == nil {
		change(live)
		_, err = claims.Update(h.Context(), live, metav1.UpdateOptions{})
	}
	if err != nil {
		h.Fatal(err)
	}
}

// remove deletes a live claim.
func (h *harness) remove(name string) {
	h.Helper()
	if err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
}

func bind(claim *corev1.PersistentVolumeClaim) {
	claim.Spec.VolumeName, claim.Status.Phase = "pv-of-"+claim.Name, corev1.ClaimBound
}

// TestProvisionedFromElsewhere: a claim that was bound to a volume that is not made from the snapshot has other
// data. A volume that can't be read for a while is read again.
func TestProvisionedFromElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		age         time.Duration
		annotations map[string]string
		says        string
	}{
		"made for it":             {0, map[string]string{annotationMadeBy: "driver"}, ""},
		"made, as nobody says":    {0, nil, ""},
		"older":                   {time.Hour, nil, "bound to the volume pv-of-data, which is older"},
		"as young, and was there": {0, map[string]string{annotationMadeBy: "driver", annotationFound: "yes"}, "bound to the volume pv-of-data, which was there before"},
		"made by another driver":  {0, map[string]string{annotationMadeBy: "other"}, "which other has made, and the snapshot is of driver"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				r := h.restorer()
				result := begin(t.Context(), r, h.provisioned("data"))
				volumes := h.Kube.CoreV1().PersistentVolumes()
				if err := volumes.Delete(t.Context(), "pv-of-data", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				h.change("data", func(claim *corev1.PersistentVolumeClaim) {
					bind(claim)
					claim.CreationTimestamp = metav1.Now()
				})
				time.Sleep(2 * bindLook)
				if err, ok := ended(result); ok {
					t.Errorf("without its volume it has ended: %v", err)
				}
				volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-of-data", Annotations: test.annotations, CreationTimestamp: metav1.NewTime(time.Now().Add(-test.age))}}
				if _, err := volumes.Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * bindLook)
				if err, ok := ended(result); !ok || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("ended: %t, %v, want %q", ok, err, test.says)
				}
			})
		})
	}
}

func counted(t *testing.T, r *Restorer, want v1alpha1.RestoreVolumesProgress) {
	t.Helper()
	if diff := gocmp.Diff(want, r.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// TestProvisioned: a claim that is bound soon needs no pod and no agent. It counts as complete once it
// is bound.
func TestProvisioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.repository = errors.New("there is no repository")
		r := h.restorer()
		claim := h.provisioned("data")
		h.change("data", func(live *corev1.PersistentVolumeClaim) { live.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
		result := begin(t.Context(), r, claim)
		if err, ok := ended(result); ok {
			t.Fatalf("it ended before the claim was bound: %v", err)
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1})
		h.change("data", bind)
		if err, ok := ended(result); err != nil {
			t.Fatalf("ended: %t, %v", ok, err)
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Completed: 1})
		if writes := len(h.Writes("pods")) + len(h.Writes("volumerestores")) + len(h.records()); writes > 0 {
			t.Errorf("there are %d writes", writes)
		}

		// Again, also by another process: it is bound.
		for _, again := range []*Restorer{r, h.restorer()} {
			if err, ok := ended(begin(t.Context(), again, claim)); err != nil {
				t.Errorf("ended: %t, %v", ok, err)
			}
			counted(t, again, v1alpha1.RestoreVolumesProgress{Total: 1, Completed: 1})
		}
		if pods := h.livePods(); len(pods) > 0 {
			t.Errorf("there are %d pods", len(pods))
		}
	})
}

// TestProvisionedAtTheFirstPod: a claim that waits for its first pod gets a holder, where the backup's
// pod could run. The holder is removed once the claim is bound.
func TestProvisionedAtTheFirstPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var holders []*corev1.Pod
		start := make(chan struct{})
		h.kubelet = func(pod *corev1.Pod) bool { holders = append(holders, pod.DeepCopy()); <-start; return true }
		r := h.restorer()
		claim := h.provisioned("data")
		claim.Pod = &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "fast"}}}
		result := begin(t.Context(), r, claim)
		time.Sleep(bindPatience - time.Second)
		synctest.Wait()
		if pods := h.livePods(); len(pods) > 0 {
			t.Errorf("there are %d pods at once", len(pods))
		}
		time.Sleep(bindPatience)
		if err, ok := ended(result); ok {
			t.Fatalf("it ended before the claim was bound: %v", err)
		}
		if len(holders) != 1 || !strings.HasPrefix(holders[0].Name, holderPrefix) || holders[0].Namespace != "shop" ||
			holders[0].Labels[enginev1alpha1.LabelRestore] != "uid-of-run" || !holds(holders[0], h.run.UID, "data") || holders[0].Spec.NodeSelector["disk"] != "fast" {
			t.Fatalf("the holders are %v", holders)
		}
		close(start)
		time.Sleep(time.Second)
		if err, ok := ended(result); err != nil {
			t.Fatalf("ended: %t, %v", ok, err)
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Completed: 1})
		if pods, records := h.livePods(), h.records(); len(pods)+len(records) > 0 || len(holders) != 1 {
			t.Errorf("left are %d pods and %d records of %d holders", len(pods), len(records), len(holders))
		}
	})
}

// TestProvisionedSlowly: a claim whose volume takes long to be made is waited for, with or without a
// pod, up to the timeout of a volume.
func TestProvisionedSlowly(t *testing.T) {
	for name, kubelet := range map[string]func(*harness) func(*corev1.Pod) bool{
		"a pod that waits for the volume": unschedulable,
		"a pod that nobody has seen":      func(*harness) func(*corev1.Pod) bool { return func(*corev1.Pod) bool { return false } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.kubelet = kubelet(h)
				r := h.restorer()
				result := begin(t.Context(), r, h.provisioned("data"))
				time.Sleep(volumeTimeout - time.Minute)
				if err, ok := ended(result); ok {
					t.Fatalf("it ended too soon: %v", err)
				}
				h.change("data", bind)
				if err, ok := ended(result); err != nil {
					t.Fatalf("ended: %t, %v", ok, err)
				}
				counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Completed: 1})
				if pods := h.livePods(); len(pods) > 0 {
					t.Errorf("left are %d pods", len(pods))
				}
			})
		})
	}
}

// TestNeverProvisioned: a claim that is never bound fails after the timeout of a volume. The error says
// why and what to do, and no pod is left.
func TestNeverProvisioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.kubelet = unschedulable(h)
		_, err := h.Kube.CoreV1().Events("shop").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "shop", Name: "data.1"},
			InvolvedObject: corev1.ObjectReference{UID: "uid-of-data"}, Type: corev1.EventTypeWarning,
			Reason: "ProvisioningFailed", Message: "the snapshot is gone", LastTimestamp: metav1.Now(),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r := h.restorer()
		since := time.Now()
		err = r.Claim(t.Context(), h.provisioned("data"))
		if err == nil {
			t.Fatal("it has succeeded")
		}
		if took := time.Since(since); took < volumeTimeout || took > volumeTimeout+time.Minute {
			t.Errorf("it took %s", took)
		}
		for _, text := range []string{"the data of claim shop/data", "its volume was not made from the snapshot", "the snapshot is gone", "delete the claim, and restore again"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("it says %q, which lacks %q", err, text)
			}
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Failed: 1})
		if pods := h.livePods(); len(pods) > 0 {
			t.Errorf("left are %d pods", len(pods))
		}
	})
}

// TestNotProvisioned: a claim that is deleted or made anew meanwhile is an error, before the holder and
// while it waits. No pod is left.
func TestNotProvisioned(t *testing.T) {
	for name, test := range map[string]struct {
		change func(h *harness)
		says   string
	}{
		"deleted": {func(h *harness) { h.remove("data") }, "the claim does not exist"},
		"being deleted": {func(h *harness) {
			h.change("data", func(live *corev1.PersistentVolumeClaim) { live.DeletionTimestamp = new(metav1.Now()) })
		}, "the claim is being deleted"},
		"made anew":      {func(h *harness) { h.remake() }, errRemade.Error()},
		"anew and bound": {func(h *harness) { h.remake(); h.change("data", bind) }, errRemade.Error()},
	} {
		for when, after := range map[string]time.Duration{"soon": time.Second, "while a pod holds it": time.Minute} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.kubelet = unschedulable(h)
					r := h.restorer()
					result := begin(t.Context(), r, h.provisioned("data"))
					time.Sleep(after + time.Millisecond)
					synctest.Wait()
					if pods := h.livePods(); (len(pods) > 0) != (after > bindPatience) {
						t.Errorf("there are %d pods", len(pods))
					}
					test.change(h)
					time.Sleep(2 * bindLook)
					if err, ok := ended(result); !ok || err == nil || !strings.Contains(err.Error(), test.says) {
						t.Fatalf("ended: %t, %v", ok, err)
					} else if errors.Is(err, errRemade) && strings.Contains(err.Error(), "delete the claim") {
						t.Errorf("it would have another one's claim deleted: %v", err)
					}
					counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Failed: 1})
					if pods := h.livePods(); len(pods) > 0 {
						t.Errorf("left are %d pods", len(pods))
					}
				})
			})
		}
	}
}

// remake deletes the claim data, and makes another one of that name.
func (h *harness) remake() {
	h.Helper()
	h.remove("data")
	_, err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Create(h.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "shop", UID: types.UID("uid-of-another")},
	}, metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
	}
}

// TestProvisionedWithoutAClaim: a claim that is not there fails at once, and is not counted.
func TestProvisionedWithoutAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		r := h.restorer()
		err := r.Claim(t.Context(), Claim{Namespace: "shop", Name: "none", Provisioned: true})
		if err == nil || !strings.Contains(err.Error(), "the claim does not exist") {
			t.Error(err)
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{})
	})
}

// TestProvisionedWithoutAHolder: a holder that the cluster refuses is told within a minute. Nobody waits
// for the timeout of a volume.
func TestProvisionedWithoutAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.refuse(apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no pods here")))
		r := h.restorer()
		since := time.Now()
		err := r.Claim(t.Context(), h.provisioned("data"))
		if err == nil || !strings.Contains(err.Error(), "no pods here") || !strings.Contains(err.Error(), "restore again") {
			t.Error(err)
		}
		if took := time.Since(since); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		counted(t, r, v1alpha1.RestoreVolumesProgress{Total: 1, Failed: 1})
	})
}

// TestProvisioningIsCancelled: what waits for a claim to be bound, or for its turn, returns within a
// second when its restore is stopped. The waits say what for.
func TestProvisioningIsCancelled(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		full  bool
	}{"soon": {after: time.Millisecond}, "while a pod holds it": {after: time.Minute}, "before its turn": {time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.kubelet = unschedulable(h)
				r := h.restorer()
				for range cap(r.slots) {
					if test.full {
						r.slots <- struct{}{}
					}
				}
				noted := waits.New(clock.RealClock{})
				ctx, cancel := context.WithCancel(waits.With(t.Context(), noted))
				result := begin(ctx, r, h.provisioned("data"))
				time.Sleep(test.after)
				synctest.Wait()
				words := "its volume is made from the snapshot"
				if test.full {
					words = "its turn"
				}
				if line := noted.Line("shop", system); test.after > bindPatience && !strings.Contains(line, "the data of claim data in shop: "+words) {
					t.Errorf("it says %q", line)
				}
				cancel()
				if err, ok := ended(result); !ok || !errors.Is(err, context.Canceled) {
					t.Errorf("ended: %t, %v", ok, err)
				}
				if line := noted.Line("shop", system); line != "" {
					t.Errorf("in the end it says %q", line)
				}
				// The holder is left to another process, or to the end.
				if err := r.End(t.Context()); err != nil || len(h.livePods()) > 0 {
					t.Errorf("%v, %d pods are left", err, len(h.livePods()))
				}
			})
		})
	}
}

// TestProvisionedInTurn: a claim waits while the restore holds as many claims as it may.
func TestProvisionedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		r := h.restorer()
		for range cap(r.slots) {
			r.slots <- struct{}{}
		}
		result := begin(t.Context(), r, h.provisioned("data"))
		time.Sleep(2 * volumeTimeout) // it has its time from its turn on
		if err, ok := ended(result); ok || len(h.livePods()) > 0 {
			t.Fatalf("it did not wait: %v, %d pods", err, len(h.livePods()))
		}
		<-r.slots
		time.Sleep(bindPatience + 2*bindLook)
		if err, ok := ended(result); err != nil {
			t.Errorf("ended: %t, %v", ok, err)
		}
		if len(r.slots) != cap(r.slots)-1 {
			t.Errorf("%d slots are taken", len(r.slots))
		}
	})
}
