// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/history"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// moment is something in the life of a backup at which the controller is killed.
type moment struct {
	name string
	// in reports whether a backup is there.
	in func(sight) bool
	// from, if set, is where a backup is asked to be cancelled or deleted, which
	// brings it there. paused is set if the controller is not to know it any more.
	from    func(sight) bool
	request string
	paused  bool
	// long is set for a backup that stays InProgress for as long as it is let.
	long bool
}

var claimed = moment{name: "claimed", in: func(s sight) bool { return s.inProgress() && s.volume == nil && !s.stored && !s.cancelled() }}

var moments = []moment{
	{name: "created", in: func(s sight) bool { return s.isNew() && !s.cancelled() }},
	{name: "queued", in: func(s sight) bool { return s.waits() && !s.cancelled() }},
	{name: "let start", in: func(s sight) bool { return s.ready() && !s.cancelled() }},
	claimed,
	{name: "its volume is handed over", in: func(s sight) bool { return s.volumeIn("") }},
	{name: "its volume is being uploaded", in: func(s sight) bool { return s.volumeIn(enginev1alpha1.VolumePhaseInProgress) }},
	{name: "its volume is uploaded", in: func(s sight) bool { return s.volumeIn(enginev1alpha1.VolumePhaseCompleted) }},
	{name: "its progress is written", in: func(s sight) bool { return s.inProgress() && s.run.Status.Progress != nil }, long: true},
	{name: "stored", in: func(s sight) bool { return s.inProgress() && s.stored }},
	{name: "ended", in: func(s sight) bool { return s.ended() && s.by != "" && !s.cancelled() }},
	{name: "record removed", in: func(s sight) bool { return s.run == nil }},

	{name: "cancelled while new", from: sight.isNew, request: "cancel", paused: true, in: func(s sight) bool { return s.isNew() && s.cancelled() }},
	{name: "cancelled while queued", from: sight.waits, request: "cancel", paused: true, in: func(s sight) bool { return s.waits() && s.cancelled() }},
	{name: "cancelled while ready", from: sight.ready, request: "cancel", paused: true, in: func(s sight) bool { return s.ready() && s.cancelled() }},
	{name: "cancelled while in progress", from: sight.inProgress, request: "cancel", paused: true, in: func(s sight) bool { return s.inProgress() && s.cancelled() }},
	{name: "being taken from the queue", from: sight.waits, request: "cancel", in: func(s sight) bool { return s.waits() && s.cancelled() }},
	{name: "being stopped", from: func(s sight) bool { return s.inProgress() && s.volume != nil }, request: "cancel", in: func(s sight) bool { return s.inProgress() && s.cancelled() }, long: true},
	{name: "stopped", from: sight.inProgress, request: "cancel", in: func(s sight) bool { return s.phase() == v1alpha1.BackupPhaseCancelled && s.by != "" }},

	{name: "deletion asked", from: storedWithRecord, request: "deletion", paused: true, in: func(s sight) bool { return s.deleted() && s.stored }},
	{name: "being deleted", from: storedWithRecord, request: "deletion", in: func(s sight) bool { return s.deleted() && !s.stored }},
	{name: "deletion asked without a record", from: func(s sight) bool { return s.run == nil && s.stored }, request: "deletion",
		in: func(s sight) bool { return s.deleted() && s.run.Spec.Deletion.Stored != nil }},
}

func storedWithRecord(s sight) bool { return s.ended() && s.run.Status.Stored }

