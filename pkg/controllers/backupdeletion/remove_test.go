// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestWholeDeletion removes one of two backups that share a repository, and counts
// what that costs.
func TestWholeDeletion(t *testing.T) {
	w := newVolumeWorld(t)
	w.Create(completed("going"))
	w.start()
	w.waitGone("going")

	if left := w.keys("going"); len(left) != 0 {
		t.Errorf("there are still %q", left)
	}
	w.expectWhole("staying")
	w.expectSnapshots(map[string]bool{template.going: false, template.staying: true})
	want := map[storetest.Operation]int{
		storetest.Attributes: 1,                               // the metadata
		storetest.Get:        3 + 2,                           // the metadata, the owner, the list of volumes; and the owner after each listing
		storetest.Delete:     1 + len(sideFiles("going")) + 3, // the metadata, the others, the copy, the list of volumes and the owner
		storetest.List:       2,
	}
	if diff := cmp.Diff(want, w.faulty.Counts()); diff != "" {
		t.Errorf("requests to the store (-want +got):\n%s", diff)
	}
	if n := w.writes(); n != 0 {
		t.Errorf("%d writes of the status", n)
	}
	if events := w.announced(); len(events) != 1 || !strings.HasPrefix(events[0], "Normal Deleted") {
		t.Errorf("the events are %q", events)
	}
}

// step is a moment of a deletion at which it is stopped.
type step struct {
	operation storetest.Operation
	key       string
	// nth call of the operation, from 1.
	nth int
}

func steps(storeName string) []step {
	all := []step{
		{storetest.Attributes, format.MetadataKey(storeName), 1},
		{storetest.Get, format.MetadataKey(storeName), 1},
		{storetest.Get, format.OwnerKey(storeName), 2},
		{storetest.Get, format.PodVolumeBackupsKey(storeName), 3},
		{storetest.Delete, format.MetadataKey(storeName), 1},
		{storetest.List, format.BackupPrefix(storeName), 1},
	}
	for i, key := range append(sideFiles(storeName), format.CopyKey(storeName), format.PodVolumeBackupsKey(storeName), format.OwnerKey(storeName)) {
		all = append(all, step{storetest.Delete, key, 2 + i})
	}
	return all
}

// TestStoppedAnywhere stops a deletion at each request to the store, by an error or
// with the process, and lets another process finish it.
func TestStoppedAnywhere(t *testing.T) {
	for i, step := range steps("going") {
		t.Run(fmt.Sprintf("%s %s", step.operation, filepath.Base(step.key)), func(t *testing.T) {
			// Opening repositories takes most of the time: not for each of the side files.
			withVolume := step.operation != storetest.Delete || step.nth <= 2
			var w *world
			if withVolume {
				w = newVolumeWorld(t)
			} else {
				w = newWorld(t, t.TempDir())
				writeBackup(t, w.faulty, "going", uidOf("going"))
				writeBackup(t, w.faulty, "staying", uidOf("staying"))
			}
			// Half of them with the process: an hour's delay ends with it.
			fault := storetest.Fault{Operation: step.operation, Key: step.key, Delay: time.Hour}
			if i%2 == 0 {
				fault = storetest.Fault{Operation: step.operation, Key: step.key, Err: fmt.Errorf("%w: it went away", store.ErrUnavailable)}
			}
			w.faulty.Inject(fault)
			w.Create(completed("going"))
			stop := w.start()
			if fault.Err != nil {
				w.waitReason("going")
			} else {
				w.eventually("the request begins", func() bool { return w.faulty.Count(step.operation) == step.nth })
			}
			stop()
			w.expectInOrder("going")
			if withVolume && step.operation == storetest.Delete && step.nth == 1 {
				w.expectSnapshots(map[string]bool{template.going: true}) // with its metadata a backup can be restored
			}

			w.faulty.Inject()
			w.start()
			w.waitGone("going")
			if left := w.keys("going"); len(left) != 0 {
				t.Errorf("there are still %q", left)
			}
			w.expectWhole("staying")
			if withVolume {
				w.expectSnapshots(map[string]bool{template.going: false, template.staying: true})
			}
		})
	}
}

