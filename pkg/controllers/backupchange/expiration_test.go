// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const uid types.UID = "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"

// expirations is a world with the stored backup shop.daily.
type expirations struct{ *world }

func newExpirations(t *testing.T) *expirations {
	t.Helper()
	w := newWorld(t)
	metadata, err := format.EncodeBackup(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily", UID: uid, CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant, Expiration: &instant},
	}, nil, w.Cluster)
	must(t, err)
	must(t, w.store.Faulty.Put(t.Context(), format.MetadataKey("shop.daily"), metadata))
	return &expirations{w}
}

// ask records a request, as the API server does, at an instant of its own.
func (w *expirations) ask(change func(*enginev1alpha1.BackupChangeSpec)) {
	w.Helper()
	record, err := w.Engine.BackupChanges(system).Get(w.Context(), "shop.daily", metav1.GetOptions{})
	exists := err == nil
	if !exists {
		record = &enginev1alpha1.BackupChange{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.daily"}}
	}
	record.Generation++
	record.Spec = enginev1alpha1.BackupChangeSpec{
		BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}, UID: uid, StorageLocation: "default",
		Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.NewTime(w.clock.Now())},
	}
	change(&record.Spec)
	if exists {
		_, err = w.Engine.BackupChanges(system).Update(w.Context(), record, metav1.UpdateOptions{})
	} else {
		_, err = w.Engine.BackupChanges(system).Create(w.Context(), record, metav1.CreateOptions{})
	}
	must(w, err)
}

// newest is the change that counts, and the greatest number.
func (w *expirations) newest() (*format.Expiration, int64) {
	w.Helper()
	of := &folder.Folder{Place: format.Place{StoreName: "shop.daily", SystemNamespace: system}, Clock: w.clock, UID: uid, Store: w.store, Try: try}
	backup, err := of.Find(w.Context())
	must(w, err)
	newest, last, err := of.NewestExpiration(w.Context(), backup, "cluster", w.Keys)
	must(w, err)
	return newest, last
}

func (w *expirations) record() *enginev1alpha1.BackupChange {
	w.Helper()
	record, err := w.Engine.BackupChanges(system).Get(w.Context(), "shop.daily", metav1.GetOptions{})
	must(w, err)
	return record
}

func hold(held bool) func(*enginev1alpha1.BackupChangeSpec) {
	return func(spec *enginev1alpha1.BackupChangeSpec) { spec.Hold, spec.Reason = &held, "evidence" }
}

func until(at time.Time) func(*enginev1alpha1.BackupChangeSpec) {
	return func(spec *enginev1alpha1.BackupChangeSpec) { spec.Expiration = &metav1.Time{Time: at} }
}

// Each change is a new object, and leaves what it does not name as it was.
func TestChanges(t *testing.T) {
	w := newExpirations(t)
	later := instant.Add(1000 * time.Hour)
	for i, step := range []struct {
		ask    func(*enginev1alpha1.BackupChangeSpec)
		until  time.Time
		held   bool
		events string
	}{
		{hold(true), instant.Time, true, "Held jane holds the backup"},
		{until(later), later, true, "ExpirationChanged jane lets"},
		{hold(false), later, false, "Released"},
		{until(instant.Time), instant.Time, false, "ExpirationChanged"},
	} {
		w.ask(step.ask)
		must(t, w.expirations.sync(t.Context(), "shop.daily"))
		newest, last := w.newest()
		if newest == nil || last != int64(i+1) || newest.Number != last || !newest.Expiration.Time.Equal(step.until) || (newest.Hold != nil) != step.held || newest.Requester != "jane" {
			t.Fatalf("step %d: %+v, %d", i, newest, last)
		}
		if step.held && (newest.Hold.Reason != "evidence" || newest.Hold.Requester != "jane" || !newest.Hold.Timestamp.Equal(&instant)) {
			t.Errorf("it is held: %+v", newest.Hold)
		}
		if record := w.record(); !record.Done() || record.Status.Number != last {
			t.Errorf("the record says %+v", record.Status)
		}
		if told := enginetest.Told(w.events); len(told) != 1 || !strings.Contains(told[0], step.events) {
			t.Errorf("told %q", told)
		}
	}
	if got := w.store.Count(storetest.Put) - 2; got != 0 {
		t.Errorf("%d objects were rewritten", got)
	}
	// The record goes when all have read the store.
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	w.record()
	w.clock.Step(expirationRetention)
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if _, err := w.Engine.BackupChanges(system).Get(t.Context(), "shop.daily", metav1.GetOptions{}); err == nil {
		t.Error("the record stays")
	}
}

