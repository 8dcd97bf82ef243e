// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/queue"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func TestLedger(t *testing.T) {
	ledger := &corev1.ConfigMap{Data: map[string]string{ConcurrentBackupsKey: "3"}}
	if _, err := Ledger(ledger); !errors.Is(err, ErrNoLedger) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := Ledger(nil); !errors.Is(err, ErrNoLedger) {
		t.Errorf("without ledger: %v", err)
	}
	want := []Start{{UID: "uid-1", Name: "shop.daily", At: metav1.Unix(7, 0).Rfc3339Copy()}, {UID: "uid-2", Name: "b", Restore: true}}
	written, err := WithLedger(ledger, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Ledger(written)
	if err != nil || len(got) != 2 || got[0].UID != "uid-1" || !got[0].At.Equal(&want[0].At) || got[1] != want[1] {
		t.Errorf("got %+v, %v", got, err)
	}
	if Limits(written) != (queue.Slots{3, 4}) || len(ledger.Data) != 1 {
		t.Errorf("the limits are %d, and the original %v", Limits(written), ledger.Data)
	}
	if uids := sets.List(Started(written)); !slices.Equal(uids, []types.UID{"uid-1", "uid-2"}) {
		t.Errorf("started: %v", uids)
	}
	empty, err := WithLedger(&corev1.ConfigMap{}, nil)
	if err != nil || empty.Data[StartedKey] != "[]" {
		t.Errorf("an empty one: %v, %v", empty, err)
	}
}

func TestALedgerThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"", "[", "{}", `[{"uid":"a"}]`, `[{"name":"a"}]`} {
		ledger := &corev1.ConfigMap{Data: map[string]string{StartedKey: text}}
		if starts, err := Ledger(ledger); !errors.Is(err, ErrLedger) {
			t.Errorf("%q: %v, %v", text, starts, err)
		}
		if len(Started(ledger)) != 0 {
			t.Errorf("%q: something is started", text)
		}
	}
}

func TestPhase(t *testing.T) {
	started := sets.New[types.UID]("uid")
	for _, c := range []struct{ written, in, out v1alpha1.BackupPhase }{
		{"", v1alpha1.BackupPhaseReadyToStart, ""},
		{v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart, v1alpha1.BackupPhaseQueued},
		{v1alpha1.BackupPhaseReadyToStart, v1alpha1.BackupPhaseReadyToStart, v1alpha1.BackupPhaseQueued},
		{v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseInProgress},
		{v1alpha1.BackupPhaseCancelled, v1alpha1.BackupPhaseCancelled, v1alpha1.BackupPhaseCancelled},
	} {
		run := newRun("shop")
		run.Status.Phase = c.written
		if got := Phase(run, started); got != c.in {
			t.Errorf("%q in the ledger: %q, want %q", c.written, got, c.in)
		}
		if got := Phase(run, nil); got != c.out {
			t.Errorf("%q: %q, want %q", c.written, got, c.out)
		}
		planner := newPlanner(t)
		planner.SetStarted(started)
		if got := planner.compile(run).Phase; got != c.in {
			t.Errorf("%q for the queue: %q, want %q", c.written, got, c.in)
		}
	}
}

func TestCancelledRuns(t *testing.T) {
	run := newRun("shop")
	if newPlanner(t).compile(run).Cancelled {
		t.Error("it is not cancelled")
	}
	run.Spec.Cancellation = &enginev1alpha1.Ask{}
	if got := CancelledReason(run); !newPlanner(t).compile(run).Cancelled || got != "cancelled" {
		t.Errorf("by nobody: %q", got)
	}
	run.Spec.Cancellation.Requester.Username = "jane"
	if got := CancelledReason(run); got != "cancelled by jane" {
		t.Errorf("by jane: %q", got)
	}
}
