// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

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
		pass(100 * interval) // however long it was away

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
		pass(6 * time.Second) // long before the next regular refresh
		f.wantBackups("one")
		f.reset()
		pass(10 * time.Hour)
		if listings := f.stores["default"].Count(storetest.List); listings > 12 {
			t.Errorf("%d listings in 10 hours", listings)
		}
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
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Second})
		f.reset()
		f.setLocations("default")
		f.run()
		pass(4500 * time.Millisecond) // two reads each, of four at once
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
		pass(time.Second)
		read := len(f.catalog.Backups())
		if read != 8 {
			t.Errorf("%d backups were read", read)
		}
		if requests := f.stores["default"].Count(storetest.Get); requests > 8*2+4*2+2*4 {
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
			if backup.Status.Phase != v1alpha1.BackupPhaseCompleted {
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

// Where the store may be listed and not read, nothing is said of any backup.
func TestAStoreThatMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 200 {
			f.store("default", fmt.Sprintf("b%03d", i))
		}
		denied := storetest.Fault{Operation: storetest.Get, Err: store.ErrDenied}
		f.stores["default"].Inject(denied)
		f.reset()
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("")
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "200 of 200 backups could not be read") {
			t.Errorf("state %+v", state)
		}
		if requests := f.stores["default"].Count(storetest.Get); requests > 2*16 {
			t.Errorf("%d reads of a store that refuses all", requests)
		}
		f.stores["default"].Inject()
		pass(nextRefresh)
		if got := len(f.catalog.Backups()); got != 200 {
			t.Errorf("%d backups when it may be read", got)
		}
		// What is known stays as it was, and where it was.
		f.stores["default"].Inject(denied)
		f.store("default", "new")
		pass(nextRefresh)
		for _, backup := range f.catalog.Backups() {
			if backup.Status.Phase != v1alpha1.BackupPhaseCompleted || backup.Name == "new" {
				t.Errorf("%s is %s", backup.Name, backup.Status.Phase)
			}
		}
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "1 of 1 backups could not be read") {
			t.Errorf("state %+v", state)
		}
	})
}

// Credentials that are taken back in the midst of a refresh are no bad files.
func TestAccessThatEndsWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, Reads: 4})
		for i := range 40 {
			f.store("default", fmt.Sprintf("b%03d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Second})
		f.setLocations("default")
		f.run()
		pass(4500 * time.Millisecond)
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrDenied})
		pass(time.Second)
		if got := len(f.catalog.Backups()); got != 8 {
			t.Errorf("%d backups", got)
		}
		for _, backup := range f.catalog.Backups() {
			if backup.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("%s is %s", backup.Name, backup.Status.Phase)
			}
		}
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "32 of 40 backups could not be read") {
			t.Errorf("state %+v", state)
		}
	})
}

// Some that may not be read, as when they lie in an archive, hide none of the others.
func TestSomeThatMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval, Reads: 4})
		for i := range 40 {
			f.store("default", fmt.Sprintf("b%03d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/b0[0-2]*/*", Err: store.ErrDenied})
		f.setLocations("default")
		f.run()
		pass(20 * interval) // 4 of the 30 may come first, more than once
		phases := map[v1alpha1.BackupPhase]int{}
		for _, backup := range f.catalog.Backups() {
			phases[backup.Status.Phase]++
		}
		if phases[v1alpha1.BackupPhaseCompleted] != 10 || phases[v1alpha1.BackupPhaseUnreadable] != 30 {
			t.Errorf("%v", phases)
		}
		if state := f.refresher.States()["default"]; state.LastError != "" {
			t.Errorf("state %+v", state)
		}
	})
}

func TestBadVolumesAreSaidSo(t *testing.T) {
	for name, cluster := range map[string]format.Cluster{"unsigned": {SystemNamespace: system}, "as they were signed": madeBy(t, "here")} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{Interval: interval})
			f.volumes = []byte("not gzip")
			f.storeAs(cluster, "default", "a")
			f.setLocations("default")
			f.run()
			settle()
			f.wantBackups("a")
			conditions := f.catalog.Backup(system, "a").Status.Conditions
			if last := conditions[len(conditions)-1]; last.Type != catalog.ConditionVolumesListed || last.Status != metav1.ConditionFalse {
				t.Errorf("%s: conditions %+v", name, conditions)
			}
		})
	}
}

