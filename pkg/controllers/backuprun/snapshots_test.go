// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// uploading is an execution that submits volumes of namespaces, and ends as it is told,
// or when it is stopped.
func uploading(t *testing.T, outcome backup.Outcome, err error, namespaces ...string) func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
	return func(ctx context.Context, _ *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
		for _, namespace := range namespaces {
			volume := volumeOf("data")
			volume.Pod.Namespace = namespace
			volume.Pod.UID = types.UID("uid-of-web-in-" + namespace)
			if err := volumes.Submit(ctx, volume); err != nil {
				t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
			return failed(ctx.Err()), ctx.Err()
		case <-time.After(time.Minute):
			return outcome, err
		}
	}
}

func (h *harness) expectSnapshotsRemoved(want ...string) {
	h.Helper()
	synctest.Wait()
	h.work.mu.Lock()
	defer h.work.mu.Unlock()
	if !slices.Equal(h.work.snapshots, want) {
		h.Errorf("the snapshots of %q were removed, want %q", h.work.snapshots, want)
	}
}

// A stored list of volumes refers to their snapshots; whatever else a backup ends
// as, nobody would find them any more.
func TestSnapshotsThatNoBackupListsAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		outcome backup.Outcome
		err     error
		cancel  bool
		removed []string
	}{
		"completed":        {outcome: stored(done)},
		"partially failed": {outcome: stored(v1alpha1.BackupPhasePartiallyFailed)},
		"failed":           {outcome: stored(v1alpha1.BackupPhaseFailed), removed: []string{"a db", "a shop"}},
		"name taken":       {outcome: failed(errBroken), err: backup.ErrNameTaken, removed: []string{"a db", "a shop"}},
		"cancelled":        {cancel: true, removed: []string{"a db", "a shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{execute: uploading(t, c.outcome, c.err, "shop", "db")}, newRun("a", ready))
				h.start(1)
				if c.cancel {
					h.Cancel("a")
				}
				time.Sleep(2 * time.Minute)
				if status := h.Run("a").Status; !status.Phase.Ended() || len(status.LeftoverSnapshots) != 0 {
					t.Errorf("%+v", status)
				}
				h.expectSnapshotsRemoved(c.removed...)
			})
		})
	}
}

func TestHasLeftoverSnapshots(t *testing.T) {
	for name, c := range map[string]struct {
		status  enginev1alpha1.BackupRunStatus
		deleted bool
		want    bool
	}{
		"in progress":                {status: enginev1alpha1.BackupRunStatus{Phase: running}},
		"completed":                  {status: enginev1alpha1.BackupRunStatus{Phase: done, Stored: true}},
		"failed":                     {status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailed, Stored: true}, want: true},
		"failed, and may be stored":  {status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailed}},
		"cancelled":                  {status: enginev1alpha1.BackupRunStatus{Phase: cancelled, Stored: true}, want: true},
		"cancelled, may be stored":   {status: enginev1alpha1.BackupRunStatus{Phase: cancelled}},
		"name taken":                 {status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailedValidation}, want: true},
		"cancelled, and is deleted":  {status: enginev1alpha1.BackupRunStatus{Phase: cancelled, Stored: true}, deleted: true},
		"failed, and is deleted now": {status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailed, Stored: true}, deleted: true},
	} {
		run := &enginev1alpha1.BackupRun{Status: c.status}
		if c.deleted {
			run.Spec.Deletion = &enginev1alpha1.Deletion{}
		}
		if hasLeftoverSnapshots(run) {
			t.Errorf("%s: nothing is noted", name)
		}
		run.Status.LeftoverSnapshots = []string{"shop"}
		if got := hasLeftoverSnapshots(run); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Pitfall 7: what a process before this one has stored stands, even if it could not say
// so. The records of the volumes say where there may be snapshots, and do not go before
// the run says it, too.
func TestSnapshotsOfARunThatWasLeftBehind(t *testing.T) {
	type how struct {
		asked   bool
		settle  backup.Outcome
		removed []string
	}
	enginetest.Each(t, map[string]how{
		"failed":            {settle: stored(broken), removed: []string{"a shop"}},
		"had ended":         {settle: stored(done)},
		"was to be stopped": {asked: true, settle: stored(cancelled), removed: []string{"a shop"}},
	}, func(t *testing.T, c how) {
		run := newRun("a", running)
		if c.asked {
			run.Spec.Cancellation = &enginev1alpha1.Ask{}
		}
		h := newHarness(t, &work{abandon: func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
			return c.settle, nil
		}}, run)
		h.failing = true
		volume := newUpload("volume", run, "shop")
		volume.Status.Phase = enginev1alpha1.VolumePhaseCompleted
		h.Create(volume)
		ended := false
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if run := enginetest.Written(action); run != nil && !ended {
				if ended = run.Status.Phase.Ended(); len(run.Status.LeftoverSnapshots) != len(c.removed) {
					t.Errorf("noted are %q", run.Status.LeftoverSnapshots)
				}
			}
			if action.GetVerb() == "delete-collection" && !ended {
				t.Error("the records of the volumes go before it is noted where they are")
			}
			return enginetest.Fault{}
		})
		h.start(1)
		time.Sleep(time.Minute)
		h.expectSnapshotsRemoved(c.removed...)
		if status := h.Run("a").Status; status.Phase != c.settle.Status.Phase || status.FailureReason != "" || len(status.LeftoverSnapshots) != 0 {
			t.Errorf("%+v", status)
		}
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("uploads go on: %v", left)
		}
	})
}

