// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
)

// restore is the next version of a restore's record.
func (f *fixture) restore(namespace, name string, phase v1alpha1.RestorePhase, ticket int64, targets ...string) *enginev1alpha1.RestoreRun {
	f.version++
	store := format.StoreName(namespace, name, system)
	return &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: system, Name: store, UID: types.UID("restore-" + store),
			ResourceVersion: strconv.Itoa(f.version), CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)),
		},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:       v1alpha1.BackupReference{Namespace: namespace, Name: name},
			Requester:        enginev1alpha1.Requester{Username: "jane"},
			Backup:           enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{StorageLocation: "default"}},
			TargetNamespaces: targets,
		},
		Status: enginev1alpha1.RestoreRunStatus{Phase: phase, Ticket: ticket},
	}
}

// A restore stands beside a backup of its name, and both of them show the same queue. A
// tenant sees what blocks it by name where that is the tenant's own, and else that there
// is something.
func TestRestoresInTheQueue(t *testing.T) {
	f := newFixture(t, "red", "blue")
	var places map[types.UID]Place
	f.Subscribe(Subscriber{Restores: func(all map[types.UID]Place) { places = all }})
	f.limit(1)
	f.Observe(f.run("red", "same", queued(1), "red"))
	f.restoreChanged(f.restore("red", "same", v1alpha1.RestorePhaseInProgress, 2, "red"))
	f.restoreChanged(f.restore("blue", "secret-of-blue", v1alpha1.RestorePhaseQueued, 3, "red"))
	f.restoreChanged(f.restore("red", "next", v1alpha1.RestorePhaseQueued, 4, "red"))
	misnamed := f.restore("red", "same", v1alpha1.RestorePhaseQueued, 5, "red")
	misnamed.Name, misnamed.UID = "by-hand", "by-hand"
	f.restoreChanged(misnamed)
	f.mustPublish()

	entry := func(namespace, name string) *v1alpha1.BackupQueueEntry {
		t.Helper()
		entry, ok := f.Queue.GetObject(namespace, name)
		if !ok {
			t.Fatalf("%s/%s has no entry", namespace, name)
		}
		return entry
	}
	running := entry("red", "restore:same")
	if s := running.Status; running.Spec.Kind != "Restore" || running.UID != "restore-red.same" || running.Spec.IncludedNamespaces[0] != "red" ||
		running.Spec.Requester != "jane" || s.State != v1alpha1.QueueStateRunning || s.SlotsInUse != 1 || s.SlotLimit != 4 {
		t.Errorf("the one that runs: %+v", running)
	}
	waits := entry("red", "restore:next")
	if s := waits.Status; s.Position != 2 || s.Message != "overlaps restore same (running) in red" || len(s.Blockers) != 1 || s.Blockers[0].Kind != "Restore" {
		t.Errorf("the one that waits: %+v", waits)
	}
	waiting := entry("red", "same")
	// The record that somebody made by hand has a place, and is not shown.
	if s := waiting.Status; waiting.Spec.Kind != "Backup" || waiting.UID != "uid-red.same" || s.Position != 4 || s.Message != "overlaps restore same (running) in red" {
		t.Errorf("the backup: %+v", waiting)
	}
	if got := f.backup("red", "same").Status.QueuePosition; got != 4 {
		t.Errorf("the backup says that its position is %d", got)
	}
	if s := entry("blue", "restore:secret-of-blue").Status; s.Message != "overlaps another restore in red" || len(s.Blockers) != 0 || s.OtherBlockers != 1 {
		t.Errorf("blue sees %+v", s)
	}
	for name, want := range map[*v1alpha1.BackupQueueEntry]string{waiting: "restore:same", entry("blue", "restore:secret-of-blue"): "another"} {
		for _, column := range backup.QueueResource.Columns {
			if column.Definition.Name == "Blocked-By" && column.Cell(name, time.Unix(2000, 0)) != want {
				t.Errorf("%s is blocked by %v, want %s", name.Name, column.Cell(name, time.Unix(2000, 0)), want)
			}
		}
	}
	if len(places) != 3 || places["restore-red.next"].Position != 2 || places["restore-blue.secret-of-blue"].Message != "overlaps another restore in red" {
		t.Errorf("restores are told their places: %+v", places)
	}

	// When the first has ended, and the namespace is made anew, the rest is the administrator's.
	f.restoreChanged(f.restore("red", "same", v1alpha1.RestorePhaseCompleted, 2, "red"))
	gone := f.restore("red", "next", v1alpha1.RestorePhaseQueued, 4, "red")
	gone.Spec.NamespaceUID = "before"
	f.restoreChanged(gone)
	f.namespaceChanged(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "now"}})
	f.mustPublish()
	if s := entry(system, "restore:red.next").Status; s.Position != 2 {
		t.Errorf("in the system namespace it is %+v", s)
	}
	for _, name := range []string{"restore:same", "restore:next"} {
		if _, ok := f.Queue.GetObject("red", name); ok {
			t.Errorf("%s is there still", name)
		}
	}
	f.restoreRemoved(gone)
	f.restoreRemoved(misnamed)
	f.restoreRemoved(f.restore("blue", "secret-of-blue", v1alpha1.RestorePhaseQueued, 3))
	f.mustPublish()
	if s := entry("red", "same").Status; len(places) != 0 || s.Reason != v1alpha1.QueueReasonNextToStart {
		t.Errorf("alone, the backup is %+v, and the restores %v", s, places)
	}
}
