// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// recordFormer records a change of an expiration, as the API server of the previous version does.
func (w *expirations) recordFormer(after time.Duration, change func(*enginev1alpha1.BackupChangeSpec)) {
	w.Helper()
	former := &enginev1alpha1.ExpirationChange{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.daily", UID: "former", Generation: 2},
		Spec: enginev1alpha1.BackupChangeSpec{
			UID: uid, StorageLocation: "default", Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "joe"}, Timestamp: metav1.NewTime(instant.Add(after))},
		},
	}
	change(&former.Spec)
	_, err := w.Engine.ExpirationChanges(system).Create(w.Context(), former, metav1.CreateOptions{})
	must(w, err)
}

func (w *expirations) formerRecord() *enginev1alpha1.BackupChange {
	w.Helper()
	former, err := w.Engine.ExpirationChanges(system).Get(w.Context(), "shop.daily", metav1.GetOptions{})
	must(w, err)
	return enginev1alpha1.AsBackupChange(former)
}

// kill ends the process at one of its writes, into the store or the cluster: before the write for
// even numbers, after it for odd ones. revive starts the next process, and reports whether the
// first one was killed.
func (w *world) kill(at int) (revive func() bool) {
	var mu sync.Mutex
	killed, writes, dead := errors.New("killed"), 0, false
	write := func() error {
		mu.Lock()
		defer mu.Unlock()
		if dead {
			return killed
		}
		if writes++; writes == at/2+1 {
			if dead = true; at%2 == 0 {
				return killed
			}
		}
		return nil
	}
	w.store.put = func(string) error { return write() }
	w.cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
		if verb := action.GetVerb(); verb == "get" || verb == "list" {
			return enginetest.Fault{}
		}
		return enginetest.Fault{Err: write()}
	})
	return func() bool {
		w.store.put = func(string) error { return nil }
		w.cluster.Fault(nil)
		return dead
	}
}

// An unfinished ExpirationChange is carried out where it is, once, also if the previous version has
// written it into the store and was killed then.
func TestFormerExpiration(t *testing.T) {
	for at := 0; ; at++ {
		w := newExpirations(t)
		w.recordFormer(0, hold(true))
		revive := w.kill(at)
		_ = w.expirations.sync(t.Context(), "shop.daily")
		wasKilled := revive()
		must(t, w.expirations.sync(t.Context(), "shop.daily"))
		newest, last := w.newest()
		if last != 1 || newest.Hold == nil || newest.Hold.Requester != "joe" || newest.Request != "former/2" {
			t.Errorf("killed at %d: in the store is %+v, %d", at, newest, last)
		}
		if former := w.formerRecord(); !former.Done() || former.Status.Number != 1 {
			t.Errorf("killed at %d: the record says %+v", at, former.Status)
		}
		if !wasKilled {
			if at < 4 {
				t.Errorf("only %d writes", at/2)
			}
			return
		}
	}
}

// A finished or refused ExpirationChange is kept as long as before, and then deleted. An impossible
// one is refused.
func TestFormerExpirationIsDone(t *testing.T) {
	for name, status := range map[string]enginev1alpha1.BackupChangeStatus{
		"finished": {ObservedGeneration: 2, Number: 1, Timestamp: &instant},
		"refused":  {ObservedGeneration: 2, Message: "the backup is not in the store", Timestamp: &instant},
		"too late": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newExpirations(t)
			w.recordFormer(0, func(spec *enginev1alpha1.BackupChangeSpec) { hold(true)(spec); spec.UID = "1" + uid[1:] })
			former := w.formerRecord()
			former.Status = status
			_, err := w.Engine.ExpirationChanges(system).UpdateStatus(t.Context(), (*enginev1alpha1.ExpirationChange)(former), metav1.UpdateOptions{})
			must(t, err)
			if name == "too late" {
				w.clock.Step(appears)
			}
			must(t, w.expirations.sync(t.Context(), "shop.daily"))
			if former := w.formerRecord(); !former.Done() || (former.Status.Message == "") != (name == "finished") {
				t.Errorf("the record says %+v", former.Status)
			}
			w.clock.Step(expirationRetention)
			must(t, w.expirations.sync(t.Context(), "shop.daily"))
			if _, err := w.Engine.ExpirationChanges(system).Get(t.Context(), "shop.daily", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the record stays: %v", err)
			}
			if _, last := w.newest(); last != 0 {
				t.Errorf("%d changes are in the store", last)
			}
		})
	}
}

