// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

const system = "holdfast"

// fixture is a Projector over informers that the test fills by hand.
type fixture struct {
	*Projector
	t testing.TB
	// version is the resourceVersion of the latest record.
	version int
}

func newFixture(t testing.TB, namespaces ...string) *fixture {
	engine := enginefactory.NewSharedInformerFactory(enginefake.NewSimpleClientset(), 0)
	kube := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	p, err := New(Config{
		SystemNamespace: system,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Restores:        engine.Engine().V1alpha1().RestoreRuns(),
		Changes:         engine.Engine().V1alpha1().BackupChanges(),

		FormerExpirations: engine.Engine().V1alpha1().ExpirationChanges(),
		FormerDeletions:   engine.Engine().V1alpha1().VolumeDeletions(),
		Locations:         engine.Engine().V1alpha1().StorageLocations(),
		Namespaces:        kube.Core().V1().Namespaces(),
		Ledger:            kube.Core().V1().ConfigMaps().Informer(),
		Identity:          informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().ConfigMaps().Informer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.stores.catalog.SetIdentity(clusteridentity.Identity{UID: "cluster", Keys: []string{"key"}})
	p.stores.catalog.SetNamespaces(map[string]types.UID{})
	f := &fixture{Projector: p, t: t}
	for _, name := range namespaces {
		f.add(p.Namespaces.Informer().GetStore().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	f.add(p.Locations.Informer().GetStore().Add(&enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Status: enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{
			{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue},
		}},
	}))
	p.Backups.SetReady()
	p.Queue.SetReady()
	return f
}

func (f *fixture) add(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) limit(n int) {
	f.add(f.Ledger.GetStore().Add(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: records.LedgerName},
		Data:       map[string]string{records.ConcurrentBackupsKey: strconv.Itoa(n)},
	}))
}

// run is the next version of a record.
func (f *fixture) run(namespace, name string, status enginev1alpha1.BackupRunStatus, included ...string) *enginev1alpha1.BackupRun {
	f.version++
	store := name
	if namespace != system {
		store = namespace + "." + name
	}
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: system, Name: store, UID: types.UID("uid-" + store),
			ResourceVersion:   strconv.Itoa(f.version),
			CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)),
		},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: namespace, Name: name},
			Backup:    v1alpha1.BackupSpec{IncludedNamespaces: included, StorageLocation: "default"},
		},
		Status: status,
	}
}

// storedOf is the backup of a run as it is read from the store.
func storedOf(run *enginev1alpha1.BackupRun) *v1alpha1.Backup {
	backup := run.AsBackup()
	backup.Status.Origin = &v1alpha1.BackupOrigin{
		ClusterUID: "cluster", PublicKey: "key",
		Namespace: backup.Namespace, NamespaceUID: run.Spec.NamespaceUID, Name: backup.Name, ClaimedRequester: backup.Status.Requester,
	}
	return backup
}

func (f *fixture) backup(namespace, name string) *v1alpha1.Backup {
	backup, _ := f.Backups.GetObject(namespace, name)
	return backup
}

func (f *fixture) mustPublish() int {
	f.t.Helper()
	events, err := f.publish()
	if err != nil {
		f.t.Fatal(err)
	}
	return events
}

func queued(ticket int64) enginev1alpha1.BackupRunStatus {
	since := metav1.NewTime(time.Unix(1000+ticket, 0))
	return enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: ticket, QueuedTimestamp: &since}
}

var running = enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress}

func TestOlderVersionDoesNotReplaceNewer(t *testing.T) {
	f := newFixture(t, "shop")
	created := f.run("shop", "a", enginev1alpha1.BackupRunStatus{}, "shop")
	f.Observe(f.run("shop", "a", queued(1), "shop"))
	f.Observe(created) // the answer to a POST may come after the informer's event
	if got := f.backup("shop", "a").Status.Phase; got != v1alpha1.BackupPhaseQueued {
		t.Errorf("phase %s, want Queued", got)
	}
}

