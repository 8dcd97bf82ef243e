// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	cluster = "this-cluster"
	app     = "app"
)

// world is a store with a repository, and backups in it that have one snapshot each.
type world struct {
	*testing.T
	*storetest.Faulty
	sweep *sweep
	// ids are those of the snapshots, by the name of their backup, which is its uid too.
	ids map[string]string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	spec := enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
	}
	loc, key := repository.Location{Spec: spec}, repository.NewKey()
	must(t, repository.Create(t.Context(), loc, app, key))
	opened, err := repository.Open(t.Context(), loc, app, key, repository.Options{})
	must(t, err)
	t.Cleanup(func() { _ = opened.Close(t.Context()) })
	w := &world{T: t, Faulty: storetest.NewFaulty(storetest.Open(t, spec, nil), clock.RealClock{}), ids: map[string]string{}}
	w.sweep = &sweep{store: w, repository: opened, cluster: cluster, namespace: app, location: "default", clock: clock.RealClock{}}
	return w
}

// upload uploads a volume for a backup; "" is one of another maker's.
func (w *world) upload(name string, backup types.UID) {
	w.Helper()
	w.uploadOf(name, backup, "")
}

// uploadOf bears the uid of a cluster.
func (w *world) uploadOf(name string, backup types.UID, cluster string) {
	w.Helper()
	w.ids[name] = w.uploadFor(name, backup, cluster, false)
}

// uploadFor uploads a volume, maybe with a hard link, which is saved beside it.
func (w *world) uploadFor(storeName string, backup types.UID, cluster string, linked bool) (id string) {
	w.Helper()
	dir := w.TempDir()
	must(w, os.WriteFile(filepath.Join(dir, "file"), []byte("content of "+storeName), 0o600))
	if linked {
		must(w, os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "link")))
	}
	uploaded, err := datapath.Upload(w.Context(), w.sweep.repository, datapath.UploadRequest{
		Path: dir, Source: datapath.Source{Namespace: app, Pod: "web-0", Volume: "data"},
		Backup: backup, StoreName: storeName, ClusterUID: cluster,
	}, new(datapath.Progress))
	must(w, err)
	return uploaded.SnapshotID
}

// own makes a backup the owner of its folder, as from before its first upload.
func (w *world) own(name string) {
	w.Helper()
	owner, err := format.EncodeOwner(format.Owner{UID: types.UID(name), ClusterUID: cluster})
	must(w, err)
	must(w, w.Put(w.Context(), format.OwnerKey(name), owner))
}

func (w *world) end(name string, phase v1alpha1.BackupPhase) {
	w.Helper()
	instant := metav1.Unix(1_700_000_000, 0)
	metadata, err := format.EncodeBackup(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name, UID: types.UID(name), CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: phase, StartTimestamp: &instant, CompletionTimestamp: &instant},
	}, nil, format.Cluster{SystemNamespace: "holdfast", UID: cluster})
	must(w, err)
	must(w, w.Put(w.Context(), format.MetadataKey(name), metadata))
}

// request asks for the removal of a backup's snapshots.
func (w *world) request(of, name string, snapshots ...string) {
	w.Helper()
	content, err := format.EncodeRemoval(format.Removal{UID: types.UID(name), StoreName: name, Snapshots: snapshots, RequestedAt: time.Now()})
	must(w, err)
	must(w, w.Put(w.Context(), format.RemovalKey(of, app, types.UID(name)), content))
}

