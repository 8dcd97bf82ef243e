// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

type fixture struct {
	*testing.T
	store     *storetest.Faulty
	cluster   format.Cluster
	publisher *Publisher
}

// begin runs a Publisher of one location until the test ends.
func begin(t *testing.T, of *storetest.Faulty) *fixture {
	t.Helper()
	key, err := format.NewSigningKey(bytes.NewReader(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, store: of, cluster: format.Cluster{SystemNamespace: system, UID: "here", Key: key}}
	f.publisher = New(Options{Cluster: f.cluster, Clock: clock.RealClock{}})
	f.publisher.SetLocations([]Location{{
		Name: "default", Open: func(context.Context) (Store, error) { return kept{of}, nil },
		Layout: &refresh.VeleroLayout{Location: "default", SystemNamespace: system, Clock: clock.RealClock{}},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.publisher.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	synctest.Wait()
	return f
}

// kept is a store that stays open.
type kept struct{ *storetest.Faulty }

func (kept) Close() error { return nil }

func (k kept) GetRange(context.Context, string, int64, int64) (io.ReadCloser, error) {
	panic("not needed")
}

func (f *fixture) backup(storeName string) {
	f.Helper()
	f.backupOf(storeName, "uid of "+storeName)
}

func (f *fixture) backupOf(storeName, uid string) {
	f.Helper()
	at := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC))
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: types.UID(uid), CreationTimestamp: at},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at},
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, storeName, format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web"}, Name: "data", ClaimName: "data",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"},
	})}); err != nil {
		f.Fatal(err)
	}
	contents := format.Contents{}
	contents.Set(format.PodVolumeBackupsKey(storeName), format.NewContent(volumes.Bytes()))
	metadata, err := format.EncodeBackup(backup, contents, f.cluster)
	if err != nil {
		f.Fatal(err)
	}
	for key, content := range map[string][]byte{format.PodVolumeBackupsKey(storeName): volumes.Bytes(), format.MetadataKey(storeName): metadata} {
		if err := f.store.Put(f.Context(), key, content); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fixture) remove(storeName string) {
	f.Helper()
	storetest.Empty(f, f.store, format.BackupPrefix(storeName))
}

// entries are what the index has.
func (f *fixture) entries() iter.Seq[index.Entry] {
	f.Helper()
	found, err := index.Open(f.Context(), f.store, func(string) bool { return true }, func(string, string) index.Standing { return index.Own })
	if err != nil {
		f.Fatal(err)
	}
	return found.Fetch(f.Context()).Entries(func(string) bool { return true })
}

// expect compares what the index has.
func (f *fixture) expect(want string) {
	f.Helper()
	rows := map[string]int{}
	for entry := range f.entries() {
		rows[entry.StoreName] = entry.Content.Rows()
	}
	if got := strings.Join(slices.Sorted(maps.Keys(rows)), " "); got != want {
		f.Errorf("the index has %q, not %q", got, want)
	}
	for name, count := range rows {
		if count != 1 {
			f.Errorf("%s has %d volumes", name, count)
		}
	}
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		f.backup("old")
		pass(time.Minute)
		f.expect("old")

		// Those that end together cost two reads each and one write.
		f.store.Reset()
		for _, name := range []string{"a", "b", "c"} {
			f.backup(name)
			f.publisher.Ended("default", name)
		}
		f.store.Reset()
		pass(time.Minute)
		f.expect("a b c old")
		counts := f.store.Counts()
		if counts[storetest.Create] != 1 || counts[storetest.Delete] != 0 {
			t.Errorf("it cost %v", counts)
		}

		// What it was not told of, and what is gone, it finds.
		f.backup("late")
		f.remove("b")
		pass(7 * time.Hour)
		f.expect("a c late old")
		f.store.Reset()
		pass(24 * time.Hour)
		if counts := f.store.Counts(); counts[storetest.Create]+counts[storetest.Put] > 0 {
			t.Errorf("what did not change was written: %v", counts)
		}
	})
}