func TestALateAnswerBringsNoRecordBack(t *testing.T) {
	f := newFixture(t, "shop")
	created := f.run("shop", "a", enginev1alpha1.BackupRunStatus{}, "shop")
	f.Observe(created)
	f.removed(created)
	f.Observe(created)
	f.mustPublish()
	if got := f.backup("shop", "a"); got != nil || f.queue.planner.Run(created.UID) != nil {
		t.Errorf("%v", got)
	}
}

// An informer that was cut off for a while sees that as a change.
func TestARecordThatWasReplacedUnnoticed(t *testing.T) {
	f := newFixture(t, "shop")
	first := f.run("shop", "a", queued(1), "shop")
	second := f.run("shop", "a", queued(2), "shop")
	second.UID = "another"
	f.Observe(first)
	recorded.Handler(f.Observe, f.removed).OnUpdate(first, second)
	f.Observe(first)
	f.mustPublish()
	if got := f.backup("shop", "a"); got == nil || got.UID != second.UID || f.queue.planner.Run(first.UID) != nil || f.queue.planner.Run(second.UID) != second {
		t.Errorf("%v", got)
	}
}

// One odd record must not hide the queue from everybody.
func TestTwoRecordsOfOneBackup(t *testing.T) {
	f := newFixture(t, "shop")
	twin := f.run("shop", "a", queued(1), "shop")
	twin.Name, twin.UID = "written-by-hand", "twin"
	for _, run := range []*enginev1alpha1.BackupRun{twin, f.run("shop", "a", queued(2), "shop"), f.run("shop", "b", queued(3), "shop")} {
		f.Observe(run)
	}
	f.mustPublish()
	if got := f.backup("shop", "b").Status.QueuePosition; got != 3 {
		t.Errorf("position %d, want 3", got)
	}
	if got := f.backup("shop", "a").Status.QueuePosition; got != 2 {
		t.Errorf("position %d, want 2: the record that was seen last counts", got)
	}
}

func TestBackupPassesFromRecordToCatalogueWithoutVanishing(t *testing.T) {
	f := newFixture(t, "shop")
	watcher, err := f.Backups.Watch(t.Context(), "/holdfast.io/backups", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	ended := metav1.NewTime(time.Unix(2000, 0))
	run := f.run("shop", "a", enginev1alpha1.BackupRunStatus{
		Phase: v1alpha1.BackupPhaseCompleted, Stored: true, StartTimestamp: &ended, CompletionTimestamp: &ended,
	}, "shop")
	f.Observe(f.run("shop", "a", running, "shop"))
	run.ResourceVersion = "99"
	f.Observe(run)
	f.removed(run)
	if f.backup("shop", "a") == nil {
		t.Fatal("the backup vanished with its record, before the catalogue had read it")
	}
	stored := storedOf(run)
	stored.Status.FormatVersion = "from the store"
	f.stores.catalog.Put("default", "shop.a", catalog.Content{Backup: stored}, time.Unix(3000, 0))
	if got := f.backup("shop", "a"); got == nil || got.Status.FormatVersion != "from the store" {
		t.Fatalf("the catalogue's backup is not shown: %v", got)
	}
	uid := f.backup("shop", "a").UID
	f.stores.catalog.Forget("default")
	if f.backup("shop", "a") != nil {
		t.Error("the backup is shown although neither record nor store has it")
	}
	var kinds []watch.EventType
	for len(kinds) < 4 {
		select {
		case event := <-watcher.ResultChan():
			kinds = append(kinds, event.Type)
			if got := event.Object.(*v1alpha1.Backup); got.UID != uid || got.CreationTimestamp.Unix() != 1000 {
				t.Errorf("event %s has uid %s and creation %s", event.Type, got.UID, got.CreationTimestamp)
			}
		case <-t.Context().Done():
			t.Fatal("the watch is short of events")
		}
	}
	if want := []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted}; !equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
}