// left are the names of the snapshots that are there.
func (w *world) left() (names []string) {
	w.Helper()
	must(w, w.sweep.repository.Refresh(w.Context()))
	all, err := datapath.Snapshots(w.Context(), w.sweep.repository)
	must(w, err)
	there := sets.New[string]()
	for _, snapshot := range all {
		there.Insert(snapshot.ID)
	}
	for name, id := range w.ids {
		if there.Has(id) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) removals() (n int) {
	w.Helper()
	for _, err := range w.List(w.Context(), "metadata/", store.ListOptions{Recursive: true}) {
		must(w, err)
		n++
	}
	return n
}

// TestSweep: of what is asked for, the snapshots of backups go that are gone, and no others.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"deleted", "failed", "cancelled", "stored", "running", "unreadable", "not-asked-for", "asked-by-another", "namesake"} {
		w.upload(name, types.UID(name))
	}
	w.upload("of-velero", "")
	w.upload("of-velero-stays", "")
	for name, phase := range map[string]v1alpha1.BackupPhase{
		"failed": v1alpha1.BackupPhaseFailed, "cancelled": v1alpha1.BackupPhaseCancelled, "stored": v1alpha1.BackupPhaseCompleted,
	} {
		w.own(name)
		w.end(name, phase)
		w.request(cluster, name)
	}
	w.own("running")
	w.request(cluster, "running")
	must(t, w.Put(t.Context(), format.MetadataKey("unreadable"), []byte("<html>")))
	w.request(cluster, "unreadable")
	// A list that is hostile, or mistaken, names what is another's.
	w.request(cluster, "deleted", w.ids["deleted"], w.ids["stored"], w.ids["not-asked-for"], w.ids["of-velero"])
	w.request("another-cluster", "asked-by-another")
	must(t, w.Put(t.Context(), format.RemovalsPrefix(cluster, app)+"more.json", []byte("{")))
	must(t, w.Put(t.Context(), format.RemovalKey(cluster, "other", "not-asked-for"), []byte("{}")))
	// Its name has another backup now.
	must(t, w.Put(t.Context(), format.OwnerKey("namesake"), []byte(`{"uid":"the next one"}`)))
	w.request(cluster, "namesake")
	// It has another folder asked than the backup's.
	w.uploadOf("elsewhere", "elsewhere", cluster)
	w.own("elsewhere")
	w.end("elsewhere", v1alpha1.BackupPhaseCompleted)
	planted, err := format.EncodeRemoval(format.Removal{UID: "elsewhere", StoreName: "nothing", RequestedAt: time.Now()})
	must(t, err)
	must(t, w.Put(t.Context(), format.RemovalKey(cluster, app, "elsewhere"), planted))

	stay := []string{"asked-by-another", "elsewhere", "not-asked-for", "of-velero-stays", "running", "stored", "unreadable"}
	want := swept{backups: 4, snapshots: 5, waiting: 3}
	all, removals := w.left(), w.removals()
	w.sweep.dryRun = true
	if done, err := w.sweep.run(t.Context()); err != nil || done != want || len(w.left()) != len(all) {
		t.Errorf("a dry run says %+v, %v and leaves %q", done, err, w.left())
	}
	w.sweep.dryRun = false
	for range 2 {
		if done, err := w.sweep.run(t.Context()); err != nil || done != want {
			t.Errorf("it says %+v, %v, want %+v", done, err, want)
		}
		if left := w.left(); !slices.Equal(left, stay) {
			t.Errorf("left are %q, want %q", left, stay)
		}
		want.backups, want.snapshots = 0, 0
	}
	if n := w.removals(); n != removals {
		t.Errorf("of %d removals %d are left, while an upload may still end", removals, n)
	}

	// One that ends late, and then nobody asks any more; unless anew.
	w.upload("deleted", "deleted")
	w.sweep.clock = clocktesting.NewFakePassiveClock(time.Now().Add(MaxUpload + time.Hour))
	if done, err := w.sweep.run(t.Context()); err != nil || done.snapshots != 1 {
		t.Errorf("it says %+v, %v", done, err)
	}
	if n := w.removals(); n != 4 { // what is unreadable, what is none, and the others'
		t.Errorf("%d removals are left", n)
	}
	w.end("stored", v1alpha1.BackupPhaseFailed)
	w.request(cluster, "stored")
	if done, err := w.sweep.run(t.Context()); err != nil || done.snapshots != 1 {
		t.Errorf("it says %+v, %v", done, err)
	}
}

