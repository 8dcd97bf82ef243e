// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshotsweep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// restoring gives a harness its restores.
func (h *harness) restoring(restores ...runtime.Object) *enginefake.Clientset {
	engine := enginefake.NewSimpleClientset(restores...)
	h.Restores = engine.EngineV1alpha1().RestoreRuns(system)
	return engine
}

func restore(uid string, phase v1alpha1.RestorePhase) *enginev1alpha1.RestoreRun {
	return &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "r-" + uid, UID: types.UID(uid)}, Status: enginev1alpha1.RestoreRunStatus{Phase: phase}}
}

// offer offers a snapshot to a restore, and returns its name.
func (h *harness) offer(uid string) string {
	h.t.Helper()
	name, err := h.Snapshots.Offer(h.t.Context(), snapshots.Wanted{Restore: types.UID(uid), Namespace: "new", Claim: "data", ClaimUID: "claim"}, snapshots.Found{Driver: "d", Handle: "h"})
	must(h.t, err)
	return name
}

// offered returns the names of the VolumeSnapshots and of the contents, sorted.
func (h *harness) offered() (taken, contents []string) {
	h.t.Helper()
	all, err := h.objects.Resource(snapshots.Snapshots).List(h.t.Context(), metav1.ListOptions{})
	must(h.t, err)
	for _, object := range all.Items {
		taken = append(taken, object.GetName())
	}
	all, err = h.objects.Resource(snapshots.Contents).List(h.t.Context(), metav1.ListOptions{})
	must(h.t, err)
	for _, object := range all.Items {
		contents = append(contents, object.GetName())
	}
	slices.Sort(taken)
	slices.Sort(contents)
	return taken, contents
}

// TestWhichOffersLeave: offers of restores that have ended or are missing are withdrawn, and others stay. The next
// sweep comes soon until they are gone.
func TestWhichOffersLeave(t *testing.T) {
	for name, test := range map[string]struct {
		restore *enginev1alpha1.RestoreRun
		stays   bool
	}{
		"new":               {restore("x", ""), true},
		"queued":            {restore("x", v1alpha1.RestorePhaseQueued), true},
		"in progress":       {restore("x", v1alpha1.RestorePhaseInProgress), true},
		"being cancelled":   {restore("x", v1alpha1.RestorePhaseCancelling), true},
		"completed":         {restore("x", v1alpha1.RestorePhaseCompleted), false},
		"partially failed":  {restore("x", v1alpha1.RestorePhasePartiallyFailed), false},
		"failed":            {restore("x", v1alpha1.RestorePhaseFailed), false},
		"cancelled":         {restore("x", v1alpha1.RestorePhaseCancelled), false},
		"missing":           {nil, false},
		"a later namesake":  {&enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "r-x", UID: "later"}}, false},
		"of another system": {&enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "r-x", UID: "x"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			restores := []runtime.Object{restore("live", v1alpha1.RestorePhaseInProgress)}
			if test.restore != nil {
				restores = append(restores, test.restore)
			}
			h.restoring(restores...)
			live, judged := h.offer("live"), h.offer("x")
			for i := range 4 {
				next, err := h.sweep(t.Context())
				must(t, err)
				wantNext, want := interval, []string{live}
				if test.stays {
					want = append(want, judged)
				} else if i < 2 {
					wantNext = waitingInterval // a call deletes one, and the next sees it gone
				}
				slices.Sort(want)
				if next != wantNext {
					t.Errorf("sweep %d: the next is in %s, want %s", i, next, wantNext)
				}
				if taken, contents := h.offered(); !slices.Equal(taken, want) || i > 0 && !slices.Equal(contents, want) {
					t.Errorf("sweep %d: left are %v and %v, want %v", i, taken, contents, want)
				}
			}
		})
	}
}

