// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
		storetest.Get:        4 + 2,                           // the metadata, the owner, the lists of volumes; and the owner after each listing
		storetest.Delete:     1 + len(sideFiles("going")) + 3, // the metadata, the others, the copy, the list of volumes and the owner
		storetest.List:       2 + 1 + 2,                       // and whether there is a repository that has no record; and what was changed of its expiration, before and after
		storetest.Put:        1,                               // that the snapshots are to go
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
		{storetest.Put, format.RemovalKey("this cluster", app, uidOf(storeName)), 1},
		{storetest.Delete, format.MetadataKey(storeName), 1},
		{storetest.List, format.BackupPrefix(storeName), 1},
	}
	lists := listsOf(storeName)
	others := slices.DeleteFunc(sideFiles(storeName), func(key string) bool { return slices.Contains(lists, key) })
	for i, key := range slices.Concat(others, []string{format.CopyKey(storeName)}, lists, []string{format.OwnerKey(storeName)}) {
		all = append(all, step{storetest.Delete, key, 2 + i})
	}
	return append(all, step{storetest.Get, format.VolumeInfoKey(storeName), 4})
}

// listsOf are the objects that name snapshots, in the order of their removal.
func listsOf(storeName string) []string {
	return []string{format.PodVolumeBackupsKey(storeName), format.VolumeInfoKey(storeName)}
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
			if withVolume { // whatever the store holds of it, the backup is still there
				w.expectSnapshots(map[string]bool{template.going: true, template.staying: true})
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
// is whole, and as long as anything else is there, so are the lists of volumes.
func (w *world) expectInOrder(storeName string) {
	w.Helper()
	left := w.keys(storeName)
	if slices.Contains(left, format.MetadataKey(storeName)) {
		w.expectWhole(storeName)
	}
	lists := 0
	others := slices.DeleteFunc(slices.Clone(left), func(key string) bool {
		isList := slices.Contains(listsOf(storeName), key)
		if isList {
			lists++
		}
		return isList || key == format.OwnerKey(storeName)
	})
	if len(others) > 0 && lists < len(listsOf(storeName)) {
		w.Errorf("without a list of volumes there are %q", left)
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

// deletionCase is a deletion, of the backup "a" unless it is of those in the template.
type deletionCase struct {
	prepare func(w *world, run *enginev1alpha1.BackupRun)
	// of is a backup in the store of the template. Optional.
	of string
	// left are so many objects of the folder that the deletion leaves.
	left int
	// removals are so many repositories that are asked to remove snapshots, each of which has
	// a record.
	removals int
	// says is why it waits, and not what it must not say. Empty is an error that is only
	// tried again.
	says, not string
	// tried is whether removals are tried, which the store refuses.
	tried bool
}

// start begins the deletion, and returns what lies in the folder before.
func (c *deletionCase) start(t *testing.T) (w *world, name string, before []string) {
	t.Helper()
	if name = c.of; name == "" {
		name, w = "a", newWorld(t, t.TempDir())
	} else {
		w = newVolumeWorld(t)
	}
	run := completed(name)
	c.prepare(w, run)
	w.faulty.Reset()
	before = w.keys(name)
	w.Create(run)
	w.start()
	return w, name, before
}

// unstored has failed before there was anything in the store but snapshots.
func unstored(run *enginev1alpha1.BackupRun, snapshots ...string) {
	run.Status.Phase, run.Status.Stored, run.Status.LeftoverSnapshots = v1alpha1.BackupPhaseFailed, false, snapshots
}

// createdFor stands for a backup whose own run is gone: its uid is that of the request.
func createdFor(run *enginev1alpha1.BackupRun, uid types.UID) {
	run.Status = enginev1alpha1.BackupRunStatus{}
	run.Spec.Deletion.Stored = &enginev1alpha1.StoredBackup{UID: uid, CreationTimestamp: instant}
}

// TestWhatIsRemoved: what is the backup's goes, and nothing else.
func TestWhatIsRemoved(t *testing.T) {
	for name, c := range map[string]deletionCase{
		"what its request names": {prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "uid-in-the-store")
			createdFor(run, "uid-in-the-store")
		}},
		"the parts of what was not stored": {prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			w.put(format.TarballKey("a"), "a part")
			must(w, os.WriteFile(filepath.Join(w.folder, "backups/a/.holdfast-x.tmp"), []byte("unfinished"), 0o600))
			unstored(run)
		}},
		"nothing of a namesake": {prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "namesake")
			unstored(run)
		}, left: len(sideFiles("a")) + 4},
		// A process that slept while its backup was ended, and deleted, has written the
		// metadata into the folder of the next one.
		"late metadata": {prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", uidOf("a"))
			w.remove(format.OwnerKey("a"))
			writeOwner(w, w.faulty, "a", "the next one")
		}, left: len(sideFiles("a")) + 3},
		"without the data of other uploaders": {prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", uidOf("a"))
			volume := format.PodVolumeBackup{
				Spec:   format.PodVolumeBackupSpec{UploaderType: "restic"},
				Status: format.PodVolumeBackupStatus{SnapshotID: "of restic"},
			}
			volume.Spec.Pod.Namespace = app
			writeVolumes(w, w.faulty, "a", volume)
		}},
		"snapshots that only the record tells of": {of: "failed", removals: 2, prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "failed", uidOf("failed"))
			w.put(format.RepositoryPrefix("another")+"kopia.repository", "of the volumes of another namespace")
			run.Status.LeftoverSnapshots = []string{"another", app, "without-a-repository"}
		}},
		"snapshots, and not the folder of a namesake": {of: "failed", removals: 1, prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "failed", "namesake")
			unstored(run, app)
		}, left: len(sideFiles("failed")) + 4},
		// It was not uploaded in time, and perhaps later.
		"the snapshot of a volume that is listed without one": {of: "failed", removals: 1, prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "failed", uidOf("failed"), "")
		}},
		"all when the repository is gone": {of: "going", prepare: func(w *world, _ *enginev1alpha1.BackupRun) { w.remove("kopia") }},
		"all when the repository and its key are gone": {of: "going", prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			w.remove("kopia")
			w.removeKey()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, name, before := c.start(t)
			w.waitGone(name)
			left := w.keys(name)
			if len(left) != c.left || c.left == len(before) && w.faulty.Count(storetest.Delete) > 0 {
				t.Errorf("left are %q, want %d", left, c.left)
			}
			if slices.Contains(left, format.MetadataKey(name)) != (c.left == len(before)) {
				t.Errorf("the metadata is with %q", left)
			}
			records, err := w.EngineV1alpha1().VolumeRepositories(system).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			if asked := w.faulty.Count(storetest.Put); asked != c.removals || len(records.Items) != c.removals {
				t.Errorf("%d removals of snapshots are asked for, of %d repositories, want %d", asked, len(records.Items), c.removals)
			}
			if c.of == "failed" {
				w.expectSnapshots(map[string]bool{template.unlisted: false, template.going: true, template.staying: true})
			}
		})
	}
}

