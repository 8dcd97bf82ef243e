// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

func (s *sidecars) mover(kube *kubefake.Clientset) *Mover {
	return NewMover(s.client(), kube, "holdfast-snapshots", func(context.Context) (string, error) { return "image", nil }, []string{"pull"})
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
			v.ClaimUID = types.UID(of)
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
	})
}

// TestPlacesAreBounded: so many volumes are exposed at a time.
func TestPlacesAreBounded(t *testing.T) {
	m := newSidecars(t).mover(kubefake.NewClientset())
	var last func()
	for range atOnceExposed {
		leave, err := m.Place(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = leave
	}
	full, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Place(full); err == nil {
		t.Error("there is one more place")
	}
	last()
	if _, err := m.Place(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestExposedPod: the pod has no privilege and no account, mounts the volume as read-only, and goes where
// the volume can be used. What it waits for is told; an exposure that never runs ends.
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
			if *of.AutomountServiceAccountToken || !*container.SecurityContext.RunAsNonRoot || !mounts || of.ImagePullSecrets[0].Name != "pull" || !equality.Semantic.DeepEqual(of.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, v.Nodes.Required) {
				t.Errorf("the pod is %+v", of)
			}
		})
		expectError(t, err, "not within 30m0s", "it waited for the pod "+v.name(), "shop/data")
		if len(said) != 1 || !strings.Contains(said[0], v.name()) {
			t.Errorf("said is %q", said)
		}
		claim, err := kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(t.Context(), v.name(), metav1.GetOptions{})
		if err != nil || claim.Spec.Resources.Requests.Storage().Value() != 7 || *claim.Spec.StorageClassName != "slow" || claim.Spec.DataSource.Name != v.name() {
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

// TestSweepExposed: the exposures of ended backups are hidden, and no others.
func TestSweepExposed(t *testing.T) {
	of := func(backup string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-snapshots", Name: "hf-" + backup, Labels: map[string]string{LabelMoverCluster: ours, LabelMoverBackup: backup}}}
	}
	kube := kubefake.NewClientset(of("live"), of("ended"))
	m := newSidecars(t).mover(kube)
	for _, want := range []bool{false, true} { // first it is deleted, then gone
		gone, err := m.SweepExposed(t.Context(), func(backup types.UID) bool { return backup == "live" })
		if gone != want || err != nil {
			t.Errorf("gone: %t, %v, want %t", gone, err, want)
		}
	}
	left, err := kube.CoreV1().Pods("holdfast-snapshots").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "hf-live" {
		t.Errorf("left are %v, %v", left.Items, err)
	}
}