// TestSweepOfTheMissing: without being asked it removes the snapshots of backups of this
// cluster that the store has not, a day later, and not if these are too many.
func TestSweepOfTheMissing(t *testing.T) {
	w := newWorld(t)
	run := func(want swept, stay ...string) {
		t.Helper()
		if done, err := w.sweep.run(t.Context()); err != nil || done != want {
			t.Errorf("it says %+v, %v, want %+v", done, err, want)
		}
		if left := w.left(); !slices.Equal(left, stay) {
			t.Errorf("left are %q, want %q", left, stay)
		}
	}
	w.uploadOf("lost", "lost", cluster)
	w.upload("of-an-earlier-version", "of-an-earlier-version")
	w.upload("of-velero", "")
	w.uploadOf("of-another", "of-another", "another-cluster")
	others := []string{"of-an-earlier-version", "of-another", "of-velero"}
	run(swept{}, append([]string{"lost"}, others...)...)
	w.sweep.missing = true
	run(swept{}, append([]string{"lost"}, others...)...) // since it is young
	w.sweep.clock = clocktesting.NewFakePassiveClock(time.Now().Add(minAge + time.Hour))
	run(swept{missing: 1}, append([]string{"lost"}, others...)...) // since it is all there is

	for _, name := range []string{"running", "stored", "unreadable"} {
		w.uploadOf(name, types.UID(name), cluster)
	}
	w.own("running")
	w.own("stored")
	w.end("stored", v1alpha1.BackupPhaseCompleted)
	must(t, w.Put(t.Context(), format.MetadataKey("unreadable"), []byte("{")))
	// It says that it was made for a backup that is stored, and names another folder.
	w.ids["astray"] = w.uploadFor("astray", "stored", cluster, false)
	w.Inject(storetest.Fault{Operation: storetest.Get, Key: format.OwnerKey("lost"), Err: store.ErrDenied})
	if done, err := w.sweep.run(t.Context()); err != nil || done != (swept{}) {
		t.Errorf("of one that is denied it says %+v, %v", done, err)
	}
	w.Inject(storetest.Fault{Operation: storetest.Get, Key: format.OwnerKey("lost"), Err: store.ErrUnavailable})
	if done, err := w.sweep.run(t.Context()); !errors.Is(err, store.ErrUnavailable) || done != (swept{}) {
		t.Errorf("of a store that does not answer it says %+v, %v", done, err)
	}
	w.Inject()
	stay := slices.Sorted(slices.Values(append([]string{"astray", "running", "stored", "unreadable"}, others...)))
	run(swept{backups: 1, snapshots: 1}, stay...)
	run(swept{}, stay...)

	// The store was brought back without them; then somebody says that it is so.
	var many []string
	for i := range 2 {
		name := fmt.Sprintf("many-%02d", i)
		w.uploadOf(name, types.UID(name), cluster)
		many = append(many, name)
	}
	run(swept{missing: len(many)}, slices.Sorted(slices.Values(append(many, stay...)))...)
	w.sweep.accept = true
	run(swept{backups: len(many), snapshots: len(many)}, stay...)
}

