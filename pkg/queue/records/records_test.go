// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

func TestLimits(t *testing.T) {
	settings := func(value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{ConcurrentBackupsKey: value}}
	}
	for name, c := range map[string]struct {
		settings *corev1.ConfigMap
		want     int
	}{
		"none": {nil, 1}, "empty": {&corev1.ConfigMap{}, 1}, "four": {settings("4"), 4}, "one": {settings("1"), 1},
		"zero": {settings("0"), 1}, "negative": {settings("-2"), 1}, "no number": {settings("many"), 1}, "too large": {settings("99999999999999999999"), 1},
	} {
		if got := Limits(c.settings); got != (queue.Slots{c.want, 4}) {
			t.Errorf("%s: the limits are %d, want %d and 4", name, got, c.want)
		}
	}
	set := settings("1")
	if SetLimits(set, queue.Slots{2, 3}); Limits(set) != (queue.Slots{2, 3}) || !HasLimits(set, queue.Slots{2, 3}) || HasLimits(set, queue.Slots{2, 4}) {
		t.Errorf("set to 2 and 3 they are %d", Limits(set))
	}
}

func TestRefused(t *testing.T) {
	resource := v1alpha1.Resource("backupruns")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"forbidden":              {apierrors.NewForbidden(resource, "a", errors.New("a webhook denies it")), true},
		"wrapped":                {fmt.Errorf("claiming: %w", apierrors.NewForbidden(resource, "a", nil)), true},
		"invalid":                {apierrors.NewInvalid(enginev1alpha1.SchemeGroupVersion.WithKind("BackupRun").GroupKind(), "a", nil), true},
		"a webhook fails":        {apierrors.NewInternalError(errors.New("failed calling webhook")), true},
		"any other answer":       {apierrors.NewGenericServerResponse(418, "update", resource, "a", "", 0, true), true},
		"not found":              {apierrors.NewNotFound(resource, "a"), false},
		"somebody else was here": {apierrors.NewConflict(resource, "a", nil), false},
		"not logged in":          {apierrors.NewUnauthorized("who?"), false},
		"too many requests":      {apierrors.NewTooManyRequests("later", 1), false},
		"unavailable":            {apierrors.NewServiceUnavailable("starting"), false},
		"server timeout":         {apierrors.NewServerTimeout(resource, "update", 1), false},
		"a proxy's":              {apierrors.NewGenericServerResponse(502, "update", resource, "a", "", 0, true), false},
		"timeout":                {apierrors.NewTimeoutError("later", 1), false},
		"no answer":              {errors.New("connection refused"), false},
		"no error":               {nil, false},
	} {
		if got := Refused(c.err); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func newRun(namespaces ...string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.daily", UID: "uid"},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"},
			Backup:    v1alpha1.BackupSpec{IncludedNamespaces: namespaces, StorageLocation: "default"},
		},
	}
}

func newPlanner(t *testing.T) *Planner {
	t.Helper()
	planner, err := NewPlanner(queue.Slots{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	return planner
}

func TestRun(t *testing.T) {
	created, queued := time.Unix(1, 0), metav1.Unix(2, 0)
	run := newRun("shop")
	run.CreationTimestamp = metav1.NewTime(created)
	run.ResourceVersion = "1234"
	run.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: 7, QueuedTimestamp: &queued}
	planner := newPlanner(t)
	planner.UpdateRun(run, nil)
	got := planner.compile(run)
	if explicit := got.Selection.Explicit(); len(explicit) != 1 || explicit[0] != "shop" {
		t.Errorf("it selects %q", explicit)
	}
	got.Selection = nil
	want := queue.Run{UID: "uid", Namespace: "shop", Name: "daily", Phase: v1alpha1.BackupPhaseQueued, Ticket: 7,
		CreatedAt: created, WaitingSince: queued.Time, Location: "default"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	run.Status.Phase = v1alpha1.BackupPhaseInProgress
	if got := planner.compile(run).WaitingSince; !got.IsZero() {
		t.Errorf("one that runs waits since %s", got)
	}
	run.Status.Phase = v1alpha1.BackupPhaseNew
	if got := planner.compile(run).Version; got != 1234 {
		t.Errorf("a new one has version %d", got)
	}
}

func newRestore(namespaces ...string) *enginev1alpha1.RestoreRun {
	return &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.daily", UID: "restore"},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:       v1alpha1.BackupReference{Namespace: "shop", Name: "daily"},
			Backup:           enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{StorageLocation: "default"}},
			TargetNamespaces: namespaces,
		},
	}
}

