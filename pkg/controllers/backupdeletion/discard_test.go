// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// discards records the calls of a DiscardSnapshots.
type discards struct {
	w     *world
	name  string
	fails error

	mu   sync.Mutex
	uids []types.UID
	// metadata and owners count the calls that saw these in the store, gone the calls without a record.
	metadata, owners, gone int
}

func (d *discards) discard(_ context.Context, uid types.UID, isOf func(snapshots.Place) bool) error {
	if !isOf(snapshots.Place{StoreName: d.name, Location: "default"}) || isOf(snapshots.Place{StoreName: "copy", Location: "default"}) {
		d.w.Error("discarded are snapshots of another place")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uids = append(d.uids, uid)
	if d.w.has(format.MetadataKey(d.name)) {
		d.metadata++
	}
	if d.w.has(format.OwnerKey(d.name)) {
		d.owners++
	}
	if d.w.run(d.name) == nil {
		d.gone++
	}
	return d.fails
}

func (d *discards) called() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.uids)
}

func (d *discards) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = err
}

func (w *world) has(key string) bool {
	_, err := os.Stat(filepath.Join(w.folder, key))
	return err == nil
}

// startDiscarding is start with a DiscardSnapshots, which may be nil.
func (w *world) startDiscarding(discard func(context.Context, types.UID, func(snapshots.Place) bool) error, adopt ...func(context.Context, []snapshots.Lost) error) {
	w.Helper()
	adopt = append(adopt, nil)
	records := enginefactory.NewSharedInformerFactory(w.Cluster, 0)
	engine := records.Engine().V1alpha1()
	controller, err := New(Config{
		Namespace: system, ClusterUID: "this cluster", Runs: w.EngineV1alpha1(), Restores: w.EngineV1alpha1(), Changes: w.EngineV1alpha1(),
		Secrets:          w.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)),
		EnsureRepository: w.ensureRepository, CheckLocation: w.checkLocation, DiscardSnapshots: discard, AdoptSnapshots: adopt[0], Events: w.events, Clock: clock.RealClock{},
		RunInformer: engine.BackupRuns(), LocationInformer: engine.StorageLocations(), RepositoryInformer: engine.VolumeRepositories(),
		ChangeInformer: engine.BackupChanges(), FormerInformer: engine.ExpirationChanges(),
	})
	must(w, err)
	controller.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) {
		return closer{Faulty: w.faulty}, nil
	}
	ctx, cancel := context.WithCancel(w.Context())
	before := w.Watches()
	records.StartWithContext(ctx)
	records.WaitForCacheSync(ctx.Done())
	w.eventually("the watches", func() bool { return w.Watches() >= before+4 })
	w.eventually("the handlers have seen what there is", controller.queue.Synced)
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	w.Cleanup(func() {
		cancel()
		running.Wait()
		records.Shutdown()
	})
}

// TestDiscardSnapshots: the snapshots of a deleted backup are discarded by its uid, once. Then the metadata is
// gone, and the record is there.
func TestDiscardSnapshots(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(w *world, run *enginev1alpha1.BackupRun)
		uid     types.UID
		owners  int
		never   bool
	}{
		"a backup with its run": {func(w *world, _ *enginev1alpha1.BackupRun) { writeBackup(w, w.faulty, "a", uidOf("a")) }, uidOf("a"), 1, false},
		"a stored backup without its run": {func(w *world, run *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", "uid-in-the-store")
			createdFor(run, "uid-in-the-store")
		}, "uid-in-the-store", 1, false},
		"a backup whose metadata another process has removed": {func(w *world, _ *enginev1alpha1.BackupRun) {
			writeBackup(w, w.faulty, "a", uidOf("a"))
			w.remove(format.MetadataKey("a"))
		}, uidOf("a"), 1, false},
		"a backup without anything in the store": {func(*world, *enginev1alpha1.BackupRun) {}, uidOf("a"), 0, false},
		"a backup that was not stored":           {func(_ *world, run *enginev1alpha1.BackupRun) { unstored(run) }, uidOf("a"), 0, false},
		"a backup that never began": {func(_ *world, run *enginev1alpha1.BackupRun) {
			unstored(run)
			run.Status.StartTimestamp = nil
		}, "", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, run := newWorld(t, t.TempDir()), completed("a")
				test.prepare(w, run)
				w.Create(run)
				d := &discards{w: w, name: "a"}
				w.startDiscarding(d.discard)
				time.Sleep(time.Hour)
				synctest.Wait()
				if w.run("a") != nil || len(w.keys("a")) > 0 {
					t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
				}
				want := []types.UID{test.uid}
				if test.never {
					want = nil
				}
				if got := d.called(); !slices.Equal(got, want) || d.metadata > 0 || d.owners != test.owners || d.gone > 0 {
					t.Errorf("discarded are %q, want %q; %d calls saw metadata, %d an owner, %d no record", got, want, d.metadata, d.owners, d.gone)
				}
			})
		})
	}
}