// TestKilledAtEveryPhase kills the controller at every phase of backups that are
// created, cancelled and deleted meanwhile, and then each of two by turns, so that the
// other one takes over.
// By the audit log every backup has ended once, none overlapped another, and none
// was overtaken.
func TestKilledAtEveryPhase(t *testing.T) {
	const limit = 4
	labtest.Eventually(t, "the backups of other tests to have ended", noneRuns(t.Context()))
	mark := lab.AuditMark(t)
	k := &killer{ctx: t.Context(), roles: map[string]string{}}
	k.start(t, labtest.Controller, func() {
		lab.Reconfigure(t, fmt.Sprintf("--concurrent-backups=%d", limit))
	})
	o := observe(t, k.changed)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	load := newLoad(t, o)
	load.start(ctx)
	kills := 0
	kill := func(m moment, role string, blind bool) (killed string) {
		t.Helper()
		if m.long {
			load.long(t)
		}
		kills++
		return k.kill(t, m, role, blind)
	}
	for _, m := range moments {
		role := kill(m, labtest.Controller, false)
		bury(t, role)
		k.start(t, role, func() { lab.Start(t, role) })
	}
	lab.StartAnother(t, labtest.AnotherController)
	leads, waits := labtest.Controller, labtest.AnotherController
	for _, m := range moments {
		// There is nothing between what is seen and the kill, which may come late.
		kill(m, leads, true)
		before := leader(t)
		bury(t, leads)
		k.elected(t, waits, before)
		lab.Start(t, leads)
		leads, waits = waits, leads
	}
	// The other one takes over when the Lease has expired.
	kill(claimed, leads, false)
	stop()
	load.Wait()
	load.cancelLong(t)
	labtest.Eventually(t, "all backups to end", noneRuns(t.Context()))

	var h *history.History
	labtest.Eventually(t, "the audit log to be complete", func() error {
		list, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		h, err = history.Read(lab.WritesSince(t, mark), list.Items)
		return err
	})
	for _, err := range h.Check(limit) {
		t.Error(err)
	}
	ended := map[v1alpha1.BackupPhase]int{}
	for _, run := range h.Runs() {
		ended[run.Status.Phase]++
		switch phase := run.Status.Phase; {
		case phase == v1alpha1.BackupPhaseCompleted, phase == v1alpha1.BackupPhaseCancelled && run.Spec.Cancellation != nil:
		case phase == v1alpha1.BackupPhaseFailed && strings.Contains(run.Status.FailureReason, "the controller stopped"):
		case phase == "" && run.Spec.Deletion != nil && run.Spec.Deletion.Stored != nil:
		default:
			t.Errorf("%s is %s for the reason %q", run.Name, phase, run.Status.FailureReason)
		}
	}
	t.Logf("%d kills; of %d backups: %v; %d writes were not answered", kills, len(h.Runs()), ended, h.Unanswered)
	if ended[v1alpha1.BackupPhaseFailed] > kills*limit {
		t.Errorf("%d kills let %d backups fail, more than could run", kills, ended[v1alpha1.BackupPhaseFailed])
	}
	labtest.Eventually(t, "the snapshots to be those of the completed backups", func() error {
		return wholeSnapshots(t, load.files, h.Runs())
	})
}

// wholeSnapshots fails unless there is a snapshot of the volume of a namespace for each
// backup that lists one, and none for the others.
func wholeSnapshots(t *testing.T, namespace string, runs []*enginev1alpha1.BackupRun) error {
	t.Helper()
	list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	listed := map[types.UID]int{}
	for i := range list.Items {
		listed[list.Items[i].Spec.BackupUID]++
	}
	sweep(t, namespace)
	for _, run := range runs {
		if !slices.Contains(run.Spec.Backup.IncludedNamespaces, namespace) {
			continue
		}
		if found := snapshots(t, namespace, run.UID); found != listed[run.UID] {
			return fmt.Errorf("%s, which is %q, has %d snapshots, and lists %d", run.Name, run.Status.Phase, found, listed[run.UID])
		}
	}
	return nil
}

// noneRuns fails while a backup of the system namespace has not ended.
func noneRuns(ctx context.Context) func() error {
	return func() error {
		list, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range list.Items {
			if !run.Status.Phase.Ended() {
				return fmt.Errorf("%s is %q, and deletion is %v", run.Name, run.Status.Phase, run.Spec.Deletion)
			}
		}
		return nil
	}
}