// An ExpirationChange and a BackupChange of one backup end in the state that was requested last,
// also if the process is killed at any write and a request comes meanwhile.
func TestFormerExpirationAndALaterOne(t *testing.T) {
	later := instant.Add(1000 * time.Hour)
	for name, test := range map[string]struct {
		former func(*enginev1alpha1.BackupChangeSpec)
		after  time.Duration
		change func(*enginev1alpha1.BackupChangeSpec)
		held   bool
		until  time.Time
	}{
		"released later":         {hold(true), -time.Hour, hold(false), false, instant.Time},
		"held later":             {hold(false), -time.Hour, hold(true), true, instant.Time},
		"held at the same time":  {hold(false), 0, hold(true), true, instant.Time},
		"held, extended later":   {hold(true), -time.Hour, until(later), true, later},
		"held in the former":     {hold(true), time.Hour, hold(false), true, instant.Time},
		"released in the former": {hold(false), time.Hour, func(spec *enginev1alpha1.BackupChangeSpec) { hold(true)(spec); until(later)(spec) }, false, later},
	} {
		t.Run(name, func(t *testing.T) {
			for at := 0; ; at++ {
				w := newExpirations(t)
				w.recordFormer(test.after, test.former)
				w.ask(test.change)
				revive := w.kill(at)
				_ = w.expirations.sync(t.Context(), "shop.daily")
				wasKilled := revive()
				must(t, w.expirations.sync(t.Context(), "shop.daily"))
				newest, last := w.newest()
				if newest == nil || (newest.Hold != nil) != test.held || !newest.Expiration.Time.Equal(test.until) || last > 2 {
					t.Errorf("killed at %d: in the store is %+v, %d", at, newest, last)
				}
				if !w.formerRecord().Done() || !w.record().Done() {
					t.Errorf("killed at %d: the records say %+v and %+v", at, w.formerRecord().Status, w.record().Status)
				}
				// A third request, by the same record, stands alone.
				w.clock.Step(2 * time.Hour)
				w.ask(hold(!test.held))
				must(t, w.expirations.sync(t.Context(), "shop.daily"))
				if newest, _ := w.newest(); (newest.Hold != nil) == test.held {
					t.Errorf("killed at %d: after a third request it stands at %+v", at, newest)
				}
				if !wasKilled {
					return
				}
			}
		})
	}
}

// A former record that appears when the later one is done takes nothing of it back.
func TestFormerExpirationAppearsLate(t *testing.T) {
	w := newExpirations(t)
	w.ask(hold(true))
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	w.recordFormer(-time.Hour, func(spec *enginev1alpha1.BackupChangeSpec) {
		hold(false)(spec)
		until(instant.Add(time.Hour))(spec)
	})
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if newest, last := w.newest(); last != 2 || newest.Hold == nil || !newest.Expiration.Time.Equal(instant.Add(time.Hour)) {
		t.Errorf("in the store is %+v, %d", newest, last)
	}
	if !w.formerRecord().Done() {
		t.Error("the former record is not done")
	}
}

// An unfinished VolumeDeletion is carried out where it is, from where the previous version stopped:
// its refusals stand, its removal has its uid.
func TestFormerDeletion(t *testing.T) {
	for at := 0; ; at++ {
		w := newWorld(t)
		w.stored(4, w.Cluster)
		former := &enginev1alpha1.VolumeDeletion{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "former", UID: "former"},
			Spec:       enginev1alpha1.BackupChangeSpec{Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "joe"}, Timestamp: instant}, Namespace: "shop", Volume: "data", ListedIn: "shop"},
			Status:     enginev1alpha1.BackupChangeStatus{Processed: 1, Refused: []enginev1alpha1.BackupChangeRefusal{{Target: 0, Message: "the backup is held"}}},
		}
		for i := range 4 {
			former.Spec.Targets = append(former.Spec.Targets, enginev1alpha1.BackupChangeTarget{StorageLocation: "default", StoreName: storeNameOf(i), UID: uidOf(i)})
		}
		_, err := w.Engine.VolumeDeletions(system).Create(t.Context(), former, metav1.CreateOptions{})
		must(t, err)
		// A hold of the previous version protects the rest.
		yes := true
		_, err = w.Engine.ExpirationChanges(system).Create(t.Context(), &enginev1alpha1.ExpirationChange{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeNameOf(3), Generation: 1},
			Spec:       enginev1alpha1.BackupChangeSpec{UID: uidOf(3), Hold: &yes},
		}, metav1.CreateOptions{})
		must(t, err)

		revive := w.kill(at)
		_ = w.deletions.sync(t.Context(), "former")
		wasKilled := revive()
		must(t, w.deletions.sync(t.Context(), "former"))
		for i := range 4 {
			if _, volumes := w.deleted(i); (volumes == 1) != (i == 1 || i == 2) {
				t.Errorf("killed at %d: of backup %d %d volumes are deleted", at, i, volumes)
			}
		}
		record, err := w.Engine.VolumeDeletions(system).Get(t.Context(), "former", metav1.GetOptions{})
		must(t, err)
		if refused := record.Status.Refused; record.Status.CompletionTimestamp == nil || len(refused) != 2 || refused[1].Target != 3 {
			t.Errorf("killed at %d: the record says %+v", at, record.Status)
		}
		removal := w.removal(enginev1alpha1.AsBackupChange(record))
		if removal == nil || fmt.Sprint(removal.Backups) != fmt.Sprint([]format.RemovalOf{{UID: uidOf(1), StoreName: storeNameOf(1)}, {UID: uidOf(2), StoreName: storeNameOf(2)}}) {
			t.Errorf("killed at %d: the removal is %v", at, removal)
		}
		if !wasKilled {
			if at < 8 {
				t.Errorf("only %d writes", at/2)
			}
			return
		}
	}
}

