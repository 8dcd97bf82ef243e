// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// Pitfall 26: of what has not ended nothing is removed, whatever somebody wrote into
// its record.
func TestRemovable(t *testing.T) {
	stored := &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{UID: "uid"}}
	cases := []struct {
		phase    v1alpha1.BackupPhase
		deletion *enginev1alpha1.Deletion
		want     bool
	}{
		{"", &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseNew, &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseQueued, &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseReadyToStart, &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseInProgress, &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseCancelling, &enginev1alpha1.Deletion{}, false},
		{v1alpha1.BackupPhaseCompleted, &enginev1alpha1.Deletion{}, true},
		{v1alpha1.BackupPhasePartiallyFailed, &enginev1alpha1.Deletion{}, true},
		{v1alpha1.BackupPhaseFailed, &enginev1alpha1.Deletion{}, true},
		{v1alpha1.BackupPhaseFailedValidation, &enginev1alpha1.Deletion{}, true},
		{v1alpha1.BackupPhaseCancelled, &enginev1alpha1.Deletion{}, true},
		{"", stored, true},
		{v1alpha1.BackupPhaseNew, stored, true},
		{v1alpha1.BackupPhaseQueued, stored, false},
		{v1alpha1.BackupPhaseInProgress, stored, false},
		{v1alpha1.BackupPhaseCompleted, nil, false},
		{"", nil, false},
	}
	for _, c := range cases {
		run := completed("a")
		run.Status.Phase, run.Spec.Deletion = c.phase, c.deletion
		if got := removable(run); got != c.want {
			t.Errorf("phase %q with the deletion %v: %t, want %t", c.phase, c.deletion, got, c.want)
		}
	}
}

// TestOnlyWhenAskedAndEnded: nothing happens to a backup that nobody wants deleted,
// or that still runs; it is removed when both change.
// Pitfall 2: a process that has just begun knows from the record what still runs.
func TestOnlyWhenAskedAndEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.faulty.Reset()
		run := completed("a")
		run.Spec.Deletion = nil
		w.Create(run)
		w.start()
		wantUntouched := func() {
			t.Helper()
			time.Sleep(time.Hour)
			synctest.Wait()
			if counts := w.faulty.Counts(); len(counts) != 0 {
				t.Errorf("requests to the store: %v", counts)
			}
		}
		wantUntouched()

		runs := w.EngineV1alpha1().BackupRuns(system)
		run = w.run("a")
		run.Spec.Deletion, run.Status.Phase = &enginev1alpha1.Deletion{}, v1alpha1.BackupPhaseInProgress
		run, err := runs.Update(t.Context(), run, metav1.UpdateOptions{})
		must(t, err)
		wantUntouched()

		run.Status.Phase = v1alpha1.BackupPhaseCompleted
		_, err = runs.UpdateStatus(t.Context(), run, metav1.UpdateOptions{})
		must(t, err)
		synctest.Wait()
		if w.run("a") != nil || len(w.keys("a")) != 0 {
			t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
		}
	})
}

