// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// lab is a store of Longhorn's with a catalogue of it.
type lab struct {
	t       *testing.T
	store   *storetest.Faulty
	inner   *store.Bucket
	layout  *longhorn.Layout
	clock   *clocktesting.FakeClock
	catalog *catalog.Catalog
	rows    map[string]*v1alpha1.VolumeBackup
	volumes map[string]*v1alpha1.BackupVolume
}

func newLab(t *testing.T, inner *store.Bucket) *lab {
	l := &lab{t: t, inner: inner, clock: clocktesting.NewFakeClock(time.Now()), rows: map[string]*v1alpha1.VolumeBackup{}, volumes: map[string]*v1alpha1.BackupVolume{}}
	l.store = storetest.NewFaulty(inner, l.clock)
	l.layout = &longhorn.Layout{TrustNamespaces: true, Clock: l.clock}
	l.catalog = catalog.New("holdfast", func(changes catalog.Changes) {
		if len(changes.Backups.Set) > 0 {
			t.Errorf("%s is listed as a Backup", changes.Backups.Set[0].Name)
		}
		clear(l.rows)
		for row := range l.catalog.Snapshot().Rows("", catalog.Position{}, func(catalog.VolumeRows) bool { return true }) {
			l.rows[row.Namespace()+"/"+row.Name()] = row.Object()
		}
		for _, name := range changes.Volumes.Gone {
			delete(l.volumes, name.String())
		}
		for _, volume := range changes.Volumes.Set {
			l.volumes[volume.Namespace+"/"+volume.Name] = volume
		}
	})
	return l
}

// ranged gives a store that fails its parts.
type ranged struct {
	*storetest.Faulty
	inner store.Ranger
}

func (r ranged) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	content, err := r.Faulty.Get(ctx, key) // which counts, and fails
	if err != nil {
		return nil, err
	}
	content.Close()
	return r.inner.GetRange(ctx, key, offset, length)
}

func (l *lab) from() store.Ranger { return ranged{l.store, l.inner} }

// list gives the entries of all shards.
func (l *lab) list() (entries []refresh.Entry) {
	l.t.Helper()
	for shard := range l.layout.List(l.t.Context(), l.from(), "") {
		if shard.Err != nil {
			l.t.Fatal(shard.Err)
		}
		entries = append(entries, shard.Entries...)
	}
	return entries
}

// refresh does what package refresh does when nothing fails, and returns which entries it read.
func (l *lab) refresh() (read []string) {
	l.t.Helper()
	var names []string
	entries := l.list()
	for _, entry := range entries {
		names = append(names, entry.Name)
	}
	found := l.catalog.Observe("lh", names, l.clock.Now(), l.clock.Now())
	for _, entry := range entries {
		if known := l.catalog.Versions("lh", entry.Name); slices.Contains(found.Read, entry.Name) || !maps.Equal(known, entry.Versions) {
			l.read(entry.Name, false)
			read = append(read, entry.Name)
		}
	}
	return read
}