// TestSweepOfTheUnlisted: a day later the snapshots go that their stored backup does not list, saved
// before its end or after it. If anything is wrong with its metadata or its list, all of them stay.
// Listed ones always stay.
func TestSweepOfTheUnlisted(t *testing.T) {
	w := newWorld(t)
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	stranger, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	w.sweep.keys, w.sweep.missing = []string{key.PublicKey()}, true
	past, future := metav1.Unix(1_700_000_000, 0), metav1.NewTime(time.Now().Add(time.Hour))

	type stored struct {
		by     format.Cluster
		uid    types.UID
		name   string
		ended  metav1.Time
		list   []format.PodVolumeBackup
		bytes  []byte // of the list, instead of its own
		unsaid bool   // the metadata names no list
		forged bool   // it is changed after it was signed
	}
	put := func(name string, s stored) {
		t.Helper()
		var list bytes.Buffer
		must(t, format.WritePodVolumeBackups(&list, s.list))
		contents := format.Contents{}
		if !s.unsaid {
			contents.Set(format.PodVolumeBackupsKey(name), format.NewContent(list.Bytes()))
		}
		metadata, err := format.EncodeBackup(&v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: s.name, UID: s.uid, CreationTimestamp: past},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, StartTimestamp: &past, CompletionTimestamp: &s.ended},
		}, contents, s.by)
		must(t, err)
		if s.forged {
			metadata = bytes.Replace(metadata, []byte("PartiallyFailed"), []byte("Completed"), 1)
		}
		must(t, w.Put(t.Context(), format.MetadataKey(name), metadata))
		content := list.Bytes()
		if s.bytes != nil {
			content = s.bytes
		}
		must(t, w.Put(t.Context(), format.PodVolumeBackupsKey(name), content))
	}
	// backup stores one with a snapshot that it lists, and others that nobody does.
	backup := func(name string, change func(*stored)) {
		t.Helper()
		w.own(name)
		w.ids[name] = w.uploadFor(name, types.UID(name), cluster, true)
		volume := func(namespace, id string) format.PodVolumeBackup {
			var v format.PodVolumeBackup
			v.Spec.Pod.Namespace, v.Spec.Pod.Name, v.Spec.Volume, v.Spec.UploaderType, v.Status.SnapshotID = namespace, "web-0", "data-"+id, format.UploaderKopia, id
			return v
		}
		s := stored{
			by: format.Cluster{SystemNamespace: "holdfast", UID: cluster, Key: key}, uid: types.UID(name), name: name, ended: past,
			list: []format.PodVolumeBackup{volume(app, w.ids[name]), volume("another", "which-is-not-here"), volume(app, "")},
		}
		if change(&s); s.name != "" {
			put(name, s)
		}
		w.ids[name+", late"] = w.uploadFor(name, types.UID(name), cluster, true)
	}
	backup("late", func(*stored) {})
	// An agent was killed three times after it had saved a snapshot, and before it reported it.
	backup("early", func(s *stored) { s.ended = future })
	stay := []string{"early", "late"}
	for name, change := range map[string]func(*stored){
		"running":         func(s *stored) { s.name = "" },
		"unsigned":        func(s *stored) { s.by.Key = nil },
		"forged":          func(s *stored) { s.forged = true },
		"a-strangers":     func(s *stored) { s.by.Key = stranger },
		"another-cluster": func(s *stored) { s.by.UID = "another-cluster" },
		"copied":          func(s *stored) { s.name = "late" },
		"replaced":        func(s *stored) { s.uid = "another" },
		"list-replaced":   func(s *stored) { s.bytes = []byte{} },
		"list-of-another": func(s *stored) {
			var list bytes.Buffer
			must(t, format.WritePodVolumeBackups(&list, nil))
			s.bytes = list.Bytes()
		},
		"list-unsaid":                func(s *stored) { s.unsaid = true },
		"list-of-another-repository": func(s *stored) { s.list[0].Status.SnapshotID = "which-is-not-there" },
		"unreadable":                 func(*stored) {},
		"list-gone":                  func(*stored) {},
	} {
		backup(name, change)
		stay = append(stay, name, name+", late")
	}
	must(t, w.Put(t.Context(), format.MetadataKey("unreadable"), []byte("<html>")))
	must(t, w.remove(format.PodVolumeBackupsKey("list-gone")))
	slices.Sort(stay)
	all := slices.Sorted(maps.Keys(w.ids))
	run := func(want swept, stay []string) {
		t.Helper()
		if done, err := w.sweep.run(t.Context()); err != nil || done != want {
			t.Errorf("it says %+v, %v, want %+v", done, err, want)
		}
		if left := w.left(); !slices.Equal(left, stay) {
			t.Errorf("left are %q, want %q", left, stay)
		}
	}
	run(swept{}, all) // since it is young
	w.sweep.clock = clocktesting.NewFakePassiveClock(time.Now().Add(minAge + time.Hour))
	list := format.PodVolumeBackupsKey("late")
	w.Inject(storetest.Fault{Operation: storetest.Get, Key: list, Err: store.ErrDenied})
	all = slices.DeleteFunc(all, func(name string) bool { return name == "early, late" })
	run(swept{backups: 1, snapshots: 2}, all) // with what was saved beside it
	w.Inject(storetest.Fault{Operation: storetest.Get, Key: list, Err: store.ErrUnavailable})
	if done, err := w.sweep.run(t.Context()); !errors.Is(err, store.ErrUnavailable) || done != (swept{}) {
		t.Errorf("of a store that does not answer it says %+v, %v", done, err)
	}
	w.Inject()
	run(swept{backups: 1, snapshots: 2}, stay)
	run(swept{}, stay)
	// What is saved beside those that stay does, too.
	snapshots, err := datapath.Snapshots(t.Context(), w.sweep.repository)
	must(t, err)
	if len(snapshots) != 2*len(stay) {
		t.Errorf("%d snapshots are left of %d volumes", len(snapshots), len(stay))
	}

	// The list is read only if there may be some.
	of := w.sweep.folder(removal{Removal: format.Removal{UID: "late", StoreName: "late"}})
	metadata, err := of.Metadata(t.Context())
	must(t, err)
	before := past.Add(time.Second - 1)
	for name, test := range map[string]struct {
		phase v1alpha1.BackupPhase
		its   []datapath.Snapshot
		reads bool
	}{
		"one of each volume":        {v1alpha1.BackupPhaseCompleted, []datapath.Snapshot{{ID: "a", Volume: "a", Saved: before}, {ID: "b", Volume: "b", Saved: before}}, false},
		"one with another beside":   {v1alpha1.BackupPhaseCompleted, []datapath.Snapshot{{ID: "a", Volume: "a", Saved: before, Extras: "b"}, {ID: "b", Volume: "a", Saved: before}}, false},
		"two of a volume":           {v1alpha1.BackupPhaseCompleted, []datapath.Snapshot{{ID: "a", Volume: "a", Saved: before}, {ID: "b", Volume: "a", Saved: before}}, true},
		"saved after the end":       {v1alpha1.BackupPhaseCompleted, []datapath.Snapshot{{ID: "a", Volume: "a", Saved: past.Add(time.Second)}}, true},
		"of a backup with failures": {v1alpha1.BackupPhasePartiallyFailed, []datapath.Snapshot{{ID: "a", Volume: "a", Saved: before}}, true},
	} {
		w.Reset()
		metadata.Status.Phase = test.phase
		ids, err := w.sweep.unlisted(t.Context(), of, metadata, test.its)
		if reads := w.Count(storetest.Get) == 1; err != nil || len(ids) > 0 != test.reads || reads != test.reads {
			t.Errorf("%s: %q go, %v, with %d GETs of the list, want %t", name, ids, err, w.Count(storetest.Get), test.reads)
		}
	}

	// So many have some that rather the lists are to be doubted; until somebody says that it is so.
	for _, name := range []string{"many-1", "many-2"} {
		backup(name, func(*stored) {})
		stay = append(stay, name)
	}
	slices.Sort(stay)
	run(swept{missing: 2}, slices.Sorted(slices.Values(append([]string{"many-1, late", "many-2, late"}, stay...))))
	w.sweep.accept = true
	run(swept{backups: 2, snapshots: 4}, stay)
}