// A change of an expiration is read when it is found.
func TestAChangeBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		f.backup("a")
		pass(time.Minute)
		const uid = "11111111-2222-3333-4444-555555555555"
		if err := f.store.Create(t.Context(), format.ExpirationKey("a", uid, 1), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		f.store.Reset()
		pass(7 * time.Hour)
		if reads := f.store.Count(storetest.Get); reads < 2 {
			t.Errorf("%d reads", reads)
		}
		f.store.Reset()
		pass(7 * time.Hour)
		if writes := f.store.Count(storetest.Create); writes > 0 {
			t.Errorf("%d writes of what was read", writes)
		}
	})
}

// What a search has read before it was cut off is in the index.
func TestASearchThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		f.backup("a")
		pass(time.Minute)
		f.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
		f.publisher.Ended("default", "none") // what fails is followed by a search
		pass(3 * time.Second)
		f.backup("b")
		f.backup("z")
		f.store.Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/z/*", Delay: 50 * time.Second})
		pass(40 * time.Second)
		f.expect("a")
		f.publisher.SetLocations(nil)
		pass(time.Second)
		f.store.Inject()
		f.expect("a b")
	})
}

// A backup that is there anew takes the place of the one of its name, whatever failed at first.
func TestABackupThatIsThereAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		f.backup("a")
		pass(time.Minute)
		for uid, fails := range map[string]storetest.Operation{"second": storetest.Get, "third": storetest.Create, "fourth": storetest.List} {
			f.remove("a")
			f.backupOf("a", uid)
			f.store.Inject(storetest.Fault{Operation: fails, Err: store.ErrUnavailable})
			if fails == storetest.List { // which a search begins with
				pass(7 * time.Hour)
			}
			f.publisher.Ended("default", "a")
			pass(time.Minute)
			f.store.Inject()
			pass(3 * time.Hour)
			for entry := range f.entries() {
				if got := string(entry.Content.Backup.UID); got != uid {
					t.Errorf("after a failed %s, the index has the one with the uid %q, not %q", fails, got, uid)
				}
			}
		}
	})
}

// What may not be read keeps the rest from nothing.
func TestSomeThatMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		denied := storetest.Fault{Operation: storetest.Get, Key: "backups/denied*/*", Err: store.ErrDenied}
		f.store.Inject(denied)
		for i := range failures + 2 {
			f.backup(fmt.Sprintf("denied-%d", i))
		}
		for _, name := range []string{"a", "b", "c"} {
			f.backup(name)
		}
		pass(96 * time.Hour) // until one of those is asked for first that may be read
		f.expect("a b c")

		f.remove("c")
		f.publisher.Ended("default", "denied-0")
		f.backup("d")
		pass(7 * time.Hour)
		f.expect("a b d")

		// If none may be read, it is the store's trouble, and the index stays.
		f.store.Inject(storetest.Fault{Operation: storetest.Get, Key: "backups/*/*", Err: store.ErrDenied})
		f.backup("e")
		f.remove("d")
		pass(7 * time.Hour)
		f.expect("a b d")
	})
}

// A store that fails is left alone, and one that lists nothing loses no index.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(t, storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}))
		for _, name := range []string{"a", "b", "c"} {
			f.backup(name)
		}
		f.store.Inject(storetest.Fault{Operation: storetest.Create, Err: store.ErrUnavailable})
		pass(time.Minute)
		f.expect("")
		f.store.Inject()
		pass(10 * time.Minute)
		f.expect("a b c")

		f.store.Inject(storetest.Fault{Operation: storetest.List, Key: format.BackupsPrefix, Truncate: true})
		pass(24 * time.Hour)
		f.store.Inject(storetest.Fault{Err: store.ErrUnavailable})
		f.store.Reset()
		pass(24 * time.Hour)
		requests := 0
		for _, count := range f.store.Counts() {
			requests += count
		}
		if requests > 40 {
			t.Errorf("%d requests in a day of a store that is down", requests)
		}
		f.store.Inject()
		f.expect("a b c")
		f.backup("d")
		pass(2 * time.Hour)
		f.expect("a b c d")
	})
}