// It ends at once, and what is done is not done again.
func TestSnapshotsAreRemovedWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		w := &work{execute: uploading(t, backup.Outcome{}, nil, "shop", "db")}
		w.discardSnapshots = func(ctx context.Context, namespace string) error {
			if namespace == "db" || up.Load() {
				return nil
			}
			return errors.New("no answer")
		}
		h := newHarness(t, w, newRun("a", ready))
		h.start(1)
		h.Cancel("a")
		h.expectCancelled("a", true)
		time.Sleep(time.Hour)
		if left := h.Run("a").Status.LeftoverSnapshots; !slices.Equal(left, []string{"shop"}) {
			t.Errorf("left are %q", left)
		}
		up.Store(true)
		time.Sleep(2 * time.Minute)
		if left := h.Run("a").Status.LeftoverSnapshots; len(left) != 0 {
			t.Errorf("left are %q", left)
		}
		h.work.mu.Lock()
		defer h.work.mu.Unlock()
		if n := len(slices.DeleteFunc(slices.Clone(h.work.snapshots), func(s string) bool { return s != "a db" })); n != 1 {
			t.Errorf("those of db were removed %d times", n)
		}
	})
}

// A repository may take minutes, and a dead run holds its slot until it is ended.
func TestRemovingSnapshotsKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{execute: uploading(t, backup.Outcome{}, nil, "shop")}
		w.discardSnapshots = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		h := newHarness(t, w, newRun("a", ready))
		h.failing = true
		h.start(1)
		h.Cancel("a")
		h.expectCancelled("a", true)
		h.Create(newRun("b", running)) // by a process that is gone
		h.expect("b", v1alpha1.BackupPhaseFailed, true)
		h.work.execute = nil
		h.Create(newRun("c", ready))
		h.expect("c", done, true)
		if left := h.Run("a").Status.LeftoverSnapshots; len(left) != 1 {
			t.Errorf("left are %q", left)
		}
	})
}

// Nothing is left to remember them by, so they are removed at once, unless the backup
// is stored, or may be.
func TestWhatARemovedRunHasStoredIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		stored  backup.Outcome
		err     error
		removed []string
	}{
		"its failure is stored": {stored: stored(broken), removed: []string{"a shop"}},
		"its name was taken":    {stored: failed(errBroken), err: backup.ErrNameTaken, removed: []string{"a shop"}},
		"it is stored":          {stored: stored(done)},
		"nobody knows":          {err: errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &work{execute: uploading(t, backup.Outcome{}, nil, "shop")}
				w.abandon = func(context.Context, *enginev1alpha1.BackupRun, v1alpha1.BackupPhase, string) (backup.Outcome, error) {
					return c.stored, c.err
				}
				h := newHarness(t, w, newRun("a", ready))
				h.start(1)
				h.expect("a", running, false)
				h.Remove("a")
				h.expectSnapshotsRemoved(c.removed...)
				h.expectSettled("a")
				time.Sleep(time.Minute)
				if !h.stoppedNames.Has("a") {
					t.Error("the queue was not told")
				}
			})
		})
	}
}
