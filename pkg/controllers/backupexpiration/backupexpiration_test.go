// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupexpiration

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system           = "holdfast"
	uid    types.UID = "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"
)

var instant = metav1.Unix(1_700_000_000, 0)

// closer is a store that is opened more than once. created, if set, is called before each
// Create.
type closer struct {
	*storetest.Faulty
	created func(key string)
}

func (closer) Close() error { return nil }

func (c closer) Create(ctx context.Context, key string, content []byte) error {
	if c.created != nil {
		c.created(key)
	}
	return c.Faulty.Create(ctx, key, content)
}

type world struct {
	*testing.T
	*Controller
	cluster *enginetest.Cluster
	store   *closer
	events  *events.FakeRecorder
	clock   *clocktesting.FakeClock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	w := &world{
		T: t, cluster: enginetest.New(), events: events.NewFakeRecorder(100), clock: clocktesting.NewFakeClock(instant.Time),
		store: &closer{Faulty: storetest.NewFaulty(storetest.Memory(t), clocktesting.NewFakeClock(instant.Time))},
	}
	factory := enginefactory.NewSharedInformerFactory(w.cluster, 0)
	engine := factory.Engine().V1alpha1()
	w.Controller, err = New(Config{
		Namespace: system, Cluster: format.Cluster{SystemNamespace: system, UID: "cluster", Key: key}, Keys: []string{key.PublicKey()},
		Changes: w.cluster.EngineV1alpha1().ExpirationChanges(system), Events: w.events, Clock: w.clock,
		ChangeInformer: engine.ExpirationChanges(), LocationInformer: engine.StorageLocations(),
	})
	must(t, err)
	must(t, engine.StorageLocations().Informer().GetStore().Add(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}))
	w.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return w.store, nil }
	metadata, err := format.EncodeBackup(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily", UID: uid, CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant, Expiration: &instant},
	}, nil, w.Cluster)
	must(t, err)
	must(t, w.store.Put(t.Context(), format.MetadataKey("shop.daily"), metadata))
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask records a request, as the API server does, at an instant of its own.
func (w *world) ask(change func(*enginev1alpha1.ExpirationChangeSpec)) {
	w.Helper()
	record, err := w.Changes.Get(w.Context(), "shop.daily", metav1.GetOptions{})
	exists := err == nil
	if !exists {
		record = &enginev1alpha1.ExpirationChange{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.daily"}}
	}
	record.Generation++
	record.Spec = enginev1alpha1.ExpirationChangeSpec{
		BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}, UID: uid, StorageLocation: "default",
		Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.NewTime(w.clock.Now())},
	}
	change(&record.Spec)
	if exists {
		_, err = w.Changes.Update(w.Context(), record, metav1.UpdateOptions{})
	} else {
		_, err = w.Changes.Create(w.Context(), record, metav1.CreateOptions{})
	}
	must(w, err)
}

// newest is the change that counts, and the greatest number.
func (w *world) newest() (*format.Expiration, int64) {
	w.Helper()
	of := &folder.Folder{Place: format.Place{StoreName: "shop.daily", SystemNamespace: system}, Clock: w.clock, UID: uid, Store: w.store, Try: try}
	backup, err := of.Find(w.Context())
	must(w, err)
	newest, last, err := of.NewestExpiration(w.Context(), backup, "cluster", w.Keys)
	must(w, err)
	return newest, last
}

func (w *world) record() *enginev1alpha1.ExpirationChange {
	w.Helper()
	record, err := w.Changes.Get(w.Context(), "shop.daily", metav1.GetOptions{})
	must(w, err)
	return record
}

func hold(held bool) func(*enginev1alpha1.ExpirationChangeSpec) {
	return func(spec *enginev1alpha1.ExpirationChangeSpec) { spec.Hold, spec.Reason = &held, "evidence" }
}

func until(at time.Time) func(*enginev1alpha1.ExpirationChangeSpec) {
	return func(spec *enginev1alpha1.ExpirationChangeSpec) { spec.Expiration = &metav1.Time{Time: at} }
}

// Each change is a new object, and leaves what it does not name as it was.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	later := instant.Add(1000 * time.Hour)
	for i, step := range []struct {
		ask    func(*enginev1alpha1.ExpirationChangeSpec)
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
		must(t, w.sync(t.Context(), "shop.daily"))
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
	if got := w.store.Count(storetest.Put) - 1; got != 0 {
		t.Errorf("%d objects were rewritten", got)
	}
	// The record goes when all have read the store.
	must(t, w.sync(t.Context(), "shop.daily"))
	w.record()
	w.clock.Step(retention)
	must(t, w.sync(t.Context(), "shop.daily"))
	if _, err := w.Changes.Get(t.Context(), "shop.daily", metav1.GetOptions{}); err == nil {
		t.Error("the record stays")
	}
}

