// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// movingFixture is an encrypted backup of three ConfigMaps, a hooked pod whose claim is cut, a volume that
// is read in its pod, and one that is missing.
func movingFixture(t *testing.T) *fixture {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true), Hooks: dbHooks("")}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.add("configmaps", named("shop", "a", "b", "c")...)
	f.csiClaim("data", "d", "Filesystem")
	f.add("pods", hookedPod("db", "n1", isDB, `"backup.holdfast.io/backup-volumes":"scratch,lost"`, claimIn("v", "data"), "scratch"+emptyDir))
	f.encrypts(t)
	return f
}

// noted has the backup note that only data is moved, as its record does.
func (f *fixture) noted() {
	f.deps.Moving = func(ctx context.Context) error {
		f.request.Moving = ctx.Err() == nil
		return ctx.Err()
	}
}

// endWhileMoving runs the first attempt until it moves data, where its process ends.
func (f *fixture) endWhileMoving(t *testing.T) (Outcome, error) {
	t.Helper()
	f.noted()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	f.volumes.wait = func(context.Context) error {
		if f.request.Moving {
			end()
		}
		return ctx.Err()
	}
	outcome, _, err := f.attempt(ctx, 1, goOn)
	f.volumes.wait = nil
	if !f.request.Moving {
		t.Fatalf("the first attempt moves no data: %v", err)
	}
	return outcome, err
}

// wantMoved fails unless the backup is whole, with what the first and the last attempt have found.
func (f *fixture) wantMoved(t *testing.T) {
	t.Helper()
	f.wantWhole(t)
	stored := f.stored(t).Status
	if stored.Phase != v1alpha1.BackupPhaseCompleted || stored.Warnings != 1 || !strings.Contains(stored.Message, "the pod has no such volume") ||
		stored.HookStatus == nil || stored.HookStatus.HooksAttempted != 2 || stored.Encryption == nil || stored.Progress.ItemsBackedUp < 6 {
		t.Errorf("%s, %d warnings (%s), hooks %+v, progress %+v, encryption %+v", stored.Phase, stored.Warnings, stored.Message, stored.HookStatus, stored.Progress, stored.Encryption)
	}
	if warnings := f.results(t).Warnings.Namespaces["shop"]; len(warnings) != 1 {
		t.Errorf("the warnings are %q", warnings)
	}
	if list := f.text(t, format.PodVolumeBackupsKey("b")); strings.Count(list, `"snapshotID":"snap-v"`) != 1 || strings.Count(list, `"snapshotID":"snap-scratch"`) != 1 {
		t.Errorf("the volumes are:\n%s", list)
	}
	if log := f.text(t, format.LogKey("b")); strings.Count(log, "resource=configmaps namespace=shop name=b") != 1 {
		t.Errorf("the log is:\n%s", log)
	}
	if slices.Contains(f.keys(t), format.HandoverKey("b")) {
		t.Error("the handover is still there")
	}
}

// TestMoveAfterAKill: a process may be killed before each of its writes. Once it has noted that all is read,
// the next ones ask the cluster for nothing, and go on with the snapshots that it has cut.
func TestMoveAfterAKill(t *testing.T) {
	f := movingFixture(t)
	f.noted()
	_, writes, err := f.attempt(t.Context(), 1, goOn)
	if err != nil || !f.request.Moving {
		t.Fatalf("moving %t, %v", f.request.Moving, err)
	}
	f.wantMoved(t)
	moved := 0
	for first := 1; first <= writes+1; first++ {
		for second := 1; second <= writes+2; second += 2 {
			f := movingFixture(t)
			f.noted()
			ctx, end := context.WithCancel(t.Context())
			_, _, err := f.attempt(ctx, 1, kill(first, end))
			if end(); err == nil && first < writes { // the last one removes the handover
				t.Fatalf("attempt 1 goes on when it is killed before write %d", first)
			}
			noted, asked := f.request.Moving, len(f.requests)
			f.volumes.submitted = nil
			ctx, end = context.WithCancel(t.Context())
			_, _, _ = f.attempt(ctx, 2, kill(second, end))
			end()
			if noted {
				moved++
				if len(f.requests) != asked {
					t.Errorf("killed before write %d, the next one asks the cluster for %q", first, f.requests[asked:])
				}
				for _, volume := range f.volumes.submitted {
					if volume.Snapshot != nil && volume.Snapshot.Cut.Handle != "stored-data" || volume.Snapshot == nil && !volume.Status.Phase.Done() {
						t.Errorf("killed before write %d, the next one submits %+v", first, volume)
					}
				}
			}
			outcome, _, err := f.attempt(t.Context(), 3, goOn)
			if err != nil || !outcome.Stored {
				t.Fatalf("killed before writes %d and %d: %+v, %v", first, second, outcome, err)
			}
			f.wantMoved(t)
		}
	}
	if moved == 0 {
		t.Error("no process was killed while it moved")
	}
}

