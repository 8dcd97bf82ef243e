// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

func (s *sidecars) mover(kube *kubefake.Clientset) *Mover {
	return NewMover(s.client(), kube, "holdfast-snapshots", func(context.Context) (string, error) { return "image", nil }, []string{"pull"}, func() []int { return nil })
}

// TestCutsAreBounded: a driver makes a few snapshots at a time, others and frozen pods don't wait for it.
func TestCutsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.fails = "slow"
		m := s.mover(kubefake.NewClientset())
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		defer working.Wait()
		defer cancel()
		cut := func(of string, change func(*Volume)) {
			v := volume()
			v.ClaimUID, v.Timeout = types.UID(of), 24*time.Hour
			change(&v)
			working.Go(func() { _, _ = m.Cut(ctx, v, nil) })
		}
		for i := range 3 * atOnceCut {
			cut(fmt.Sprint("plain-", i), func(*Volume) {})
		}
		synctest.Wait()
		if got := len(s.snapshots()); got != atOnceCut {
			t.Errorf("%d snapshots are made at once, want %d", got, atOnceCut)
		}
		cut("hooked", func(v *Volume) { v.Attempt = 1 })
		cut("other", func(v *Volume) { v.Driver = "another" })
		synctest.Wait()
		if got := len(s.snapshots()); got != atOnceCut+2 {
			t.Errorf("%d snapshots are made, want also the two that need not wait", got)
		}
		time.Sleep(longestCut)
		synctest.Wait()
		if got := len(s.snapshots()); got != 2*atOnceCut+2 {
			t.Errorf("%d snapshots are made, want also those that have waited for %s", got, longestCut)
		}
	})
}

// TestExposedPod: the pod has no privilege and no account, and goes where the volume can be used. Only its mount
// is read-only, so that the kernel can replay a journal. What it waits for is told; an exposure that never runs ends.
func TestExposedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kube := newSidecars(t), kubefake.NewClientset()
		m, v := s.mover(kube), volume()
		v.StorageClass, v.Size = "slow", 7
		v.Nodes = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n"}}}}}}}
		taken, err := m.Cut(t.Context(), v, nil)
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		_, err = m.Expose(t.Context(), v, taken, func(words string) {
			said = append(said, words)
			pod, err := kube.CoreV1().Pods(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			of, container := pod.Spec, pod.Spec.Containers[0]
			mounts := slices.ContainsFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return mount.Name == moverVolume && mount.ReadOnly })
			if *of.AutomountServiceAccountToken || !*container.SecurityContext.RunAsNonRoot || !mounts || of.Volumes[0].PersistentVolumeClaim.ReadOnly || of.ImagePullSecrets[0].Name != "pull" || !equality.Semantic.DeepEqual(of.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, v.Nodes.Required) {
				t.Errorf("the pod is %+v", of)
			}
		})
		expectError(t, err, "not within 30m0s", "it waited for the pod "+v.name(), "shop/data")
		if len(said) != 1 || !strings.Contains(said[0], v.name()) {
			t.Errorf("said is %q", said)
		}
		claim, err := kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
		if err != nil || claim.Spec.Resources.Requests.Storage().Value() != 7 || !slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) || *claim.Spec.StorageClassName != "slow" || claim.Spec.DataSource.Name != v.name() {
			t.Errorf("the claim is %+v, %v", claim, err)
		}
		asked := 0
		for _, action := range kube.Actions() {
			if action.Matches("list", "events") {
				asked++
			}
		}
		if most := 2 * int(ExposeTimeout/whyInterval); asked > most || asked == 0 {
			t.Errorf("events were listed %d times in %s, want at most %d", asked, ExposeTimeout, most)
		}
	})
}