// A list of volumes that is not the one that was signed is not believed, and one that could
// not be read to its end may yet be.
func TestAListThatGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		list  func(f *fixture) []byte
		fault storetest.Fault
		shown string
	}{
		"longer than it was": {list: func(f *fixture) []byte {
			return append(f.content("default", format.PodVolumeBackupsKey("a")), make([]byte, 1<<20)...)
		}, shown: "a(Unreadable)"},
		"of another": {list: func(f *fixture) []byte {
			f.store("default", "b")
			defer f.remove("default", "b")
			return f.content("default", format.PodVolumeBackupsKey("b"))
		}, shown: "a(Unreadable)"},
		"bad, and breaks off": {list: func(*fixture) []byte { return []byte(strings.Repeat("bad ", 5000)) },
			fault: storetest.Fault{Truncate: true, After: 100, Err: store.ErrUnavailable}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{})
			f.store("default", "a")
			f.write("default", format.PodVolumeBackupsKey("a"), test.list(f))
			test.fault.Operation, test.fault.Key = storetest.Get, format.PodVolumeBackupsKey("a")
			f.stores["default"].Inject(test.fault)
			f.setLocations("default")
			f.run()
			settle()
			f.wantBackups(test.shown)
			if volumes := f.catalog.Volumes(); len(volumes) > 0 {
				t.Errorf("%s: there are the volumes %+v", name, volumes)
			}
		})
	}
}