// TestMovingIsNotNoted: a note that can't be made costs the backup its early end in the queue only. After a
// kill the next attempt reads anew.
func TestMovingIsNotNoted(t *testing.T) {
	f := movingFixture(t)
	f.deps.Moving = func(context.Context) error { return errors.New("no quorum") }
	ctx, end := context.WithCancel(t.Context())
	f.volumes.wait = func(context.Context) error {
		if slices.Contains(f.keys(t), format.HandoverKey("b")) { // and not in the wait for the files
			end()
			return ctx.Err()
		}
		return nil
	}
	if outcome, _, err := f.attempt(ctx, 1, goOn); err == nil || outcome.Stored {
		t.Errorf("%+v, %v", outcome, err)
	}
	f.volumes.wait = nil
	if outcome, _, err := f.attempt(t.Context(), 2, goOn); err != nil || !outcome.Stored {
		t.Errorf("%+v, %v", outcome, err)
	}
	f.wantMoved(t)
}

// TestTakenOverBeforeMoving: an attempt whose record is another's stores no end.
func TestTakenOverBeforeMoving(t *testing.T) {
	f := movingFixture(t)
	f.deps.Moving = func(context.Context) error { return ErrTakenOver }
	if outcome, _, err := f.attempt(t.Context(), 1, goOn); !errors.Is(err, ErrTakenOver) || outcome.Stored || slices.Contains(f.keys(t), format.MetadataKey("b")) {
		t.Errorf("%+v, %v", outcome, err)
	}
}

// TestCancelledWhileItMoves: nothing stays of a cancelled backup but its end.
func TestCancelledWhileItMoves(t *testing.T) {
	f := movingFixture(t)
	if outcome, err := f.endWhileMoving(t); err == nil || outcome.Stored {
		t.Errorf("%+v, %v", outcome, err)
	}
	if _, err := Abandon(t.Context(), f.request, f.deps, f.store, v1alpha1.BackupPhaseCancelled, "cancelled by ada"); err != nil {
		t.Fatal(err)
	}
	want := []string{format.LogKey("b"), format.ResultsKey("b"), format.OwnerKey("b"), format.MetadataKey("b")}
	slices.Sort(want)
	if diff := gocmp.Diff(want, f.keys(t)); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
}

// TestHandoverIsMissing: a backup fails if what it has read is not in its store any more. It does not read
// a cluster that has changed.
func TestHandoverIsMissing(t *testing.T) {
	f := movingFixture(t)
	f.request.Moving = true
	outcome, _, err := f.attempt(t.Context(), 2, goOn)
	if err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "was read by an earlier process") || len(f.requests) > 0 {
		t.Errorf("%+v, %v, after %q", outcome.Status, err, f.requests)
	}
}

// TestHandoverOfAStoreThatIsAway: the next attempt waits for its store, as long as the backup may take.
func TestHandoverOfAStoreThatIsAway(t *testing.T) {
	f := movingFixture(t)
	_, _ = f.endWhileMoving(t)
	request, deps, away := f.request, f.deps, &awayStore{f.store, 5} // more than Retry has steps
	request.Attempt, deps.Store, deps.Progress = 2, away, &Progress{}
	if outcome, err := Run(t.Context(), request, deps); err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || away.left != 0 {
		t.Errorf("%+v, %v, and %d more tries fail", outcome, err, away.left)
	}
}

// awayStore does not give the handover so many times.
type awayStore struct {
	*storetest.Faulty
	left int
}

func (s *awayStore) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if key == format.HandoverKey("b") && s.left > 0 {
		s.left--
		return nil, store.ErrUnavailable
	}
	return s.Faulty.Get(ctx, key)
}

// TestMovedVolumeThatCantBeHandedOver: it is an error of the backup that names it.
func TestMovedVolumeThatCantBeHandedOver(t *testing.T) {
	f := movingFixture(t)
	_, _ = f.endWhileMoving(t)
	f.volumes.submit = func(volume *format.Volume) error {
		return errors.New("no repository") // also for the one that has ended, and stays so
	}
	outcome, _, err := f.attempt(t.Context(), 2, goOn)
	errs := f.results(t).Errors.Namespaces["shop"]
	if err != nil || outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || len(errs) != 1 || !strings.Contains(errs[0], "no repository") || outcome.Status.Volumes.Failed != 1 {
		t.Errorf("%+v, %v: %q", outcome.Status, err, errs)
	}
}