// Two writers, of one request or of two, and a process that dies before it says what it did.
func TestChangesOfTwo(t *testing.T) {
	w := newWorld(t)
	w.ask(hold(true))
	raced := false
	w.store.created = func(key string) {
		if raced {
			return
		}
		raced = true
		other := format.Expiration{StoreName: "shop.daily", UID: uid, Number: 1, Expiration: &metav1.Time{Time: instant.Add(time.Hour)}, Requester: "joe", Timestamp: instant}
		content, err := format.EncodeExpiration(other, w.Cluster)
		must(t, err)
		must(t, w.store.Faulty.Create(t.Context(), key, content))
	}
	must(t, w.sync(t.Context(), "shop.daily"))
	newest, last := w.newest()
	if last != 2 || newest.Hold == nil || !newest.Expiration.Time.Equal(instant.Add(time.Hour)) {
		t.Errorf("after two at once it stands %+v, %d", newest, last)
	}

	// The same request again, of which nobody knows that it is done.
	record := w.record()
	record.Status = enginev1alpha1.ExpirationChangeStatus{}
	_, err := w.Changes.UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.sync(t.Context(), "shop.daily"))
	if _, last := w.newest(); last != 2 || w.record().Status.Number != 2 {
		t.Errorf("a request was written twice: %d, %+v", last, w.record().Status)
	}
}

// What can't be written waits, counting, or is given up if there is nothing to write it for.
func TestChangesThatWait(t *testing.T) {
	w := newWorld(t)
	w.ask(hold(true))
	for _, fault := range []storetest.Fault{
		{Operation: storetest.Create, Err: store.ErrUnavailable}, {Operation: storetest.List, Err: store.ErrDenied}, {Operation: storetest.Get, Err: store.ErrUnavailable},
	} {
		w.store.Inject(fault)
		if err := w.sync(t.Context(), "shop.daily"); !errors.Is(err, fault.Err) {
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
	must(t, w.sync(t.Context(), "shop.daily"))
	if !w.record().Done() {
		t.Error("it is not done when the store answers again")
	}

	w.ask(func(spec *enginev1alpha1.ExpirationChangeSpec) { hold(true)(spec); spec.UID = "1" + uid[1:] })
	if err := w.sync(t.Context(), "shop.daily"); err == nil || w.record().Done() {
		t.Errorf("a backup that the store does not show is given up at once: %v, %+v", err, w.record().Status)
	}
	w.clock.Step(appears)
	must(t, w.sync(t.Context(), "shop.daily"))
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
	w := newWorld(t)
	w.ask(hold(true))
	w.clock.Step(10 * appears)
	wait := func(why string) {
		t.Helper()
		if err := w.sync(t.Context(), "shop.daily"); err == nil || w.record().Done() || w.store.Count(storetest.Create) != 0 {
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
	must(t, w.sync(t.Context(), "shop.daily"))
	if newest, _ := w.newest(); newest == nil || newest.Hold == nil {
		t.Errorf("it stands at %+v", newest)
	}
}

// What can't be written ever is said to be so: at once if there are too many changes, and after
// a while if the backup can't be read.
func TestChangesThatAreNotMade(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world)
		waits   bool
	}{
		"too many": {func(w *world) {
			must(w, w.store.Put(w.Context(), format.ExpirationKey("shop.daily", uid, format.MaxExpirations), []byte("{}")))
		}, false},
		"unreadable": {func(w *world) { must(w, w.store.Put(w.Context(), format.MetadataKey("shop.daily"), []byte("{"))) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.prepare(w)
			w.ask(hold(true))
			err := w.sync(t.Context(), "shop.daily")
			if (err != nil) != c.waits || w.record().Done() == c.waits {
				t.Errorf("at first: %v, %+v", err, w.record().Status)
			}
			w.clock.Step(appears)
			must(t, w.sync(t.Context(), "shop.daily"))
			if record := w.record(); !record.Done() || record.Status.Number != 0 || record.Status.Message == "" {
				t.Errorf("it says %+v", record.Status)
			}
			if told := enginetest.Told(w.events); !strings.Contains(told[len(told)-1], "ExpirationNotChanged") {
				t.Errorf("told %q", told)
			}
		})
	}
}

// removing is a client beside which somebody acts before a removal.
type removing struct {
	engineclient.ExpirationChangeInterface
	before func()
}

func (r removing) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	r.before()
	return r.ExpirationChangeInterface.Delete(ctx, name, options)
}

// What is asked for when the record of an earlier request is about to go is not lost with it.
func TestARequestAtTheLastMoment(t *testing.T) {
	w := newWorld(t)
	w.ask(hold(true))
	must(t, w.sync(t.Context(), "shop.daily"))
	w.clock.Step(retention)
	client := w.Changes
	w.Changes = removing{client, func() { w.ask(hold(false)) }}
	if err := w.sync(t.Context(), "shop.daily"); err == nil {
		t.Error("it is removed")
	}
	w.Changes = client
	must(t, w.sync(t.Context(), "shop.daily"))
	if newest, last := w.newest(); last != 2 || newest.Hold != nil {
		t.Errorf("it stands at %+v, %d", newest, last)
	}
}