func TestTooManyMissing(t *testing.T) {
	for _, c := range []struct {
		missing, of int
		want        bool
	}{{0, 0, false}, {0, 5, false}, {1, 1, true}, {1, 2, false}, {2, 2, true}, {2, 39, true}, {2, 40, false}, {50, 1000, false}, {51, 1000, true}} {
		m := missing{snapshots: map[types.UID][]string{}, of: c.of}
		for i := range c.missing {
			m.snapshots[types.UID(fmt.Sprint(i))] = nil
		}
		if got := m.tooMany(); got != c.want {
			t.Errorf("%d of %d are too many: %t", c.missing, c.of, got)
		}
	}
}

// TestSweepOfAStoreThatFails: whatever can't be asked, nothing goes for it. One object that is
// denied keeps nobody else's snapshots.
func TestSweepOfAStoreThatFails(t *testing.T) {
	w := newWorld(t)
	w.upload("stored", "stored")
	w.own("stored")
	w.end("stored", v1alpha1.BackupPhaseCompleted)
	w.upload("deleted", "deleted")
	w.request(cluster, "deleted")
	for _, cause := range []error{store.ErrDenied, store.ErrUnavailable} {
		for operation, keys := range map[storetest.Operation][]string{
			storetest.List: {format.RemovalsPrefix(cluster, app)},
			storetest.Get:  {format.RemovalKey(cluster, app, "deleted"), format.MetadataKey("deleted"), format.OwnerKey("deleted"), format.CopyKey("deleted")},
		} {
			for _, key := range keys {
				w.Inject(storetest.Fault{Operation: operation, Key: key, Err: fmt.Errorf("%w: it is so", cause)})
				done, err := w.sweep.run(t.Context())
				if operation == storetest.Get && cause == store.ErrDenied {
					if err != nil || done != (swept{waiting: 1}) {
						t.Errorf("%s %s: of one that is denied it says %+v, %v", operation, key, done, err)
					}
				} else if !errors.Is(err, cause) || done != (swept{}) {
					t.Errorf("%s %s: it says %+v, %v", operation, key, done, err)
				}
				if left := w.left(); len(left) != 2 {
					t.Errorf("%s %s: only %q are left", operation, key, left)
				}
			}
		}
	}
	w.Inject()
	if done, err := w.sweep.run(t.Context()); err != nil || done.snapshots != 1 {
		t.Errorf("it says %+v, %v", done, err)
	}
}