func (l *lab) read(name string, mayRead bool) {
	l.t.Helper()
	content, err := l.layout.Read(l.t.Context(), l.from(), name, refresh.KnownEntry{
		Versions: l.catalog.Versions("lh", name),
		Volumes:  func() []catalog.Volume { return l.catalog.EntryVolumes("lh", name) },
		MayRead:  mayRead,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.catalog.Put("lh", name, content, l.clock.Now())
}

func stores(t *testing.T, test func(t *testing.T, inner *store.Bucket)) {
	t.Run("memory", func(t *testing.T) { test(t, storetest.Memory(t)) })
	t.Run("filesystem", func(t *testing.T) { test(t, storetest.Filesystem(t)) })
	t.Run("s3", func(t *testing.T) {
		location, secret := storetest.FakeS3(t, nil)
		test(t, storetest.Open(t, location, secret))
	})
}

// What is listed of the store that Longhorn's library wrote is what the library says of it,
// except for what docs/longhorn.md names: a volume without a backup is not listed, and a backup
// that has not ended is, with its state.
func TestAgreesWithTheLibrary(t *testing.T) {
	stores(t, func(t *testing.T, inner *store.Bucket) {
		l, expect := newLab(t, inner), longhorntest.Expect(t)
		longhorntest.Put(t, inner, longhorntest.Fixture(t))
		l.refresh()
		seen := 0
		for volume, of := range expect.Volumes {
			namespace, claim := format.Claim(expect.InspectVolume[volume].Labels)
			object := namespace + "/" + claim
			if namespace == "" {
				object = "holdfast/volume:" + volume
			}
			if len(of.Backups) == 0 {
				if l.volumes[object] != nil {
					t.Errorf("volume %s is listed, without a backup", volume)
				}
				continue
			}
			status, want := l.volumes[object].Status, expect.InspectVolume[volume]
			if fmt.Sprint(status.Volume.SizeBytes) != want.Size || status.Volume.Name != volume || text(status.Volume.CreationTimestamp.Time) != want.Created || !strings.HasSuffix(status.LastVolumeBackup, "."+want.LastBackupName+":"+l.volumes[object].Name) {
				t.Errorf("%s is %+v, want %+v", object, status, want)
			}
			for backup := range of.Backups {
				name, wantBackup := fmt.Sprintf("%s.%s:%s", volume, backup, l.volumes[object].Name), expect.Inspect[volume][backup]
				row := l.rows[l.volumes[object].Namespace+"/"+name]
				if row == nil {
					t.Errorf("there is no volume backup %s", name)
					continue
				}
				seen++
				if wantBackup.Error != "" {
					if row.Status.Phase != v1alpha1.VolumeBackupInProgress || !strings.Contains(row.Status.Message, "has failed") {
						t.Errorf("%s is %s: %s; the library says: %s", name, row.Status.Phase, row.Status.Message, wantBackup.Error)
					}
					continue
				}
				got := longhorntest.Backup{
					Name: row.Spec.BackupName, SnapshotName: row.Status.SnapshotName, SnapshotCreated: text(row.Status.SnapshotTimestamp.Time), Created: text(row.CreationTimestamp.Time),
					Size: fmt.Sprint(row.Status.SizeBytes), VolumeName: row.Status.Volume.Name, VolumeSize: fmt.Sprint(row.Status.Volume.SizeBytes), VolumeCreated: text(row.Status.Volume.CreationTimestamp.Time),
				}
				wanted := longhorntest.Backup{
					Name: wantBackup.Name, SnapshotName: wantBackup.SnapshotName, SnapshotCreated: wantBackup.SnapshotCreated, Created: wantBackup.Created,
					Size: wantBackup.Size, VolumeName: wantBackup.VolumeName, VolumeSize: wantBackup.VolumeSize, VolumeCreated: wantBackup.VolumeCreated,
				}
				if fmt.Sprint(got) != fmt.Sprint(wanted) || row.Status.Phase != v1alpha1.VolumeBackupCompleted || row.Status.Message != "" || !maps.Equal(row.Status.Labels, wantBackup.Labels) {
					t.Errorf("%s: %+v\nwant %+v\n%+v", name, got, wanted, row.Status)
				}
			}
		}
		if seen != len(l.rows) || seen == 0 {
			t.Errorf("%d volume backups, and the library lists %d of them", len(l.rows), seen)
		}
	})
}

func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// A location that does not trust the labels has everything in the system namespace.
func TestNamespacesAreBelievedOnlyWhenTrusted(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	l.layout.TrustNamespaces = false
	longhorntest.Put(t, l.inner, longhorntest.Fixture(t))
	l.refresh()
	for name := range l.rows {
		if !strings.HasPrefix(name, "holdfast/") {
			t.Errorf("%s is listed", name)
		}
	}
	if l.volumes["holdfast/data@shop"] == nil || l.volumes["holdfast/volume:legacy-disk"] == nil {
		t.Errorf("listed are %v", slices.Sorted(maps.Keys(l.volumes)))
	}
}

// Once read, nothing is read again but the names, until something changes; then what is new.
func TestReadsOnce(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 20, Backups: 5, Blocks: 3, WriteBlocks: true, Namespaces: 3})
	l.refresh()
	if len(l.rows) != 100 || len(l.volumes) != 20 {
		t.Fatalf("%d volume backups of %d volumes", len(l.rows), len(l.volumes))
	}
	l.store.Reset()
	if read := l.refresh(); len(read) > 0 || l.store.Count(storetest.Get)+l.store.Count(storetest.Attributes) > 0 {
		t.Errorf("nothing has changed, and %v are read: %v", read, l.store.Counts())
	}
	l.clock.Step(2 * time.Hour)
	l.refresh()
	l.store.Reset()
	if read := l.refresh(); len(read) > 0 {
		t.Errorf("nothing has changed for long, and %v are read", read)
	}

	l.clock.SetTime(time.Now())
	l.refresh()

	// A backup begins, and ends.
	volume, key := longhorntest.VolumeName(7), format.BackupKey(longhorntest.VolumeName(7), "backup-new")
	put := func(key, content string) {
		if err := l.inner.Put(t.Context(), key, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	put(key, `{"Name":"backup-new","VolumeName":"`+volume+`","CreatedTime":"","Size":"0"}`)
	l.store.Reset()
	if read := l.refresh(); len(read) != 1 || l.store.Count(storetest.Get) != 2 {
		t.Errorf("for a backup that has begun, %v are read: %v", read, l.store.Counts())
	}
	name := "team-1/" + volume + ".backup-new:data-7"
	if row := l.rows[name]; row == nil || row.Status.Phase != v1alpha1.VolumeBackupInProgress {
		t.Errorf("it is %+v", row)
	}
	put(key, `{"Name":"backup-new","VolumeName":"`+volume+`","CreatedTime":"2026-11-22T00:00:00Z","Size":"2097152"}`)
	l.store.Reset()
	if l.refresh(); l.store.Count(storetest.Get) != 2 || l.rows[name].Status.Phase != v1alpha1.VolumeBackupCompleted {
		t.Errorf("it is %+v after %v", l.rows[name].Status, l.store.Counts())
	}
	// volume.cfg follows, and is read when it has settled.
	put(format.VolumeKey(volume), `{"Name":"`+volume+`","Size":"8388608","Labels":{"KubernetesStatus":"{\"namespace\":\"team-1\",\"pvcName\":\"data-7\"}"}}`)
	l.refresh()
	l.clock.Step(2 * time.Hour)
	if l.refresh(); l.rows[name].Status.Volume.SizeBytes != 8<<20 {
		t.Errorf("the volume has %d bytes", l.rows[name].Status.Volume.SizeBytes)
	}

	// It goes, behind our back.
	object, err := l.inner.Attributes(t.Context(), key)
	if err == nil {
		err = l.inner.Delete(t.Context(), object)
	}
	if err != nil {
		t.Fatal(err)
	}
	if l.refresh(); l.rows[name] == nil || len(l.rows) != 101 {
		t.Errorf("%d volume backups after one listing without one", len(l.rows))
	}
	l.clock.Step(time.Minute)
	l.store.Reset()
	if read := l.refresh(); l.rows[name] != nil || len(l.rows) != 100 || len(read) != 1 || l.store.Count(storetest.Get) != 1 {
		t.Errorf("%d volume backups after two, for %v", len(l.rows), l.store.Counts())
	}
	if read := l.refresh(); len(read) > 0 {
		t.Errorf("nothing is missing, and %v are read", read)
	}
}

// A listing of a volume's backups that says nothing, or the half, takes none of them away.
func TestHalfAListing(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 3, Backups: 4, Blocks: 1})
	l.refresh()
	last := "" // the first one is listed otherwise
	for _, entry := range l.list() {
		last = entry.Name
	}
	for _, after := range []int{0, 2} {
		l.store.Inject(storetest.Fault{Operation: storetest.List, Key: format.BackupsPrefix(last), Truncate: true, After: after})
		l.clock.Step(time.Minute)
		if read := l.refresh(); len(read) != 1 || len(l.rows) != 12 || (l.catalog.Emptied("lh") != "") != (after == 0) {
			t.Errorf("after %d of a listing there are %d, for %v; said is %q", after, len(l.rows), read, l.catalog.Emptied("lh"))
		}
		l.store.Inject()
		l.clock.Step(time.Minute)
		l.store.Reset()
		if l.refresh(); len(l.rows) != 12 || l.store.Count(storetest.Get) != 1 || l.catalog.Emptied("lh") != "" {
			t.Errorf("after it is whole there are %d, for %v; said is %q", len(l.rows), l.store.Counts(), l.catalog.Emptied("lh"))
		}
	}
}