// Whatever the store can't be asked for says nothing of a backup, whichever of its
// objects it was: what is known of it is served as it was.
func TestAStoreThatCannotBeAsked(t *testing.T) {
	for _, key := range []string{format.MetadataKey("a"), format.PodVolumeBackupsKey("a"), format.CopyKey("a"), "a listing"} {
		for _, fault := range []storetest.Fault{
			{Err: store.ErrUnavailable}, {Err: context.Canceled}, {Err: context.DeadlineExceeded}, {Err: store.ErrDenied},
			{Err: store.ErrUnavailable, Truncate: true, After: 30}, // in the midst of it
		} {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{})
				f.store("default", "a")
				f.setLocations("default")
				f.run()
				settle()
				before := f.catalog.Backup(system, "a")
				fault.Operation, fault.Key = storetest.Get, key
				if key == format.CopyKey("a") || key == "a listing" {
					// Somebody has replaced the metadata, so that the copy decides.
					f.write("default", format.CopyKey("a"), f.content("default", format.MetadataKey("a")))
					f.write("default", format.MetadataKey("a"), []byte(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"Completed"}}`))
				}
				if key == "a listing" {
					fault.Operation, fault.Key, fault.After = storetest.List, "", 0
				}
				f.stores["default"].Inject(fault)
				if err := f.refresher.ReadOne(t.Context(), "default", "a"); !errors.Is(err, fault.Err) {
					t.Errorf("%s: ReadOne = %v, want %v", key, err, fault)
				}
				if diff := cmp.Diff(before, f.catalog.Backup(system, "a")); diff != "" {
					t.Errorf("%s, %v: what is shown has changed (-before +after):\n%s", key, fault, diff)
				}
			})
		}
	}
}

// late is a store whose answers come when they come, whoever still waits for them.
type late struct {
	store.Reader
	until chan struct{}
	close func() error
}

func (l late) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	<-l.until
	return l.Reader.Get(context.WithoutCancel(ctx), key)
}

func (l late) Close() error { return l.close() }

// An answer that comes after its location has gone is not shown, and its store is not
// closed before.
func TestAnswersAfterTheLocationIsGone(t *testing.T) {
	for _, single := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{RequestTimeout: time.Hour})
			location := f.location("default")
			open, until := location.Open, make(chan struct{})
			location.Open = func(ctx context.Context) (refresh.Store, error) {
				inner, err := open(ctx)
				return late{inner, until, inner.Close}, err
			}
			if !single {
				f.store("default", "a")
			}
			f.refresher.SetLocations([]refresh.Location{location})
			f.run()
			settle()
			read := make(chan error, 1)
			if single {
				f.store("default", "a")
				go func() { read <- f.refresher.ReadOne(t.Context(), "default", "a") }()
				settle()
			}
			f.refresher.SetLocations(nil)
			settle()
			if f.isClosed("default") {
				t.Error("the store is closed while it is read")
			}
			close(until)
			settle()
			f.wantBackups("")
			if !f.isClosed("default") {
				t.Error("the store is open")
			}
			if single {
				if err := <-read; err == nil || !strings.Contains(err.Error(), "changed or removed meanwhile") {
					t.Errorf("ReadOne = %v", err)
				}
			}
		})
	}
}

// slow is a store that takes its time before each thing it lists.
type slow struct {
	store.Reader
	pause time.Duration
}

func (s slow) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range s.Reader.List(ctx, folder, options) {
			time.Sleep(s.pause)
			if !yield(object, err) {
				return
			}
		}
	}
}

func (s slow) Close() error { return nil }

// A long listing has its time for each of its requests, and is no silence.
func TestASlowListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{RequestTimeout: 10 * time.Second})
		for i := range 10 {
			f.store("default", fmt.Sprintf("b%d", i))
		}
		location := f.location("default")
		location.Open = func(context.Context) (refresh.Store, error) { return slow{f.stores["default"], 6 * time.Second}, nil }
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		pass(50 * time.Second)
		if f.refresher.Loaded() {
			t.Error("loaded in the midst of it")
		}
		pass(time.Minute)
		if state := f.refresher.States()["default"]; state.LastError != "" || len(f.catalog.Backups()) != 10 {
			t.Errorf("%d backups, state %+v", len(f.catalog.Backups()), state)
		}
	})
}

// turning is a store that refuses some of its objects first, and then answers otherwise.
type turning struct {
	store.Reader
	// then is what the second answer is, and the later ones; nil is what there is.
	then  []error
	mu    sync.Mutex
	asked map[string]bool
}

func (s *turning) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !strings.HasPrefix(key, format.BackupsPrefix+"dark"):
		return s.Reader.Get(ctx, key)
	case s.asked[path.Dir(key)]:
		err := s.then[0]
		if len(s.then) > 1 {
			s.then = s.then[1:]
		}
		if err != nil {
			return nil, err
		}
		return s.Reader.Get(ctx, key)
	}
	s.asked[path.Dir(key)] = true
	return nil, store.ErrDenied
}

func (s *turning) Close() error { return nil }

// What was refused is asked for again. What could then not be asked for is unread, and
// nothing is said of it.
func TestRefusedAtFirst(t *testing.T) {
	for _, test := range []struct {
		then         []error
		shown, fails string
	}{
		{[]error{store.ErrUnavailable}, "light", "3 of 3 backups could not be read"},
		{[]error{store.ErrNotFound}, "light", ""},
		{[]error{store.ErrNotFound, store.ErrUnavailable}, "light", "2 of 3 backups could not be read"},
		{[]error{store.ErrDenied}, "dark-1(Unreadable) dark-2(Unreadable) dark-3(Unreadable) light", ""},
		{[]error{nil}, "dark-1 dark-2 dark-3 light", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{Interval: interval, Reads: 1})
			f.store("default", "light")
			location := f.location("default")
			inner := f.stores["default"]
			location.Open = func(context.Context) (refresh.Store, error) {
				return &turning{Reader: inner, then: test.then, asked: map[string]bool{}}, nil
			}
			f.refresher.SetLocations([]refresh.Location{location})
			f.run()
			settle()
			for i := range 3 {
				f.store("default", fmt.Sprintf("dark-%d", i+1))
			}
			f.refresher.Nudge("default")
			settle()
			f.wantBackups(test.shown)
			if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, test.fails) || test.fails == "" && state.LastError != "" {
				t.Errorf("%v: state %+v", test.then, state)
			}
		})
	}
}

// Only failures in a row end a refresh: among many that can be read, a few hide nothing.
func TestFailuresThatAreInNoRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		for i := range 200 {
			f.store("default", fmt.Sprintf("b%03d", i))
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/b??7/*", Err: store.ErrUnavailable})
		f.setLocations("default")
		f.run()
		settle()
		if got := len(f.catalog.Backups()); got != 180 {
			t.Errorf("%d backups", got)
		}
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "20 of 200 backups could not be read") || !state.LastSuccess.IsZero() {
			t.Errorf("state %+v", state)
		}
	})
}

// hanging is a store that does not even heed the end of a request, as a hung mount does.
type hanging struct {
	store.Reader
	until chan struct{}
}

func (h hanging) List(context.Context, string, store.ListOptions) iter.Seq2[store.Object, error] {
	return func(func(store.Object, error) bool) { <-h.until }
}

func (h hanging) Close() error { return nil }

// Nobody waits longer for a store than a request may take. That holds for a hung mount,
// and for an endpoint of S3 that accepts connections and never answers.
func TestAStoreThatNeverAnswers(t *testing.T) {
	t.Run("a hung mount", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, refresh.Options{Interval: interval, RequestTimeout: 10 * time.Second})
			f.store("good", "a")
			hung := f.location("hung")
			h := hanging{until: make(chan struct{})}
			hung.Open = func(context.Context) (refresh.Store, error) { return h, nil }
			f.refresher.SetLocations([]refresh.Location{f.location("good"), hung})
			if warnings := f.refresher.Warnings(); len(warnings) != 2 || len(f.refresher.States()) != 2 {
				t.Errorf("before it runs there are the warnings %q", warnings)
			}
			f.run()
			settle()
			f.wantBackups("a")
			if f.refresher.Loaded() {
				t.Error("loaded before the hung location was tried")
			}
			pass(10 * time.Second)
			if warnings := f.refresher.Warnings(); !f.refresher.Loaded() || len(warnings) != 1 || !strings.Contains(warnings[0], `"hung"`) {
				t.Errorf("one hung store holds up all: %q", warnings)
			}
			close(h.until)
		})
	})
	t.Run("an endpoint of S3", func(t *testing.T) {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		const timeout = 500 * time.Millisecond
		f := newFixture(t, refresh.Options{Interval: interval, RequestTimeout: timeout})
		f.store("good", "a")
		s3 := refresh.Location{Name: "s3", Store: "s3", Open: func(ctx context.Context) (refresh.Store, error) {
			return store.Open(ctx, &enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{
				Bucket: "backups", Endpoint: "http://" + silent.Addr().String(), ForcePathStyle: true, CredentialsSecret: "credentials",
			}}, map[string][]byte{store.SecretAccessKeyID: []byte("id"), store.SecretSecretAccessKey: []byte("key")})
		}}
		f.refresher.SetLocations([]refresh.Location{f.location("good"), s3})
		within := func(what string, done func() bool) { // the silence is for ever
			t.Helper()
			for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatalf("%s: %+v", what, f.refresher.States())
				}
			}
		}
		f.run()
		within("a silent store holds up all", func() bool {
			states := f.refresher.States()
			return f.refresher.Loaded() && states["s3"].Loaded && !states["good"].LastSuccess.IsZero()
		})
		f.wantBackups("a")
		if state := f.refresher.States()["s3"]; !strings.Contains(state.LastError, "in time") {
			t.Errorf("state %+v", state)
		}
		if err := f.refresher.ReadOne(t.Context(), "s3", "b"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("ReadOne = %v", err)
		}
		within("of another store nothing is read", func() bool { return f.refresher.ReadOne(t.Context(), "good", "a") == nil })
		began := time.Now()
		f.stop()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it stopped after %s", took)
		}
	})
}

func TestNoVolumesFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		f.storeAs(format.Cluster{SystemNamespace: system}, "default", "a")
		f.removeObject("default", format.PodVolumeBackupsKey("a"))
		f.setLocations("default")
		f.run()
		settle()
		f.wantBackups("a")
		if volumes := f.catalog.Volumes(); len(volumes) > 0 {
			t.Errorf("volumes %+v", volumes)
		}
		if missed := meta.FindStatusCondition(f.catalog.Backup(system, "a").Status.Conditions, catalog.ConditionVolumesListed); missed != nil {
			t.Errorf("it has the condition %+v", missed)
		}
	})
}

// Pitfall 22: a folder without metadata is a backup that is being written, or was
// given up.
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
		// It is not asked for at each refresh.
		f.reset()
		pass(20 * interval)
		if reads := f.stores["default"].Count(storetest.Get); reads < 3 || reads > 10 {
			t.Errorf("%d reads in 20 refreshes", reads)
		}
		f.store("default", "running")
		pass(11 * interval)
		f.wantBackups("a running")
		if changes := f.changes(); changes != "+running" {
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
			if !strings.Contains(state.Suspicion, fmt.Sprintf("lacks %d of 20", 20-after)) || state.LastError != "" {
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
		pass(21 * time.Second)
		f.wantBackups("a slow(Unreadable)")
		if state := f.refresher.States()["default"]; state.LastError != "" {
			t.Errorf("one slow backup is the trouble of all: %+v", state)
		}
		f.stores["default"].Inject()
		pass(time.Hour)
		f.wantBackups("a slow")
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/slow/*", Delay: time.Hour})
		pass(time.Hour)
		f.wantBackups("a slow") // what was read is kept
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Hour})
		f.store("default", "late")
		pass(10 * interval)
		f.wantBackups("a slow")
		if state := f.refresher.States()["default"]; !strings.HasPrefix(state.LastError, "1 of 1 backups could not be read") {
			t.Errorf("a slow store is the trouble of one backup: %+v", state)
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Delay: time.Hour}, storetest.Fault{Operation: storetest.List, Delay: time.Hour})
		pass(10 * interval)
		f.wantBackups("a slow")
		if state := f.refresher.States()["default"]; state.LastError != "the store did not list its backups in time" {
			t.Errorf("state %+v", state)
		}
	})
}