// TestDiscardFails: while the snapshots can't be discarded, the deletion is tried again and again. The record stays
// until it succeeds.
func TestDiscardFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.Create(completed("a"))
		d := &discards{w: w, name: "a", fails: errors.New("it is denied")}
		w.startDiscarding(d.discard)
		time.Sleep(time.Hour)
		synctest.Wait()
		// An hour of retries that wait longer and longer, up to five minutes.
		if tries := len(d.called()); tries < 10 || tries > 30 {
			t.Errorf("%d tries in an hour", tries)
		}
		if w.run("a") == nil || w.has(format.MetadataKey("a")) || !w.has(format.OwnerKey("a")) {
			t.Errorf("the record is %v, and there is %q", w.run("a"), w.keys("a"))
		}
		d.fail(nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if w.run("a") != nil || len(w.keys("a")) > 0 || d.gone > 0 || d.metadata > 0 {
			t.Errorf("there are still the record %v and %q; %d calls saw no record, %d the metadata", w.run("a"), w.keys("a"), d.gone, d.metadata)
		}
	})
}

// TestNothingToDiscard: without snapshots in the cluster a deletion needs no DiscardSnapshots.
func TestNothingToDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.Create(completed("a"))
		w.startDiscarding(nil)
		synctest.Wait()
		if w.run("a") != nil || len(w.keys("a")) > 0 {
			t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
		}
	})
}

// TestDiscardTooEarly: while the backup may be restored, nothing is discarded.
func TestDiscardTooEarly(t *testing.T) {
	for name, prepare := range map[string]func(w *world, run *enginev1alpha1.BackupRun){
		"its metadata can't be removed": func(w *world, _ *enginev1alpha1.BackupRun) {
			w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: format.MetadataKey("a"), Err: store.ErrDenied})
		},
		"a restore reads it": func(w *world, run *enginev1alpha1.BackupRun) {
			restore := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: system}}
			restore.Spec.Backup.StoreName, restore.Spec.Backup.StorageLocation, restore.Spec.Backup.UID = "a", "default", run.UID
			restore.Status.Phase = v1alpha1.RestorePhaseInProgress
			_, err := w.EngineV1alpha1().RestoreRuns(system).Create(w.Context(), restore, metav1.CreateOptions{})
			must(w, err)
		},
		"its location is away":      func(w *world, _ *enginev1alpha1.BackupRun) { w.setAvailable(metav1.ConditionFalse) },
		"its deletion is not asked": func(_ *world, run *enginev1alpha1.BackupRun) { run.Spec.Deletion = nil },
		"it runs":                   func(_ *world, run *enginev1alpha1.BackupRun) { run.Status.Phase = v1alpha1.BackupPhaseInProgress },
		"the store has a namesake":  func(_ *world, run *enginev1alpha1.BackupRun) { run.UID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, run := newWorld(t, t.TempDir()), completed("a")
				writeBackup(t, w.faulty, "a", uidOf("a"))
				prepare(w, run)
				w.Create(run)
				d := &discards{w: w, name: "a"}
				w.startDiscarding(d.discard)
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := d.called(); len(got) > 0 || w.run("a") == nil {
					t.Errorf("discarded are %q, and the record is %v", got, w.run("a"))
				}
				w.faulty.Inject()
				w.expectWhole("a")
			})
		})
	}
}
