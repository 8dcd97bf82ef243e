// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package locks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system = "holdfast"
	day    = 24 * time.Hour
	period = 40 * day
)

// lockable is a store in memory whose objects can be locked.
type lockable struct {
	*store.Bucket
	mu       sync.Mutex
	locks    map[string]time.Time
	extended int
	// fails, if set, decides about each request for a key; "" asks for the bucket's lock.
	fails func(key string) error
}

func (b *lockable) Close() error { return nil }

func (b *lockable) failure(key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails == nil {
		return nil
	}
	return b.fails(key)
}

func (b *lockable) fail(fails func(key string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = fails
}

func (b *lockable) CheckLock(context.Context) error { return b.failure("") }

func (b *lockable) ExtendLock(ctx context.Context, key string, least time.Duration) (time.Time, error) {
	if err := errors.Join(b.failure(key), ctx.Err()); err != nil {
		return time.Time{}, err
	}
	if _, err := b.Attributes(ctx, key); err != nil {
		return time.Time{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.locks[key].Before(time.Now().Add(least)) {
		b.locks[key] = time.Now().Add(period)
		b.extended++
	}
	return b.locks[key], nil
}

func (b *lockable) all() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.locks)
}

// listedBackups are listed one a page.
type listedBackups []v1alpha1.Backup

func (l listedBackups) List(_ context.Context, options metav1.ListOptions) (*v1alpha1.BackupList, error) {
	at := 0
	_, _ = fmt.Sscan(options.Continue, &at)
	page := &v1alpha1.BackupList{}
	if at < len(l) {
		page.Items = l[at : at+1]
	}
	if at+1 < len(l) {
		page.Continue = fmt.Sprint(at + 1)
	}
	return page, nil
}

func backup(name, location string, phase v1alpha1.BackupPhase, trust v1alpha1.BackupTrust) v1alpha1.Backup {
	b := v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name}}
	b.Spec.StorageLocation = location
	b.Status.Phase, b.Status.FormatVersion = phase, "1.1.0"
	b.Status.Origin = &v1alpha1.BackupOrigin{Trust: trust}
	return b
}

// harness runs the controller on a cluster, in a synctest bubble.
type harness struct {
	*testing.T
	*enginetest.Cluster
	store   *lockable
	backups Backups
	stop    context.CancelFunc
}

func newHarness(t *testing.T, objects ...string) *harness {
	h := &harness{T: t, Cluster: enginetest.New(), store: &lockable{Bucket: storetest.Memory(t), locks: map[string]time.Time{}}}
	for _, key := range objects {
		if err := h.store.Create(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *harness) run() {
	h.Helper()
	records := enginefactory.NewSharedInformerFactory(h.Cluster, 0)
	c, err := New(Config{
		Namespace: system, ClusterUID: "this", Locations: h.EngineV1alpha1(), Backups: h.backups, Clock: clock.RealClock{},
		LocationInformer: records.Engine().V1alpha1().StorageLocations(), RepositoryInformer: records.Engine().V1alpha1().VolumeRepositories(),
	})
	if err != nil {
		h.Fatal(err)
	}
	c.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return h.store, nil }
	ctx, stop := context.WithCancel(h.Context())
	h.stop = stop
	records.StartWithContext(ctx)
	h.Cleanup(records.Shutdown)
	records.WaitForCacheSync(ctx.Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	go c.Run(ctx)
	synctest.Wait()
}

func locked(name string) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, Generation: 1},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{Bucket: "backups"},
			Lock: &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: int32(period / day)},
		},
		Status: enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{
			{Type: enginev1alpha1.ConditionSynced, Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonListed},
		}},
	}
}

