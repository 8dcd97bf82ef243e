// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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
	catalog   *listed
	refresher *refresh.Refresher
	stores    map[string]*storetest.Faulty
	stop      func()
	volumes   []byte        // in the place of each backup's list, if any
	closing   time.Duration // how long a store takes to close

	mu      sync.Mutex // guards the fields below
	changed []string   // the names of backups, as the catalogue told of them
	opens   int
	openErr error
	closed  map[string]bool // by location, of the store that was opened last
}

func newFixture(t *testing.T, options refresh.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, stores: map[string]*storetest.Faulty{}, closed: map[string]bool{}}
	f.catalog = newListed(func(changes catalog.Changes) {
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
	f.refresher = refresh.New(f.catalog.Catalog, options)
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
			time.Sleep(f.closing)
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
	f.storeAs(madeBy(f.t, "here"), location, storeName)
}

func (f *fixture) storeAs(cluster format.Cluster, location, storeName string) {
	f.t.Helper()
	f.location(location)
	ended := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC))
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: types.UID("uid-of-" + storeName), CreationTimestamp: ended},
		Spec:       v1alpha1.BackupSpec{StorageLocation: location},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended},
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, storeName, format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web"}, Name: "data", ClaimName: "data",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"},
	})}); err != nil {
		f.t.Fatal(err)
	}
	if f.volumes != nil {
		volumes = *bytes.NewBuffer(f.volumes)
	}
	contents := format.Contents{}
	if cluster.Key != nil {
		contents.Set(format.PodVolumeBackupsKey(storeName), format.NewContent(volumes.Bytes()))
	}
	metadata, err := format.EncodeBackup(backup, contents, cluster)
	if err != nil {
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

func (f *fixture) content(location, key string) []byte {
	f.t.Helper()
	content, err := f.stores[location].Get(context.Background(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	defer content.Close()
	data, err := io.ReadAll(content)
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

func (f *fixture) remove(location, storeName string) {
	f.t.Helper()
	storetest.Empty(f.t, f.stores[location], format.BackupPrefix(storeName))
}

func (f *fixture) removeObject(location, key string) {
	f.t.Helper()
	object, err := f.stores[location].Attributes(context.Background(), key)
	if err == nil {
		err = f.stores[location].Delete(context.Background(), object)
	}
	if err != nil {
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
		if backup.Status.Phase != v1alpha1.BackupPhaseCompleted {
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