// TestExposedDevice: the pod of a block device serves it by a socket, as root without any capability, and can't
// write to it. The content has the mode of the volume: else the provisioner would make a file system. The claim has
// room for the snapshot.
func TestExposedDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kube := newSidecars(t), kubefake.NewClientset()
		m, v := s.mover(kube), volume()
		v.StorageClass, v.Device, v.Size = "slow", true, 3
		taken, err := m.Cut(t.Context(), v, nil)
		if err != nil {
			t.Fatal(err)
		}
		// A goroutine stands for the scheduler and the kubelet.
		go func() {
			synctest.Wait()
			pod, err := kube.CoreV1().Pods(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			pod.Spec.NodeName = "n"
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			if _, err := kube.CoreV1().Pods(m.namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			claim, err := kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if *claim.Spec.VolumeMode != corev1.PersistentVolumeBlock {
				t.Errorf("the claim has the mode %s", *claim.Spec.VolumeMode)
			}
			if size := claim.Spec.Resources.Requests.Storage().Value(); size != 5 {
				t.Errorf("the claim of %d bytes has the size %d, want the snapshot's", v.Size, size)
			}
			claim.Spec.VolumeName = "pv"
			if _, err := kube.CoreV1().PersistentVolumeClaims(m.namespace).Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}()
		exposed, err := m.Expose(t.Context(), v, taken, nil)
		if err != nil {
			t.Fatal(err)
		}
		pod, err := kube.CoreV1().Pods(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		container := pod.Spec.Containers[0]
		if _, dir := restorewait.In(pod); exposed.Device != dir || dir == "" || len(container.VolumeDevices) != 1 || slices.Contains(container.Args, "--writable") {
			t.Errorf("exposed is %+v, by %+v", exposed, container)
		}
		if of := container.SecurityContext; *of.RunAsUser != 0 || *of.AllowPrivilegeEscalation || !slices.Equal(of.Capabilities.Drop, []corev1.Capability{"ALL"}) || of.Privileged != nil {
			t.Errorf("the pod may %+v", of)
		}
		content, err := get[VolumeSnapshotContent](t.Context(), m.objects.Resource(Contents), v.name())
		if err != nil || content.Spec.Mode != "Block" {
			t.Errorf("the content is %+v, %v", content, err)
		}
	})
}

// TestWhyAPodWaits: the status of a pod says why it waits, else the newest warning about the pod or its claim.
func TestWhyAPodWaits(t *testing.T) {
	const namespace = "holdfast-snapshots"
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	event := func(of types.UID, kind, reason, message string, minute int) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(of, minute)}, InvolvedObject: corev1.ObjectReference{UID: of},
			Type: kind, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(at.Add(time.Duration(minute) * time.Minute)),
		}
	}
	refused := event("claim", corev1.EventTypeWarning, "ProvisioningFailed", "no space", 1)
	for name, test := range map[string]struct {
		condition string
		events    []*corev1.Event
		want      string
	}{
		"nothing is known":     {},
		"no node takes it":     {condition: "0/3 nodes are available", events: []*corev1.Event{refused}, want: ": it is on no node: 0/3 nodes are available"},
		"its claim":            {events: []*corev1.Event{refused}, want: ": ProvisioningFailed: no space"},
		"the newest of both":   {events: []*corev1.Event{refused, event("pod", corev1.EventTypeWarning, "FailedAttachVolume", "too many", 2)}, want: ": FailedAttachVolume: too many"},
		"an older one":         {events: []*corev1.Event{refused, event("pod", corev1.EventTypeWarning, "FailedMount", "wrong fs type", 0)}, want: ": ProvisioningFailed: no space"},
		"no warning":           {events: []*corev1.Event{event("pod", corev1.EventTypeNormal, "Scheduled", "to n", 1)}},
		"about another object": {events: []*corev1.Event{event("other", corev1.EventTypeWarning, "FailedMount", "wrong", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := exposedPod("hf-x", "backup")
			pod.UID = "pod"
			if test.condition != "" {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: test.condition}}
			}
			kube := kubefake.NewClientset(pod, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hf-x", UID: "claim"}})
			for _, of := range test.events {
				if err := kube.Tracker().Add(of); err != nil {
					t.Fatal(err)
				}
			}
			if got := newSidecars(t).mover(kube).why(t.Context(), "hf-x"); got != test.want {
				t.Errorf("it says %q, want %q", got, test.want)
			}
		})
	}
}

// TestHideWhatIsNotOurs: objects of the name without the label of this cluster stay.
func TestHideWhatIsNotOurs(t *testing.T) {
	v := volume()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-snapshots", Name: v.name(), Labels: map[string]string{LabelMoverCluster: "that"}}}
	kube := kubefake.NewClientset(pod)
	gone, err := newSidecars(t).mover(kube).Hide(t.Context(), v)
	if _, left := kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); !gone || err != nil || left != nil {
		t.Errorf("gone: %t, %v; the pod: %v", gone, err, left)
	}
}