// TestStoreAway takes the store away and brings it back.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		must(t, os.Rename(w.folder, w.folder+".away"))
		w.Create(completed("a"))
		w.start()
		synctest.Wait()
		if tries := w.faulty.Count(storetest.Attributes); tries != 1 {
			t.Errorf("%d tries at once: what is written into the status must not be the next one's cause", tries)
		}
		time.Sleep(time.Hour)
		synctest.Wait()

		reason := w.run("a").Status.FailureReason
		if want := `the deletion waits for the storage location "default", which is not available: open: the folder of the storage location does not exist`; !strings.HasPrefix(reason, want) {
			t.Errorf("the status says %q, want %q", reason, want)
		}
		if n, events := w.writes(), w.announced(); n != 1 || len(events) != 1 || !strings.HasPrefix(events[0], "Warning DeletionWaiting the deletion waits for") {
			t.Errorf("%d writes of the status, and the events %q; want one each", n, events)
		}
		// An hour of retries that wait longer and longer, up to five minutes.
		if tries := w.faulty.Count(storetest.Attributes); tries < 10 || tries > 25 {
			t.Errorf("%d tries in an hour", tries)
		}
		if len(w.checked) == 0 || w.checked[0] != "default" {
			t.Errorf("the locations %q were checked", w.checked)
		}

		// Once the location is known to be away, it is left alone, and nothing more is said.
		w.setAvailable(metav1.ConditionFalse)
		time.Sleep(10 * time.Minute)
		w.faulty.Reset()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if counts, n := w.faulty.Counts(), w.writes(); len(counts) != 0 || n != 1 {
			t.Errorf("requests to a store that is away: %v; %d writes of the status", counts, n)
		}

		// So it is while another cluster with this one's uid may write there.
		must(t, os.Rename(w.folder+".away", w.folder))
		locations := w.EngineV1alpha1().StorageLocations(system)
		record, err := locations.Get(t.Context(), "default", metav1.GetOptions{})
		must(t, err)
		record.Status = available(metav1.ConditionTrue)
		record.Status.Conditions = append(record.Status.Conditions, metav1.Condition{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionTrue, Reason: "ClaimedElsewhere", Message: "it is a copy"})
		_, err = locations.UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
		must(t, err)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if counts := w.faulty.Counts(); len(counts) != 0 {
			t.Errorf("requests to a store that another cluster writes to: %v", counts)
		}

		w.setAvailable(metav1.ConditionTrue)
		synctest.Wait() // without any time
		if w.run("a") != nil || len(w.keys("a")) != 0 {
			t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
		}
	})
}

// TestLocationGone waits for a location without a record.
func TestLocationGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		folder := t.TempDir()
		run := completed("a")
		run.Spec.Backup.StorageLocation = "other"
		w.Create(run)
		w.start()
		synctest.Wait()
		if reason := w.run("a").Status.FailureReason; !strings.Contains(reason, `the storage location "other", which does not exist`) {
			t.Errorf("the status says %q", reason)
		}
		w.Create(newLocation("other", folder))
		synctest.Wait()
		if run := w.run("a"); run != nil {
			t.Errorf("the record is still there: %q", run.Status.FailureReason)
		}
	})
}

// TestLocationIsDeleted: a deletion that waits for its location says when that is deleted.
func TestLocationIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		w.setAvailable(metav1.ConditionFalse)
		w.Create(completed("a"))
		w.start()
		synctest.Wait()
		if reason := w.run("a").Status.FailureReason; !strings.Contains(reason, `the storage location "default", which is not available`) {
			t.Errorf("the status says %q", reason)
		}
		must(t, w.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), "default", metav1.DeleteOptions{}))
		synctest.Wait()
		if reason := w.run("a").Status.FailureReason; !strings.Contains(reason, `the storage location "default", which does not exist`) {
			t.Errorf("without the location, the status says %q", reason)
		}
	})
}

// TestUnopened: a location that can't be opened is an obstacle, too.
func TestUnopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		location := newLocation("other", "")
		location.Spec.Filesystem = nil
		w.Create(location)
		run := completed("a")
		run.Spec.Backup.StorageLocation = "other"
		w.Create(run)
		w.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if run := w.run("a"); run == nil || !strings.Contains(run.Status.FailureReason, `the storage location "other" failed`) {
			t.Errorf("the record is %+v", run)
		}
	})
}

// TestRecordUnknown: while it is not known whether the record is still there, nothing is
// removed, and nothing is said; what can't be said is tried again.
func TestRecordUnknown(t *testing.T) {
	for name, c := range map[string]struct{ verb, subresource string }{
		"read":    {verb: "get"},
		"written": {verb: "update", subresource: "status"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				writeBackup(t, w.faulty, "a", uidOf("a"))
				if c.verb == "update" {
					w.faulty.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrDenied})
				}
				w.Create(completed("a"))
				refused := 0
				w.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.GetVerb() != c.verb || action.GetSubresource() != c.subresource || action.GetResource().Resource != "backupruns" {
						return enginetest.Fault{}
					}
					if refused++; c.verb == "get" && refused%2 == 1 {
						return enginetest.Fault{} // by which the deletion begins
					}
					return enginetest.Fault{Err: errors.New("the API server is away")}
				})
				w.start()
				time.Sleep(time.Hour)
				synctest.Wait()
				w.expectWhole("a")
				if refused < 6 || refused > 50 || w.faulty.Count(storetest.Delete) > 0 || len(w.announced()) > 0 {
					t.Errorf("%d requests were answered or refused, %d removals begun", refused, w.faulty.Count(storetest.Delete))
				}
				w.Fault(nil)
				w.faulty.Inject()
				time.Sleep(lastRetry)
				synctest.Wait()
				if left := w.keys("a"); len(left) != 0 {
					t.Errorf("there are still %q", left)
				}
			})
		})
	}
}

