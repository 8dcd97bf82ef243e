// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// podOn is a running pod of a node that mounts the claim data.
func podOn(node, name string) string {
	return strings.Replace(podWith(name, "", "d"+claimData), `"nodeName":"n1"`, fmt.Sprintf(`"nodeName":%q`, node), 1)
}

// TestAClaimIsReadThroughTheNextPod: a pod or a node that fails does not decide over a claim
// that others mount too.
func TestAClaimIsReadThroughTheNextPod(t *testing.T) {
	for name, test := range map[string]struct {
		pods   []string
		fail   []string
		want   []string
		phase  v1alpha1.BackupPhase
		errors []string
		counts v1alpha1.BackupVolumesProgress
	}{
		"of another node, if there is one": {
			pods: []string{podOn("n1", "p1"), podOn("n1", "p2"), podOn("n2", "p3")}, fail: []string{"p1"},
			want: []string{"p1", "p3"}, phase: v1alpha1.BackupPhaseCompleted, counts: v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1},
		},
		"of the same node": {
			pods: []string{podOn("n1", "p1"), podOn("n1", "p2")}, fail: []string{"p1"},
			want: []string{"p1", "p2"}, phase: v1alpha1.BackupPhaseCompleted, counts: v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1},
		},
		"until none is left": {
			pods: []string{podOn("n1", "p1"), podOn("n2", "p2"), podIn("Pending", "p3", "", "d"+claimData)}, fail: []string{"p1", "p2"},
			want: []string{"p1", "p2"}, phase: v1alpha1.BackupPhasePartiallyFailed, counts: v1alpha1.BackupVolumesProgress{Total: 1, Failed: 1},
			errors: []string{"pods shop/p2: volume d of claim data could not be uploaded: p2 is torn; and through pod p1 on node n1: p1 is torn"},
		},
		"of three at most": {
			pods: []string{podOn("n1", "p1"), podOn("n2", "p2"), podOn("n3", "p3"), podOn("n4", "p4")}, fail: []string{"p1", "p2", "p3", "p4"},
			want: []string{"p1", "p2", "p3"}, phase: v1alpha1.BackupPhasePartiallyFailed, counts: v1alpha1.BackupVolumesProgress{Total: 1, Failed: 1},
			errors: []string{"pods shop/p3: volume d of claim data could not be uploaded: p3 is torn; and through pod p2 on node n2: p2 is torn; and through pod p1 on node n1: p1 is torn"},
		},
		"of none that excludes it": {
			pods: []string{podOn("n1", "p1"), strings.Replace(podOn("n2", "p2"), `"annotations":{`, `"annotations":{"backup.holdfast.io/backup-volumes-excludes":"d"`, 1)}, fail: []string{"p1"},
			want: []string{"p1"}, phase: v1alpha1.BackupPhasePartiallyFailed, counts: v1alpha1.BackupVolumesProgress{Total: 1, Failed: 1},
			errors: []string{"pods shop/p1: volume d of claim data could not be uploaded: p1 is torn"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.request.Backup.Spec.DefaultVolumesToFsBackup = nil
			f.add("namespaces", namespace("shop", ""))
			f.add("persistentvolumes", `{"metadata":{"name":"pv-data"},"spec":{"csi":{}}}`)
			f.add("persistentvolumeclaims", `{"metadata":{"name":"data","namespace":"shop","uid":"claim-data"},"spec":{"volumeName":"pv-data"},"status":{"phase":"Bound"}}`)
			f.add("pods", test.pods...)
			f.volumes.result = func(volume *format.Volume) enginev1alpha1.VolumeUploadStatus {
				if slices.Contains(test.fail, volume.Pod.Name) {
					return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: volume.Pod.Name + " is torn"}
				}
				return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"}
			}
			outcome := f.run(t)
			var got []string
			for _, volume := range f.volumes.submitted {
				got = append(got, volume.Pod.Name)
				if volume.ClaimUID != "claim-data" || volume.PersistentVolume != "pv-data" {
					t.Errorf("through %s the claim is %+v", volume.Pod.Name, volume)
				}
			}
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("handed over (-want +got):\n%s", diff)
			}
			if outcome.Status.Phase != test.phase || *outcome.Status.Volumes != test.counts {
				t.Errorf("got %s, %+v", outcome.Status.Phase, outcome.Status.Volumes)
			}
			results := f.results(t)
			if diff := gocmp.Diff(test.errors, results.Errors.Namespaces["shop"]); len(test.errors) > 0 && diff != "" || len(results.Warnings.Namespaces["shop"]) > 0 {
				t.Errorf("errors (-want +got):\n%s, and warnings %v", diff, results.Warnings)
			}
			var listed []string
			err := format.ReadPodVolumeBackups(bytes.NewReader(f.read(t, format.PodVolumeBackupsKey("b"))), func(pvb format.PodVolumeBackup) error {
				listed = append(listed, pvb.Spec.Pod.Name)
				return nil
			})
			if err != nil || len(listed) != 1 || listed[0] != test.want[len(test.want)-1] {
				t.Errorf("listed are %v, %v", listed, err)
			}
		})
	}
}

// TestTheNextPodIsReadBeforePostHooks: pods that share a claim stay frozen until it is read,
// through whichever of them.
func TestTheNextPodIsReadBeforePostHooks(t *testing.T) {
	hooked := func(pod string) string {
		return strings.Replace(pod, `"annotations":{`, `"annotations":{"post.hook.backup.holdfast.io/command":"thaw"`, 1)
	}
	f := hookedFixture(t, v1alpha1.BackupHooks{}, hooked(podOn("n1", "p1")), podOn("n2", "p2"))
	f.volumes.result = func(volume *format.Volume) enginev1alpha1.VolumeUploadStatus {
		f.hooks.note("read " + volume.Pod.Name)
		if volume.Pod.Name == "p1" {
			return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "torn"}
		}
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"}
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("got %+v", outcome.Status)
	}
	thaw := slices.IndexFunc(f.hooks.events, func(event string) bool { return strings.Contains(event, "thaw") })
	if read := slices.Index(f.hooks.events, "read p2"); thaw < 0 || read < 0 || read > thaw {
		t.Errorf("the order is %q", f.hooks.events)
	}
}