// expectInOrder checks what must hold at every moment: with its metadata a backup
// is whole, and as long as anything else is there, so is the list of volumes.
func (w *world) expectInOrder(storeName string) {
	w.Helper()
	left := w.keys(storeName)
	if slices.Contains(left, format.MetadataKey(storeName)) {
		w.expectWhole(storeName)
	}
	if len(left) > 1 && !slices.Contains(left, format.PodVolumeBackupsKey(storeName)) {
		w.Errorf("without the list of volumes there are %q", left)
	}
	if len(left) > 0 && !slices.Contains(left, format.OwnerKey(storeName)) {
		w.Errorf("without an owner there are %q", left)
	}
}

// TestRecordSurvives loses the requests about the record.
func TestRecordSurvives(t *testing.T) {
	for name, fault := range map[string]enginetest.Fault{
		"refused":     {Err: errors.New("the API server is away")},
		"answer lost": {Err: errors.New("the connection broke"), Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			writeBackup(t, w.faulty, "going", uidOf("going"))
			tries := 0
			w.Fault(func(action clienttesting.Action) enginetest.Fault {
				if action.GetVerb() != "delete" {
					return enginetest.Fault{}
				}
				if tries++; tries > 1 {
					return enginetest.Fault{}
				}
				return fault
			})
			w.Create(completed("going"))
			w.start()
			w.waitGone("going")
			if left := w.keys("going"); len(left) != 0 {
				t.Errorf("there are still %q", left)
			}
		})
	}
}

// TestCreatedForDeletion removes a backup whose own run is gone: its uid is that of
// the request.
func TestCreatedForDeletion(t *testing.T) {
	w := newWorld(t, t.TempDir())
	writeBackup(t, w.faulty, "going", "uid-in-the-store")
	run := completed("going")
	run.Status = enginev1alpha1.BackupRunStatus{}
	run.Spec.Deletion.Stored = &enginev1alpha1.StoredBackup{UID: "uid-in-the-store", CreationTimestamp: instant}
	w.Create(run)
	w.start()
	w.waitGone("going")
	if left := w.keys("going"); len(left) != 0 {
		t.Errorf("there are still %q", left)
	}
}

// TestOtherBackups: what belongs to another backup is not touched, whatever the
// record says.
func TestOtherBackups(t *testing.T) {
	unstored := func(run *enginev1alpha1.BackupRun) {
		run.Status.Phase, run.Status.Stored = v1alpha1.BackupPhaseFailed, false
	}
	cases := map[string]struct {
		change func(*enginev1alpha1.BackupRun)
		reason string // part of what is said, or empty when the record goes
	}{
		"stored": {func(*enginev1alpha1.BackupRun) {}, "the uid namesake instead of uid-of-a"},
		"created for a deletion": {func(run *enginev1alpha1.BackupRun) {
			run.Status = enginev1alpha1.BackupRunStatus{}
			run.Spec.Deletion.Stored = &enginev1alpha1.StoredBackup{UID: "the one before"}
		}, "the uid namesake instead of the one before"},
		"failed without being stored": {unstored, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			writeBackup(t, w.faulty, "a", "namesake")
			w.faulty.Reset()
			run := completed("a")
			c.change(run)
			w.Create(run)
			w.start()
			if c.reason == "" {
				w.waitGone("a")
			} else if reason := w.waitReason("a"); !strings.Contains(reason, c.reason) {
				t.Errorf("the status says %q, want %q", reason, c.reason)
			}
			w.expectWhole("a")
			if n := w.faulty.Count(storetest.Delete); n != 0 {
				t.Errorf("%d removals from the store", n)
			}
		})
	}
}

// TestNeverStarted: a run that ended before it began has nothing in the store, and
// the store is not needed. A folder of its name is of another cluster's backup that
// is being written.
// Pitfall 25: so its deletion can't fail for want of a storage location.
func TestNeverStarted(t *testing.T) {
	w := newWorld(t, t.TempDir())
	must(t, w.faulty.Put(t.Context(), format.TarballKey("a"), []byte("of somebody else")))
	w.faulty.Reset()
	w.setAvailable(metav1.ConditionFalse)
	run := completed("a")
	run.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCancelled}
	w.Create(run)
	w.start()
	w.waitGone("a")
	if left, counts := w.keys("a"), w.faulty.Counts(); len(left) != 1 || len(counts) != 0 {
		t.Errorf("%q are left after the requests %v", left, counts)
	}
}