// TestVolumeOfASnapshotIsDeleted: the volume goes with its claim, also if its class says Retain. Another
// claim's volume never changes.
func TestVolumeOfASnapshotIsDeleted(t *testing.T) {
	for namespace, want := range map[string]corev1.PersistentVolumeReclaimPolicy{
		"holdfast-snapshots": corev1.PersistentVolumeReclaimDelete, "shop": corev1.PersistentVolumeReclaimRetain,
	} {
		v := volume()
		kube := kubefake.NewClientset(
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-snapshots", Name: v.name(), Labels: map[string]string{LabelMoverCluster: ours}}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: namespace}}})
		_, err := newSidecars(t).mover(kube).Hide(t.Context(), v)
		volume, getErr := kube.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
		if getErr != nil || volume.Spec.PersistentVolumeReclaimPolicy != want || (err == nil) != (want == corev1.PersistentVolumeReclaimDelete) {
			t.Errorf("of a claim in %s: %v, %v, %+v", namespace, err, getErr, volume.Spec)
		}
	}
}

// exposedPod is a mover's pod.
func exposedPod(name, backup string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-snapshots", Name: name, Labels: map[string]string{LabelMoverCluster: ours, LabelMoverBackup: backup}}}
}

// TestExposures: exposures are listed with their backups, and hidden by their names. Volumes that were made
// too late go, too.
func TestExposures(t *testing.T) {
	late := func(name, namespace, claim string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim},
		}}
	}
	v := volume()
	kube := kubefake.NewClientset(exposedPod("hf-live", "live"), exposedPod("hf-ended", "ended"), late("pv", "holdfast-snapshots", v.name()), late("of-shop", "shop", v.name()), late("of-others", "holdfast-snapshots", "x"))
	m := newSidecars(t).mover(kube)
	exposed, err := m.Exposed(t.Context())
	if want := map[string]types.UID{"hf-live": "live", "hf-ended": "ended"}; err != nil || !maps.Equal(exposed, want) {
		t.Errorf("exposed are %v, %v", exposed, err)
	}
	for _, want := range []bool{false, true} { // first it is deleted, then gone
		if gone, err := m.HideAll(t.Context(), []string{"hf-ended"}); gone != want || err != nil {
			t.Errorf("gone: %t, %v, want %t", gone, err, want)
		}
	}
	left, err := kube.CoreV1().Pods("holdfast-snapshots").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "hf-live" {
		t.Errorf("left are %v, %v", left.Items, err)
	}
	if err := m.DisposeVolumes(t.Context()); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]corev1.PersistentVolumeReclaimPolicy{"pv": corev1.PersistentVolumeReclaimDelete, "of-shop": corev1.PersistentVolumeReclaimRetain, "of-others": corev1.PersistentVolumeReclaimRetain} {
		if volume, err := kube.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}); err != nil || volume.Spec.PersistentVolumeReclaimPolicy != want {
			t.Errorf("the volume %s is %+v, %v", name, volume.Spec, err)
		}
	}
}

// TestNoVolumeIsLeft: a claim whose volume is being made is deleted when it has it, so that the volume is deleted with
// it. A claim that gets none is deleted in the end.
func TestNoVolumeIsLeft(t *testing.T) {
	for name, test := range map[string]struct {
		provisioner string
		bound       bool // after a minute
		least, most time.Duration
	}{
		"it was not begun": {"", false, 0, time.Second},
		"it is made":       {"d", true, time.Minute, time.Minute + 2*time.Second},
		"it is never made": {"d", false, provisionTime, provisionTime + 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, begun := volume(), time.Now()
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
					Namespace: "holdfast-snapshots", Name: v.name(), CreationTimestamp: metav1.Now(),
					Labels:      map[string]string{LabelMoverCluster: ours},
					Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": test.provisioner},
				}}
				kube := kubefake.NewClientset(claim, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name},
				}})
				m := newSidecars(t).mover(kube)
				claims := kube.CoreV1().PersistentVolumeClaims(claim.Namespace)
				if test.bound {
					time.AfterFunc(time.Minute, func() {
						claim.Spec.VolumeName = "pv"
						if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
					})
				}
				for {
					gone, err := m.Hide(t.Context(), v)
					if err != nil {
						t.Fatal(err)
					}
					if gone {
						break
					}
					time.Sleep(time.Second)
				}
				if lasted := time.Since(begun); lasted < test.least || lasted > test.most+time.Second {
					t.Errorf("it was deleted after %s, want %s", lasted, test.least)
				}
			})
		})
	}
}

