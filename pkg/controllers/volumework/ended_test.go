// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework_test

import (
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestPodsThatWaitAreTold what became of their volumes, also by an agent that starts after
// the one that could not tell them, and also when the kubelet is late with the emptyDir.
func TestPodsThatWaitAreTold(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	records := h.engine.EngineV1alpha1().VolumeRestores(system)
	create := func(name, onNode, waitVolume string, status enginev1alpha1.VolumeRestoreStatus) {
		_, err := records.Create(t.Context(), &enginev1alpha1.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
			Spec: enginev1alpha1.VolumeRestoreSpec{
				Node: onNode, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: name,
				BackupStorageLocation: "default", Repository: repo, WaitVolume: waitVolume,
			},
			Status: status,
		}, metav1.CreateOptions{})
		must(t, err)
	}
	completed := enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted, Message: "a warning"}
	create("data", node, "wait", completed)
	create("logs", node, "wait", enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "the disk is full"})
	create("late", node, "wait-late", completed)
	create("elsewhere", "node-2", "wait", completed)
	create("running", node, "", completed)
	dir := h.volume("wait")
	h.startRestores()
	told := func(dir, volume, want string) {
		t.Helper()
		got := ""
		h.eventually(func() bool {
			content, _ := os.ReadFile(filepath.Join(dir, volume))
			got = string(content)
			return got == want+"\n"
		}, func() string { return "of volume " + volume + " the pod was told " + got })
	}
	told(dir, "data", "complete")
	told(dir, "logs", "failed: the disk is full")
	told(h.volume("wait-late"), "late", "complete")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("it was told %v, %v", entries, err)
	}
}