func (h *harness) location(name string) *enginev1alpha1.StorageLocation {
	h.Helper()
	found, err := h.EngineV1alpha1().StorageLocations(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return found
}

func (h *harness) expect(name string, status metav1.ConditionStatus, reason string, says ...string) *enginev1alpha1.StorageLocation {
	h.Helper()
	synctest.Wait()
	found := h.location(name)
	condition := meta.FindStatusCondition(found.Status.Conditions, enginev1alpha1.ConditionLocked)
	if condition == nil || condition.Status != status || condition.Reason != reason {
		h.Fatalf("%s: %+v, want %s because of %s", name, condition, status, reason)
	}
	for _, part := range says {
		if !strings.Contains(condition.Message, part) {
			h.Errorf("%q lacks %q", condition.Message, part)
		}
	}
	return found
}

var stored = []string{
	"metadata/holdfast/store.json", "metadata/holdfast/keys/this/app/k.json", "metadata/holdfast/keys/other/app/k.json", "metadata/holdfast/index/this/1",
	"backups/app.live/velero-backup.json", "backups/app.live/app.live.tar.gz", "backups/app.twice/velero-backup.json",
	"backups/app.going/velero-backup.json", "backups/app.foreign/velero-backup.json", "backups/app.elsewhere/velero-backup.json", "backups/unknown/velero-backup.json",
}

var live = []string{
	"backups/app.live/app.live.tar.gz", "backups/app.live/velero-backup.json", "backups/app.twice/velero-backup.json",
	"metadata/holdfast/keys/this/app/k.json", "metadata/holdfast/store.json",
}

func listed() listedBackups {
	return listedBackups{
		backup("live", "offsite", v1alpha1.BackupPhaseCompleted, v1alpha1.BackupTrustOwn),
		backup("going", "offsite", v1alpha1.BackupPhaseDeleting, v1alpha1.BackupTrustOwn),
		backup("foreign", "offsite", v1alpha1.BackupPhaseCompleted, v1alpha1.BackupTrustTrusted),
		backup("elsewhere", "default", v1alpha1.BackupPhaseCompleted, v1alpha1.BackupTrustOwn),
		backup("twice@offsite", "offsite", v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupTrustOwn),
		backup("gone", "offsite", v1alpha1.BackupPhaseCompleted, v1alpha1.BackupTrustOwn), // the store lacks it
	}
}

// The objects of this cluster's live backups, and no others, are locked for half of the lock's days
// at least, less the time between two passes. A lock that is long enough is left alone.
func TestLocksAreExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, stored...)
		h.backups = listed()
		h.Create(locked("offsite"))
		begin := time.Now()
		h.run()
		time.Sleep(time.Minute)
		found := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked, "governance")
		if until := found.LockedUntil(); until == nil || until.Time.Before(begin.Add(period-time.Second)) {
			t.Errorf("it is locked until %s", until)
		}
		for range 100 {
			time.Sleep(day)
			synctest.Wait()
			all := h.store.all()
			if keys := slices.Sorted(maps.Keys(all)); !slices.Equal(keys, live) {
				t.Fatalf("these are locked: %q, want %q", keys, live)
			}
			for key, until := range all {
				if left := time.Until(until); left < period/2-day-time.Hour {
					t.Fatalf("%s is locked for %s", key, left)
				}
			}
		}
		// At first, and then each time that half of the days are over.
		if most := 6 * len(live); h.store.extended > most {
			t.Errorf("%d extensions of %d objects in 100 days, want %d at most", h.store.extended, len(live), most)
		}
		until, earliest := h.location("offsite").LockedUntil(), time.Now().Add(period)
		for _, end := range h.store.all() {
			if end.Before(earliest) {
				earliest = end
			}
		}
		if until.Time.After(earliest) || until.Time.Before(earliest.Add(-time.Second)) {
			t.Errorf("it is said to be locked until %s, and is until %s", until, earliest)
		}
	})
}

// A process that is killed at any object leaves locks that its successor completes.
func TestKilledAtAnyObject(t *testing.T) {
	for at := range live {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, stored...)
			h.backups = listed()
			h.Create(locked("offsite"))
			requests := 0
			h.store.fail(func(key string) error {
				if key == "" {
					return nil
				}
				if requests++; requests > at {
					h.stop()
					return context.Canceled
				}
				return nil
			})
			h.run()
			synctest.Wait()
			if condition := meta.FindStatusCondition(h.location("offsite").Status.Conditions, enginev1alpha1.ConditionLocked); condition != nil {
				t.Errorf("the killed process has said %+v", condition)
			}
			h.store.fail(nil)
			h.run()
			time.Sleep(time.Minute)
			h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked)
			if keys := slices.Sorted(maps.Keys(h.store.all())); !slices.Equal(keys, live) {
				t.Errorf("these are locked: %q, want %q", keys, live)
			}
			h.stop()
		})
	}
}

