// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
)

// record is a version of the record of the restore shop/back, asked for in a namespace with
// this uid.
func record(version int, namespaceUID types.UID, status enginev1alpha1.RestoreRunStatus) *enginev1alpha1.RestoreRun {
	return &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back", UID: "uid-of-back", ResourceVersion: strconv.Itoa(version), CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:   v1alpha1.BackupReference{Namespace: "shop", Name: "back"},
			NamespaceUID: namespaceUID,
			Backup:       enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{Namespace: "shop", Name: "daily", StorageLocation: "default"}},
		},
		Status: status,
	}
}

func namespace(name string, uid types.UID) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
}

// conditionsOf prints conditions without their times.
func conditionsOf(restore *v1alpha1.Restore) string {
	var texts []string
	for _, c := range restore.Status.Conditions {
		texts = append(texts, fmt.Sprintf("%s=%s %s %q", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(texts, ", ")
}

// TestARestoreIsOneObject: a watcher sees it change from New to its end, and a program finds
// its conditions.
func TestARestoreIsOneObject(t *testing.T) {
	h := newHarness(t)
	p := h.publisher
	watcher, err := p.Log.Watch(t.Context(), "/holdfast.io/restores", storage.ListOptions{Predicate: storage.Everything, Recursive: true, ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	next := func() (watch.EventType, *v1alpha1.Restore) {
		t.Helper()
		select {
		case event := <-watcher.ResultChan():
			return event.Type, event.Object.(*v1alpha1.Restore)
		case <-time.After(time.Minute):
			t.Fatal("there is no event")
			return "", nil
		}
	}
	queued, started, ended := metav1.Unix(2000, 0), metav1.Unix(3000, 0), metav1.Unix(4000, 0)
	cancelled := record(9, "", enginev1alpha1.RestoreRunStatus{Phase: "InProgress", QueuedTimestamp: &queued, StartTimestamp: &started})
	cancelled.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.Unix(3500, 0)}
	for i, step := range []struct {
		do         func()
		phase      v1alpha1.RestorePhase
		position   int32
		conditions string
		since      metav1.Time
	}{
		{func() { p.Observe(record(1, "", enginev1alpha1.RestoreRunStatus{})) }, "New", 0, `Queued=True New "", Complete=False New ""`, metav1.Unix(1000, 0)},
		{func() {
			p.Observe(record(2, "", enginev1alpha1.RestoreRunStatus{Phase: "Queued", QueuedTimestamp: &queued}))
		}, "Queued", 0, `Queued=True Queued "", Complete=False Queued ""`, queued},
		{func() {
			p.Queued(map[types.UID]projection.Place{"uid-of-back": {Entry: queue.Entry{State: v1alpha1.QueueStateQueued, Position: 2, Reason: v1alpha1.QueueReasonNamespaceOverlap, Message: "overlaps another backup in shop"}, OverMessage: "overlaps holdfast/nightly (running) in shop"}})
			within, _ := p.Log.GetObject("shop", "back")
			if got, want := conditionsOf(within), `Queued=True NamespaceOverlap "position 2: overlaps another backup in shop", Complete=False Queued ""`; got != want {
				t.Errorf("within the namespace it shows %s, want %s", got, want)
			}
		}, "Queued", 2, `Queued=True NamespaceOverlap "position 2: overlaps holdfast/nightly (running) in shop", Complete=False Queued ""`, queued},
		{func() {
			p.Queued(map[types.UID]projection.Place{"uid-of-back": {Entry: queue.Entry{State: v1alpha1.QueueStateReady}}})
		}, "ReadyToStart", 0, `Queued=False ReadyToStart "", Complete=False ReadyToStart ""`, queued},
		{func() {
			p.Observe(record(3, "", enginev1alpha1.RestoreRunStatus{Phase: "InProgress", QueuedTimestamp: &queued, StartTimestamp: &started}))
		}, "InProgress", 0, `Queued=False InProgress "", Complete=False InProgress ""`, started},
		{func() { p.Observe(cancelled) }, "Cancelling", 0, `Queued=False Cancelling "asked to stop by jane", Complete=False Cancelling ""`, metav1.Unix(3500, 0)},
		{func() {
			p.Observe(record(10, "", enginev1alpha1.RestoreRunStatus{Phase: "PartiallyFailed", FailureReason: "two are not there", StartTimestamp: &started, CompletionTimestamp: &ended}))
		}, "PartiallyFailed", 0, `Complete=True PartiallyFailed "two are not there", Succeeded=False PartiallyFailed "two are not there"`, ended},
		{func() {
			p.Observe(record(3, "", enginev1alpha1.RestoreRunStatus{Phase: "InProgress"})) // late, and so not shown
			p.Observe(record(11, "", enginev1alpha1.RestoreRunStatus{Phase: "Completed", CompletionTimestamp: &ended}))
		}, "Completed", 0, `Complete=True Completed "", Succeeded=True Completed ""`, ended},
	} {
		step.do()
		kind, restore := next()
		want := watch.Modified
		if i == 0 {
			want = watch.Added
		}
		if kind != want || restore.UID != "uid-of-back" || restore.Status.Phase != step.phase || restore.Status.QueuePosition != step.position || conditionsOf(restore) != step.conditions {
			t.Errorf("step %d: %s of %s: %s at %d, %s", i, kind, restore.UID, restore.Status.Phase, restore.Status.QueuePosition, conditionsOf(restore))
		}
		if since := restore.Status.Conditions[0].LastTransitionTime; !since.Equal(&step.since) {
			t.Errorf("step %d: since %s, not %s", i, since, step.since)
		}
	}
	p.forget(record(11, "", enginev1alpha1.RestoreRunStatus{}))
	if kind, _ := next(); kind != watch.Deleted {
		t.Errorf("when the record goes: %s", kind)
	}
	p.Observe(record(11, "", enginev1alpha1.RestoreRunStatus{})) // the answer to a write
	if _, shown := p.Log.GetObject("shop", "back"); shown {
		t.Error("a record that is gone is shown again")
	}
}

// TestANewNamespaceHasNothingOfTheOldOne: its restores are the administrator's from then on.
func TestANewNamespaceHasNothingOfTheOldOne(t *testing.T) {
	p := newHarness(t).publisher
	shown := func(want ...types.NamespacedName) {
		t.Helper()
		for _, at := range []types.NamespacedName{{Namespace: "shop", Name: "back"}, {Namespace: system, Name: "shop.back"}} {
			restore, ok := p.Log.GetObject(at.Namespace, at.Name)
			expected := len(want) > 0 && want[0] == at
			if ok != expected || ok && restore.UID != "uid-of-back" {
				t.Errorf("at %s: %t, %+v", at, ok, restore)
			}
		}
	}
	home, moved := types.NamespacedName{Namespace: "shop", Name: "back"}, types.NamespacedName{Namespace: system, Name: "shop.back"}
	p.setNamespace(namespace("shop", "first"), true)
	p.Observe(record(1, "first", enginev1alpha1.RestoreRunStatus{Phase: "InProgress"}))
	shown(home)
	p.setNamespace(namespace("shop", "first"), false)
	shown(home)
	p.setNamespace(namespace("shop", "second"), true)
	shown(moved)
	p.Observe(record(2, "first", enginev1alpha1.RestoreRunStatus{Phase: "Completed"}))
	shown(moved)
	p.setNamespace(namespace("shop", "second"), false)
	shown(home)
	p.setNamespace(namespace("shop", "third"), true)
	shown(moved)
	p.SetSuccessions(identity.Successions{"shop": {{"first", "third"}}})
	shown(home)
	p.SetSuccessions(identity.Successions{"shop": {{"second", "third"}}})
	shown(moved)
	p.forget(record(2, "first", enginev1alpha1.RestoreRunStatus{}))
	shown()
}

// TestReplaced: of a record that was replaced by another one of its name, the late end does
// not hide the new one.
func TestReplaced(t *testing.T) {
	p := newHarness(t).publisher
	old, other := record(1, "", enginev1alpha1.RestoreRunStatus{}), record(5, "", enginev1alpha1.RestoreRunStatus{})
	other.UID = "uid-of-another"
	p.Observe(old)
	p.Observe(other)
	p.forget(old)
	if restore, ok := p.Log.GetObject("shop", "back"); !ok || restore.UID != other.UID {
		t.Errorf("shown is %+v", restore)
	}
	if records, unfinished := p.load("shop", sets.New("shop.back", "shop.coming")); records != 2 || unfinished != 2 {
		t.Errorf("there are %d records, %d unfinished", records, unfinished)
	}
}

// TestAtOnce is for the race detector.
func TestAtOnce(t *testing.T) {
	p := newHarness(t).publisher
	var working sync.WaitGroup
	for i := range 4 {
		working.Go(func() {
			for n := range 50 {
				switch i {
				case 0:
					p.Observe(record(n, "first", enginev1alpha1.RestoreRunStatus{Phase: "InProgress"}))
				case 1:
					p.setNamespace(namespace("shop", types.UID([]string{"first", "second"}[n%2])), n%3 > 0)
				case 2:
					p.Queued(map[types.UID]projection.Place{"uid-of-back": {Entry: queue.Entry{State: v1alpha1.QueueStateQueued, Position: n}}})
				case 3:
					p.load("shop", nil)
				}
			}
		})
	}
	working.Wait()
	p.setNamespace(namespace("shop", "first"), true)
	if _, ok := p.Log.GetObject("shop", "back"); !ok {
		t.Error("it is not shown where it was asked for")
	}
	if _, ok := p.Log.GetObject(system, "shop.back"); ok {
		t.Error("it is shown elsewhere, too")
	}
}

func TestTable(t *testing.T) {
	started, ended := metav1.Unix(3000, 0), metav1.Unix(3090, 0)
	run := record(1, "", enginev1alpha1.RestoreRunStatus{
		Phase: "PartiallyFailed", StartTimestamp: &started, CompletionTimestamp: &ended, Warnings: 1, Errors: 2, FailureReason: "two are not there",
		Progress: &v1alpha1.RestoreProgress{TotalItems: 20, ItemsRestored: 18, ItemsCreated: 15, ItemsUnchanged: 3, ItemsFailed: 2},
		Volumes:  &v1alpha1.RestoreVolumesProgress{Total: 3, Completed: 1, Failed: 1, BytesDone: 3 << 20},
	})
	run.Spec.Requester.Username = "jane"
	run.Spec.Backup.Namespace = "holdfast"
	table, err := Resource.ConvertToTable(context.Background(), restoreOf(run, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	cells := table.Rows[0].Cells
	cells[8] = "(age)"
	const want = "[back PartiallyFailed holdfast/daily 18/20 1/3 1 2 - (age) 15 3 2 3.0Mi 90s default jane - two are not there]"
	if got := fmt.Sprint(cells); got != want {
		t.Errorf("the row is %s\nnot        %s", got, want)
	}
	if c := meta.FindStatusCondition(restoreOf(run, nil).Status.Conditions, v1alpha1.ConditionComplete); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("Complete: %+v", c)
	}
}