// TestUnfinishedNamesake: a folder without metadata, whose list names another
// backup, is somebody else's.
func TestUnfinishedNamesake(t *testing.T) {
	w := newWorld(t, t.TempDir())
	writeBackup(t, w.faulty, "a", "namesake", "its-snapshot")
	for _, key := range []string{format.MetadataKey("a"), format.OwnerKey("a")} {
		object, err := w.faulty.Attributes(t.Context(), key)
		must(t, err)
		must(t, w.faulty.Delete(t.Context(), object))
	}
	w.Create(completed("a"))
	w.start()
	if reason := w.waitReason("a"); !strings.Contains(reason, "lists volumes of another backup, with the uid namesake") {
		t.Errorf("the status says %q", reason)
	}
	if got, want := len(w.keys("a")), len(sideFiles("a"))+2; got != want {
		t.Errorf("%d objects are left, want %d", got, want)
	}
}

// TestLeftovers: of a run that failed before it was stored, the parts go.
func TestLeftovers(t *testing.T) {
	w := newWorld(t, t.TempDir())
	must(t, w.faulty.Put(t.Context(), format.TarballKey("a"), []byte("a part")))
	must(t, os.WriteFile(filepath.Join(w.folder, "backups/a/.holdfast-x.tmp"), []byte("unfinished"), 0o600))
	run := completed("a")
	run.Status.Phase, run.Status.Stored = v1alpha1.BackupPhaseFailed, false
	w.Create(run)
	w.start()
	w.waitGone("a")
	if left := w.keys("a"); len(left) != 0 {
		t.Errorf("there are still %q", left)
	}
}

// TestLeftoverSnapshots: no list names them, but the record says where they are.
func TestLeftoverSnapshots(t *testing.T) {
	w := newVolumeWorld(t)
	writeBackup(t, w.faulty, "failed", uidOf("failed"))
	run := completed("failed")
	run.Status.Phase, run.Status.LeftoverSnapshots = v1alpha1.BackupPhaseFailed, []string{app, "without-a-repository"}
	w.Create(run)
	w.start()
	w.waitGone("failed")
	w.expectSnapshots(map[string]bool{template.unlisted: false, template.going: true, template.staying: true})
}

// TestLeftoverSnapshotsOfATakenName: the folder is another backup's, and stays.
func TestLeftoverSnapshotsOfATakenName(t *testing.T) {
	w := newVolumeWorld(t)
	writeBackup(t, w.faulty, "failed", "uid-of-another")
	run := completed("failed")
	run.Status.Phase, run.Status.Stored, run.Status.LeftoverSnapshots = v1alpha1.BackupPhaseFailedValidation, false, []string{app}
	w.Create(run)
	w.start()
	w.waitGone("failed")
	w.expectWhole("failed")
	w.expectSnapshots(map[string]bool{template.unlisted: false, template.going: true, template.staying: true})
}

// TestLeftoverSnapshotsThatStay: the record of a backup whose name was taken is all that
// tells of its snapshots, so it stays until they are gone.
func TestLeftoverSnapshotsThatStay(t *testing.T) {
	w := newVolumeWorld(t)
	w.removeKey()
	writeBackup(t, w.faulty, "failed", "uid-of-another")
	run := completed("failed")
	run.Status.Phase, run.Status.Stored, run.Status.LeftoverSnapshots = v1alpha1.BackupPhaseFailedValidation, false, []string{app}
	w.Create(run)
	w.start()
	if reason := w.waitReason("failed"); !strings.Contains(reason, "key is missing") {
		t.Errorf("the status says %q", reason)
	}
}

// TestUnlistedSnapshots: a volume that was not uploaded in time may have been later.
func TestUnlistedSnapshots(t *testing.T) {
	w := newVolumeWorld(t)
	writeBackup(t, w.faulty, "failed", uidOf("failed"))
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "failed", UID: uidOf("failed")}}
	writeVolumes(t, w.faulty, "failed", format.NewPodVolumeBackup(backup, "failed", format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: app, Name: "web-0"}, Name: "data",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed},
	}))
	run := completed("failed")
	run.Status.Phase = v1alpha1.BackupPhasePartiallyFailed
	w.Create(run)
	w.start()
	w.waitGone("failed")
	w.expectSnapshots(map[string]bool{template.unlisted: false, template.going: true, template.staying: true})
}