// Each failure is told with its reason, and tried again until it has succeeded. The metric has its age.
func TestAFailureIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		key    string
		err    error
		reason string
	}{
		"no lock":       {"", fmt.Errorf("%w: made without", store.ErrNoLock), enginev1alpha1.ReasonNoObjectLock},
		"no right":      {"metadata/holdfast/store.json", fmt.Errorf("%w: s3:PutObjectRetention", store.ErrDenied), enginev1alpha1.ReasonAccessDenied},
		"store is down": {"backups/app.live/app.live.tar.gz", store.ErrUnavailable, enginev1alpha1.ReasonExtensionFailed},
		"one object":    {"backups/app.live/app.live.tar.gz", errors.New("the store refuses the request"), enginev1alpha1.ReasonExtensionFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, stored...)
				h.backups = listed()
				h.Create(locked("offsite"))
				h.run()
				time.Sleep(time.Minute)
				until := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked).LockedUntil()
				h.store.fail(func(key string) error {
					if key == c.key {
						return c.err
					}
					return nil
				})
				time.Sleep(day)
				found := h.expect("offsite", metav1.ConditionFalse, c.reason, c.err.Error(), "still locked until "+stamp(until.Time))
				if !found.LockedUntil().Equal(until) {
					t.Errorf("it was locked until %s, and is until %s", until, found.LockedUntil())
				}
				writes := len(h.Writes("storagelocations"))
				time.Sleep(10 * time.Hour)
				synctest.Wait()
				if again := len(h.Writes("storagelocations")); again != writes {
					t.Errorf("%d writes of what did not change", again-writes)
				}
				h.store.fail(nil)
				time.Sleep(lastRetry)
				h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked)
			})
		})
	}
}

// The store's id is the first object with a lock: from then on it is said until when objects are locked.
func TestLockedSinceTheStoreHasAnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.backups = listed()
		record := locked("offsite")
		record.Status.StoreID = ""
		h.Create(record)
		h.run()
		time.Sleep(time.Minute)
		found := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked, "nothing is stored")
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(h.store.Create(t.Context(), format.StoreIdentityKey, []byte("id")))
		found.Status.StoreID = "id"
		_, err := h.EngineV1alpha1().StorageLocations(system).UpdateStatus(t.Context(), found, metav1.UpdateOptions{})
		must(err)
		time.Sleep(time.Second)
		if until := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked).LockedUntil(); until == nil {
			t.Error("it is not said until when objects are locked")
		}
	})
}

// While backups are missing, their versions are hidden, and not extended: the end of the locks is
// never said to be later.
func TestUntilWhileBackupsAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, stored...)
		h.backups = listed()
		h.Create(locked("offsite"))
		h.run()
		time.Sleep(time.Minute)
		until := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked).LockedUntil()
		for _, missing := range []bool{true, false} {
			record := h.location("offsite").DeepCopy()
			condition := metav1.Condition{Type: enginev1alpha1.ConditionBackupsMissing, Status: metav1.ConditionFalse, Reason: "Looked"}
			if missing {
				condition.Status = metav1.ConditionTrue
			}
			meta.SetStatusCondition(&record.Status.Conditions, condition)
			if _, err := h.EngineV1alpha1().StorageLocations(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(25 * day)
			if now := h.location("offsite").LockedUntil(); now.Equal(until) != missing {
				t.Errorf("with backups missing, %t, it was locked until %s, and then until %s", missing, until, now)
			}
		}
	})
}

// An API server that does not list the backups fails no pass before one is missed.
func TestUnlistedBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, stored...)
		h.backups = listed()
		h.Create(locked("offsite"))
		h.run()
		time.Sleep(time.Minute)
		h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked)
		h.stop()
		h.backups = failingBackups{}
		h.run()
		time.Sleep(47 * time.Hour)
		h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked)
		time.Sleep(2 * time.Hour)
		h.expect("offsite", metav1.ConditionFalse, enginev1alpha1.ReasonExtensionFailed, "list the backups: not served")
	})
}

type failingBackups struct{}

func (failingBackups) List(context.Context, metav1.ListOptions) (*v1alpha1.BackupList, error) {
	return nil, errors.New("not served")
}

// Other writers of the location's status cost no second pass.
func TestAConflictCostsNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, stored...)
		h.backups = listed()
		h.Create(locked("offsite"))
		conflicts, passes := 0, 0
		h.store.fail(func(key string) error {
			if key == "" {
				passes++
			}
			return nil
		})
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.GetVerb() != "update" || action.GetSubresource() != "status" || conflicts > 1 {
				return enginetest.Fault{}
			}
			conflicts++
			return enginetest.Fault{Err: apierrors.NewConflict(enginev1alpha1.Resource("storagelocations"), "offsite", errors.New("changed"))}
		})
		h.run()
		time.Sleep(time.Second)
		h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked)
		if conflicts != 2 || passes != 1 {
			t.Errorf("there were %d conflicts and %d passes", conflicts, passes)
		}
	})
}