// Whatever lies in a store, each bad thing costs itself.
func TestBadThings(t *testing.T) {
	stores(t, func(t *testing.T, inner *store.Bucket) {
		l := newLab(t, inner)
		longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 3, Backups: 2, Blocks: 1})
		v := longhorntest.VolumeName
		gone := v(2)
		object, err := inner.Attributes(t.Context(), format.VolumeKey(gone))
		if err == nil {
			err = inner.Delete(t.Context(), object)
		}
		if err != nil {
			t.Fatal(err)
		}
		longhorntest.Put(t, inner, []longhorntest.File{
			{Key: "backupstore/volumes/lost+found/x"},
			{Key: "backupstore/volumes/stray"},
			{Key: "backupstore/volumes/00/stray"},
			{Key: "backupstore/volumes/00/00/lost+found/volume.cfg", Content: []byte("{}")},
			{Key: "backupstore/volumes/00/00/misplaced/volume.cfg", Content: []byte("{}")},
			{Key: format.LockKey(format.ImagesVolume, "lock-1"), Content: []byte("{}")},
			{Key: format.BackupsPrefix(v(0)) + "backup_bad name.cfg"},
			{Key: format.BackupsPrefix(v(0)) + "backup_b1.cfg.tmp.123"},
			{Key: format.BackupKey(v(0), "cut-short"), Content: []byte(`{"Name":"cut-sh`)},
			{Key: format.BackupKey(v(0), "empty")},
			{Key: format.BackupKey(v(0), "another"), Content: []byte(`{"Name":"backup-1","VolumeName":"elsewhere","CreatedTime":"2026-11-22T00:00:00Z"}`)},
			{Key: format.BackupKey(v(0), "huge"), Content: []byte(`{"Name":"huge","CreatedTime":"2026-11-22T00:00:00Z","Labels":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`)},
			{Key: format.BackupKey(v(0), "large"), Content: []byte(`{"Name":"large","CreatedTime":"2026-11-22T00:00:00Z","Labels":{"a":"` + strings.Repeat("x", 100<<10) + `"}}`)},
			{Key: format.VolumeKey(v(1)), Content: []byte(`{"Name":`)},
		})
		l.refresh()
		for name, want := range map[string]string{
			v(0) + ".cut-short": "Unreadable its file can't be read: unexpected EOF",
			v(0) + ".empty":     "Unreadable its file can't be read: unexpected EOF",
			v(0) + ".another":   `Unreadable its file belongs to the backup "backup-1" of the volume "elsewhere"`,
			v(0) + ".huge":      "Unreadable its file can't be read: it says more than 262144 bytes",
			v(0) + ".large":     "Completed ",
			v(0) + "." + longhorntest.BackupName(0, 0): "Completed ",
			v(1) + "." + longhorntest.BackupName(1, 0): "Completed the volume.cfg of its volume can't be read, so Longhorn does not restore it: unexpected EOF",
			gone + "." + longhorntest.BackupName(2, 0): "Completed the volume.cfg of its volume is missing, so Longhorn does not restore it",
		} {
			volume, _, _ := strings.Cut(name, ".")
			if row := l.rows["holdfast/"+name+":volume:"+volume]; row == nil || row.Status.Phase+" "+row.Status.Message != want {
				t.Errorf("%s is %+v, want %s", name, row, want)
			}
		}
		if len(l.rows) != 6+5 || len(l.volumes) != 3 {
			t.Errorf("%d volume backups of %d volumes: %v", len(l.rows), len(l.volumes), slices.Sorted(maps.Keys(l.rows)))
		}

		// A volume.cfg that comes back is read, however long nothing else has changed.
		l.clock.Step(2 * time.Hour)
		l.refresh()
		longhorntest.Put(t, inner, []longhorntest.File{{Key: format.VolumeKey(gone), Content: []byte(`{"Name":"` + gone + `"}`)}})
		l.refresh()
		if row := l.rows["holdfast/"+gone+"."+longhorntest.BackupName(2, 0)+":volume:"+gone]; row == nil || row.Status.Message != "" {
			t.Errorf("with its volume.cfg it is %+v", row)
		}
	})
}