// TestARestoreBegins: an offer that is made while the sweep reads the restores stays.
func TestARestoreBegins(t *testing.T) {
	h := newHarness(t)
	engine := h.restoring()
	h.offer("ended")
	begun := ""
	engine.PrependReactor("list", "restoreruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		if begun == "" {
			begun = h.offer("begins")
		}
		return false, nil, nil
	})
	_, err := h.sweep(t.Context())
	must(t, err)
	if taken, _ := h.offered(); begun == "" || !slices.Equal(taken, []string{begun}) {
		t.Errorf("left are %v, want %q", taken, begun)
	}
}

// TestOffersWithoutAnAnswer: while the restores are not known, all offers stay. The snapshots of failed backups
// leave, and the failure is told.
func TestOffersWithoutAnAnswer(t *testing.T) {
	h := newHarness(t, run("failed", v1alpha1.BackupPhaseFailed))
	engine := h.restoring()
	denied, fails := errors.New("it is denied"), true
	engine.PrependReactor("list", "restoreruns", func(clienttesting.Action) (bool, runtime.Object, error) { return fails, nil, denied })
	offer := h.offer("ended")
	h.kept("c", "failed", "default")
	_, err := h.sweep(t.Context())
	taken, contents := h.offered()
	if !errors.Is(err, denied) || !slices.Equal(taken, []string{offer}) || !slices.Equal(contents, []string{offer}) {
		t.Errorf("got %v; left are %v and %v", err, taken, contents)
	}
	fails = false
	for range 2 {
		_, err = h.sweep(t.Context())
		must(t, err)
	}
	if taken, contents := h.offered(); len(taken)+len(contents) > 0 {
		t.Errorf("left are %v and %v", taken, contents)
	}
}

// TestAnOfferThatFails: an offer that can't be withdrawn holds up neither other offers nor the sweep.
func TestAnOfferThatFails(t *testing.T) {
	h := newHarness(t, run("failed", v1alpha1.BackupPhaseFailed))
	h.restoring()
	bad, denied := h.offer("a"), errors.New("it is denied")
	for _, uid := range []string{"b", "c", "d"} {
		h.offer(uid)
	}
	h.objects.PrependReactor("delete", snapshots.Snapshots.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.DeleteAction).GetName() == bad, nil, denied
	})
	h.kept("c", "failed", "default")
	for range 2 {
		if _, err := h.sweep(t.Context()); !errors.Is(err, denied) {
			t.Errorf("got %v", err)
		}
	}
	if taken, contents := h.offered(); !slices.Equal(taken, []string{bad}) || !slices.Equal(contents, []string{bad}) {
		t.Errorf("left are %v and %v, want %s", taken, contents, bad)
	}
}

// TestWokenByADeletion: the record of a deleted backup starts a sweep when it goes. Others that go don't.
func TestWokenByADeletion(t *testing.T) {
	for name, test := range map[string]struct {
		deletion *enginev1alpha1.Deletion
		woken    bool
	}{
		"with a deletion":    {&enginev1alpha1.Deletion{}, true},
		"without a deletion": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := run("x", v1alpha1.BackupPhaseCompleted)
				ended.Spec.Deletion = test.deletion
				h := newHarness(t, ended, &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}})
				h.backup("another")
				var sweeps atomic.Int32
				h.looked = func() { sweeps.Add(1) }
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				defer running.Wait()
				defer h.factory.Shutdown()
				defer cancel()
				h.factory.Start(ctx.Done())
				running.Go(func() { h.Run(ctx) })
				time.Sleep(time.Minute) // of the bubble: the first sweep comes at the start
				before := sweeps.Load()
				if before == 0 {
					t.Fatal("there is no sweep at the start")
				}
				h.kept("c", "x", "default")
				must(t, h.Runs.Delete(ctx, ended.Name, metav1.DeleteOptions{}))
				time.Sleep(time.Minute) // of the bubble
				if got := sweeps.Load() - before; (got > 0) != test.woken {
					t.Errorf("%d sweeps, woken is to be %t", got, test.woken)
				}
			})
		})
	}
}