// TestSweepCost: it costs one request for each backup to remove, and what asking for the
// backup costs.
func TestSweepCost(t *testing.T) {
	w := newWorld(t)
	const backups = 20
	for i := range backups {
		name := fmt.Sprintf("backup-%d", i)
		w.upload(name, types.UID(name))
		w.request(cluster, name)
	}
	w.Reset()
	if done, err := w.sweep.run(t.Context()); err != nil || done.snapshots != backups {
		t.Errorf("it says %+v, %v", done, err)
	}
	if gets, lists := w.Count(storetest.Get), w.Count(storetest.List); gets != 4*backups || lists != 1 {
		t.Errorf("%d GETs and %d LISTs for %d backups", gets, lists, backups)
	}
	// While the requests wait for what may still come, each is read and no more.
	w.Reset()
	if done, err := w.sweep.run(t.Context()); err != nil || done != (swept{}) {
		t.Errorf("again it says %+v, %v", done, err)
	}
	if gets, lists := w.Count(storetest.Get), w.Count(storetest.List); gets != backups || lists != 1 {
		t.Errorf("again %d GETs and %d LISTs for %d backups", gets, lists, backups)
	}

	// However many have deleted volumes of it, a backup is asked once, and one that could not be
	// asked holds them all.
	const requests = 10
	key := func(i int) string { return format.VolumeRemovalKey(cluster, app, types.UID(fmt.Sprint(i))) }
	for i := range requests {
		request := format.VolumeRemoval{Request: types.UID(fmt.Sprint(i))}
		for i := range backups {
			name := fmt.Sprintf("backup-%d", i)
			request.Backups = append(request.Backups, format.RemovalOf{UID: types.UID(name), StoreName: name})
		}
		content, err := format.EncodeVolumeRemoval(request)
		must(t, err)
		must(t, w.Put(t.Context(), key(i), content))
	}
	must(t, w.Put(t.Context(), format.MetadataKey("backup-0"), []byte("<html>")))
	asked := w.removals() - requests
	w.Reset()
	if done, err := w.sweep.run(t.Context()); err != nil || done.waiting != requests || w.removals() != asked+requests {
		t.Errorf("it says %+v, %v, and leaves %d removals", done, err, w.removals())
	}
	if gets := w.Count(storetest.Get); gets > 8*backups+requests {
		t.Errorf("%d GETs for %d requests of %d backups", gets, requests, backups)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSweepOfVolumes: of a backup that stays, the snapshots go that a signed change beside it
// names as deleted, and no others, whatever is asked for.
func TestSweepOfVolumes(t *testing.T) {
	w := newWorld(t)
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	stranger, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	w.sweep.keys = []string{key.PublicKey()}
	instant := metav1.Unix(1_700_000_000, 0)
	uidOf := func(i int) types.UID {
		return types.UID(fmt.Sprintf("%08d-2f0a-4a57-9d0e-6f6b1a2f3c4d", i))
	}
	names := []string{"deleted", "kept", "forged", "elsewhere", "unreadable"}
	for i, name := range names {
		by := format.Cluster{SystemNamespace: "holdfast", UID: cluster, Key: key}
		metadata, err := format.EncodeBackup(&v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name, UID: uidOf(i), CreationTimestamp: instant},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant},
		}, nil, by)
		must(t, err)
		must(t, w.Put(t.Context(), format.MetadataKey(name), metadata))
		w.uploadOf(name, uidOf(i), cluster)
		change := format.Expiration{StoreName: name, UID: uidOf(i), Number: 1, Timestamp: instant, Deleted: []format.DeletedVolume{
			{VolumeID: format.VolumeID{Namespace: app, Name: "data"}, SnapshotID: w.ids[name], Timestamp: instant},
			{VolumeID: format.VolumeID{Namespace: app, Name: "more"}, SnapshotID: w.ids["deleted"], Timestamp: instant}, // which is not its own
		}}
		switch name {
		case "kept":
			continue
		case "forged":
			by.Key = stranger
		case "elsewhere":
			change.Deleted[0].Namespace = "another"
		}
		content, err := format.EncodeExpiration(change, by)
		must(t, err)
		must(t, w.Put(t.Context(), format.ExpirationKey(name, uidOf(i), 1), content))
	}
	must(t, w.Put(t.Context(), format.MetadataKey("unreadable"), []byte("<html>")))
	request := format.VolumeRemoval{Request: "a request"}
	for i, name := range append(names, "gone") {
		request.Backups = append(request.Backups, format.RemovalOf{UID: uidOf(i), StoreName: name})
	}
	content, err := format.EncodeVolumeRemoval(request)
	must(t, err)
	must(t, w.Put(t.Context(), format.VolumeRemovalKey(cluster, app, request.Request), content))

	w.sweep.dryRun = true
	done, err := w.sweep.run(t.Context())
	if err != nil || done.snapshots != 1 || len(w.left()) != 5 {
		t.Errorf("a dry run says %+v, %v, and leaves %q", done, err, w.left())
	}
	w.sweep.dryRun = false
	done, err = w.sweep.run(t.Context())
	if left := w.left(); err != nil || done.snapshots != 1 || done.waiting != 1 || !slices.Equal(left, []string{"elsewhere", "forged", "kept", "unreadable"}) || w.removals() != 1 {
		t.Errorf("it says %+v, %v, and leaves %q, with %d removals", done, err, left, w.removals())
	}
	// What was found out before the store went away has gone then.
	w.uploadOf("deleted", uidOf(0), cluster)
	change := format.Expiration{StoreName: "deleted", UID: uidOf(0), Number: 2, Timestamp: instant, Deleted: []format.DeletedVolume{
		{VolumeID: format.VolumeID{Namespace: app, Name: "data"}, SnapshotID: w.ids["deleted"], Timestamp: instant},
	}}
	content, err = format.EncodeExpiration(change, format.Cluster{SystemNamespace: "holdfast", UID: cluster, Key: key})
	must(t, err)
	must(t, w.Put(t.Context(), format.ExpirationKey("deleted", uidOf(0), 2), content))
	both := []types.UID{"another request", "a third request"}
	slices.SortFunc(both, func(a, b types.UID) int {
		return strings.Compare(format.VolumeRemovalKey(cluster, app, a), format.VolumeRemovalKey(cluster, app, b))
	})
	for _, uid := range both {
		content, err := format.EncodeVolumeRemoval(format.VolumeRemoval{Request: uid, Backups: request.Backups[:1]})
		must(t, err)
		must(t, w.Put(t.Context(), format.VolumeRemovalKey(cluster, app, uid), content))
	}
	must(t, w.remove(format.VolumeRemovalKey(cluster, app, request.Request)))
	w.Inject(storetest.Fault{Operation: storetest.Get, Key: format.VolumeRemovalKey(cluster, app, both[1]), Err: store.ErrUnavailable})
	done, err = w.sweep.run(t.Context())
	if !errors.Is(err, store.ErrUnavailable) || done.snapshots != 1 || len(w.left()) != 4 || w.removals() != 1 {
		t.Errorf("of a store that goes away it says %+v, %v, and leaves %q, with %d removals", done, err, w.left(), w.removals())
	}
	w.Inject()
	content, err = format.EncodeVolumeRemoval(request)
	must(t, err)
	must(t, w.Put(t.Context(), format.VolumeRemovalKey(cluster, app, request.Request), content))
	// When the one that could not be read is gone, so is what was asked for.
	must(t, w.remove(format.MetadataKey("unreadable")))
	done, err = w.sweep.run(t.Context())
	if err != nil || done.snapshots != 0 || done.waiting != 0 || w.removals() != 0 || len(w.left()) != 4 {
		t.Errorf("in the end it says %+v, %v, and leaves %q, with %d removals", done, err, w.left(), w.removals())
	}
}

func (w *world) remove(key string) error {
	object, err := w.Attributes(w.Context(), key)
	if err != nil {
		return err
	}
	return w.Delete(w.Context(), object)
}