// What the store does not show costs what it does not show; nothing of it is taken for gone.
func TestStoreFailures(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 30, Backups: 3, Blocks: 1})
	volume := longhorntest.VolumeName(4)
	file := format.BackupKey(volume, longhorntest.BackupName(4, 1))

	// A part that can't be listed is a part, and says which.
	first := format.VolumeShard(volume)
	l.store.Inject(storetest.Fault{Operation: storetest.List, Key: format.VolumesPrefix + first + "/", Err: store.ErrUnavailable})
	seen, failed := 0, 0
	position := ""
	for shard := range l.layout.List(t.Context(), l.from(), "") {
		seen += len(shard.Entries)
		if shard.Err != nil {
			failed++
			if !shard.Holds(volume) || len(shard.Entries) > 0 {
				t.Errorf("the part that failed holds %d others", len(shard.Entries))
			}
		} else if shard.Holds(volume) {
			t.Error("a part that did not fail is said to hold it")
		}
		for _, entry := range shard.Entries {
			if !shard.Holds(entry.Name) {
				t.Errorf("%s is in a part that does not hold it", entry.Name)
			}
		}
		position = shard.Position
	}
	if failed != 1 || seen >= 30 || seen < 20 || position != "" {
		t.Errorf("%d parts failed, %d volumes were seen", failed, seen)
	}

	// One backup that is denied is a row; all that are, and a store that is away, are the store's.
	l.store.Inject(storetest.Fault{Operation: storetest.Get, Key: file, Err: store.ErrDenied})
	l.refresh()
	denied := "holdfast/" + volume + "." + longhorntest.BackupName(4, 1) + ":volume:" + volume
	if row := l.rows[denied]; row == nil || row.Status.Phase != v1alpha1.VolumeBackupUnreadable || len(l.rows) != 90 {
		t.Errorf("%d rows, and the one that is denied is %+v", len(l.rows), row)
	}
	for _, err := range []error{store.ErrDenied, store.ErrUnavailable} {
		l.store.Inject(storetest.Fault{Operation: storetest.Get, Err: err})
		if _, got := l.layout.Read(t.Context(), l.from(), longhorntest.VolumeName(5), refresh.KnownEntry{}); got == nil {
			t.Errorf("the store refuses everything (%v), and the entry is read", err)
		}
	}
	// Once it is shown, it is read.
	l.store.Inject()
	l.store.Reset()
	if read := l.refresh(); len(read) != 1 || l.rows[denied].Status.Phase != v1alpha1.VolumeBackupCompleted || l.store.Count(storetest.Get) != 2 {
		t.Errorf("%v are read (%v), and it is %+v", read, l.store.Counts(), l.rows[denied].Status)
	}
}