// TestUncertain: what can't be read is not removed.
func TestUncertain(t *testing.T) {
	for name, c := range map[string]struct{ key, content, reason string }{
		"metadata": {format.MetadataKey("a"), "{", "so nothing is removed"},
		"unfinished": {format.MetadataKey("a"), `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"uid-of-a"},"status":{"phase":"InProgress"}}`,
			"the backup is not finished"},
		"owner":           {format.OwnerKey("a"), "<html>", "so nothing is removed"},
		"list of volumes": {format.PodVolumeBackupsKey("a"), "not gzip", "remove that object by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			writeBackup(t, w.faulty, "a", uidOf("a"), "its-snapshot")
			must(t, w.faulty.Put(t.Context(), c.key, []byte(c.content)))
			w.Create(completed("a"))
			w.start()
			if reason := w.waitReason("a"); !strings.Contains(reason, c.reason) {
				t.Errorf("the status says %q, want %q", reason, c.reason)
			}
			w.expectWhole("a")
		})
	}
}

// TestStoreAwayFromTheList: only a list that is bad may be given up by hand, and no list
// that can't be fetched.
func TestStoreAwayFromTheList(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"denied":      {Err: store.ErrDenied},
		"unavailable": {Err: store.ErrUnavailable},
		"cut off":     {Err: store.ErrUnavailable, Truncate: true, After: 20},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			writeBackup(t, w.faulty, "a", uidOf("a"), "its-snapshot")
			fault.Operation, fault.Key = storetest.Get, format.PodVolumeBackupsKey("a")
			w.faulty.Inject(fault)
			w.Create(completed("a"))
			w.start()
			if reason := w.waitReason("a"); strings.Contains(reason, "by hand") || !strings.Contains(reason, fault.Err.Error()) {
				t.Errorf("the status says %q", reason)
			}
			w.faulty.Inject()
			w.expectWhole("a")
		})
	}
}

// TestReappears: metadata that comes while the rest is removed is another writer's, or
// a late write of the backup's own.
func TestReappears(t *testing.T) {
	for name, uid := range map[string]types.UID{"of somebody else": "another", "its own": uidOf("a")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			writeBackup(t, w.faulty, "a", uid)
			object, err := w.faulty.Attributes(t.Context(), format.OwnerKey("a"))
			must(t, err)
			must(t, w.faulty.Delete(t.Context(), object))
			late := &lateStore{Faulty: w.faulty, hide: 1}
			w.Create(completed("a"))
			w.startWith(late)
			if uid == uidOf("a") {
				w.waitGone("a")
				if left := w.keys("a"); len(left) != 0 {
					t.Errorf("there are still %q", left)
				}
				return
			}
			if reason := w.waitReason("a"); !strings.Contains(reason, "another backup of this name") {
				t.Errorf("the status says %q", reason)
			}
			if left := w.keys("a"); !slices.Contains(left, format.MetadataKey("a")) {
				t.Errorf("only %q are left", left)
			}
		})
	}
}

// lateStore does not have the metadata yet when it is asked the first times.
type lateStore struct {
	*storetest.Faulty
	hide int
}

func (s *lateStore) Attributes(ctx context.Context, key string) (store.Object, error) {
	if s.hide > 0 {
		s.hide--
		return store.Object{}, store.ErrNotFound
	}
	return s.Faulty.Attributes(ctx, key)
}

func (s *lateStore) Close() error { return nil }

// TestLateMetadata: a process that slept while its backup was ended, and deleted, has
// written the metadata into the folder of the next one. Only that goes.
func TestLateMetadata(t *testing.T) {
	w := newWorld(t, t.TempDir())
	writeBackup(t, w.faulty, "a", uidOf("a"))
	owner, err := w.faulty.Attributes(t.Context(), format.OwnerKey("a"))
	must(t, err)
	must(t, w.faulty.Delete(t.Context(), owner))
	writeOwner(t, w.faulty, "a", "the next one")
	w.Create(completed("a"))
	w.start()
	w.waitGone("a")
	if left := w.keys("a"); slices.Contains(left, format.MetadataKey("a")) || len(left) != len(sideFiles("a"))+3 {
		t.Errorf("left are %q", left)
	}
}