// The catalogue reads no metadata twice by itself, and a folder that was removed by hand
// is missed only a while later.
func TestABackupInPlaceOfOneThatTheCatalogueKnows(t *testing.T) {
	f := newFixture(t, "shop")
	ended := metav1.NewTime(time.Unix(2000, 0))
	status := enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true, CompletionTimestamp: &ended}
	first, second := f.run("shop", "a", status, "shop"), f.run("shop", "a", status, "shop")
	second.UID = "another"
	f.stores.catalog.Put("default", "shop.a", catalog.Content{Backup: storedOf(first)}, time.Unix(3000, 0))
	f.Observe(second)
	if got := f.backup("shop", "a").UID; got != second.UID {
		t.Errorf("%s is shown, although %s says that it is stored in its place", got, second.UID)
	}
	f.stores.catalog.Put("default", "shop.a", catalog.Content{Backup: storedOf(second)}, time.Unix(3001, 0))
	if got := f.backup("shop", "a").UID; got != second.UID || len(f.runs.unread) != 0 {
		t.Errorf("when the store was read, %s is shown", got)
	}
}

func equal(a, b []watch.EventType) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func TestUnstoredBackupGoesWithItsRecord(t *testing.T) {
	f := newFixture(t, "shop")
	run := f.run("shop", "a", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailedValidation}, "shop")
	f.Observe(run)
	f.removed(run)
	if f.backup("shop", "a") != nil {
		t.Error("a backup of which nothing is stored is shown without its record")
	}
}

// Pitfall 13: positions are computed, and close up by themselves.
func TestPositionsFollowTheQueue(t *testing.T) {
	f := newFixture(t, "a", "b", "c")
	f.limit(1)
	f.Observe(f.run(system, "first", running, "a"))
	second, third := f.run(system, "second", queued(1), "b"), f.run(system, "third", queued(2), "c")
	f.Observe(second)
	f.Observe(third)
	if events := f.mustPublish(); events != 3 {
		t.Errorf("%d events, want one for each entry", events)
	}
	if events := f.mustPublish(); events != 0 {
		t.Errorf("%d events for a queue that has not changed", events)
	}
	position := func(name string) int32 { return f.backup(system, name).Status.QueuePosition }
	if position("first") != 0 || position("second") != 1 || position("third") != 2 {
		t.Errorf("positions %d, %d, %d, want 0, 1, 2", position("first"), position("second"), position("third"))
	}
	f.removed(second)
	f.mustPublish()
	if position("third") != 1 {
		t.Errorf("position %d after the one ahead was removed, want 1", position("third"))
	}
	entry, _ := f.Queue.GetObject(system, "third")
	if entry.Status.Reason != v1alpha1.QueueReasonConcurrencyLimit {
		t.Errorf("reason %s, want ConcurrencyLimit", entry.Status.Reason)
	}
	f.limit(2)
	f.mustPublish()
	if entry, _ = f.Queue.GetObject(system, "third"); entry.Status.Reason != v1alpha1.QueueReasonNextToStart {
		t.Errorf("reason %s with a free slot, want NextToStart", entry.Status.Reason)
	}
}