// A restore and a backup may have one name. They meet in the queue, by the namespaces
// that the one writes to and the other reads.
func TestRestoresStandInTheQueue(t *testing.T) {
	planner := newPlanner(t)
	planner.SetLocations(map[string]queue.LocationState{"default": {Available: true}})
	backup, restore := newRun("shop"), newRestore("shop", "web")
	backup.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: 1}
	restore.Status = enginev1alpha1.RestoreRunStatus{Phase: v1alpha1.RestorePhaseQueued, Ticket: 2}
	planner.UpdateRun(backup, nil)
	planner.UpdateRun(restore, nil)
	if got := planner.Load(queue.Restore, "shop", nil); got != (Load{1, 1}) || planner.Load(queue.Backup, "shop", nil) != got {
		t.Errorf("each counts by itself, and one is %+v", got)
	}
	if got := planner.Next(); len(got.Start) != 1 || got.Start[0] != "restore" {
		t.Errorf("these start: %v", got.Start)
	}
	planner.SetStarted(sets.New[types.UID]("restore"))
	for _, phase := range []v1alpha1.RestorePhase{v1alpha1.RestorePhaseQueued, v1alpha1.RestorePhaseInProgress} {
		restore = restore.DeepCopy()
		restore.Status.Phase = phase
		planner.UpdateRun(restore, nil)
		if got, _ := planner.Entry("uid"); len(planner.Next().Start) != 0 || len(got.Blockers) != 1 || got.Blockers[0].Class != queue.Restore {
			t.Errorf("while the restore is %s: %+v", phase, got)
		}
	}
	restore = restore.DeepCopy()
	restore.Status.Phase = v1alpha1.RestorePhasePartiallyFailed
	planner.UpdateRun(restore, nil)
	if got := planner.Next(); len(got.Start) != 1 || got.Start[0] != "uid" {
		t.Errorf("after it, these start: %v", got.Start)
	}
	for name, c := range map[string]struct {
		run               *enginev1alpha1.RestoreRun
		any, clusterScope bool
	}{
		"names":               {newRestore("shop"), false, false},
		"none known":          {newRestore(), true, false},
		"what cannot be read": {newRestore("shop["), true, true},
	} {
		got := Select(c.run)
		if anything := got.Namespaces == nil || got.Namespaces.All(); anything != c.any || got.ClusterScoped != c.clusterScope {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A restore that only plans waits for nothing but more plans, and holds up nobody: neither a
// restore of the same namespaces, however many plans there are, nor a backup of them.
func TestPlansHoldUpNobody(t *testing.T) {
	planner := newPlanner(t)
	planner.SetLocations(map[string]queue.LocationState{"default": {Available: true}})
	started, ticket := sets.New[types.UID](), int64(0)
	queued := func(name string, planOnly bool) {
		restore := newRestore("shop")
		ticket++
		restore.Name, restore.UID, restore.Spec.Restore.PlanOnly = name, types.UID(name), planOnly
		restore.Status = enginev1alpha1.RestoreRunStatus{Phase: v1alpha1.RestorePhaseQueued, Ticket: ticket}
		planner.UpdateRun(restore, nil)
	}
	starts := func(want ...types.UID) {
		t.Helper()
		got := planner.Next().Start
		if !slices.Equal(got, want) {
			t.Fatalf("these start: %v, want %v", got, want)
		}
		started.Insert(got...)
		planner.SetStarted(started.Clone())
	}
	backup := newRun("shop")
	backup.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: 100}
	for n := range queue.PlanSlots + 1 {
		queued(fmt.Sprint("plan-", n), true)
	}
	planner.UpdateRun(backup, nil)
	starts("plan-0", "plan-1", "plan-2", "plan-3", backup.UID)
	if e, _ := planner.Entry("plan-4"); e.Reason != v1alpha1.QueueReasonConcurrencyLimit || !strings.Contains(e.Message, "4 in use, the limit is 4") {
		t.Errorf("the fifth plan: %s: %s", e.Reason, e.Message)
	}
	queued("restore", false)
	starts()
	planner.RemoveRun(backup.UID)
	starts("restore")
	queued("another", false)
	if e, _ := planner.Entry("another"); len(e.Blockers) != 1 || e.Blockers[0].UID != "restore" {
		t.Errorf("another restore waits for %+v", e.Blockers)
	}
	planner.RemoveRun("plan-0")
	starts("plan-4")
}

func TestWaitingSince(t *testing.T) {
	at := func(second int64) *metav1.Time { t := metav1.Unix(second, 0); return &t }
	for name, c := range map[string]struct {
		queued *metav1.Time
		want   int64
	}{"not queued": {nil, 100}, "at once": {at(100), 100}, "a moment later": {at(101), 101}, "without a controller for a minute": {at(160), 100}} {
		run := newRun("shop")
		run.CreationTimestamp, run.Status.QueuedTimestamp = *at(100), c.queued
		if got := WaitingSince(run).Unix(); got != c.want {
			t.Errorf("%s: since %d, want %d", name, got, c.want)
		}
	}
}

// Pitfall 20: the queue knows what touches cluster-scoped resources.
func TestClusterScope(t *testing.T) {
	yes := true
	everything, named, asked := newRun(), newRun("shop"), newRun("shop")
	asked.Spec.Backup.IncludeClusterResources = &yes
	for name, c := range map[string]struct {
		run  *enginev1alpha1.BackupRun
		want bool
	}{"all namespaces": {everything, true}, "one namespace": {named, false}, "one namespace and cluster scope": {asked, true}} {
		planner := newPlanner(t)
		planner.UpdateRun(c.run, nil)
		if got := planner.compile(c.run).ClusterScoped; got != c.want {
			t.Errorf("%s: cluster-scoped %t, want %t", name, got, c.want)
		}
	}
}

// Pitfall 17: a record that can't be read blocks everything that it might touch.
func TestWhatCannotBeReadOverlapsEverything(t *testing.T) {
	badNamespaces, badResources := newRun("shop["), newRun("shop")
	badResources.Spec.Backup.IncludedResources = []string{"pods"}
	badResources.Spec.Backup.IncludedNamespaceScopedResources = []string{"pods"}
	planner := newPlanner(t)
	planner.UpdateRun(badNamespaces, nil)
	if got := planner.compile(badNamespaces); got.Selection != nil || !got.ClusterScoped {
		t.Errorf("namespaces: %+v", got)
	}
	badResources.UID = "another"
	planner.UpdateRun(badResources, nil)
	got := planner.compile(badResources)
	if other, _ := selection.ParseNamespaces([]string{"web"}, nil, nil); selection.Overlaps(got.Selection, other) || !got.ClusterScoped {
		t.Errorf("resources: %+v", got)
	}
}

func TestWhatARunSelectsIsReadOnce(t *testing.T) {
	planner := newPlanner(t)
	if planner.Knows(newRun("shop")) {
		t.Error("it knows a run that it was never told of")
	}
	given := Select(newRun("shop"))
	planner.UpdateRun(newRun("shop"), given)
	for range 2 {
		if !planner.Knows(newRun("shop")) || planner.selected["uid"] != given {
			t.Error("what was given is not kept")
		}
		planner.UpdateRun(newRun("shop"), nil)
	}
	planner.RemoveRun("uid")
	planner.UpdateRun(newRun("shop"), nil)
	first := planner.selected["uid"]
	planner.UpdateRun(newRun("shop"), given)
	if planner.selected["uid"] != first || first == given || first == nil {
		t.Error("it was read again")
	}
	ended := newRun("shop")
	ended.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Ticket: 7}
	planner.UpdateRun(ended, given)
	if got := planner.compile(ended); got.Selection != nil || got.Ticket != 7 || len(planner.selected) != 0 || !planner.Knows(ended) {
		t.Errorf("a run that has ended: %+v", got)
	}
	deleted := newRun("shop")
	deleted.Spec.Deletion = &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{}}
	if planner.UpdateRun(deleted, given); len(planner.selected) != 0 || !planner.Knows(deleted) {
		t.Error("what a deletion's run selects is of no use")
	}
	planner.RemoveRun("uid")
	planner.RemoveRun("uid")
	if len(planner.runs)+len(planner.named)+len(planner.selected)+len(planner.loads) != 0 {
		t.Errorf("it was not forgotten: %+v", planner)
	}
}