// TestEarlierAttemptsAreHidden: each attempt with hooks has names of its own.
func TestEarlierAttemptsAreHidden(t *testing.T) {
	v, kube := volume(), kubefake.NewClientset()
	for v.Attempt = 1; v.Attempt < 4; v.Attempt++ {
		if err := kube.Tracker().Add(exposedPod(v.name(), "backup")); err != nil {
			t.Fatal(err)
		}
	}
	m := newSidecars(t).mover(kube)
	if _, err := m.Hide(t.Context(), v); err != nil {
		t.Error(err)
	}
	if left, err := m.Exposed(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestExposedAgain: what an earlier attempt has hidden in part, or its node has evicted, is made anew.
func TestExposedAgain(t *testing.T) {
	const namespace = "holdfast-snapshots"
	v := volume()
	deleted := metav1.Now()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.name(), DeletionTimestamp: &deleted, Finalizers: []string{"x"}}}
	evicted := exposedPod(v.name(), "backup")
	evicted.Status.Phase, evicted.Status.Message = corev1.PodFailed, "the node had no memory"
	earlier := exposedPod(v.name(), "backup")
	earlier.Annotations = map[string]string{annotationHandle: "of an earlier cut"}
	bound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.name()}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	for name, test := range map[string]struct {
		kube  []runtime.Object
		half  bool // its VolumeSnapshot is being deleted
		words string
	}{
		"a claim that is being deleted":          {kube: []runtime.Object{claim, exposedPod(v.name(), "backup")}, words: "the deletion of the claim"},
		"a claim that is gone":                   {kube: []runtime.Object{exposedPod(v.name(), "backup")}, words: "the pod"},
		"a VolumeSnapshot that is being deleted": {half: true, words: "the deletion of the VolumeSnapshot"},
		"a pod with an earlier cut":              {kube: []runtime.Object{bound, earlier}, words: "the pod"},
		"an evicted pod":                         {kube: []runtime.Object{bound, evicted}, words: "to be made anew: the node had no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, v := newSidecars(t), volume()
				var objects []runtime.Object
				for _, object := range test.kube {
					object = object.DeepCopyObject()
					if pod, ok := object.(*corev1.Pod); ok {
						pod.CreationTimestamp = metav1.Now()
					}
					objects = append(objects, object)
				}
				kube := kubefake.NewClientset(objects...)
				m, pods, claims := s.mover(kube), kube.CoreV1().Pods(namespace), kube.CoreV1().PersistentVolumeClaims(namespace)
				taken, err := m.Cut(t.Context(), v, nil)
				if err != nil {
					t.Fatal(err)
				}
				if test.half {
					object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": Version.String(), "kind": "VolumeSnapshot", "metadata": map[string]any{"name": v.name(), "namespace": namespace, "uid": "half", "resourceVersion": "1"}}}
					object.SetDeletionTimestamp(&deleted)
					if err := s.Tracker().Create(Snapshots, object, namespace); err != nil {
						t.Fatal(err)
					}
				}
				var said []string
				exposed, err := m.Expose(t.Context(), v, taken, func(words string) {
					said = append(said, words)
					switch { // it goes on as in a cluster
					case strings.HasPrefix(words, "the deletion of the claim"):
						if err := kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), namespace, v.name()); err != nil {
							t.Error(err)
						}
					case strings.HasPrefix(words, "the deletion of the VolumeSnapshot"):
						if err := s.Tracker().Delete(Snapshots, namespace, v.name()); err != nil {
							t.Error(err)
						}
					case words == "the pod "+v.name():
						claim, err := claims.Get(t.Context(), v.name(), metav1.GetOptions{})
						if err != nil {
							t.Error(err)
							return
						}
						claim.Spec.VolumeName = "pv"
						if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
						pod, err := pods.Get(t.Context(), v.name(), metav1.GetOptions{})
						if err != nil {
							t.Error(err)
							return
						}
						pod.Spec.NodeName, pod.Status.ContainerStatuses = "n", []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
						if _, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
					}
				})
				if err != nil || exposed.Node != "n" || exposed.PersistentVolume != "pv" {
					t.Errorf("exposed is %+v, %v, after %q", exposed, err, said)
				}
				if len(said) == 0 || !strings.Contains(said[0], test.words) {
					t.Errorf("said is %q, want first %q", said, test.words)
				}
				if pod, err := pods.Get(t.Context(), v.name(), metav1.GetOptions{}); err != nil || cmp.Or(pod.Annotations[annotationHandle], taken.Handle) != taken.Handle {
					t.Errorf("the pod has another cut, or %v", err)
				}
			})
		})
	}
}

