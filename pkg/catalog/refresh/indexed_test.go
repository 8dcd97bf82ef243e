// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// index writes an index of what is in the store, as a cluster that calls the location
// otherwise does.
func (f *fixture) index(cluster format.Cluster, names ...string) {
	f.t.Helper()
	f.forge(cluster, func(*catalog.Content) {}, names...)
}

// forge writes an index that says something else of what is in the store.
func (f *fixture) forge(cluster format.Cluster, change func(*catalog.Content), names ...string) {
	f.t.Helper()
	w := index.NewWriter(f.stores["default"], cluster, nil, clock.RealClock{})
	if err := w.Load(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	from := &refresh.VeleroLayout{Location: "by another name", SystemNamespace: "theirs", Clock: clock.RealClock{}}
	for _, name := range names {
		content, err := from.Read(f.t.Context(), ranged{f.stores["default"]}, name, refresh.KnownEntry{
			Volumes: func() []catalog.Volume { return nil },
			Beside:  noneBeside,
		})
		if err != nil {
			f.t.Fatal(err)
		}
		change(&content)
		if err := w.Add(f.t.Context(), index.Entry{StoreName: name, Content: content}); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := w.Commit(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// restart has another server begin.
func (f *fixture) restart(trusted ...format.Cluster) *fixture {
	f.t.Helper()
	next := newFixture(f.t, refresh.Options{Interval: time.Hour})
	next.stores = f.stores
	own := madeBy(f.t, "here")
	next.catalog.SetIdentity(identity.Identity{UID: own.UID, Keys: []string{own.Key.PublicKey()}})
	var clusters []enginev1alpha1.TrustedCluster
	for _, cluster := range trusted {
		clusters = append(clusters, enginev1alpha1.TrustedCluster{Name: cluster.UID, UID: cluster.UID, PublicKey: cluster.Key.PublicKey()})
	}
	next.catalog.SetTrustedClusters(map[string][]enginev1alpha1.TrustedCluster{"default": clusters})
	location := next.location("default")
	location.Indexed = true
	next.refresher.SetLocations([]refresh.Location{location})
	next.stores["default"].Reset()
	next.run()
	settle()
	return next
}

// A cold start takes what the index says, and reads what it does not.
func TestAColdStartWithAnIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		here := madeBy(t, "here")
		var names []string
		for i := range 50 {
			names = append(names, fmt.Sprintf("b%03d", i))
			f.store("default", names[i])
		}
		f.index(here, names...)
		f.store("default", "new")
		f.remove("default", "b000")

		next := f.restart()
		next.wantBackups(strings.Join(append(names[1:], "new"), " "))
		if gets, lists := next.stores["default"].Count(storetest.Get), next.stores["default"].Count(storetest.List); gets > 4 || lists != 2 {
			t.Errorf("%d readings and %d listings", gets, lists)
		}
		if state := next.refresher.States()["default"]; state.LastError != "" || !state.Loaded {
			t.Errorf("state %+v", state)
		}
		without := newFixture(t, refresh.Options{})
		without.stores = f.stores
		without.setLocations("default")
		without.run()
		settle()
		for _, want := range without.catalog.Backups() {
			got := next.catalog.Backup(want.Namespace, want.Name)
			if got == nil || got.UID != want.UID || got.Spec.StorageLocation != "default" || got.Status.Volumes == nil || *got.Status.Volumes != *want.Status.Volumes {
				t.Errorf("from the index: %+v", got)
			}
		}
		if got, want := len(next.catalog.Volumes()), len(without.catalog.Volumes()); got != want || got == 0 {
			t.Errorf("%d volumes, and %d without an index", got, want)
		}
	})
}

// What the index says of a backup whose name another one has by now is shown until the store
// was asked.
func TestAStaleIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		here := madeBy(t, "here")
		for _, name := range []string{"a", "made-anew", "emptied"} {
			f.store("default", name)
		}
		f.index(here, "a", "made-anew", "emptied")
		f.write("default", format.MetadataKey("made-anew"), []byte(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"made-anew","uid":"of-velero"},"status":{"phase":"Completed"}}`))
		metadata, err := f.stores["default"].Attributes(t.Context(), format.MetadataKey("emptied"))
		if err == nil {
			err = f.stores["default"].Delete(t.Context(), metadata)
		}
		if err != nil {
			t.Fatal(err)
		}

		next := f.restart()
		next.wantBackups("a emptied made-anew")
		pass(10 * time.Second)
		next.wantBackups("a made-anew")
		if uid := next.catalog.Backup(system, "made-anew").UID; uid != "of-velero" {
			t.Errorf("it is still the one with the uid %s", uid)
		}
		next.stores["default"].Reset()
		pass(30 * time.Minute)
		if reads := next.stores["default"].Count(storetest.Get); reads > 20 { // of the folder that was emptied
			t.Errorf("%d readings when all was confirmed", reads)
		}
	})
}

// Volumes that an index makes up are shown until the store was asked, and those that are gone from
// it are missed then, though the metadata is what the index says.
func TestAForgedIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		there := madeBy(t, "there")
		f.stores["default"] = storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{}) // it tells versions
		f.storeAs(there, "default", "a")
		f.storeAs(there, "default", "without")
		f.forge(there, func(content *catalog.Content) {
			content.Volumes[0].SnapshotID = "made-up"
		}, "a", "without")
		f.removeObject("default", format.PodVolumeBackupsKey("without"))
		next := f.restart(there)
		next.wantBackups("a without")
		if volumes := next.catalog.EntryVolumes("default", "a"); len(volumes) != 1 || volumes[0].SnapshotID != "made-up" {
			t.Fatalf("from the index: %+v", volumes)
		}
		pass(time.Minute)
		next.wantBackups("a without(Unreadable)")
		if volumes := next.catalog.EntryVolumes("default", "a"); len(volumes) != 1 || volumes[0].SnapshotID != "s" {
			t.Errorf("volumes %+v", volumes)
		}
	})
}

// Other clusters' indexes count as their signatures do, and an index that can't be had costs
// nothing but time.
func TestWhoseIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		there, stranger := madeBy(t, "there"), madeBy(t, "stranger")
		f.storeAs(there, "default", "of-there")
		f.storeAs(stranger, "default", "of-a-stranger")
		f.index(there, "of-there", "of-a-stranger")
		f.index(stranger, "of-there", "of-a-stranger")
		next := f.restart(there)
		next.wantBackups("of-a-stranger of-there")
		if gets := next.stores["default"].Count(storetest.Get); gets != 1+2 { // the head, and one backup
			t.Errorf("%d readings", gets)
		}
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Key: format.IndexesPrefix, Err: store.ErrDenied})
		next = f.restart(there)
		next.wantBackups("of-a-stranger of-there")
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.Get, Key: format.IndexPrefix("there") + "*", Truncate: true, After: 200})
		next = f.restart(there)
		next.wantBackups("of-a-stranger of-there")
	})
}

// Many are listed at once, by what the index knows of their names.
func TestManyAreListedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		here := madeBy(t, "here")
		f.store("default", "a")
		content, err := (&refresh.VeleroLayout{Location: "default", SystemNamespace: system, Clock: clock.RealClock{}}).Read(t.Context(), ranged{f.stores["default"]}, "a", refresh.KnownEntry{Beside: noneBeside})
		if err != nil {
			t.Fatal(err)
		}
		w := index.NewWriter(f.stores["default"], here, nil, clock.RealClock{})
		var names []string
		for i := range 5000 {
			name := fmt.Sprintf("b%04d", i)
			names = append(names, name)
			backup := content.Backup.DeepCopy()
			backup.Name = name
			if err := w.Add(t.Context(), index.Entry{StoreName: name, Content: catalog.Content{Backup: backup}}); err != nil {
				t.Fatal(err)
			}
			f.write("default", format.OwnerKey(name), []byte("x"))
		}
		if err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.stores["default"].Inject(storetest.Fault{Delay: 750 * time.Millisecond})
		next := f.restart()
		pass(4 * time.Second)
		if got := len(next.catalog.Backups()); got != len(names)+1 && got != len(names) {
			t.Errorf("%d backups after 4 s", got)
		}
		if lists := next.stores["default"].Count(storetest.List); lists < 5 || lists > 12 {
			t.Errorf("%d listings", lists)
		}
	})
}

// However a listing is parted, a change is taken for that of its backup.
func TestAChangeInAnotherRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uid = types.UID("01234567-89ab-cdef-0123-456789abcdef")
		f := newFixture(t, refresh.Options{})
		f.run()
		f.store("default", "a")
		content, err := (&refresh.VeleroLayout{Location: "default", SystemNamespace: system, Clock: clock.RealClock{}}).Read(t.Context(), ranged{f.stores["default"]}, "a", refresh.KnownEntry{Beside: noneBeside})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"prod"}
		for i := range 1500 {
			names = append(names, fmt.Sprintf("a%04d", i), fmt.Sprintf("prod.n%04d", i))
		}
		w := index.NewWriter(f.stores["default"], madeBy(t, "here"), nil, clock.RealClock{})
		for _, name := range names {
			backup := content.Backup.DeepCopy()
			backup.Name, backup.UID = name, uid
			if err := w.Add(t.Context(), index.Entry{StoreName: name, Content: catalog.Content{Backup: backup}}); err != nil {
				t.Fatal(err)
			}
			f.write("default", format.OwnerKey(name), []byte("x"))
		}
		if err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		change := format.ExpirationKey("prod", uid, 1)
		f.write("default", change, []byte("x"))
		next := f.restart()
		if lists := next.stores["default"].Count(storetest.List); lists < 4 {
			t.Errorf("%d listings", lists)
		}
		if changes := next.catalog.Changes("default", "prod", uid); len(changes) != 1 || changes[0] != change {
			t.Errorf("changes %q", changes)
		}
	})
}

// ranged is a store whose parts can be read, which is not needed here.
type ranged struct{ store.Reader }

func (ranged) GetRange(context.Context, string, int64, int64) (io.ReadCloser, error) {
	panic("not needed")
}

func noneBeside(types.UID) []string { return nil }

// What a former process has left on disk is shown at once, with a warning, until the store is
// listed, and whatever the store does.
func TestAWarmRestart(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		for _, name := range []string{"a", "b"} {
			f.store("default", name)
		}
		begin := func() *fixture {
			next := newFixture(t, refresh.Options{Interval: time.Hour})
			next.stores = f.stores
			location := next.location("default")
			location.Indexed, location.Cache = true, index.NewLocalCache(folder, "default", "here", clock.RealClock{})
			next.refresher.SetLocations([]refresh.Location{location})
			next.run()
			settle()
			return next
		}
		first := begin()
		first.wantBackups("a b")
		first.stop()

		f.stores["default"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		down := begin()
		down.wantBackups("a b")
		if warnings := down.refresher.Warnings(); !down.refresher.Loaded() || len(warnings) != 1 || !strings.Contains(warnings[0], "on its disk") {
			t.Errorf("warnings %q", warnings)
		}
		down.stop()

		f.stores["default"].Inject(storetest.Fault{Delay: time.Second})
		f.store("default", "c")
		slow := begin()
		slow.wantBackups("a b")
		pass(10 * time.Second)
		slow.wantBackups("a b c")
		if warnings := slow.refresher.Warnings(); len(warnings) != 0 {
			t.Errorf("warnings %q", warnings)
		}
		slow.stop()
		f.stores["default"].Inject()
		last := begin()
		last.wantBackups("a b c")

		// What was removed since, or is said to be, is not shown by the next one, also if this
		// one is killed.
		last.remove("default", "a")
		for range 2 {
			last.refresher.Nudge("default")
			pass(time.Minute)
		}
		last.wantBackups("b c")
		last.refresher.Removed("default", "b")
		if err := os.CopyFS(folder+"-killed", os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
		last.stop()
		f.stores["default"].Inject(storetest.Fault{Err: store.ErrUnavailable})
		folder += "-killed"
		after := begin()
		after.wantBackups("c")
	})
}

// What is shown from the disk of a former process is not lost when the store is not there by
// now, as when a folder is not mounted.
func TestAWarmRestartWithoutTheStore(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		for i := range 20 {
			f.store("default", fmt.Sprintf("b%02d", i))
		}
		begin := func() *fixture {
			next := newFixture(t, refresh.Options{Interval: interval})
			next.stores = f.stores
			location := next.location("default")
			location.Indexed, location.Cache = true, index.NewLocalCache(folder, "default", "here", clock.RealClock{})
			next.refresher.SetLocations([]refresh.Location{location})
			next.run()
			settle()
			return next
		}
		begin().stop()
		f.stores["default"] = storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
		next := begin()
		pass(time.Hour)
		if got := len(next.catalog.Backups()); got != 20 {
			t.Errorf("%d backups are left", got)
		}
		if state := next.refresher.States()["default"]; !strings.Contains(state.Suspicion, "lacks 20 of 20") {
			t.Errorf("state %+v", state)
		}
		next.stop()

		// As little before it could be listed.
		f.stores["default"].Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrUnavailable})
		next = begin()
		pass(time.Hour)
		if got := len(next.catalog.Backups()); got != 20 {
			t.Errorf("%d backups are left", got)
		}
	})
}

// One that can't be confirmed holds up no other, and a location that is opened anew goes on.
func TestWhatCannotBeConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		f.run()
		names := []string{"a-denied", "b", "c", "emptied", "z-denied"}
		for _, name := range names {
			f.store("default", name)
		}
		f.index(madeBy(t, "here"), names...)
		f.removeObject("default", format.MetadataKey("emptied"))
		f.stores["default"].Inject(
			storetest.Fault{Operation: storetest.Get, Key: format.MetadataKey("a-denied"), Err: store.ErrDenied},
			storetest.Fault{Operation: storetest.Get, Key: format.MetadataKey("z-denied"), Err: store.ErrDenied},
		)
		next := f.restart()
		next.wantBackups("a-denied b c emptied z-denied")
		location := next.location("default")
		location.Indexed, location.Settings = true, "new credentials"
		pass(1500 * time.Millisecond)
		next.refresher.SetLocations([]refresh.Location{location})
		pass(time.Hour)
		next.wantBackups("a-denied b c z-denied")
	})
}

// keeper is a cache that writes nothing.
type keeper struct{ kept []catalog.Content }

func (k *keeper) Open(context.Context) (iter.Seq[index.Entry], error) {
	return func(func(index.Entry) bool) {}, nil
}

func (k *keeper) Add(_ context.Context, _ string, content catalog.Content) error {
	k.kept = append(k.kept, content)
	return nil
}

func (k *keeper) Remove(...string) error                         { return nil }
func (k *keeper) Write(context.Context, func(string) bool) error { return nil }
func (k *keeper) Close(context.Context, func(string) bool) error { return nil }

// What a cache keeps until it is written are rows as the catalogue has them, and not what was
// read, which takes ten times as much.
func TestACacheKeepsRowsAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{Interval: interval})
		location, k := f.location("default"), &keeper{}
		f.store("default", "a")
		location.Cache = k
		f.refresher.SetLocations([]refresh.Location{location})
		f.run()
		settle()
		f.stop()
		if len(k.kept) != 1 || k.kept[0].Volumes != nil || k.kept[0].Packed.Len() != 1 {
			t.Errorf("it was given %+v", k.kept)
		}
	})
}