func TestLoad(t *testing.T) {
	planner := newPlanner(t)
	run := func(name string, change func(*enginev1alpha1.BackupRun)) {
		r := newRun("web")
		r.Name, r.UID, r.Spec.BackupRef.Namespace = "shop."+name, types.UID(name), "shop"
		change(r)
		planner.UpdateRun(r, nil)
	}
	phase := func(phase v1alpha1.BackupPhase) func(*enginev1alpha1.BackupRun) {
		return func(r *enginev1alpha1.BackupRun) { r.Status.Phase = phase }
	}
	expect := func(step string, records, waiting int) {
		t.Helper()
		if got := planner.Load(queue.Backup, "shop", nil); got != (Load{Records: records, Waiting: waiting}) {
			t.Errorf("%s: %+v", step, got)
		}
	}
	expect("nothing", 0, 0)
	run("a", phase(""))
	run("b", phase(v1alpha1.BackupPhaseQueued))
	run("c", phase(v1alpha1.BackupPhaseInProgress))
	run("d", phase(v1alpha1.BackupPhaseCancelled))
	expect("one of each", 4, 2)
	run("a", phase(v1alpha1.BackupPhaseQueued))
	run("e", func(r *enginev1alpha1.BackupRun) {
		r.Spec.Deletion = &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{}}
	})
	expect("a deletion", 5, 2)
	run("a", phase(v1alpha1.BackupPhaseInProgress))
	run("b", func(r *enginev1alpha1.BackupRun) { r.Spec.Cancellation = &enginev1alpha1.Ask{} })
	expect("one begins, and one is cancelled", 5, 0)
	if got := planner.Load(queue.Backup, "shop", sets.New("shop.a", "shop.new")); got != (Load{Records: 6, Waiting: 1}) {
		t.Errorf("with one that is being created, and one that has been: %+v", got)
	}
	planner.RemoveRun("a")
	expect("one is removed", 4, 0)
}