// What waits says where and for what, since the moment it was queued. A move in the
// queue is one event of the backup.
func TestTheConditionOfAWaitingBackupHasItsPosition(t *testing.T) {
	f := newFixture(t, "a", "b", "c")
	f.limit(1)
	condition := func(name string) metav1.Condition {
		t.Helper()
		queued := meta.FindStatusCondition([]metav1.Condition(f.backup(system, name).Status.Conditions), v1alpha1.ConditionQueued)
		if queued == nil {
			t.Fatalf("%s has no condition %s", name, v1alpha1.ConditionQueued)
		}
		return *queued
	}
	expect := func(name string, reason v1alpha1.QueueReason, message string, status enginev1alpha1.BackupRunStatus) {
		t.Helper()
		want := metav1.Condition{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionTrue, Reason: string(reason), Message: message, LastTransitionTime: *status.QueuedTimestamp}
		if got := condition(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	f.Observe(f.run(system, "first", running, "a"))
	statuses := []enginev1alpha1.BackupRunStatus{queued(1), queued(2), queued(3)}
	f.Observe(f.run(system, "second", statuses[0], "a", "b"))
	f.Observe(f.run(system, "third", statuses[1], "b"))
	f.Observe(f.run(system, "fourth", statuses[2], "c"))
	f.mustPublish()
	expect("second", v1alpha1.QueueReasonNamespaceOverlap, "position 1: overlaps first (running) in a", statuses[0])
	expect("third", v1alpha1.QueueReasonBehindOverlapping, "position 2: is behind second (queued), which it overlaps in b", statuses[1])
	expect("fourth", v1alpha1.QueueReasonConcurrencyLimit, "position 3: waits for a slot: 1 in use, the limit is 1", statuses[2])

	f.Observe(f.run(system, "first", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted}, "a"))
	f.Observe(f.run(system, "second", running, "a", "b"))
	before, _ := f.Backups.GetCurrentResourceVersion(t.Context())
	f.mustPublish()
	after, _ := f.Backups.GetCurrentResourceVersion(t.Context())
	if after-before != 2 {
		t.Errorf("%d events, want one for each of the two that moved up", after-before)
	}
	if got := condition("second").Message; got != "" {
		t.Errorf("a running backup says %q", got)
	}
	expect("third", v1alpha1.QueueReasonNamespaceOverlap, "position 1: overlaps second (running) in b", statuses[1])
	expect("fourth", v1alpha1.QueueReasonConcurrencyLimit, "position 2: waits for a slot: 1 in use, the limit is 1", statuses[2])
}

// A publication compares all that wait. It is due when a record changes in what the queue
// follows from, and a running backup's progress is not of that.
func TestOnlyWhatTheQueueFollowsFromWakesIt(t *testing.T) {
	f := newFixture(t, "shop", "web")
	wakes := func() int {
		n := len(f.queue.stale)
		if n > 0 {
			<-f.queue.stale
		}
		return n
	}
	step := func(what string, status enginev1alpha1.BackupRunStatus, want int) {
		t.Helper()
		if f.Observe(f.run("shop", "a", status, "shop")); wakes() != want {
			t.Errorf("%s: not %d publications", what, want)
		}
	}
	since := metav1.Unix(1001, 0)
	at := func(phase v1alpha1.BackupPhase, progress int64) enginev1alpha1.BackupRunStatus {
		return enginev1alpha1.BackupRunStatus{Phase: phase, Ticket: 1, QueuedTimestamp: &since, Progress: &v1alpha1.BackupProgress{ItemsBackedUp: progress}}
	}
	step("it is created", enginev1alpha1.BackupRunStatus{}, 1)
	step("it is queued", queued(1), 1)
	step("it runs", at(v1alpha1.BackupPhaseInProgress, 0), 1)
	for i := range int64(100) {
		step("progress", at(v1alpha1.BackupPhaseInProgress, i+1), 0)
	}
	waiting := at(v1alpha1.BackupPhaseInProgress, 100)
	waiting.AbsentAgents = []string{"node-1"}
	step("an agent is absent", waiting, 1)
	f.mustPublish()
	if got, _ := f.Queue.GetObject("shop", "a"); got.Status.Reason != v1alpha1.QueueReasonAgentAbsent || !strings.Contains(got.Status.Message, "node-1") || len(got.Status.AbsentAgents) != 1 {
		t.Errorf("with an absent agent the queue says %+v", got.Status)
	}
	step("it is back", at(v1alpha1.BackupPhaseInProgress, 100), 1)
	f.mustPublish()
	if got, _ := f.Queue.GetObject("shop", "a"); got.Status.Reason != "" || got.Status.Message != "" {
		t.Errorf("with all agents the queue says %+v", got.Status)
	}
	step("it ends", at(v1alpha1.BackupPhaseCompleted, 100), 1)
	step("its end is touched", at(v1alpha1.BackupPhaseCompleted, 101), 0)
	if f.removed(f.run("shop", "a", at(v1alpha1.BackupPhaseCompleted, 101), "shop")); wakes() != 0 {
		t.Error("the removal of an ended record is a publication")
	}
}

// Else each start would be an event of everyone that waits, also of those that stay
// where they are.
func TestAStartBehindThemChangesNoOtherEntry(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.limit(2)
	f.Observe(f.run(system, "first", running, "a"))
	f.Observe(f.run(system, "second", queued(1), "a"))
	f.Observe(f.run(system, "third", queued(2), "b"))
	f.mustPublish()
	f.Observe(f.run(system, "third", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress, Ticket: 2}, "b"))
	before, _ := f.Queue.GetObject(system, "second")
	f.mustPublish()
	if after, _ := f.Queue.GetObject(system, "second"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("from %+v to %+v", before.Status, after.Status)
	}
	if first, _ := f.Queue.GetObject(system, "first"); first.Status.SlotsInUse != 2 || first.Status.SlotLimit != 2 {
		t.Errorf("one that runs says %d of %d slots", first.Status.SlotsInUse, first.Status.SlotLimit)
	}
}