// Two writers, of one request or of two, and a process that dies before it says what it did.
func TestChangesOfTwo(t *testing.T) {
	w := newExpirations(t)
	w.ask(hold(true))
	raced := false
	w.store.put = func(key string) error {
		if raced {
			return nil
		}
		raced = true
		other := format.Expiration{StoreName: "shop.daily", UID: uid, Number: 1, Expiration: &metav1.Time{Time: instant.Add(time.Hour)}, Requester: "joe", Timestamp: instant}
		content, err := format.EncodeExpiration(other, w.Cluster)
		must(t, err)
		must(t, w.store.Faulty.Create(t.Context(), key, content))
		return nil
	}
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	newest, last := w.newest()
	if last != 2 || newest.Hold == nil || !newest.Expiration.Time.Equal(instant.Add(time.Hour)) {
		t.Errorf("after two at once it stands %+v, %d", newest, last)
	}

	// The same request again, of which nobody knows that it is done.
	record := w.record()
	record.Status = enginev1alpha1.BackupChangeStatus{}
	_, err := w.Engine.BackupChanges(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if _, last := w.newest(); last != 2 || w.record().Status.Number != 2 {
		t.Errorf("a request was written twice: %d, %+v", last, w.record().Status)
	}
}

// What can't be written waits, counting, or is given up if there is nothing to write it for.
func TestChangesThatWait(t *testing.T) {
	w := newExpirations(t)
	w.ask(hold(true))
	for _, fault := range []storetest.Fault{
		{Operation: storetest.Create, Err: store.ErrUnavailable}, {Operation: storetest.List, Err: store.ErrDenied}, {Operation: storetest.Get, Err: store.ErrUnavailable},
	} {
		w.store.Inject(fault)
		if err := w.expirations.sync(t.Context(), "shop.daily"); !errors.Is(err, fault.Err) {
			t.Errorf("%v: %v", fault, err)
		}
		if record := w.record(); record.Done() || !strings.Contains(record.Status.Message, "waits") || !record.Counts(uid, 99) {
			t.Errorf("the record says %+v", record.Status)
		}
	}
	w.store.Inject()
	if told := enginetest.Told(w.events); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if !w.record().Done() {
		t.Error("it is not done when the store answers again")
	}

	w.ask(func(spec *enginev1alpha1.BackupChangeSpec) { hold(true)(spec); spec.UID = "1" + uid[1:] })
	if err := w.expirations.sync(t.Context(), "shop.daily"); err == nil || w.record().Done() {
		t.Errorf("a backup that the store does not show is given up at once: %v, %+v", err, w.record().Status)
	}
	w.clock.Step(appears)
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if record := w.record(); !record.Done() || record.Status.Number != 0 || record.Counts(record.Spec.UID, 0) {
		t.Errorf("of a backup that is gone it says %+v", record.Status)
	}
	if told := enginetest.Told(w.events); len(told) == 0 || !strings.Contains(told[len(told)-1], "ExpirationNotChanged") {
		t.Errorf("told %q", told)
	}
	if _, last := w.newest(); last != 1 {
		t.Errorf("another backup has %d changes", last)
	}
}

// A store that is away says nothing of the backup: what is asked for waits, however long.
func TestChangesThatWaitForALocation(t *testing.T) {
	w := newExpirations(t)
	w.ask(hold(true))
	w.clock.Step(10 * appears)
	wait := func(why string) {
		t.Helper()
		if err := w.expirations.sync(t.Context(), "shop.daily"); err == nil || w.record().Done() || w.store.Count(storetest.Create) != 0 {
			t.Errorf("%s: %v, %+v", why, err, w.record().Status)
		}
	}
	locations := w.LocationInformer.Informer().GetStore()
	record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}
	away := record.DeepCopy()
	away.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Message: "no answer"}}
	must(t, locations.Update(away))
	wait("it is not available")
	must(t, locations.Delete(away))
	wait("it does not exist")
	must(t, locations.Add(record))
	open := w.open
	w.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return nil, store.ErrDenied }
	wait("it can't be opened")
	w.open = open
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if newest, _ := w.newest(); newest == nil || newest.Hold == nil {
		t.Errorf("it stands at %+v", newest)
	}
}

// What can't be written ever is said to be so: at once if there are too many changes, and after
// a while if the backup can't be read.
func TestChangesThatAreNotMade(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *expirations)
		waits   bool
	}{
		"too many": {func(w *expirations) {
			must(w, w.store.Put(w.Context(), format.ExpirationKey("shop.daily", uid, format.MaxExpirations), []byte("{}")))
		}, false},
		"unreadable": {func(w *expirations) { must(w, w.store.Put(w.Context(), format.MetadataKey("shop.daily"), []byte("{"))) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newExpirations(t)
			c.prepare(w)
			w.ask(hold(true))
			err := w.expirations.sync(t.Context(), "shop.daily")
			if (err != nil) != c.waits || w.record().Done() == c.waits {
				t.Errorf("at first: %v, %+v", err, w.record().Status)
			}
			w.clock.Step(appears)
			must(t, w.expirations.sync(t.Context(), "shop.daily"))
			if record := w.record(); !record.Done() || record.Status.Number != 0 || record.Status.Message == "" {
				t.Errorf("it says %+v", record.Status)
			}
			if told := enginetest.Told(w.events); !strings.Contains(told[len(told)-1], "ExpirationNotChanged") {
				t.Errorf("told %q", told)
			}
		})
	}
}

// What is asked for when the record of an earlier request is about to go is not lost with it.
func TestARequestAtTheLastMoment(t *testing.T) {
	w := newExpirations(t)
	w.ask(hold(true))
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	w.clock.Step(expirationRetention)
	remove := w.changes.delete
	w.changes.delete = func(ctx context.Context, change *enginev1alpha1.BackupChange) error {
		w.ask(hold(false))
		return remove(ctx, change)
	}
	if err := w.expirations.sync(t.Context(), "shop.daily"); err == nil {
		t.Error("it is removed")
	}
	w.changes.delete = remove
	must(t, w.expirations.sync(t.Context(), "shop.daily"))
	if newest, last := w.newest(); last != 2 || newest.Hold != nil {
		t.Errorf("it stands at %+v, %d", newest, last)
	}
}