// A finished or wholly refused VolumeDeletion is kept for a day, and then deleted.
func TestFormerDeletionIsDone(t *testing.T) {
	for name, refused := range map[string][]enginev1alpha1.BackupChangeRefusal{
		"finished": nil, "refused": {{Target: 0, Message: "the backup is held"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.stored(1, w.Cluster)
			_, err := w.Engine.VolumeDeletions(system).Create(t.Context(), &enginev1alpha1.VolumeDeletion{
				ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "former", UID: "former"},
				Spec:       enginev1alpha1.BackupChangeSpec{Namespace: "shop", Volume: "data", Targets: []enginev1alpha1.BackupChangeTarget{{StorageLocation: "default", StoreName: storeNameOf(0), UID: uidOf(0)}}},
				Status:     enginev1alpha1.BackupChangeStatus{Processed: 1, Refused: refused, CompletionTimestamp: &instant},
			}, metav1.CreateOptions{})
			must(t, err)
			must(t, w.deletions.sync(t.Context(), "former"))
			w.clock.Step(deletionRetention - time.Second)
			must(t, w.deletions.sync(t.Context(), "former"))
			_, err = w.Engine.VolumeDeletions(system).Get(t.Context(), "former", metav1.GetOptions{})
			must(t, err)
			w.clock.Step(time.Second)
			must(t, w.deletions.sync(t.Context(), "former"))
			if _, err := w.Engine.VolumeDeletions(system).Get(t.Context(), "former", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the record stays: %v", err)
			}
			if _, volumes := w.deleted(0); volumes != 0 {
				t.Errorf("%d volumes are deleted", volumes)
			}
		})
	}
}

// A record is carried out in its own lane, and neither replaces nor hides a record of the other
// kind: a backup of the system namespace may have the name of any record.
func TestLanes(t *testing.T) {
	w := newExpirations(t)
	w.stored(1, w.Cluster)
	asked := w.world.ask(1, 0)
	must(t, w.Engine.BackupChanges(system).Delete(t.Context(), asked.Name, metav1.DeleteOptions{}))
	asked.Name, asked.ResourceVersion = "shop.daily", ""
	_, err := w.Engine.BackupChanges(system).Create(t.Context(), asked, metav1.CreateOptions{})
	must(t, err)
	w.recordFormer(0, hold(true))
	must(t, w.expirations.sync(t.Context(), asked.Name))
	if newest, _ := w.newest(); newest == nil || newest.Hold == nil {
		t.Errorf("the hold is not in the store: %+v", newest)
	}
	if _, volumes := w.deleted(0); volumes != 0 || w.world.record(asked.Name).Done() {
		t.Error("the lane of expirations deletes")
	}
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if _, volumes := w.deleted(0); volumes != 1 {
		t.Error("the lane of deletions does not delete")
	}
}

// An old record of one backup neither changes nor delays a later backup of the name.
func TestFormerExpirationOfAnotherBackup(t *testing.T) {
	w := newExpirations(t)
	w.recordFormer(-time.Hour, func(spec *enginev1alpha1.BackupChangeSpec) { hold(true)(spec); spec.UID = "1" + uid[1:] })
	w.ask(hold(true))
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if newest, last := w.newest(); last != 1 || newest.Hold == nil || newest.Requester != "jane" || !w.formerRecord().Done() || w.formerRecord().Status.Number != 0 {
		t.Errorf("in the store is %+v, %d", newest, last)
	}
}