// TestDenied: what a store refuses is said with what to do, and tried again.
func TestDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.faulty.Inject(storetest.Fault{Operation: storetest.Delete, Key: format.TarballKey("a"),
			Err: fmt.Errorf("delete %s: %w", format.TarballKey("a"), store.ErrDenied)})
		w.Create(completed("a"))
		w.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		reason := w.run("a").Status.FailureReason
		for _, want := range []string{format.TarballKey("a"), "denies access", "delete objects", "object lock"} {
			if !strings.Contains(reason, want) {
				t.Errorf("the status says %q, without %q", reason, want)
			}
		}
		if n, events := w.writes(), w.announced(); n != 1 || len(events) != 1 {
			t.Errorf("%d writes of the status, and the events %q; want one each", n, events)
		}
		if len(w.checked) != 0 {
			t.Errorf("a store that answers was checked: %q", w.checked)
		}
		w.expectInOrder("a")

		w.faulty.Inject()
		time.Sleep(lastRetry)
		synctest.Wait()
		if w.run("a") != nil || len(w.keys("a")) != 0 {
			t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
		}
	})
}

// TestTenant: of a storage location, only administrators are told more than its name.
func TestTenant(t *testing.T) {
	for _, cause := range []error{store.ErrUnavailable, store.ErrDenied, errors.New("broken")} {
		t.Run(cause.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				writeBackup(t, w.faulty, "shop.daily", uidOf("shop.daily"))
				w.faulty.Inject(storetest.Fault{Err: fmt.Errorf("get it from the secret place: %w", cause)})
				run := completed("shop.daily")
				run.Spec.BackupRef = v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}
				w.Create(run)
				w.start()
				time.Sleep(time.Hour)
				synctest.Wait()
				events := w.announced()
				if len(events) != 1 {
					t.Fatalf("the events are %q", events)
				}
				for _, told := range []string{w.run("shop.daily").Status.FailureReason, events[0]} {
					if strings.Contains(told, "secret place") || !strings.Contains(told, `storage location "default"`) {
						t.Errorf("told is %q", told)
					}
				}
			})
		})
	}
}

// TestChangingReasons: another obstacle is said when it comes.
func TestChangingReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.Create(completed("a"))
		w.faulty.Inject(storetest.Fault{Err: fmt.Errorf("get it: %w", store.ErrUnavailable)})
		w.start()
		time.Sleep(time.Minute)
		w.faulty.Inject(storetest.Fault{Err: fmt.Errorf("get it: %w", store.ErrDenied)})
		time.Sleep(time.Hour)
		synctest.Wait()
		if reason := w.run("a").Status.FailureReason; !strings.Contains(reason, "denies access") {
			t.Errorf("the status says %q", reason)
		}
		if n := w.writes(); n != 2 {
			t.Errorf("%d writes of the status, want 2", n)
		}
	})
}