// TestWhatIsKept: a deletion that can't go on removes nothing, and says why.
func TestWhatIsKept(t *testing.T) {
	stored := func(change func(w *world)) func(*world, *enginev1alpha1.BackupRun) {
		return func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", uidOf("a"), "its-snapshot")
			change(w)
		}
	}
	holding := func(key, content string) func(*world, *enginev1alpha1.BackupRun) {
		return stored(func(w *world) { w.put(key, content) })
	}
	withoutList := func(fault storetest.Fault) func(*world, *enginev1alpha1.BackupRun) {
		fault.Operation, fault.Key = storetest.Get, format.PodVolumeBackupsKey("a")
		return stored(func(w *world) { w.faulty.Inject(fault) })
	}
	beneath := func(change func(w *world)) func(*world, *enginev1alpha1.BackupRun) {
		return func(w *world, _ *enginev1alpha1.BackupRun) {
			w.replaceMetadata("going")
			change(w)
		}
	}
	const giveUp = "by removing the BackupRun going"
	for name, c := range map[string]deletionCase{
		"another backup": {prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "namesake")
		}, says: "the uid namesake instead of uid-of-a"},
		"another backup than the request names": {prepare: func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "namesake")
			createdFor(run, "the one before")
		}, says: "the uid namesake instead of the one before"},
		"another backup, by its list": {prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "namesake", "its-snapshot")
			w.remove(format.MetadataKey("a"))
			w.remove(format.OwnerKey("a"))
		}, says: "lists volumes of another backup, with the uid namesake"},

		"unreadable metadata": {prepare: holding(format.MetadataKey("a"), "{"), says: "so nothing is removed"},
		"unfinished metadata": {prepare: holding(format.MetadataKey("a"), `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"uid-of-a"},"status":{"phase":"InProgress"}}`),
			says: "the backup is not finished"},
		"unreadable owner": {prepare: holding(format.OwnerKey("a"), "<html>"), says: "so nothing is removed"},
		"unreadable list":  {prepare: holding(format.PodVolumeBackupsKey("a"), "not gzip"), says: "remove that object by hand"},
		// Only a list that is bad may be given up by hand, and no list that can't be fetched.
		"a list that is denied": {prepare: withoutList(storetest.Fault{Err: store.ErrDenied}), says: store.ErrDenied.Error(), not: "by hand"},
		"a list that is away":   {prepare: withoutList(storetest.Fault{Err: store.ErrUnavailable}), says: store.ErrUnavailable.Error(), not: "by hand"},
		"a list that is cut off": {prepare: withoutList(storetest.Fault{Err: store.ErrUnavailable, Truncate: true, After: 20}),
			says: store.ErrUnavailable.Error(), not: "by hand"},

		"a repository that can't be looked for": {prepare: stored(func(w *world) {
			w.faulty.Inject(storetest.Fault{Operation: storetest.List, Key: format.RepositoryPrefix(app), Err: store.ErrDenied})
		}), says: store.ErrDenied.Error()},

		"volumes of what can't be a namespace": {prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", uidOf("a"))
			volume := format.PodVolumeBackup{Status: format.PodVolumeBackupStatus{SnapshotID: "its-snapshot"}}
			volume.Spec.UploaderType, volume.Spec.Pod.Namespace = "kopia", "../another"
			writeVolumes(w, w.faulty, "a", volume)
		}, says: "can't be one; remove " + format.PodVolumeBackupsKey("a") + " by hand"},
		"a repository that can't get a record": {of: "going", prepare: func(w *world, _ *enginev1alpha1.BackupRun) {
			w.Fault(func(action clienttesting.Action) enginetest.Fault {
				if action.GetVerb() == "create" && action.GetResource().Resource == "volumerepositories" {
					return enginetest.Fault{Err: errors.New("the API server is away")}
				}
				return enginetest.Fault{}
			})
		}},
		"metadata that may not be removed": {prepare: stored(func(w *world) {
			w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: format.MetadataKey("a"), Err: store.ErrDenied})
		}), says: store.ErrDenied.Error(), tried: true},

		// Of a backup whose metadata Velero has replaced.
		"a tarball that was replaced, too": {of: "going", prepare: beneath(func(w *world) { w.put(format.TarballKey("going"), "longer than it was") }), says: giveUp},
		"what no copy names":               {of: "going", prepare: beneath(func(w *world) { w.put(format.CopyKey("going"), "{") }), says: giveUp},
		"what another one owns": {of: "going", prepare: beneath(func(w *world) {
			w.remove(format.OwnerKey("going"))
			writeOwner(w, w.faulty, "going", "the next one")
		}), says: giveUp},
	} {
		t.Run(name, func(t *testing.T) {
			w, name, before := c.start(t)
			if c.says == "" {
				w.eventually("a second attempt", func() bool { return w.faulty.Count(storetest.Attributes) > 1 })
			} else if reason := w.waitReason(name); !strings.Contains(reason, c.says) || c.not != "" && strings.Contains(reason, c.not) {
				t.Errorf("the status says %q, want %q", reason, c.says)
			}
			if diff := cmp.Diff(before, w.keys(name)); diff != "" || w.faulty.Count(storetest.Delete) > 0 && !c.tried {
				t.Errorf("%d removals (-before +now):\n%s", w.faulty.Count(storetest.Delete), diff)
			}
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
			w.remove(format.OwnerKey("a"))
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
	noRanges
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
						w.remove(object)
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
}

// TestMovedSnapshotsGo: the removal of a backup of Velero's names the snapshots that its data mover has
// uploaded, also when another process continues without the metadata. Those of other movers stay.
func TestMovedSnapshotsGo(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"all is there":             func(*world) {},
		"the metadata is gone":     func(w *world) { w.remove(format.MetadataKey("velero")) },
		"the owner is not written": func(w *world) { w.remove(format.OwnerKey("velero")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newVolumeWorld(t)
			moved := func(namespace, claim, mover, id string) format.VolumeInfo {
				return format.VolumeInfo{PVCNamespace: namespace, PVCName: claim, BackupMethod: format.MethodCSISnapshot, SnapshotDataMoved: true,
					DataMovementInfo: &format.DataMovementInfo{DataMover: mover, UploaderType: format.UploaderKopia, SnapshotHandle: id, Phase: "Completed"}}
			}
			writeBackup(w, w.faulty, "velero", uidOf("velero"), "from-a-pod")
			writeInfos(w, w.faulty, "velero", moved(app, "data", "velero", "moved"), moved(app, "more", "other", "of-others"), moved(app, "again", "", "from-a-pod"))
			prepare(w)
			w.Create(completed("velero"))
			w.start()
			w.waitGone("velero")
			content, err := w.faulty.Get(t.Context(), format.RemovalKey("this cluster", app, uidOf("velero")))
			must(t, err)
			defer content.Close()
			data, err := io.ReadAll(content)
			must(t, err)
			removal, err := format.DecodeRemoval(data)
			must(t, err)
			if want := []string{"from-a-pod", "moved"}; !slices.Equal(removal.Snapshots, want) {
				t.Errorf("removed are %q, not %q", removal.Snapshots, want)
			}
			if left := w.keys("velero"); len(left) > 0 {
				t.Errorf("left are %q", left)
			}
		})
	}
}

// TestKeyMissing: a repository that can't be opened holds no deletion, and the snapshots go
// when it can.
func TestKeyMissing(t *testing.T) {
	w := newVolumeWorld(t)
	w.removeKey()
	w.Create(completed("going"))
	w.start()
	w.waitGone("going")
	if result := w.maintain(); !strings.Contains(result.Error, "app.default.key does not exist") {
		t.Errorf("the maintenance says %s", result)
	}
	w.addKey(template.key)
	w.expectSnapshots(map[string]bool{template.going: false, template.staying: true})
}

// TestManyDeletions: the snapshots of any number of backups cost their repository one opening.
func TestManyDeletions(t *testing.T) {
	w := newVolumeWorld(t)
	for _, name := range []string{"going", "staying"} {
		w.Create(completed(name))
	}
	failed := completed("failed")
	unstored(failed, app)
	w.Create(failed)
	w.start()
	for _, name := range []string{"going", "staying", "failed"} {
		w.waitGone(name)
	}
	if result := w.maintain(); result.SweptBackups != 3 || result.SweptSnapshots != 3 || result.WaitingBackups != 0 {
		t.Errorf("the maintenance says %s", result)
	}
	w.expectSnapshots(map[string]bool{template.going: false, template.staying: false, template.unlisted: false})
}

// TestRecordReplaced: once the record is gone, its name may be another backup's, and the
// folder. Whatever is being read or removed at that moment, nothing else is after it.
func TestRecordReplaced(t *testing.T) {
	for _, at := range []step{
		{storetest.Get, format.PodVolumeBackupsKey("a"), 0},
		{storetest.Delete, format.MetadataKey("a"), 1},
		{storetest.Delete, sideFiles("a")[0], 2},
		{storetest.Delete, format.OwnerKey("a"), 1 + len(sideFiles("a")) + 3},
	} {
		t.Run(fmt.Sprintf("%s %s", at.operation, filepath.Base(at.key)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				writeBackup(t, w.faulty, "a", uidOf("a"))
				w.faulty.Inject(storetest.Fault{Operation: at.operation, Key: at.key, Delay: 10 * time.Second})
				w.Create(completed("a"))
				w.start()
				time.Sleep(5 * time.Second)
				if begun := w.faulty.Count(storetest.Delete); begun != at.nth {
					t.Errorf("%d removals have begun", begun)
				}
				must(t, w.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "a", metav1.DeleteOptions{}))
				w.remove(format.BackupPrefix("a"))
				writeBackup(t, w.faulty, "a", "successor")
				successor := completed("a")
				successor.UID, successor.Spec.Deletion = "successor", nil
				w.Create(successor)
				time.Sleep(time.Hour)
				synctest.Wait()
				if removals := w.faulty.Count(storetest.Delete); removals != at.nth || w.run("a") == nil {
					t.Errorf("%d objects were removed after the record", removals-at.nth)
				}
				w.expectWhole("a")
			})
		})
	}
}

// A store that refuses a removal is not asked again and again to remove snapshots.
func TestSnapshotsAreAskedForOnce(t *testing.T) {
	w := newVolumeWorld(t)
	w.Create(completed("going"))
	w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: format.MetadataKey("going"), Err: store.ErrDenied})
	w.start()
	w.eventually("several attempts", func() bool { return w.faulty.Count(storetest.Delete) >= 2 })
	if n := w.faulty.Count(storetest.Put); n != 1 {
		t.Errorf("the removal of its snapshots was written %d times", n)
	}
	w.faulty.Inject()
	w.waitGone("going")
	if n := w.faulty.Count(storetest.Put); n != 1 {
		t.Errorf("the removal of its snapshots was written %d times", n)
	}
}
