// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// uploadOf is the record of a volume that an attempt before has handed over.
func uploadOf(run *enginev1alpha1.BackupRun, volume string, phase enginev1alpha1.VolumePhase) *enginev1alpha1.VolumeUpload {
	record := newUpload(recordName(run, volumeOf(volume)), run, "shop")
	record.UID, record.Spec.Volume = types.UID("uid-of-"+volume), volume
	record.Status.Phase = phase
	if phase == enginev1alpha1.VolumePhaseCompleted {
		record.Status.SnapshotID = "snapshot-before"
	}
	return record
}

// What is uploaded, or is being uploaded, when a run is taken over need not be uploaded again,
// unless pods were frozen for it that have gone on meanwhile, or it goes on and a pre hook is run
// once more, which may write what is read.
func TestUploadsOfAnAttemptBefore(t *testing.T) {
	for name, test := range map[string]struct {
		frozen         []enginev1alpha1.PodReference
		thawed, hooked bool
		again          sets.Set[string]
		snapshots      bool
	}{
		"nobody was frozen":              {},
		"hooks, where snapshots are on":  {hooked: true, snapshots: true, again: sets.New("data", "logs", "more")},
		"no hooks, with snapshots on":    {snapshots: true},
		"a pod is frozen":                {[]enginev1alpha1.PodReference{{Namespace: "shop", Name: "other"}}, false, false, sets.New("data", "logs", "more"), false},
		"a pod was frozen, hours before": {[]enginev1alpha1.PodReference{{Namespace: "shop", Name: "other"}}, true, false, nil, false},
		"a pod is frozen, elsewhere":     {[]enginev1alpha1.PodReference{{Namespace: "bank", Name: "other"}}, false, false, nil, false},
		"a pre hook only":                {nil, false, true, sets.New("logs", "more"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := newRun("a", running)
				did := &backupOf{volumes: []string{"data", "logs", "more"}}
				uploads := []runtime.Object{run}
				for volume, phase := range map[string]enginev1alpha1.VolumePhase{"data": enginev1alpha1.VolumePhaseCompleted, "logs": enginev1alpha1.VolumePhaseInProgress, "more": ""} {
					record := uploadOf(run, volume, phase)
					if test.hooked {
						record.Labels[enginev1alpha1.LabelHooked] = "true"
					}
					uploads = append(uploads, record)
				}
				h := newHarness(t, &work{execute: did.execute}, uploads...)
				if test.snapshots {
					h.mover = &mover{}
				}
				before := &record{h.runsOf(run.Status.Executor).Record(h.Run("a")), clock.RealClock{}, func() {}}
				if err := before.Pending(t.Context(), test.frozen); err != nil {
					t.Fatal(err)
				}
				if test.thawed {
					if err := before.Pending(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
				}
				h.start(1)
				time.Sleep(time.Minute)
				h.expect("a", running, false)
				if ran := len(h.work.thawed); ran > 0 != (test.frozen != nil && !test.thawed) {
					t.Errorf("pending post hooks were run %d times", ran)
				}
				if status := h.Run("a").Status; status.Attempts != 2 || status.Executor != identity {
					t.Errorf("%+v", status)
				}
				for volume, record := range h.uploads() {
					if isNew := record.UID != types.UID("uid-of-"+volume); isNew != test.again.Has(volume) || record.Spec.Cancel {
						t.Errorf("%s is uploaded anew: %t, and cancelled: %t", volume, isNew, record.Spec.Cancel)
					}
				}
				for _, volume := range []string{"data", "logs", "more"} {
					if h.uploads()[volume].Status.Phase != enginev1alpha1.VolumePhaseCompleted {
						h.report(volume, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "snapshot-now"})
					}
				}
				h.expect("a", done, true)
				for _, volume := range did.results {
					want := "snapshot-now"
					if volume.Name == "data" && !test.again.Has("data") {
						want = "snapshot-before"
					}
					if volume.Status.SnapshotID != want {
						t.Errorf("%s has %q", volume.Name, volume.Status.SnapshotID)
					}
				}
				if left := h.uploads(); len(did.results) != 3 || len(left) != 0 {
					t.Errorf("%d volumes, and left are %v", len(did.results), left)
				}
			})
		})
	}
}

// What an attempt before has handed over, and this one does not, is no loss: it stops, and its
// snapshots go if no stored backup lists them.
func TestUploadsThatNobodyAsksForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", running)
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			return stored(broken), nil
		}}, run, uploadOf(run, "data", enginev1alpha1.VolumePhaseInProgress))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", broken, true)
		h.expectSnapshotsRemoved("a shop")
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
	})
}