func TestAnUnreadableLedgerIsSaid(t *testing.T) {
	f := newFixture(t, "shop")
	f.add(f.Ledger.GetStore().Add(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: records.LedgerName},
		Data:       map[string]string{records.StartedKey: "garbage"},
	}))
	f.Observe(f.run("shop", "a", queued(1), "shop"))
	f.mustPublish()
	if got := f.backup("shop", "a").Status.Conditions[0].Message; !strings.Contains(got, "ledger") {
		t.Errorf("it says %q", got)
	}
}

func TestDeletingBackupIsShownUntilItsRecordGoes(t *testing.T) {
	f := newFixture(t, "shop")
	ended := metav1.NewTime(time.Unix(2000, 0))
	original := f.run("shop", "a", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, CompletionTimestamp: &ended}, "shop")
	f.stores.catalog.Put("default", "shop.a", catalog.Content{Backup: storedOf(original)}, time.Unix(3000, 0))
	before := f.backup("shop", "a")

	// A run that was created for the deletion alone has a uid of its own.
	run := f.run("shop", "a", enginev1alpha1.BackupRunStatus{FailureReason: "the store does not answer"}, "shop")
	run.UID = "another"
	run.Spec.Deletion = &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{UID: original.UID, CreationTimestamp: original.CreationTimestamp}}
	f.Observe(run)
	shown := f.backup("shop", "a")
	if shown.Status.Phase != v1alpha1.BackupPhaseDeleting || shown.UID != before.UID || !shown.Status.CompletionTimestamp.Equal(&ended) {
		t.Errorf("shown as %+v, want the stored backup, Deleting", shown)
	}
	last := shown.Status.Conditions[len(shown.Status.Conditions)-1]
	if last.Type != v1alpha1.ConditionDeleting || last.Message != "the store does not answer" {
		t.Errorf("condition %+v, want what the deletion waits for", last)
	}
	if events := f.mustPublish(); events != 0 {
		t.Errorf("%d queue entries for a deletion", events)
	}
	told := 0
	f.Subscribe(Subscriber{Refreshed: func() { told++ }})
	f.removed(run)
	if f.backup("shop", "a") != nil || f.stores.catalog.Backup("shop", "a") != nil {
		t.Error("the backup is listed after the record of its deletion is gone")
	}
	if told != 1 {
		t.Errorf("told %d times that there are fewer backups", told)
	}
}