// The metric has a series for each reason.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.Create(locked("offsite"))
		h.store.fail(func(string) error { return store.ErrUnavailable })
		h.run()
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		const shown = `# HELP holdfast_locks_failed_seconds [ALPHA] For how long not all objects of a storage location are locked as spec.lock says, by why: the longest of all locations, or 0.
# TYPE holdfast_locks_failed_seconds gauge
holdfast_locks_failed_seconds{reason="AccessDenied"} 0
holdfast_locks_failed_seconds{reason="ExtensionFailed"} 36000
holdfast_locks_failed_seconds{reason="MaintenanceLate"} 0
holdfast_locks_failed_seconds{reason="NoObjectLock"} 0
holdfast_locks_failed_seconds{reason="Pending"} 0
`
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(shown), "holdfast_locks_failed_seconds"); err != nil {
			t.Error(err)
		}
	})
}

func repository(name string, created time.Time, until *time.Time) *enginev1alpha1.VolumeRepository {
	record := &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name + ".offsite", CreationTimestamp: metav1.NewTime(created)},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: name, BackupStorageLocation: "offsite"},
	}
	if until != nil {
		record.Status.LockedUntil = &metav1.Time{Time: *until}
	}
	return record
}

// The data of repositories counts: data that is older than the lock, and a maintenance that is late.
func TestRepositories(t *testing.T) {
	for name, c := range map[string]struct {
		created, until time.Duration // from now; zero for none
		status         metav1.ConditionStatus
		reason, says   string
		least          time.Duration
	}{
		"maintained":          {-100 * day, 35 * day, metav1.ConditionTrue, enginev1alpha1.ReasonLocked, "", 35 * day},
		"older than the lock": {-100 * day, 0, metav1.ConditionFalse, enginev1alpha1.ReasonLockPending, "app.offsite", 0},
		"new":                 {time.Hour, 0, metav1.ConditionTrue, enginev1alpha1.ReasonLocked, "", period},
		"late":                {-100 * day, 9 * day, metav1.ConditionFalse, enginev1alpha1.ReasonMaintenanceLate, "app.offsite, which is locked until", 9 * day},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, stored...)
				h.backups = listed()
				now := time.Now()
				var until *time.Time
				if c.until != 0 {
					until = new(now.Add(c.until))
				}
				elsewhere := repository("other", now, new(now))
				elsewhere.Spec.BackupStorageLocation = "default"
				h.Create(repository("app", now.Add(c.created), until))
				h.Create(elsewhere)
				h.Create(locked("offsite"))
				h.run()
				time.Sleep(time.Minute)
				found := h.expect("offsite", c.status, c.reason, c.says)
				if c.least == 0 {
					if until := found.LockedUntil(); until != nil {
						t.Errorf("it is locked until %s, with data that is not", until)
					}
					return
				}
				if left := found.LockedUntil().Sub(now); left < c.least-time.Second || left > c.least+time.Hour {
					t.Errorf("it is locked for %s, want %s", left, c.least)
				}
			})
		})
	}
}

// Nothing is extended before the backups are listed, nor without a lock. A lock that is removed leaves
// no status.
func TestALockComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, stored...)
		h.backups = listed()
		plain, loading := locked("plain"), locked("offsite")
		plain.Spec.Lock = nil
		loading.Status.Conditions = nil
		h.Create(plain)
		h.Create(loading)
		h.run()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(h.store.all()) > 0 || len(h.Writes("storagelocations")) > 0 {
			t.Errorf("before the backups are listed, %v is locked", h.store.all())
		}
		change := func(do func(*enginev1alpha1.StorageLocation)) {
			t.Helper()
			changed := h.location("offsite")
			do(changed)
			if _, err := h.EngineV1alpha1().StorageLocations(system).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		listedNow := h.location("offsite")
		listedNow.Status.Conditions = locked("").Status.Conditions
		if _, err := h.EngineV1alpha1().StorageLocations(system).UpdateStatus(t.Context(), listedNow, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		since := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked).Status.Lock.Since
		change(func(l *enginev1alpha1.StorageLocation) {
			l.Spec.Lock.Mode, l.Generation = enginev1alpha1.LockCompliance, 2
		})
		time.Sleep(time.Minute)
		found := h.expect("offsite", metav1.ConditionTrue, enginev1alpha1.ReasonLocked, "compliance")
		if !since.Before(&found.Status.Lock.Since) {
			t.Errorf("another lock is there since %s, as the first one", found.Status.Lock.Since)
		}
		change(func(l *enginev1alpha1.StorageLocation) { l.Spec.Lock, l.Generation = nil, 3 })
		time.Sleep(time.Minute)
		synctest.Wait()
		if found := h.location("offsite"); found.Status.Lock != nil || meta.FindStatusCondition(found.Status.Conditions, enginev1alpha1.ConditionLocked) != nil {
			t.Errorf("without a lock its status is %+v", found.Status)
		}
	})
}