// TestStuckOnANode: a node that has the pod and does not run it is named after ten minutes, so that another is
// tried. A second try has the whole time.
func TestStuckOnANode(t *testing.T) {
	for try, want := range map[int32]time.Duration{1: stuckAfter, 2: ExposeTimeout} {
		t.Run(fmt.Sprint(try), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, begun := volume(), time.Now()
				v.Try = try
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-snapshots", Name: v.exposure()}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
				pod := exposedPod(v.exposure(), string(v.Backup))
				pod.Spec.NodeName, pod.Status.Phase = "n", corev1.PodPending
				_, err := newSidecars(t).mover(kubefake.NewClientset(claim, pod)).Expose(t.Context(), v, Taken{Handle: "h"}, nil)
				stuck := StuckError{}
				if lasted := time.Since(begun); err == nil || errors.As(err, &stuck) != (try < 2) || lasted < want || lasted > want+time.Minute {
					t.Fatalf("after %s it is %v", lasted, err)
				}
				if try < 2 && stuck.Node != pod.Spec.NodeName {
					t.Errorf("the node is %q, want %q", stuck.Node, pod.Spec.NodeName)
				}
			})
		})
	}
}

// TestWhereMoversRun: a pod runs beside an agent. It tolerates the taints of pools, and no node that is
// drained or does not work.
func TestWhereMoversRun(t *testing.T) {
	tainted := func(name string, keys ...string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, key := range keys {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		return node
	}
	kube := kubefake.NewClientset(tainted("a", "pool", corev1.TaintNodeUnreachable), tainted("b", "example.com/gpu", "pool", corev1.TaintNodeUnschedulable), tainted("c", "node.cloudprovider.kubernetes.io/shutdown", "karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"))
	m, v := newSidecars(t).mover(kube), volume()
	pod, err := m.pod(t.Context(), &v, &Taken{}, metav1.ObjectMeta{})
	if err != nil {
		t.Fatal(err)
	}
	want := []corev1.Toleration{{Key: "example.com/gpu", Operator: corev1.TolerationOpExists}, {Key: "pool", Operator: corev1.TolerationOpExists}}
	if !equality.Semantic.DeepEqual(pod.Spec.Tolerations, want) {
		t.Errorf("the tolerations are %+v", pod.Spec.Tolerations)
	}
	manifests, err := os.ReadFile("../../artifacts/deploy/node-agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	agents := appsv1.DaemonSet{}
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		if strings.Contains(document, "kind: DaemonSet") {
			if err := yaml.Unmarshal([]byte(document), &agents); err != nil {
				t.Fatal(err)
			}
		}
	}
	term := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil || !selector.Matches(labels.Set(agents.Spec.Template.Labels)) || !slices.Equal(term.Namespaces, []string{agents.Namespace}) || term.TopologyKey != corev1.LabelHostname {
		t.Errorf("the affinity is %+v, %v, and the agents have %v in %s", term, err, agents.Spec.Template.Labels, agents.Namespace)
	}
}

// TestSecondExposure: a second try has a pod of another name, on another node if there is one. Both are hidden.
func TestSecondExposure(t *testing.T) {
	kube := kubefake.NewClientset()
	s := newSidecars(t)
	s.absent = true
	m, first := s.mover(kube), volume()
	first.Moved, first.Nodes = true, &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
	second := first
	second.Try, second.Avoid = 2, "node-7"
	for _, v := range []Volume{first, second} {
		if _, _, err := m.expose(t.Context(), &v, &Taken{Handle: "h"}); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := kube.CoreV1().Pods("holdfast-snapshots").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	for _, pod := range pods.Items {
		node := pod.Spec.Affinity.NodeAffinity
		terms := node.PreferredDuringSchedulingIgnoredDuringExecution
		avoids := len(terms) == 1 && slices.Equal(terms[0].Preference.MatchFields[0].Values, []string{"node-7"})
		if node.RequiredDuringSchedulingIgnoredDuringExecution == nil || avoids != (pod.Name == second.exposure()) || second.name() != first.name() {
			t.Errorf("the affinity of %s is %+v", pod.Name, node)
		}
	}
	for range 6 {
		if gone, err := m.Hide(t.Context(), second); err != nil {
			t.Fatal(err)
		} else if gone {
			break
		}
	}
	if pods, err = kube.CoreV1().Pods("holdfast-snapshots").List(t.Context(), metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods are left, %v", len(pods.Items), err)
	}
}