func TestTenantsSeeNoForeignNames(t *testing.T) {
	f := newFixture(t, "red", "blue")
	f.limit(4)
	f.Observe(f.run(system, "secret-of-the-administrator", running, "red", "blue"))
	f.Observe(f.run("blue", "secret-of-blue", queued(1), "blue"))
	f.Observe(f.run("red", "mine", queued(2), "red"))
	f.mustPublish()
	entry, ok := f.Queue.GetObject("red", "mine")
	if !ok {
		t.Fatal("the entry is missing")
	}
	if entry.Status.OtherBlockers != 1 || len(entry.Status.Blockers) != 0 {
		t.Errorf("blockers %v and %d others, want one other", entry.Status.Blockers, entry.Status.OtherBlockers)
	}
	for _, object := range []any{entry, f.backup("red", "mine")} {
		shown, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(shown, []byte("secret")) || bytes.Contains(shown, []byte("blue")) {
			t.Errorf("a tenant is shown foreign names: %s", shown)
		}
	}
	if got := f.backup("red", "mine").Status.Conditions[0].Message; got != "position 2: overlaps another backup in red" {
		t.Errorf("the tenant is told %q", got)
	}
	system, _ := f.Queue.GetObject(system, "secret-of-the-administrator")
	if system == nil {
		t.Error("the administrator's entry is missing")
	}
}

// TestAdministratorsSeeNames: a list over all namespaces names what blocks a tenant's backup, and so
// does a watch, which hears when another one does; within the namespace, nothing has changed then.
func TestAdministratorsSeeNames(t *testing.T) {
	f := newFixture(t, "red", "blue")
	f.limit(4)
	f.Observe(f.run(system, "nightly", running, "red"))
	f.Observe(f.run("red", "mine", queued(2), "red"))
	f.restoreChanged(f.restore("red", "back", v1alpha1.RestorePhaseQueued, 3, "red"))
	f.mustPublish()

	entries := func(key string) map[string]*v1alpha1.BackupQueueEntry {
		t.Helper()
		list := &v1alpha1.BackupQueueEntryList{}
		if err := f.Queue.GetList(t.Context(), key, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			t.Fatal(err)
		}
		found := map[string]*v1alpha1.BackupQueueEntry{}
		for i := range list.Items {
			found[list.Items[i].Namespace+"/"+list.Items[i].Name] = &list.Items[i]
		}
		return found
	}
	said := func(key string) string {
		t.Helper()
		list := &v1alpha1.BackupList{}
		if err := f.Backups.GetList(t.Context(), key, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			t.Fatal(err)
		}
		for _, backup := range list.Items {
			if backup.Name == "mine" {
				return backup.Status.Conditions[0].Message
			}
		}
		return ""
	}
	expect := func(what, message, over, blocked string) {
		t.Helper()
		all, own := entries("/holdfast.io/backupqueues/"), entries("/holdfast.io/backupqueues/red/")
		column := func(entry *v1alpha1.BackupQueueEntry) any {
			i := slices.IndexFunc(backup.QueueResource.Columns, func(c virtual.Column[*v1alpha1.BackupQueueEntry]) bool { return c.Definition.Name == "Blocked-By" })
			return backup.QueueResource.Columns[i].Cell(entry, time.Unix(2000, 0))
		}
		if s := all["red/mine"].Status; s.Message != over || s.OtherBlockers != 0 || column(all["red/mine"]) != blocked {
			t.Errorf("%s, over all namespaces: %+v, blocked by %v", what, s, column(all["red/mine"]))
		}
		if s := own["red/mine"].Status; s.Message != message || s.OtherBlockers != 1 || column(own["red/mine"]) != "another" {
			t.Errorf("%s, within the namespace: %+v, blocked by %v", what, s, column(own["red/mine"]))
		}
		if got := said("/holdfast.io/backups/"); got != "position 2: "+over {
			t.Errorf("%s, the backup says over all namespaces: %s", what, got)
		}
		if got := said("/holdfast.io/backups/red/"); got != "position 2: "+message {
			t.Errorf("%s, the backup says: %s", what, got)
		}
	}
	expect("at first", "overlaps another backup in red", "overlaps holdfast/nightly (running) in red", "holdfast/nightly")

	follow := func(key string) watch.Interface {
		t.Helper()
		watcher, err := f.Queue.Watch(t.Context(), key, storage.ListOptions{ResourceVersion: strconv.FormatUint(f.Queue.Version(), 10), Recursive: true, Predicate: storage.Everything})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(watcher.Stop)
		return watcher
	}
	over, within := follow("/holdfast.io/backupqueues/"), follow("/holdfast.io/backupqueues/red/")
	version := entries("/holdfast.io/backupqueues/red/")["red/mine"].ResourceVersion
	f.Observe(f.run(system, "nightly", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted}))
	f.Observe(f.run(system, "weekly", running, "red"))
	f.mustPublish()
	expect("after a change", "overlaps another backup in red", "overlaps holdfast/weekly (running) in red", "holdfast/weekly")
	if now := entries("/holdfast.io/backupqueues/red/")["red/mine"]; now.ResourceVersion != version {
		t.Errorf("within the namespace the entry has the version %s, and had %s: nothing of it has changed", now.ResourceVersion, version)
	}
	// next is the next event about the tenant's backup.
	next := func(w watch.Interface) (watch.EventType, *v1alpha1.BackupQueueEntry) {
		t.Helper()
		for event := range w.ResultChan() {
			entry, ok := event.Object.(*v1alpha1.BackupQueueEntry)
			if !ok {
				t.Fatalf("the watch ended: %+v", event)
			}
			if entry.Name == "mine" {
				return event.Type, entry
			}
		}
		t.Fatal("the watch ended")
		return "", nil
	}
	if kind, told := next(over); kind != watch.Modified || !equality.Semantic.DeepEqual(told, entries("/holdfast.io/backupqueues/")["red/mine"]) {
		t.Errorf("over all namespaces, the watch has %s of %+v, and the list another", kind, told)
	}
	f.Observe(f.run("red", "mine", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted}))
	f.mustPublish()
	if kind, told := next(within); kind != watch.Deleted {
		t.Errorf("within the namespace there was %s of %+v", kind, told)
	}
}