// replaceMetadata does what a Velero does that makes a backup of the same name: of the
// backup, whose metadata names all that is there, only a copy is left.
func (w *world) replaceMetadata(storeName string) {
	w.Helper()
	metadata := w.read(format.MetadataKey(storeName))
	backup, err := format.DecodeBackup(metadata, format.Place{StoreName: storeName, SystemNamespace: system, Now: instant.Time})
	must(w, err)
	contents := format.Contents{}
	for _, key := range append(sideFiles(storeName), format.PodVolumeBackupsKey(storeName)) {
		contents.Set(key, format.NewContent(w.read(key)))
	}
	ours, err := format.EncodeBackup(backup, contents, format.Cluster{SystemNamespace: system})
	must(w, err)
	must(w, w.faulty.Put(w.Context(), format.CopyKey(storeName), ours))
	must(w, w.faulty.Put(w.Context(), format.MetadataKey(storeName), bytes.Replace(metadata, []byte(backup.UID), []byte("of-velero"), 1)))
	must(w, w.faulty.Put(w.Context(), format.BackupPrefix(storeName)+"velero-more.json", []byte("theirs")))
	w.faulty.Reset()
}

// TestBeneathOthersMetadata: of a backup whose metadata Velero has replaced, all goes that
// is known to be its own, and what is Velero's stays, wherever that is interrupted.
func TestBeneathOthersMetadata(t *testing.T) {
	for _, stopped := range []string{format.TarballKey("going"), format.PodVolumeBackupsKey("going"), format.OwnerKey("going"), format.CopyKey("going"), ""} {
		t.Run("stopped at "+stopped, func(t *testing.T) {
			w := newVolumeWorld(t)
			w.replaceMetadata("going")
			w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: stopped, Err: fmt.Errorf("%w: it went away", store.ErrUnavailable)})
			w.Create(completed("going"))
			stop := w.start()
			w.waitReason("going")
			stop()
			w.faulty.Inject()
			if stopped == "" { // nothing is left but the record
				for _, object := range w.keys("going") {
					if object != format.MetadataKey("going") && filepath.Base(object) != "velero-more.json" {
						must(t, os.Remove(filepath.Join(w.folder, object)))
					}
				}
				w.start()
				w.waitGone("going")
				return
			}
			w.start()
			w.waitGone("going")
			if diff := cmp.Diff([]string{format.MetadataKey("going"), format.BackupPrefix("going") + "velero-more.json"}, w.keys("going")); diff != "" {
				t.Errorf("left are (-want +got):\n%s", diff)
			}
			w.expectSnapshots(map[string]bool{template.going: false, template.staying: true})
		})
	}
	for name, change := range map[string]func(w *world){
		"which also replaced the tarball": func(w *world) {
			must(w, w.faulty.Put(w.Context(), format.TarballKey("going"), []byte("longer than it was")))
		},
		"without a copy": func(w *world) { must(w, w.faulty.Put(w.Context(), format.CopyKey("going"), []byte("{"))) },
		"of another owner": func(w *world) {
			must(w, os.Remove(filepath.Join(w.folder, format.OwnerKey("going"))))
			writeOwner(w, w.faulty, "going", "the next one")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newVolumeWorld(t)
			w.replaceMetadata("going")
			change(w)
			before := w.keys("going")
			w.Create(completed("going"))
			w.start()
			if reason := w.waitReason("going"); !strings.Contains(reason, "by removing the BackupRun going") {
				t.Errorf("the status says %q", reason)
			}
			if diff := cmp.Diff(before, w.keys("going")); diff != "" {
				t.Errorf("left are (-want +got):\n%s", diff)
			}
			w.expectSnapshots(map[string]bool{template.going: true})
		})
	}
}