// A listing can go on from each of its positions, and one request shows one volume, whatever is
// beside it.
func TestListsFromAPosition(t *testing.T) { stores(t, listsFromAPosition) }

func listsFromAPosition(t *testing.T, inner *store.Bucket) {
	l := newLab(t, inner)
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 40, Backups: 3, Blocks: 2})
	beside := format.VolumePrefix(longhorntest.VolumeName(7))
	for _, key := range []string{
		format.VolumesPrefix + "a-file", format.VolumesPrefix + "00/a-file", format.VolumesPrefix + "zz/zz/zz/zz",
		beside + "a-file", beside + "backups/deeper/backup_b.cfg", beside + "backups/notes", path.Dir(path.Dir(beside)) + "/misplaced/volume.cfg",
	} {
		if err := l.inner.Put(t.Context(), key, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	all := l.list()
	var pieces []refresh.Entry
	for after := ""; ; {
		l.store.Reset()
		for shard := range l.layout.List(t.Context(), l.from(), after) {
			if made := l.store.Count(storetest.List); made != 1 || len(shard.Entries) != 1 && shard.Position != "" {
				t.Errorf("%d requests for %d volumes after %q", made, len(shard.Entries), after)
			}
			for _, entry := range shard.Entries {
				if !shard.Holds(entry.Name) {
					t.Errorf("%s is in a part that does not hold it", entry.Name)
				}
			}
			pieces, after = append(pieces, shard.Entries...), shard.Position
			break
		}
		if after == "" {
			break
		}
	}
	if len(all) != 40 || fmt.Sprint(pieces) != fmt.Sprint(all) {
		t.Errorf("%d in one go, %d piece by piece:\n%v\n%v", len(all), len(pieces), all, pieces)
	}
}

// However much there is that is no volume's, a listing gets past it.
func TestPassesOver(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 3, Backups: 1, Blocks: 1})
	for i := range 2500 {
		if err := l.inner.Put(t.Context(), fmt.Sprintf("%s00/00/no-volume/%04d", format.VolumesPrefix, i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	found, polls := 0, 0
	for after := ""; ; polls++ {
		for shard := range l.layout.List(t.Context(), l.from(), after) {
			if shard.Err != nil || shard.Position != "" && shard.Position <= after {
				t.Fatalf("after %q comes %+v", after, shard)
			}
			found, after = found+len(shard.Entries), shard.Position
			break
		}
		if after == "" {
			break
		}
	}
	if found != 3 || polls != 4 {
		t.Errorf("%d volumes in %d polls", found, polls)
	}
	if all := l.list(); len(all) != 3 {
		t.Errorf("%d volumes in one go", len(all))
	}
}

// Folders of blocks that can't be listed are nobody's trouble, and a poll that meets one lists
// one folder of the first level.
func TestBlocksThatCannotBeListed(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	longhorntest.Generate(t, l.inner, longhorntest.Shape{Volumes: 30, Backups: 1, Blocks: 1})
	for _, err := range []error{store.ErrDenied, store.ErrUnavailable} {
		found := 0
		l.store.Reset()
		for shard := range l.layout.List(t.Context(), levelByLevel{l.from(), err}, "") {
			if shard.Err != nil {
				t.Error(shard.Err)
			}
			if requests := l.store.Count(storetest.List); found == 0 && requests != 2+2*len(shard.Entries) {
				t.Errorf("a poll makes %d requests for %d volumes", requests, len(shard.Entries))
			}
			found += len(shard.Entries)
		}
		if found != 30 {
			t.Errorf("%d volumes", found)
		}
	}
}

// levelByLevel is a store of which a folder can't be listed, which a listing of all below meets.
type levelByLevel struct {
	store.Ranger
	err error
}

func (l levelByLevel) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	if options.Recursive {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, l.err) }
	}
	return l.Ranger.List(ctx, folder, options)
}

