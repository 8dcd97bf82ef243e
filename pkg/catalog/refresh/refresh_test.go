// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system   = "holdfast"
	interval = time.Minute
	// Longer than an interval with its jitter, shorter than two.
	nextRefresh = interval + interval/2
)

// opened is a store that tells when it is closed.
type opened struct {
	store.Reader
	onClose func()
}

func (o opened) Close() error {
	o.onClose()
	return nil
}

// fixture is a Refresher over stores in memory, in a bubble of synthetic time.
type fixture struct {
	t         *testing.T
	catalog   *catalog.Catalog
	refresher *refresh.Refresher
	stores    map[string]*storetest.Faulty
	stop      func()

	mu      sync.Mutex // guards the fields below
	changed []string   // the names of backups, as the catalogue told of them
	opens   int
	openErr error
	closed  map[string]bool // by location, of the store that was opened last
}

func newFixture(t *testing.T, options refresh.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, stores: map[string]*storetest.Faulty{}, closed: map[string]bool{}}
	f.catalog = catalog.New(system, func(changes catalog.Changes) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, backup := range changes.Backups.Set {
			f.changed = append(f.changed, "+"+backup.Name)
		}
		for _, gone := range changes.Backups.Gone {
			f.changed = append(f.changed, "-"+gone.Name)
		}
	})
	options.SystemNamespace = system
	f.refresher = refresh.New(f.catalog, options)
	return f
}

// run starts the Refresher; it ends with the test.
func (f *fixture) run() {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.refresher.Run(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	f.t.Cleanup(f.stop)
}

// location makes a store, once, and says how to open it.
func (f *fixture) location(name string) refresh.Location {
	if f.stores[name] == nil {
		f.stores[name] = storetest.NewFaulty(storetest.Memory(f.t), clock.RealClock{})
	}
	return refresh.Location{Name: name, Store: name, Open: func(context.Context) (refresh.Store, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.opens++
		if f.openErr != nil {
			return nil, f.openErr
		}
		f.closed[name] = false
		return opened{f.stores[name], func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.closed[name] = true
		}}, nil
	}}
}

func (f *fixture) failOpen(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.openErr = err
}

func (f *fixture) isClosed(location string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed[location]
}

func (f *fixture) setLocations(names ...string) {
	var locations []refresh.Location
	for _, name := range names {
		locations = append(locations, f.location(name))
	}
	f.refresher.SetLocations(locations)
}

// store writes a backup of one volume, as package backup does.
func (f *fixture) store(location, storeName string) {
	f.t.Helper()
	f.location(location)
	ended := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC))
	backup := &holdfast.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: types.UID("uid-of-" + storeName), CreationTimestamp: ended},
		Spec:       holdfast.BackupSpec{StorageLocation: location},
		Status:     holdfast.BackupStatus{Phase: holdfast.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended},
	}
	metadata, err := format.EncodeBackup(backup, format.Cluster{SystemNamespace: system})
	if err != nil {
		f.t.Fatal(err)
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, storeName, format.Volume{
		Pod: engine.PodReference{Namespace: "shop", Name: "web"}, Name: "data", ClaimName: "data",
		Status: engine.PodVolumeBackupStatus{Phase: engine.VolumePhaseCompleted, SnapshotID: "s"},
	})}); err != nil {
		f.t.Fatal(err)
	}
	f.write(location, format.PodVolumeBackupsKey(storeName), volumes.Bytes())
	f.write(location, format.MetadataKey(storeName), metadata)
}

func (f *fixture) write(location, key string, content []byte) {
	f.t.Helper()
	if err := f.stores[location].Put(context.Background(), key, content); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(location, storeName string) {
	f.t.Helper()
	if err := f.stores[location].DeletePrefix(context.Background(), format.BackupPrefix(storeName)); err != nil {
		f.t.Fatal(err)
	}
}

// reset forgets what the store was asked so far, and by the test itself.
func (f *fixture) reset() {
	for _, s := range f.stores {
		s.Reset()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = nil
}

func (f *fixture) changes() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.changed, " ")
}