// TestRepositories: snapshots that can't be deleted hold the deletion, unless there
// is no repository.
func TestRepositories(t *testing.T) {
	t.Run("key missing", func(t *testing.T) {
		w := newVolumeWorld(t)
		w.removeKey()
		w.Create(completed("going"))
		stop := w.start()
		if reason := w.waitReason("going"); !strings.Contains(reason, "bring back the Secret app.default.key in holdfast-repositories") {
			t.Errorf("the status says %q", reason)
		}
		stop()
		w.expectWhole("going") // nothing is destroyed by a deletion that can't go on
		w.addKey(template.key)
		w.start()
		w.waitGone("going")
		w.expectSnapshots(map[string]bool{template.going: false, template.staying: true})
	})
	t.Run("wrong key", func(t *testing.T) {
		w := newVolumeWorld(t)
		w.removeKey()
		w.addKey(repository.NewKey())
		w.Create(completed("going"))
		w.start()
		if reason := w.waitReason("going"); !strings.Contains(reason, "the key in the Secret app.default.key in holdfast-repositories does not open it") {
			t.Errorf("the status says %q", reason)
		}
		w.expectWhole("going")
	})
	t.Run("damaged", func(t *testing.T) {
		w := newVolumeWorld(t)
		must(t, os.Remove(filepath.Join(w.folder, "kopia/app/kopia.repository.f")))
		w.Create(completed("going"))
		w.start()
		if reason := w.waitReason("going"); !strings.Contains(reason, "lost its format blob") {
			t.Errorf("the status says %q", reason)
		}
	})
	t.Run("gone", func(t *testing.T) {
		for _, withKey := range []bool{true, false} {
			w := newVolumeWorld(t)
			must(t, os.RemoveAll(filepath.Join(w.folder, "kopia")))
			if !withKey {
				w.removeKey()
			}
			w.Create(completed("going"))
			w.start()
			w.waitGone("going")
			if left := w.keys("going"); len(left) != 0 {
				t.Errorf("there are still %q", left)
			}
		}
	})
	t.Run("of other uploaders", func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		volume := format.PodVolumeBackup{
			Spec:   format.PodVolumeBackupSpec{UploaderType: "restic"},
			Status: format.PodVolumeBackupStatus{SnapshotID: "of restic"},
		}
		volume.Spec.Pod.Namespace = app
		writeVolumes(t, w.faulty, "a", volume)
		w.Create(completed("a"))
		w.start()
		w.waitGone("a")
	})
}

// TestRecordReplaced: once the record is gone, its name may be another backup's.
// Whatever is being removed at that moment, nothing else is after it.
func TestRecordReplaced(t *testing.T) {
	for _, key := range append(sideFiles("a"), format.MetadataKey("a")) {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				writeBackup(t, w.faulty, "a", uidOf("a"))
				w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: key, Delay: 10 * time.Second})
				w.Create(completed("a"))
				w.start()
				time.Sleep(5 * time.Second)
				begun := w.faulty.Count(storetest.Delete)
				must(t, w.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "a", metav1.DeleteOptions{}))
				successor := completed("a")
				successor.UID, successor.Spec.Deletion = "successor", nil
				successor.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress}
				w.Create(successor)
				time.Sleep(time.Hour)
				synctest.Wait()
				if begun == 0 {
					t.Error("the removal had not begun")
				}
				if more := w.faulty.Count(storetest.Delete) - begun; more > 0 || w.run("a") == nil {
					t.Errorf("%d objects were removed after the record", more)
				}
			})
		})
	}
}

// TestMetadataReplaced: what is read first may take so long that the folder is
// another backup's by then, whose metadata must stay.
func TestMetadataReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.faulty.Inject(storetest.Fault{Operation: storetest.Get, Key: format.PodVolumeBackupsKey("a"), Delay: 30 * time.Second})
		w.Create(completed("a"))
		w.start()
		time.Sleep(15 * time.Second)
		must(t, w.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		must(t, os.RemoveAll(filepath.Join(w.folder, format.BackupPrefix("a"))))
		writeBackup(t, w.faulty, "a", "successor")
		successor := completed("a")
		successor.UID, successor.Spec.Deletion = "successor", nil
		w.Create(successor)
		time.Sleep(time.Hour)
		synctest.Wait()
		if removed := w.faulty.Count(storetest.Delete); removed > 0 {
			t.Errorf("%d objects of the next backup were removed", removed)
		}
	})
}
