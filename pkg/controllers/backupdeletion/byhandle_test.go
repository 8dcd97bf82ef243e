// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// writeKept puts a backup of nobody's into the store, with a volume in its storage, a moved one, and one whose snapshot
// stays beside its moved data.
func (w *world) writeKept(name string) {
	w.Helper()
	writeBackup(w, w.faulty, name, uidOf(name), "k1")
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: uidOf(name)}}
	kept := format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: app}, ClaimName: "data", ClaimUID: "claim",
		Snapshot: &format.SnapshotSource{Driver: "d", Kept: true, Cut: &format.SnapshotCut{Handle: "snap-1"}},
		Status:   enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted},
	}
	moved := kept
	moved.ClaimName, moved.Snapshot, moved.Status.SnapshotID = "moved", nil, "k1"
	both := moved
	both.ClaimName, both.Snapshot = "both", &format.SnapshotSource{Driver: "d", KeepLocal: 3, Cut: &format.SnapshotCut{Handle: "snap-2"}}
	writeVolumes(w, w.faulty, name, format.NewPodVolumeBackup(backup, name, kept), format.NewPodVolumeBackup(backup, name, moved), format.NewPodVolumeBackup(backup, name, both))
}

func (w *world) removeInfos(name string) {
	w.Helper()
	object, err := w.faulty.Attributes(w.Context(), format.VolumeInfoKey(name))
	must(w, err)
	must(w, w.faulty.Delete(w.Context(), object))
}

func zipped(text string) []byte {
	var content bytes.Buffer
	zip := gzip.NewWriter(&content)
	_, _ = zip.Write([]byte(text))
	_ = zip.Close()
	return content.Bytes()
}

// TestSnapshotsByHandle: the snapshots that only a backup names are adopted before anything of it is removed, and
// only if its deletion asks for that, and its location trusts its writers. Until they are, it is whole.
func TestSnapshotsByHandle(t *testing.T) {
	lost := []snapshots.Lost{
		{Backup: uidOf("a"), StoreName: "a", Location: "default", Claim: "claim", Driver: "d", Handle: "snap-1"},
		{Backup: uidOf("a"), StoreName: "a", Location: "default", Claim: "claim", Driver: "d", Handle: "snap-2"},
	}
	for name, test := range map[string]struct {
		asked, trusted, off bool
		fails               error
		lists               func(w *world)
		adopted             []snapshots.Lost
		says                string
	}{
		"asked for":                   {asked: true, trusted: true, adopted: lost},
		"not asked for":               {trusted: true},
		"not trusted":                 {asked: true, says: "set spec.trustSnapshotHandles of its storage location"},
		"while the driver is away":    {asked: true, trusted: true, fails: errors.New("no answer"), adopted: lost, says: "found in the storage: no answer"},
		"while no snapshots are used": {asked: true, trusted: true, off: true, says: "start it with --snapshots"},
		"without known handles": {asked: true, trusted: true, lists: func(w *world) {
			writeInfos(w, w.faulty, "a", format.VolumeInfo{PVCNamespace: app, PVCName: "old", BackupMethod: format.MethodCSISnapshot})
		}, says: "does not tell the handles of 1: "},
		"of Velero before 1.13": {asked: true, trusted: true, lists: func(w *world) {
			w.removeInfos("a")
			must(w, w.faulty.Put(w.Context(), format.CSISnapshotsKey("a"), zipped(`[{"metadata":{"name":"one"}},{"metadata":{"name":"two"}}]`)))
		}, says: "does not tell the handles of 2: "},
		"of Velero before 1.13, without any": {asked: true, trusted: true, lists: func(w *world) {
			w.removeInfos("a")
			must(w, w.faulty.Put(w.Context(), format.CSISnapshotsKey("a"), zipped(`[]`)))
		}, adopted: lost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				w.writeKept("a")
				if test.lists != nil {
					test.lists(w)
				}
				locations := w.EngineV1alpha1().StorageLocations(system)
				record, err := locations.Get(t.Context(), "default", metav1.GetOptions{})
				must(t, err)
				record.Spec.TrustSnapshotHandles = test.trusted
				_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
				must(t, err)
				run := completed("a")
				run.Spec.BackupRef.Namespace = system // administrators are told more
				run.Spec.Deletion.SnapshotsByHandle = test.asked
				w.Create(run)
				var adopted []snapshots.Lost
				adopt := func(_ context.Context, lost []snapshots.Lost) error {
					if !w.has(format.MetadataKey("a")) || w.run("a") == nil {
						t.Error("adopted is what was removed")
					}
					adopted = lost
					return test.fails
				}
				if test.off {
					adopt = nil
				}
				d := &discards{w: w, name: "a"}
				w.startDiscarding(d.discard, adopt)
				time.Sleep(time.Minute)
				synctest.Wait()
				if diff := gocmp.Diff(test.adopted, adopted); diff != "" {
					t.Errorf("adopted (-want +got):\n%s", diff)
				}
				left := w.run("a")
				if (left == nil) != (test.says == "") || left != nil && !strings.Contains(left.Status.FailureReason, test.says) {
					t.Errorf("the record is %+v, want %q", left, test.says)
				}
				if waits := test.says != ""; w.has(format.MetadataKey("a")) != waits || (len(d.called()) == 0) != waits {
					t.Errorf("left is %q, and discarded were %q", w.keys("a"), d.called())
				}
			})
		})
	}
}