func TestListsAnEmptyStore(t *testing.T) {
	empty := newLab(t, storetest.Memory(t))
	for shard := range empty.layout.List(t.Context(), empty.from(), "") {
		if shard.Err != nil || len(shard.Entries) > 0 || shard.Position != "" {
			t.Errorf("an empty store lists %+v", shard)
		}
	}
}

// What comes before the blocks may be longer than what is read at first.
func TestLongFronts(t *testing.T) {
	l := newLab(t, storetest.Memory(t))
	for _, size := range []int{1, 15 << 10, 16 << 10, 17 << 10, 60 << 10, 200 << 10} {
		name := fmt.Sprintf("b-%d", size)
		content := fmt.Sprintf(`{"Name":"%s","CreatedTime":"2026-11-22T00:00:00Z","Labels":{"a":"%s"},"Size":"%d","Blocks":[`, name, strings.Repeat("x", size), size)
		if err := l.inner.Put(t.Context(), format.BackupKey("vol-1", name), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	l.read("vol-1", false)
	for name, row := range l.rows {
		if row.Status.Phase != v1alpha1.VolumeBackupCompleted || row.Spec.BackupName != fmt.Sprintf("b-%d", row.Status.SizeBytes) {
			t.Errorf("%s: %+v", name, row.Status)
		}
	}
	if len(l.rows) != 6 {
		t.Errorf("%d volume backups", len(l.rows))
	}
}