// A run whose store is away when it is to be resumed waits for it, and its uploads go on, unless it
// is cancelled. It does not wait for what does not pass.
func TestAResumedRunWhoseStoreDoesNotAnswerWaits(t *testing.T) {
	away := fmt.Errorf("dial: %w", store.ErrUnavailable)
	type how struct {
		unreachable      error
		cancelled, waits bool
	}
	enginetest.Each(t, map[string]how{
		"it comes back": {away, false, true}, "cancelled": {away, true, true}, "denied": {store.ErrDenied, false, false},
	}, func(t *testing.T, c how) {
		run := newRun("a", running)
		did := &backupOf{volumes: []string{"data"}}
		work := &work{unreachable: c.unreachable, execute: did.execute}
		h := newHarness(t, work, run, uploadOf(run, "data", enginev1alpha1.VolumePhaseInProgress))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", running, false)
		status, record := h.Run("a").Status, h.uploads()["data"]
		if waits := status.Executor != identity && status.Attempts == 0; waits != c.waits || record == nil || record.Spec.Cancel {
			t.Errorf("%+v, and the upload is %+v", status, record)
		}
		if c.cancelled {
			h.Cancel("a")
			time.Sleep(time.Minute)
			h.expect("a", cancelled, true)
			return
		}
		work.mu.Lock()
		work.unreachable = nil
		work.mu.Unlock()
		time.Sleep(time.Minute)
		h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", done, true)
	})
}

// TestWhatWaitsForASlotIsNotTaken: with fewer slots than the process before had, the runs that wait
// for one keep their attempts, however often the controller is rolled out meanwhile.
func TestWhatWaitsForASlotIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: untilStopped}, newRun("a", running), newRun("b", running), newRun("c", running))
		h.start(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		h.stop()
		<-h.stopped
		executed, _ := h.work.done()
		if len(executed) != 1 {
			t.Fatalf("%q were executed, want one", executed)
		}
		for _, name := range []string{"a", "b", "c"} {
			status, want := h.Run(name).Status, newRun(name, running).Status
			if name == executed[0] {
				want.Attempts, want.GivenBack, want.Executor = 2, 1, identity
			}
			if status.Phase != running || status.Attempts != want.Attempts || status.GivenBack != want.GivenBack || status.Executor != want.Executor {
				t.Errorf("%s: got %+v, want %+v", name, status, want)
			}
		}
	})
}

// A process that wakes up, and finds that another one makes the backup, leaves record and
// uploads to that.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *harness
		h = newHarness(t, &work{execute: func(ctx context.Context, _ *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			if err := volumes.Submit(ctx, volumeOf("data")); err != nil {
				t.Error(err)
			}
			h.setOutvoted(true)
			theirs := h.Run("a")
			theirs.Status.Executor, theirs.Status.Attempts = "the other one", 2
			h.Update(theirs)
			return failed(backup.ErrTakenOver), backup.ErrTakenOver
		}}, newRun("a", ready))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", running, false)
		if status := h.Run("a").Status; status.Executor != "the other one" || status.Attempts != 2 {
			t.Errorf("%+v", status)
		}
		if record := h.uploads()["data"]; record == nil || record.Spec.Cancel {
			t.Errorf("the upload is %+v", record)
		}
	})
}

// That the store says so is not enough: somebody else may have written to it. Then the run ends,
// and holds no slot.
func TestTakenOverByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			return failed(backup.ErrTakenOver), backup.ErrTakenOver
		}}, newRun("a", ready))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("a", broken, true)
	})
}

// execs counts commands.
type execs struct {
	Pods
	n int
}

func (e *execs) Exec(context.Context, enginev1alpha1.PodReference, string, []string) (string, error) {
	e.n++
	return "", nil
}

// A process that does not lead any more thaws no pod that the next one may have frozen.
func TestNoHooksWithoutTheLease(t *testing.T) {
	enginetest.Each(t, map[string]struct {
		leads error
		runs  int
	}{
		"it leads": {nil, 1}, "it does not": {lease.ErrLost, 0}, "nobody knows": {errors.New("no answer"), 1},
	}, func(t *testing.T, c struct {
		leads error
		runs  int
	}) {
		pods := &execs{}
		hooks := runHooks{Pods: pods, run: newRun("a", v1alpha1.BackupPhaseInProgress), leads: func(context.Context) error { return c.leads }}
		if _, err := hooks.Exec(t.Context(), enginev1alpha1.PodReference{}, "", nil); pods.n != c.runs || (err == nil) != (c.runs == 1) {
			t.Errorf("it ran %d times: %v", pods.n, err)
		}
	})
}