// A run may still be executed when its record is gone and another one has its name.
func TestAnotherRunOfTheSameName(t *testing.T) {
	planner := newPlanner(t)
	planner.SetLocations(map[string]queue.LocationState{"default": {Available: true}})
	inProgress := newRun("shop")
	inProgress.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress, Ticket: 1}
	planner.UpdateRun(inProgress, nil)
	another := newRun("shop")
	another.UID = "another"
	another.Status = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: 2}
	planner.UpdateRun(another, nil)
	if got, _ := planner.Entry("another"); len(got.Blockers) != 1 || got.Blockers[0].UID != "uid" {
		t.Errorf("it does not wait for its namesake: %+v", got)
	}
	planner.SetStarted(sets.New[types.UID]("another"))
	if got := planner.EntryAt(1).State; got != v1alpha1.QueueStateReady {
		t.Errorf("let start, it is %s", got)
	}
	planner.SetStarted(nil)
	planner.RemoveRun("uid")
	if got := planner.EntryAt(0); planner.Len() != 1 || got.UID != "another" || got.State != v1alpha1.QueueStateQueued {
		t.Errorf("put back, and alone: %+v", got)
	}
}

func TestLocation(t *testing.T) {
	with := func(conditions ...metav1.Condition) *enginev1alpha1.StorageLocation {
		return &enginev1alpha1.StorageLocation{Status: enginev1alpha1.StorageLocationStatus{Conditions: conditions}}
	}
	for name, c := range map[string]struct {
		location *enginev1alpha1.StorageLocation
		want     queue.LocationState
	}{
		"not checked yet": {with(metav1.Condition{Type: "Other", Status: metav1.ConditionTrue}), queue.LocationState{Message: "it has not been checked yet"}},
		"available":       {with(metav1.Condition{Type: "Available", Status: metav1.ConditionTrue, Message: "the store answers"}), queue.LocationState{Available: true}},
		"unavailable":     {with(metav1.Condition{Type: "Available", Status: metav1.ConditionFalse, Message: "no such folder"}), queue.LocationState{Message: "no such folder"}},
		"of two clusters": {with(metav1.Condition{Type: "Available", Status: metav1.ConditionTrue, Message: "the store answers"}, metav1.Condition{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionTrue, Message: "a copy"}), queue.LocationState{Available: true, NoBackups: true, Message: "a copy"}},
		"of one again":    {with(metav1.Condition{Type: "Available", Status: metav1.ConditionTrue}, metav1.Condition{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionFalse, Message: "alone"}), queue.LocationState{Available: true}},
		"unknown":         {with(metav1.Condition{Type: "Available", Status: metav1.ConditionUnknown, Message: "who knows"}), queue.LocationState{Message: "who knows"}},
	} {
		if got := locationState(c.location); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