func TestReplacedBackupIsAnotherObject(t *testing.T) {
	f := newFixture(t, "shop")
	first := f.run("shop", "a", running, "shop")
	f.Observe(first)
	second := f.run("shop", "a", running, "shop")
	second.UID = "another"
	watcher, err := f.Backups.Watch(context.Background(), "/holdfast.io/backups", storage.ListOptions{
		ResourceVersion: f.backup("shop", "a").ResourceVersion, Recursive: true, Predicate: storage.Everything,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	f.Observe(second)
	if a, b := (<-watcher.ResultChan()).Type, (<-watcher.ResultChan()).Type; a != watch.Deleted || b != watch.Added {
		t.Errorf("events %s, %s, want DELETED, ADDED", a, b)
	}
}

func TestPauseBoundsEventsAndWork(t *testing.T) {
	for _, c := range []struct {
		events     int
		took, want time.Duration
	}{
		{0, 0, publishInterval},
		{1, time.Millisecond, publishInterval},
		{500, time.Millisecond, 500 * time.Millisecond},
		{10_000, time.Second, 10 * time.Second},
		{1, 200 * time.Millisecond, 800 * time.Millisecond},
	} {
		if got := pause(c.events, c.took); got != c.want {
			t.Errorf("pause(%d, %s) = %s, want %s", c.events, c.took, got, c.want)
		}
	}
}

// A store is believed about a backup from two minutes after its end on, however late that is
// heard of: else one that another writer has deleted is listed again after each restart.
func TestAStoreIsBelievedSomeTimeAfterTheEnd(t *testing.T) {
	now := time.Unix(10_000, 0)
	p := &Projector{Config: Config{Clock: clocktesting.NewFakeClock(now)}}
	for ago, want := range map[time.Duration]time.Duration{0: storeDelay, time.Minute: storeDelay - time.Minute, storeDelay: 0, time.Hour: 0} {
		run := &enginev1alpha1.BackupRun{}
		run.Status.CompletionTimestamp = &metav1.Time{Time: now.Add(-ago)}
		if got := p.heardFrom(run).Sub(now); got != want {
			t.Errorf("it ended %s ago: the store is believed in %s, not %s", ago, got, want)
		}
	}
}