// TestDeadStore: many deletions that hang in one store keep nobody else waiting
// for longer than it takes to find out.
func TestDeadStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		w.faulty.Inject(storetest.Fault{Delay: 1000 * time.Hour})
		for i := range 50 {
			w.Create(completed(fmt.Sprintf("hangs-%d", i)))
		}
		w.checking = func() { w.setAvailable(metav1.ConditionFalse) }
		folder := t.TempDir()
		w.Create(newLocation("other", folder))
		writeBackup(t, storetest.Open(t, newLocation("other", folder).Spec, nil), "other", uidOf("other"))
		w.start()
		other := completed("other")
		other.Spec.Backup.StorageLocation = "other"
		w.Create(other)

		// A worker may begin once more before the news of the store reaches it.
		time.Sleep(2*requestTimeout + time.Second)
		synctest.Wait()
		if run := w.run("other"); run != nil {
			t.Errorf("the other store's deletion waits: %q", run.Status.FailureReason)
		}
		if n := w.faulty.Count(storetest.Attributes); n < workers || n > 2*workers {
			t.Errorf("%d requests to the dead store by %d workers, want one or two of each", n, workers)
		}
	})
}

const heldUID types.UID = "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"

// heldWorld has the signed backup "held", and says what of its expiration is changed.
func heldWorld(t *testing.T) (*world, func(number int64, hold bool, until time.Time)) {
	w := newWorld(t, t.TempDir())
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	cluster := format.Cluster{SystemNamespace: system, UID: "this cluster", Key: key}
	writeOwner(t, w.faulty, "held", heldUID)
	for _, key := range append(sideFiles("held"), format.CopyKey("held")) {
		w.put(key, "content")
	}
	writeVolumes(t, w.faulty, "held")
	metadata, err := format.EncodeBackup(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "held", UID: heldUID, CreationTimestamp: instant},
		Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant,
			Expiration: &instant},
	}, nil, cluster)
	must(t, err)
	w.put(format.MetadataKey("held"), string(metadata))
	return w, func(number int64, hold bool, until time.Time) {
		change := format.Expiration{StoreName: "held", UID: heldUID, Number: number, Expiration: &metav1.Time{Time: until}, Timestamp: instant}
		if hold {
			change.Hold = &format.Hold{Requester: "jane", Timestamp: instant, Reason: "evidence"}
		}
		content, err := format.EncodeExpiration(change, cluster)
		must(t, err)
		w.put(format.ExpirationKey("held", heldUID, number), string(content))
	}
}

func heldRun(expired bool) *enginev1alpha1.BackupRun {
	run := completed("held")
	run.UID = heldUID
	run.Spec.Deletion.Expired = expired
	return run
}