func (f *fixture) wantBackups(want string) {
	f.t.Helper()
	var names []string
	for _, backup := range f.catalog.Backups() {
		name := backup.Name
		if backup.Status.Phase != holdfast.BackupPhaseCompleted {
			name += "(" + string(backup.Status.Phase) + ")"
		}
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != want {
		f.t.Errorf("backups %q, want %q", got, want)
	}
}

func (f *fixture) wantRequests(location string, want map[storetest.Operation]int) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.stores[location].Counts()); diff != "" {
		f.t.Errorf("requests to %s (-want +got):\n%s", location, diff)
	}
}

// settle lets everything happen that is due, and nothing that needs time.
func settle() { synctest.Wait() }

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) // in a bubble
	synctest.Wait()
}

func TestFirstRefreshIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "one")
		f.store("default", "two")
		f.reset()
		f.run()
		settle()
		if f.refresher.Loaded() {
			t.Error("loaded before the locations are known")
		}
		f.setLocations("default")
		settle()
		if !f.refresher.Loaded() {
			t.Error("not loaded")
		}
		f.wantBackups("one two")
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 4})
		state := f.refresher.States()["default"]
		if !state.Loaded || state.LastSuccess != time.Now() || state.LastError != "" || state.Suspicion != "" || state.Backups != 2 {
			t.Errorf("state %+v", state)
		}
	})
}

// By construction, the catalogue can't be the reason why a backup is lost.
func TestStoreCannotBeChanged(t *testing.T) {
	methods := map[string]bool{}
	for method := range reflect.TypeFor[refresh.Store]().Methods() {
		methods[method.Name] = true
	}
	if diff := cmp.Diff(map[string]bool{"List": true, "Get": true, "Attributes": true, "Close": true}, methods); diff != "" {
		t.Errorf("a store that is refreshed from has other methods (-want +got):\n%s", diff)
	}
}

func TestNoLocationsIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		f.refresher.SetLocations(nil)
		settle()
		if !f.refresher.Loaded() {
			t.Error("not loaded")
		}
	})
}

// What a refresh costs.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		f.setLocations("default")
		f.run()
		settle()

		f.reset()
		pass(nextRefresh)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1})
		if changes := f.changes(); changes != "" {
			t.Errorf("changes without a change: %s", changes)
		}

		for i := range 3 {
			f.store("default", fmt.Sprintf("c%d", i))
		}
		f.reset()
		pass(interval)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 2 * 3})
	})
}

func TestThousandBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backups, reads = 1_000, 8
		f := newFixture(t, refresh.Options{Interval: interval, Reads: reads})
		for i := range backups {
			f.store("default", fmt.Sprintf("b%04d", i))
		}
		// With time to pass in each request, as many as may be are under way at once.
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: 10 * time.Millisecond})
		f.reset()
		f.setLocations("default")
		begin := time.Now()
		f.run()
		for !f.refresher.Loaded() {
			pass(time.Millisecond)
		}
		if took, floor := time.Since(begin), 2*backups/reads*10*time.Millisecond; took < floor || took > floor*11/10 {
			t.Errorf("took %v, of which requests need %v", took, floor)
		}
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 2 * backups})
		if peak := f.stores["default"].Peak(); peak != reads {
			t.Errorf("%d reads at once, want %d", peak, reads)
		}
		if got := len(f.catalog.Backups()); got != backups {
			t.Errorf("%d backups", got)
		}
		if volume := f.catalog.Volumes()[0]; volume.Status.Backups != backups {
			t.Errorf("volume %+v", volume)
		}
		f.reset()
		pass(nextRefresh)
		f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1})
	})
}

func TestStoreDownKeepsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "one")
		f.setLocations("default")
		f.run()
		settle()
		success := f.refresher.States()["default"].LastSuccess

		f.stores["default"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		f.reset()
		pass(nextRefresh)
		f.wantBackups("one")
		state := f.refresher.States()["default"]
		if state.LastError == "" || state.LastSuccess != success || !state.Loaded {
			t.Errorf("state %+v", state)
		}
		if warnings := f.refresher.Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], `"default" are shown as of `+success.UTC().Format(time.RFC3339)) {
			t.Errorf("warnings %q", warnings)
		}
		pass(10 * interval)
		if requests := f.stores["default"].Count(storetest.List); requests < 10 || requests > 25 {
			t.Errorf("%d listings of a store that is down", requests)
		}
		f.wantBackups("one")

		f.stores["default"].Inject()
		pass(nextRefresh)
		if state := f.refresher.States()["default"]; state.LastError != "" || !state.LastSuccess.After(success) {
			t.Errorf("state after its return %+v", state)
		}
		if warnings := f.refresher.Warnings(); len(warnings) != 0 {
			t.Errorf("warnings %q", warnings)
		}
	})
}

func TestStoreDownAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: time.Hour})
		f.store("default", "one")
		f.failOpen(store.ErrUnavailable)
		f.setLocations("default")
		f.run()
		settle()
		if !f.refresher.Loaded() {
			t.Error("a store that is down holds everything up")
		}
		if warnings := f.refresher.Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], "may be missing") {
			t.Errorf("warnings %q", warnings)
		}
		f.failOpen(nil)
		pass(time.Minute) // long before the next regular refresh
		f.wantBackups("one")
	})
}

// A store that dies while it is read is not asked a thousand times more, and
// nothing is called unreadable for it.
func TestStoreDiesWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, Reads: 4})
		for i := range 200 {
			f.store("default", fmt.Sprintf("b%03d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/b0[1-9]*/*", Err: store.ErrUnavailable},
			storetest.Fault{Operation: storetest.Get, Key: "backups/b1*/*", Err: store.ErrUnavailable})
		f.reset()
		f.setLocations("default")
		f.run()
		settle()
		// The last good ones may not have had their turn when the row of failures ended it.
		read := len(f.catalog.Backups())
		if read < 7 || read > 10 {
			t.Errorf("%d backups were read", read)
		}
		if requests := f.stores["default"].Count(storetest.Get); requests > 10*2+2*4 {
			t.Errorf("%d reads", requests)
		}
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, fmt.Sprintf("%d of 200 backups could not be read", 200-read)) {
			t.Errorf("state %+v", state)
		}
		f.stores["default"].Inject()
		pass(nextRefresh)
		if got := len(f.catalog.Backups()); got != 200 {
			t.Errorf("%d backups after its return", got)
		}
		for _, backup := range f.catalog.Backups() {
			if backup.Status.Phase != holdfast.BackupPhaseCompleted {
				t.Errorf("%s is %s", backup.Name, backup.Status.Phase)
			}
		}
	})
}

func TestOneBadFileIsOneBadRow(t *testing.T) {
	for name, damage := range map[string]func(f *fixture){
		"not JSON":   func(f *fixture) { f.write("default", format.MetadataKey("bad"), []byte("x")) },
		"empty":      func(f *fixture) { f.write("default", format.MetadataKey("bad"), nil) },
		"of another": func(f *fixture) { f.write("default", format.MetadataKey("bad"), []byte(`{"kind":"Pod"}`)) },
		"too large": func(f *fixture) {
			f.write("default", format.MetadataKey("bad"), make([]byte, format.MaxMetadataBytes+1))
		},
		"cut": func(f *fixture) {
			f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: format.MetadataKey("bad"), Truncate: true, After: 100})
		},
		"forbidden": func(f *fixture) {
			f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: format.MetadataKey("bad"), Err: store.ErrDenied})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{Interval: interval})
				for _, storeName := range []string{"a", "bad", "c"} {
					f.store("default", storeName)
				}
				damage(f)
				f.setLocations("default")
				f.run()
				settle()
				f.wantBackups("a bad(Unreadable) c")
				if reason := f.catalog.Backup(system, "bad").Status.FailureReason; !strings.HasPrefix(reason, "velero-backup.json can't be read: ") {
					t.Errorf("reason %q", reason)
				}
				if state := f.refresher.States()["default"]; state.LastError != "" || state.LastSuccess.IsZero() {
					t.Errorf("state %+v", state)
				}
				f.stores["default"].Inject()
				f.store("default", "bad")
				pass(3 * interval)
				f.wantBackups("a bad c")
			})
		})
	}
}

func TestBadVolumesAreSaidSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		f.write("default", format.PodVolumeBackupsKey("a"), []byte("not gzip"))
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		conditions := f.catalog.Backup(system, "a").Status.Conditions
		if last := conditions[len(conditions)-1]; last.Type != catalog.ConditionVolumesListed || last.Status != metav1.ConditionFalse {
			t.Errorf("conditions %+v", conditions)
		}
	})
}

func TestNoVolumesFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		if err := f.stores["default"].Delete(t.Context(), format.PodVolumeBackupsKey("a")); err != nil {
			t.Fatal(err)
		}
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		if volumes := f.catalog.Volumes(); len(volumes) > 0 {
			t.Errorf("volumes %+v", volumes)
		}
	})
}

// A folder without metadata is a backup that is being written, or was given up.
func TestFolderWithoutMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		f.location("default")
		f.write("default", format.TarballKey("running"), []byte("x"))
		f.write("default", "backups/no folder", []byte("x"))
		f.write("default", "backups/Not A Name/velero-backup.json", []byte("x"))
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		if state := f.refresher.States()["default"]; state.LastError != "" || state.Suspicion != "" {
			t.Errorf("state %+v", state)
		}
		f.store("default", "running")
		pass(nextRefresh)
		f.wantBackups("a running")
		if changes := f.changes(); changes != "+a +running" {
			t.Errorf("changes %s", changes)
		}
	})
}

func TestDisappearance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		f.store("default", "b")
		f.setLocations("default")
		f.run()
		settle()
		f.remove("default", "a")
		pass(time.Second) // a listing does not speak of what was read at that instant
		f.refresher.Nudge("default")
		pass(time.Second)
		f.wantBackups("a b")
		f.refresher.Nudge("default")
		pass(time.Second)
		f.wantBackups("b")
	})
}

func TestListingThatLacksAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		f.setLocations("default")
		f.run()
		settle()
		for _, after := range []int{0, 5} {
			f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Truncate: true, After: after})
			pass(5 * interval)
			if got := len(f.catalog.Backups()); got != 20 {
				t.Errorf("%d backups are left", got)
			}
			state := f.refresher.States()["default"]
			if !strings.Contains(state.Suspicion, fmt.Sprintf("lists %d of 20", after)) || state.LastError != "" {
				t.Errorf("state %+v", state)
			}
			if warnings := f.refresher.Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], state.Suspicion) {
				t.Errorf("warnings %q", warnings)
			}
		}
		f.stores["default"].Inject()
		pass(nextRefresh)
		if state := f.refresher.States()["default"]; state.Suspicion != "" {
			t.Errorf("state %+v", state)
		}
	})
}

// Half a listing that ends in an error loses nothing, and confirms no loss.
func TestListingThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		f.store("default", "b")
		f.setLocations("default")
		f.run()
		settle()
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Truncate: true, After: 1, Err: store.ErrUnavailable})
		pass(5 * interval)
		f.wantBackups("a b")
		if state := f.refresher.States()["default"]; state.LastError == "" {
			t.Errorf("state %+v", state)
		}
	})
}

func TestRequestsHaveATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, RequestTimeout: 10 * time.Second})
		f.store("default", "a")
		f.store("default", "slow")
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/slow/*", Delay: time.Hour})
		f.setLocations("default")
		f.run()
		pass(11 * time.Second)
		f.wantBackups("a")
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "1 of 2 backups could not be read") {
			t.Errorf("state %+v", state)
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Delay: time.Hour})
		pass(10 * interval)
		f.wantBackups("a")
		if state := f.refresher.States()["default"]; state.LastError != "the store did not list its backups in time" {
			t.Errorf("state %+v", state)
		}
	})
}

// A slow location delays no other.
func TestLocationsAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("fast", "a")
		f.store("slow", "b")
		f.stores["slow"].Inject(storetest.Fault{Delay: 20 * time.Second})
		f.setLocations("slow", "fast")
		f.run()
		settle()
		f.wantBackups("a")
		if f.refresher.Loaded() {
			t.Error("loaded before the slow location was tried")
		}
		pass(2 * time.Minute)
		f.wantBackups("a b")
	})
}

func TestNoInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.store("default", "a")
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		f.store("default", "b")
		f.reset()
		pass(1000 * time.Hour)
		f.wantRequests("default", map[storetest.Operation]int{})
		for range 5 {
			f.refresher.Nudge("default")
		}
		settle()
		f.wantBackups("a b")
		if listings := f.stores["default"].Count(storetest.List); listings > 2 {
			t.Errorf("%d listings for nudges at once", listings)
		}
		f.refresher.Nudge("no such location")
	})
}

func TestReadOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.setLocations("default")
		f.run()
		settle()
		f.store("default", "a")
		f.reset()
		if err := f.refresher.ReadOne(t.Context(), "default", "a"); err != nil {
			t.Fatal(err)
		}
		f.wantBackups("a")
		f.wantRequests("default", map[storetest.Operation]int{storetest.Get: 2})
		if err := f.refresher.ReadOne(t.Context(), "default", "absent"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("absent: %v", err)
		}
		if err := f.refresher.ReadOne(t.Context(), "elsewhere", "a"); err == nil {
			t.Error("read from a location that is none")
		}
	})
}

func TestReadSoonTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.setLocations("default")
		f.run()
		settle()
		f.reset()
		f.refresher.ReadSoon("default", "a")
		settle()
		if reads := f.stores["default"].Count(storetest.Get); reads != 1 {
			t.Errorf("%d reads", reads)
		}
		f.store("default", "a")
		pass(time.Second)
		f.wantBackups("a")

		f.reset()
		f.refresher.ReadSoon("default", "never")
		pass(time.Hour)
		if reads := f.stores["default"].Count(storetest.Get); reads < 3 || reads > 20 {
			t.Errorf("%d reads of what never comes", reads)
		}
	})
}

func TestLocationsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("one", "a")
		f.store("two", "b")
		f.setLocations("one")
		f.run()
		settle()
		f.wantBackups("a")
		f.setLocations("one", "two")
		settle()
		f.wantBackups("a b")
		if f.opens != 2 { // nothing runs now
			t.Errorf("stores were opened %d times", f.opens)
		}

		f.setLocations("two")
		settle()
		f.wantBackups("b")
		if !f.isClosed("one") || f.isClosed("two") {
			t.Error("the removed location's store is open, or the other's closed")
		}
		if states := f.refresher.States(); len(states) != 1 {
			t.Errorf("states %+v", states)
		}
		f.reset()
		f.refresher.Nudge("one")
		pass(nextRefresh)
		f.wantRequests("one", map[storetest.Operation]int{})

		// New credentials: the same store, opened anew, and all that was read is kept.
		changed := f.location("two")
		changed.Settings = "new credentials"
		f.failOpen(store.ErrDenied)
		f.refresher.SetLocations([]refresh.Location{changed})
		settle()
		f.wantBackups("b")
		if !f.refresher.Loaded() || !f.isClosed("two") {
			t.Error("not opened anew")
		}
		f.failOpen(nil)

		// Another store under the name: what was read is no longer true.
		changed.Store = "another bucket"
		f.stores["two"] = storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
		f.store("two", "c")
		f.refresher.SetLocations([]refresh.Location{changed})
		settle()
		f.wantBackups("c")
	})
}

// A location that goes while it is read leaves nothing behind.
func TestLocationGoesWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 40 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Second})
		f.setLocations("default")
		f.run()
		pass(2500 * time.Millisecond)
		if got := len(f.catalog.Backups()); got == 0 || got == 40 {
			t.Fatalf("%d backups, want some", got)
		}
		f.refresher.SetLocations(nil)
		pass(time.Minute)
		f.wantBackups("")
		if !f.isClosed("default") {
			t.Error("the store is open")
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.store("default", "a")
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Delay: time.Hour})
		f.setLocations("default")
		f.run()
		settle()
		begin := time.Now()
		f.stop()
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("stopped after %v", waited)
		}
		if !f.isClosed("default") {
			t.Error("the store is open")
		}
	})
}