// Nothing of a backup goes while somebody holds it, or while it is kept for longer than
// whoever found it expired knew, be that in the store or only recorded; and then all of it.
func TestKept(t *testing.T) {
	hold, release := true, false
	later := metav1.NewTime(time.Now().Add(time.Hour))
	record := func(change func(*enginev1alpha1.BackupChange)) *enginev1alpha1.BackupChange {
		record := &enginev1alpha1.BackupChange{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "held", Generation: 1},
			Spec:       enginev1alpha1.BackupChangeSpec{UID: heldUID, StorageLocation: "default", Ask: enginev1alpha1.Ask{Timestamp: instant}},
		}
		change(record)
		return record
	}
	recorded := func(w *world, change func(*enginev1alpha1.BackupChange)) {
		_, err := w.EngineV1alpha1().BackupChanges(system).Create(w.Context(), record(change), metav1.CreateOptions{})
		must(w, err)
	}
	formerly := func(w *world, change func(*enginev1alpha1.BackupChange)) {
		_, err := w.EngineV1alpha1().ExpirationChanges(system).Create(w.Context(), (*enginev1alpha1.ExpirationChange)(record(change)), metav1.CreateOptions{})
		must(w, err)
	}
	for name, test := range map[string]struct {
		expired bool
		prepare func(w *world, change func(number int64, hold bool, until time.Time))
		want    string // empty if it goes
	}{
		"held in the store": {prepare: func(_ *world, change func(int64, bool, time.Time)) {
			change(1, false, instant.Time)
			change(2, true, instant.Time)
		}, want: "jane asked for that at 2023-11-14T22:13:20Z, saying: evidence"},
		"a hold that is only recorded": {prepare: func(w *world, _ func(int64, bool, time.Time)) {
			recorded(w, func(c *enginev1alpha1.BackupChange) {
				c.Spec.Hold, c.Spec.Ask = &hold, enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "joe"}, Timestamp: instant}
			})
		}, want: "joe asked"},
		"a hold that the previous version recorded": {prepare: func(w *world, _ func(int64, bool, time.Time)) {
			formerly(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold = &hold })
		}, want: "the backup is held"},
		"a hold that the previous version recorded, extended now": {expired: true, prepare: func(w *world, _ func(int64, bool, time.Time)) {
			formerly(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold = &hold })
			recorded(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Expiration = &later })
		}, want: "the backup is held"},
		"a hold that the previous version recorded, and that was released": {prepare: func(w *world, _ func(int64, bool, time.Time)) {
			formerly(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold = &hold })
			recorded(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold = &release })
		}},
		"released in the store": {prepare: func(_ *world, change func(int64, bool, time.Time)) {
			change(1, true, instant.Time)
			change(2, false, instant.Time)
		}},
		"a release that is only recorded": {prepare: func(w *world, change func(int64, bool, time.Time)) {
			change(1, true, instant.Time)
			recorded(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold = &release })
		}},
		"a record that is done and older than the store": {prepare: func(w *world, change func(int64, bool, time.Time)) {
			change(1, false, instant.Time)
			change(2, true, instant.Time)
			recorded(w, func(c *enginev1alpha1.BackupChange) {
				c.Spec.Hold, c.Status = &release, enginev1alpha1.BackupChangeStatus{ObservedGeneration: 1, Number: 1}
			})
		}, want: "jane asked"},
		"a hold of another backup of this name": {prepare: func(w *world, _ func(int64, bool, time.Time)) {
			recorded(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Hold, c.Spec.UID = &hold, "1"+heldUID[1:] })
		}},
		"extended, and asked for since it had expired": {expired: true, prepare: func(_ *world, change func(int64, bool, time.Time)) {
			change(1, false, later.Time)
		}, want: "it is kept for longer now"},
		"extended in a record": {expired: true, prepare: func(w *world, _ func(int64, bool, time.Time)) {
			recorded(w, func(c *enginev1alpha1.BackupChange) { c.Spec.Expiration = &later })
		}, want: "it is kept for longer now"},
		"extended, and asked for by somebody": {prepare: func(_ *world, change func(int64, bool, time.Time)) {
			change(1, false, later.Time)
		}},
		"expired as before": {expired: true, prepare: func(*world, func(int64, bool, time.Time)) {}},
		"a hold that nobody has signed": {prepare: func(w *world, _ func(int64, bool, time.Time)) {
			w.put(format.ExpirationKey("held", heldUID, 9), `{"kind":"BackupExpiration","spec":{"hold":{}}}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, change := heldWorld(t)
			test.prepare(w, change)
			w.Create(heldRun(test.expired))
			w.start()
			if test.want == "" {
				w.waitGone("held")
				left, err := os.ReadDir(filepath.Join(w.folder, "backups"))
				if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
					t.Errorf("left are %v, %v", left, err)
				}
				return
			}
			if got := w.waitReason("held"); !strings.Contains(got, test.want) {
				t.Errorf("it says %q", got)
			}
			w.expectWhole("held")
			if _, err := os.Stat(filepath.Join(w.folder, "metadata")); err == nil {
				t.Error("the removal of its snapshots was asked for")
			}
		})
	}
}

// A store that does not show what was changed is no store without changes.
func TestKeptUntilTheStoreSays(t *testing.T) {
	w, change := heldWorld(t)
	change(1, true, instant.Time)
	for _, fault := range []storetest.Fault{
		{Operation: storetest.Get, Key: format.ExpirationKey("held", heldUID, 1), Err: store.ErrDenied},
		{Operation: storetest.List, Key: format.BackupsPrefix, Err: store.ErrUnavailable},
	} {
		w.faulty.Inject(fault)
		w.Create(heldRun(false))
		stop := w.start()
		w.waitReason("held")
		w.expectWhole("held")
		stop()
		w.faulty.Inject()
		must(t, w.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "held", metav1.DeleteOptions{}))
	}
}
