// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

const system = "holdfast"

var t0 = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func minute(n int) time.Time { return t0.Add(time.Duration(n) * time.Minute) }

// ours is the cluster whose backups stored makes, and whose catalogue newCatalog makes.
var ours = identity.Identity{UID: "our-cluster", Keys: []string{"our-key"}}

func newCatalog(notify func(Changes)) *Catalog {
	c := New(system, notify)
	c.SetIdentity(ours)
	c.SetNamespaces(map[string]types.UID{})
	return c
}

// stored makes a backup as it is read from a store: n.name is of namespace n.
func stored(location, storeName string, age int) *v1alpha1.Backup {
	namespace, name, tenant := strings.Cut(storeName, ".")
	if !tenant {
		namespace, name = system, storeName
	}
	ended := metav1.NewTime(minute(-age))
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: system, Name: storeName,
			UID:               types.UID("uid-of-" + storeName),
			CreationTimestamp: metav1.NewTime(minute(-age - 1)),
		},
		Spec: v1alpha1.BackupSpec{StorageLocation: location},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, CompletionTimestamp: &ended,
			Origin: &v1alpha1.BackupOrigin{
				ClusterUID: ours.UID, PublicKey: ours.Keys[0],
				Namespace: namespace, NamespaceUID: types.UID("uid-of-" + namespace), Name: name, ClaimedRequester: "alice",
			},
		},
	}
	backup.Status.Conditions = format.EndConditions(&backup.Status)
	return backup
}

// claim makes a volume with a claim, of a size that tells it apart.
func claim(namespace, name string, size int64, age int) Volume {
	return Volume{
		Namespace: namespace, NamespaceUID: "uid-of-" + namespace, ClaimName: name, PodName: "pod", PodVolume: "v", Node: "node",
		SnapshotID: fmt.Sprintf("snapshot-%d", size), SizeBytes: size, BytesDone: size, IncrementalBytes: 1,
		Completion: metav1.NewTime(minute(-age)), State: v1alpha1.VolumeBackupCompleted,
	}
}

func failed(v Volume) Volume {
	v.State, v.SnapshotID, v.Message = v1alpha1.VolumeBackupFailed, "", "the agent restarted"
	return v
}

// mirror does what a projector does: it keeps what the changes say.
type mirror struct {
	t       *testing.T
	backups map[types.NamespacedName]*v1alpha1.Backup
	volumes map[types.NamespacedName]*v1alpha1.BackupVolume
	// named has the volumes that differ over all namespaces.
	named map[types.NamespacedName]*v1alpha1.BackupVolume
	calls int
}

func newMirror(t *testing.T) (*Catalog, *mirror) {
	m := &mirror{
		t:       t,
		backups: map[types.NamespacedName]*v1alpha1.Backup{},
		volumes: map[types.NamespacedName]*v1alpha1.BackupVolume{},
		named:   map[types.NamespacedName]*v1alpha1.BackupVolume{},
	}
	return newCatalog(m.apply), m
}

func (m *mirror) apply(changes Changes) {
	m.calls++
	applyDelta(m.t, m.backups, changes.Backups)
	applyDelta(m.t, m.volumes, changes.Volumes)
	set := slices.Clone(changes.Volumes.Gone)
	for _, volume := range changes.Volumes.Set {
		set = append(set, types.NamespacedName{Namespace: volume.Namespace, Name: volume.Name})
	}
	for _, name := range set {
		delete(m.named, name)
	}
	applyDelta(m.t, m.named, Delta[*v1alpha1.BackupVolume]{Set: changes.Named})
}

func applyDelta[T metav1.Object](t *testing.T, objects map[types.NamespacedName]T, delta Delta[T]) {
	for _, object := range delta.Set {
		objects[types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}] = object
	}
	for _, name := range delta.Gone {
		delete(objects, name)
	}
}

// check compares the mirror with the catalogue's own lists.
func (m *mirror) check(c *Catalog) {
	m.t.Helper()
	compare(m.t, "backups", m.backups, c.Backups())
	compare(m.t, "volumes", m.volumes, c.Volumes())
	compare(m.t, "volumes that differ over all namespaces", m.named, c.Named())
	checkHistory(m.t, c)
	for name, backup := range m.backups {
		if got := c.Backup(name.Namespace, name.Name); got != backup {
			m.t.Errorf("Backup(%s) is %+v", name, got)
		}
	}
}

// checkHistory finds every volume backup by its name, and in order.
func checkHistory(t *testing.T, c *Catalog) {
	t.Helper()
	found := map[string]bool{}
	uids := map[types.UID]bool{}
	var last Row
	history := c.Snapshot()
	for row := range history.Rows("", Position{}, everything) {
		row.named = false
		object := row.Object()
		if got, ok := history.Find(object.Namespace, object.Name); !ok || got != row {
			t.Errorf("%s/%s is found as %+v", object.Namespace, object.Name, got)
		}
		if last.volume != nil {
			of := compareNames(last.volume.name, row.volume.name)
			if of > 0 || of == 0 && compareMembers(*last.member(), *row.member()) >= 0 {
				t.Errorf("%s/%s is listed after %s", object.Namespace, object.Name, last.Name())
			}
		}
		last = row
		of := row.OfVolume()
		for _, phase := range states {
			has := slices.ContainsFunc(row.volume.members, func(m member) bool { return m.row().state == stateOdd || m.row().stateName() == phase })
			if of.HasPhase(phase) != has {
				t.Errorf("%s/%s has rows in the phase %s: %t, and says otherwise", object.Namespace, of.Name(), phase, has)
			}
		}
		if !of.MayBeAlike(func(l Likeness) bool { return l == row.Likeness() }) {
			t.Errorf("%s/%s is like no row of its volume", object.Namespace, object.Name)
		}
		if name := object.Namespace + "/" + object.Name; found[name] || uids[object.UID] {
			t.Errorf("%s, %s is there twice", name, object.UID)
		} else {
			found[name], uids[object.UID] = true, true
		}
	}
}

func everything(VolumeRows) bool { return true }

func compare[T metav1.Object](t *testing.T, what string, want map[types.NamespacedName]T, list []T) {
	t.Helper()
	got := map[types.NamespacedName]T{}
	uids := map[types.UID]bool{}
	last := types.NamespacedName{}
	for _, object := range list {
		name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
		got[name] = object
		if compareNames(last, name) >= 0 {
			t.Errorf("%s: %s is listed after %s", what, name, last)
		}
		last = name
		if uids[object.GetUID()] {
			t.Errorf("%s: the uid %s is there twice", what, object.GetUID())
		}
		uids[object.GetUID()] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: by the changes (-) and by the list (+):\n%s", what, diff)
	}
}

func names[T metav1.Object](list []T) string {
	var names []string
	for _, object := range list {
		names = append(names, object.GetNamespace()+"/"+object.GetName())
	}
	return strings.Join(names, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestPut(t *testing.T) {
	c, m := newMirror(t)
	scratch := failed(claim("shop", "", 7, 30))
	scratch.PodName, scratch.PodVolume = "web-0", "scratch"
	data, begun := claim("shop", "data", 100, 30), metav1.NewTime(minute(-31))
	data.Start = begun
	c.Put("default", "shop.daily", Content{Backup: stored("default", "shop.daily", 30), Volumes: []Volume{data, scratch}}, t0)
	m.check(c)
	want(t, "backups", names(c.Backups()), "shop/daily")
	want(t, "volumes", names(c.Volumes()), "shop/data")
	want(t, "history", names(c.VolumeBackups()), "shop/shop.daily:data shop/shop.daily:pod:web-0:scratch")

	backup := c.Backups()[0]
	if diff := cmp.Diff(&v1alpha1.BackupVolumesProgress{Total: 2, Completed: 1, Failed: 1, TotalBytes: 107, BytesDone: 107}, backup.Status.Volumes); diff != "" {
		t.Errorf("volumes of the backup:\n%s", diff)
	}
	when := metav1.NewTime(minute(-30))
	wantVolume := &v1alpha1.BackupVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: format.DerivedUID("volume", "shop", "data"), CreationTimestamp: metav1.NewTime(minute(-31))},
		Spec:       v1alpha1.BackupVolumeSpec{ClaimName: "data"},
		Status: v1alpha1.BackupVolumeStatus{
			LastBackup:          &v1alpha1.BackupReference{Namespace: "shop", Name: "daily"},
			LastVolumeBackup:    "shop.daily:data",
			LastBackupTimestamp: &when,
			DataStoredBytes:     1,
			SizeBytes:           100, Backups: 1, StorageLocations: []string{"default"},
		},
	}
	if diff := cmp.Diff(wantVolume, c.Volumes()[0]); diff != "" {
		t.Errorf("volume (-want +got):\n%s", diff)
	}
	wantScratch := &v1alpha1.VolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shop.daily:pod:web-0:scratch", CreationTimestamp: metav1.NewTime(minute(-31)),
			UID: format.DerivedUID("volumebackup", "default", "shop.daily", "uid-of-shop.daily", "shop", "pod:web-0:scratch", "0")},
		Spec: v1alpha1.VolumeBackupSpec{
			VolumeName: "pod:web-0:scratch", Backup: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}, BackupUID: "uid-of-shop.daily",
			PodName: "web-0", PodVolume: "scratch", StorageLocation: "default",
		},
		Status: v1alpha1.VolumeBackupStatus{Phase: "Failed", SizeBytes: 7, IncrementalBytes: 1, Node: "node", CompletionTimestamp: &when, Message: "the agent restarted"},
	}
	if diff := cmp.Diff(wantScratch, c.VolumeBackups()[1]); diff != "" {
		t.Errorf("volume backup (-want +got):\n%s", diff)
	}
	wantStatus := v1alpha1.VolumeBackupStatus{Phase: "Completed", URL: "store://default/kopia/shop?snapshot=snapshot-100", SnapshotID: "snapshot-100", SnapshotName: "snapshot-100", SnapshotTimestamp: &begun, SizeBytes: 100, IncrementalBytes: 1, Node: "node", StartTimestamp: &begun, CompletionTimestamp: &when}
	if diff := cmp.Diff(wantStatus, c.VolumeBackups()[0].Status); diff != "" {
		t.Errorf("volume backup (-want +got):\n%s", diff)
	}
}

func TestPutAgainIsNoChange(t *testing.T) {
	c, m := newMirror(t)
	for i := range 3 {
		c.Put("default", "daily", Content{Backup: stored("default", "daily", 5), Volumes: []Volume{claim("shop", "data", 1, 5)}}, minute(i))
		c.PutUnreadable("default", "bad", "reason", minute(i))
	}
	if m.calls != 2 {
		t.Errorf("%d changes, want one for each backup", m.calls)
	}
	m.check(c)
}

func TestVolumeSumsUpItsBackups(t *testing.T) {
	c, m := newMirror(t)
	put := func(storeName string, v Volume) {
		t.Helper()
		c.Put("default", storeName, Content{Backup: stored("default", storeName, 50), Volumes: []Volume{v}}, t0)
		m.check(c)
	}
	state := func() string {
		status := c.Volumes()[0].Status
		last := "none"
		if status.LastBackup != nil {
			last = status.LastBackup.Name
		}
		return fmt.Sprintf("%s size %d, %d and %d failed", last, status.SizeBytes, status.Backups, status.Failures)
	}
	put("bad", failed(claim(system, "data", 9, 1)))
	want(t, "a failure only", state(), "none size 0, 0 and 1 failed")
	put("old", claim(system, "data", 10, 40))
	want(t, "the first", state(), "old size 10, 1 and 1 failed")
	put("new", claim(system, "data", 12, 20))
	want(t, "a newer one", state(), "new size 12, 2 and 1 failed")
	put("middle", claim(system, "data", 11, 30))
	want(t, "read later, made earlier", state(), "new size 12, 3 and 1 failed")
	c.Observe("default", []string{"bad", "old", "middle"}, minute(1), minute(1))
	c.Observe("default", []string{"bad", "old", "middle"}, minute(2), minute(2))
	m.check(c)
	want(t, "without the newest", state(), "middle size 11, 2 and 1 failed")

	// Of those that ended together the last by name counts, whatever is read first.
	for i, storeName := range []string{"twin-b", "twin-c", "twin-a"} {
		put(storeName, claim(system, "data", int64(20+i), 10))
	}
	want(t, "three at once", state(), "twin-c size 21, 5 and 1 failed")
	for _, location := range []string{"north", "south", "east"} {
		again := claim(system, "data", 30, 10)
		c.Put(location, "twin-c", Content{Backup: stored(location, "twin-c", 50), Volumes: []Volume{claim(system, "data", 29, 10), again}}, t0)
		m.check(c)
	}
	want(t, "three in each of three places", state(), "twin-c@south size 30, 11 and 1 failed")
}

func TestSameVolumeTwiceInABackup(t *testing.T) {
	c, m := newMirror(t)
	volumes, err := ReadVolumes(volumeUploads(t, system, "data", "data"))
	if err != nil {
		t.Fatal(err)
	}
	c.Put("default", "daily", Content{Backup: stored("default", "daily", 1), Volumes: volumes}, t0)
	m.check(c)
	want(t, "history", names(c.VolumeBackups()), "holdfast/daily:data holdfast/daily:data:2")
	want(t, "volumes", names(c.Volumes()), "holdfast/data")
}

// The first location by name gives its entry the plain name, whatever is read first.
func TestTwoLocationsWithOneName(t *testing.T) {
	content := func(location string) Content {
		return Content{Backup: stored(location, "daily", 5), Volumes: []Volume{claim(system, "data", 1, 5)}}
	}
	read := map[string]func(c *Catalog){
		"first location first": func(c *Catalog) {
			for _, location := range []string{"a", "b", "c"} {
				c.Put(location, "daily", content(location), t0)
			}
		},
		"last location first": func(c *Catalog) {
			for _, location := range []string{"c", "b", "a"} {
				c.Put(location, "daily", content(location), t0)
			}
		},
	}
	for order, readAll := range read {
		c, m := newMirror(t)
		readAll(c)
		m.check(c)
		want(t, order, names(c.Backups()), "holdfast/daily holdfast/daily@b holdfast/daily@c")
		want(t, order, names(c.VolumeBackups()), "holdfast/daily:data holdfast/daily@b:data holdfast/daily@c:data")
		for _, backup := range c.Backups() {
			_, at, _ := strings.Cut(backup.Name+"@a", "@")
			if location := strings.TrimSuffix(at, "@a"); backup.Spec.StorageLocation != location {
				t.Errorf("%s: %s is of location %s", order, backup.Name, backup.Spec.StorageLocation)
			}
		}
		want(t, order, string(c.Backup(system, "daily").UID), "uid-of-daily")
		want(t, order, string(c.Backup(system, "daily@c").UID), string(format.DerivedUID("backup", "c", "daily", "uid-of-daily")))
		want(t, order, strings.Join(c.Volumes()[0].Status.StorageLocations, " "), "a b c")
		if c.Backup(system, "daily@a") != nil || c.Backup(system, "daily@") != nil || c.Backup("other", "daily") != nil {
			t.Errorf("%s: a backup is found by a name that it does not bear", order)
		}

		c.Forget("a")
		m.check(c)
		want(t, order+", without a", names(c.Backups()), "holdfast/daily holdfast/daily@c")
		want(t, order+", without a", c.Backup(system, "daily").Spec.StorageLocation, "b")
		c.Forget("c")
		m.check(c)
		want(t, order+", without a and c", names(c.Backups()), "holdfast/daily")
		c.Forget("b")
		m.check(c)
		want(t, order+", without any", names(c.Backups())+names(c.Volumes())+names(c.VolumeBackups()), "")
	}
}

// One row goes and another takes its name, while a third holds the same volume,
// of which the one that goes was the latest backup.
func TestForgetWhileANamesakeTakesOver(t *testing.T) {
	c, seen := newMirror(t)
	put := func(location, storeName string, age int) {
		c.Put(location, storeName, Content{
			Backup:  stored(location, storeName, age),
			Volumes: []Volume{claim(system, "data", 1, age)},
		}, t0)
	}
	put("a", "nightly", 1)
	put("b", "nightly", 2)
	put("b", "weekly", 3)
	c.Forget("a")
	seen.check(c)
	want(t, "backups", names(c.Backups()), "holdfast/nightly holdfast/weekly")
	if got := c.Volumes()[0].Status; got.Backups != 2 || got.LastBackup.Name != "nightly" {
		t.Errorf("volume %+v, want two backups, the last one nightly", got)
	}
}

// What lies in a namespace says nothing of backups elsewhere but that there are some.
func TestBackupsOfOtherNamespacesAreNotNamed(t *testing.T) {
	c, m := newMirror(t)
	for i, storeName := range []string{"inventory", "blog.secret", "shop.daily"} {
		c.Put("default", storeName, Content{Backup: stored("default", storeName, 10-i), Volumes: []Volume{
			claim("shop", "data", 1, 10-i), claim("shop", "cache", 2, 10-i), claim("blog", "data", 3, 10-i), claim(system, "data", 4, 10-i),
		}}, t0)
	}
	c.Put("a-copy", "blog.secret", Content{Backup: stored("a-copy", "blog.secret", 5), Volumes: []Volume{claim("shop", "data", 1, 5)}}, t0)
	m.check(c)
	foreign := map[string][]string{
		"shop": {"inventory", "blog", "secret", system},
		"blog": {"inventory", "shop", "daily", system},
	}
	pseudonyms := map[string]int{}
	for _, object := range c.VolumeBackups() {
		content, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range foreign[object.Namespace] {
			text := strings.ReplaceAll(string(content), string(object.Spec.BackupUID), "") // in truth it is random
			if strings.Contains(text, name) {
				t.Errorf("in %s there is %q: %s", object.Namespace, name, content)
			}
		}
		named := object.Spec.Backup.Name != ""
		if want := object.Spec.Backup.Namespace == object.Namespace || object.Namespace == system; named != want {
			t.Errorf("named %t: %s", named, content)
		}
		if before, _, _ := strings.Cut(object.Name, ":"); object.Namespace == "shop" && !named {
			pseudonyms[before]++
		}
	}
	if len(pseudonyms) != 3 || pseudonyms[(&held{location: "default", storeName: "inventory", backup: stored("default", "inventory", 10)}).pseudonym()] != 2 {
		t.Errorf("pseudonyms %v", pseudonyms)
	}
	var last []string
	for _, volume := range c.Volumes() {
		name := "another"
		if ref := volume.Status.LastBackup; ref != nil {
			name = ref.Namespace + "/" + ref.Name
		}
		last = append(last, volume.Namespace+"/"+volume.Name+": "+name)
	}
	want(t, "the last backups", strings.Join(last, ", "), "blog/data: another, holdfast/data: shop/daily, shop/cache: shop/daily, shop/data: another")

	// Over all namespaces they are named. All else of an object is the same there.
	for row := range c.Snapshot().Rows("", Position{}, everything) {
		over := row.Object()
		if over.Spec.Backup.Name == "" || over.Spec.Backup != row.Backup() {
			t.Errorf("over all namespaces %s/%s is of %+v", over.Namespace, over.Name, over.Spec.Backup)
		}
		within, found := c.Snapshot().Find(over.Namespace, over.Name)
		if !found || within.Version() != row.Version() {
			t.Fatalf("%s/%s is found: %t", over.Namespace, over.Name, found)
		}
		if over.Spec.Backup = within.Object().Spec.Backup; !equality.Semantic.DeepEqual(over, within.Object()) {
			t.Errorf("over all namespaces %s/%s differs by more than its backup", over.Namespace, over.Name)
		}
	}
	last = nil
	for name, volume := range m.named {
		last = append(last, fmt.Sprintf("%s: %s/%s", name, volume.Status.LastBackup.Namespace, volume.Status.LastBackup.Name))
	}
	slices.Sort(last)
	want(t, "the last backups over all namespaces", strings.Join(last, ", "), "blog/data: shop/daily, shop/data: blog/secret")
}

func TestUnreadable(t *testing.T) {
	c, m := newMirror(t)
	c.Put("default", "good", Content{Backup: stored("default", "good", 5)}, t0)
	c.PutUnreadable("default", "shop.bad", "it is not JSON", t0)
	m.check(c)
	want(t, "backups", names(c.Backups()), "holdfast/good holdfast/shop.bad")
	bad := c.Backup(system, "shop.bad")
	if len(bad.Status.Conditions) == 0 || !bad.Status.Conditions[0].LastTransitionTime.Time.Equal(t0) || bad.Status.Phase != v1alpha1.BackupPhaseUnreadable || bad.Status.FailureReason != "it is not JSON" || bad.UID == "" || bad.Spec.StorageLocation != "default" {
		t.Errorf("listed as %+v", bad)
	}

	// It is read again later and later, and no other backup is.
	at := t0
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		at = at.Add(pause * time.Minute)
		if read := c.Observe("default", []string{"good", "shop.bad"}, at, at.Add(-time.Second)).Read; len(read) > 0 {
			t.Errorf("%v to be read %v too early", read, pause)
		}
		want(t, "to be read", strings.Join(c.Observe("default", []string{"good", "shop.bad"}, at, at).Read, " "), "shop.bad")
		c.PutUnreadable("default", "shop.bad", "it is not JSON", at)
	}

	c.Put("default", "shop.bad", Content{Backup: stored("default", "shop.bad", 5)}, at)
	m.check(c)
	want(t, "after its repair", names(c.Backups()), "holdfast/good shop/bad")
	if read := c.Observe("default", []string{"good", "shop.bad"}, at, at.AddDate(1, 0, 0)).Read; len(read) > 0 {
		t.Errorf("%v to be read although known", read)
	}

	// What was read once is kept, whatever becomes of the file.
	c.PutUnreadable("default", "shop.bad", "it is not JSON", at)
	c.PutUnfinished("default", "shop.bad", at, at)
	m.check(c)
	want(t, "after its damage", names(c.Backups()), "holdfast/good shop/bad")

	// After a success the pauses begin anew.
	c.Put("default", "shop.bad", Content{Backup: stored("default", "shop.bad", 5)}, at)
	c.PutUnreadable("default", "shop.bad", "it is not JSON", at)
	if read := c.Observe("default", []string{"good", "shop.bad"}, at, at.Add(59*time.Second)).Read; len(read) > 0 {
		t.Errorf("%v to be read at once again", read)
	}
	at = at.Add(time.Minute)
	want(t, "to be read", strings.Join(c.Observe("default", []string{"good", "shop.bad"}, at, at).Read, " "), "shop.bad")
}

// However often something could not be read, the pause is neither longer than the
// longest nor none.
func TestPausesStayWithinTheirBounds(t *testing.T) {
	e := &entry{}
	for i := range 100 {
		e.retryLocked(t0, unreadableBackoff)
		if pause := e.retryAt.Sub(t0); pause < unreadableBackoff.first || pause > unreadableBackoff.most {
			t.Errorf("pause %d is %v", i, pause)
		}
	}
	want(t, "the last pause", e.retryAt.Sub(t0).String(), unreadableBackoff.most.String())
}

// What a record says to be stored is missing only once the store was asked since.
func TestKnows(t *testing.T) {
	c := newCatalog(nil)
	knows := func(what, storeName string, since int, want bool) {
		t.Helper()
		if got := c.Knows("default", storeName, types.UID("uid-of-"+storeName), minute(since)); got != want {
			t.Errorf("%s: %s is known at minute %d: %t", what, storeName, since, got)
		}
	}
	knows("at first", "daily", 0, false)
	c.Observe("default", nil, minute(2), minute(3))
	knows("listed before", "daily", 3, false)
	knows("listed at the same instant", "daily", 2, true)
	knows("listed since", "daily", 1, true)
	if c.Knows("other", "daily", "uid-of-daily", minute(1)) {
		t.Error("one location has the word of another one")
	}

	c.Observe("default", []string{"daily"}, minute(3), minute(3))
	knows("listed and not read", "daily", 1, false)
	c.PutUnfinished("default", "daily", minute(4), minute(6))
	knows("read before", "daily", 5, false)
	knows("read at the same instant", "daily", 4, true)
	knows("read since", "daily", 3, true)
	c.PutUnreadable("default", "daily", "it is not JSON", minute(6))
	knows("unreadable", "daily", 9, true)
	c.Put("default", "daily", Content{Backup: stored("default", "daily", 1)}, minute(7))
	knows("read", "daily", 9, true)
	if c.Knows("default", "daily", "another", minute(9)) || !c.Knows("default", "daily", "another", minute(3)) {
		t.Error("another backup was there before: the store's word is that of a listing since")
	}

	// A listing that is not believed says nothing of what it lacks.
	c.Observe("default", nil, minute(8), minute(8))
	knows("listed with suspicion", "other", 8, false)
	c.Remove("default", "daily")
	knows("removed", "daily", 8, false)
	knows("removed, and listed before", "daily", 3, true)
	c.Forget("default")
	knows("of a location that is none any more", "daily", 0, false)
}

// A sample of a location is a backup that was read, and that is there.
func TestReadable(t *testing.T) {
	c := newCatalog(nil)
	c.PutUnfinished("default", "running", t0, t0)
	c.PutUnreadable("default", "bad", "it is not JSON", t0)
	want(t, "of none that was read", c.Readable("default"), "")
	c.Put("default", "daily", Content{Backup: stored("default", "daily", 1)}, t0)
	want(t, "of one", c.Readable("default"), "daily")
	want(t, "of another location", c.Readable("other"), "")
	if got := c.Len("default"); got != 2 {
		t.Errorf("%d are listed, want the one that was read and the unreadable one", got)
	}
	c.Observe("default", []string{"running", "bad"}, minute(1), minute(1))
	want(t, "of one that is missing", c.Readable("default"), "")
}

func TestUnreadableVolumes(t *testing.T) {
	c, m := newMirror(t)
	content := Content{Backup: stored("default", "daily", 5), VolumesError: "the file is not gzip"}
	for i := range 2 {
		c.Put("default", "daily", content, minute(i))
	}
	m.check(c)
	backup := c.Backups()[0]
	last := backup.Status.Conditions[len(backup.Status.Conditions)-1]
	if backup.Status.Phase != v1alpha1.BackupPhaseCompleted || last.Type != ConditionVolumesListed || last.Status != metav1.ConditionFalse || last.Reason != "Unreadable" || last.LastTransitionTime.IsZero() || !strings.Contains(last.Message, "not gzip") {
		t.Errorf("listed as %+v", backup)
	}
	want(t, "to be read", strings.Join(c.Observe("default", []string{"daily"}, minute(9), minute(9)).Read, " "), "daily")
	c.Put("default", "daily", Content{Backup: stored("default", "daily", 5), Volumes: []Volume{claim("shop", "data", 1, 5)}}, minute(9))
	m.check(c)
	want(t, "volumes", names(c.Volumes()), "shop/data")
	if len(content.Backup.Status.Conditions) != 2 {
		t.Error("the caller's backup was changed")
	}
}

func TestUnfinishedIsNotListed(t *testing.T) {
	c, m := newMirror(t)
	c.PutUnfinished("default", "running", t0, t0)
	if m.calls != 0 || len(c.Backups()) != 0 || c.Len("default") != 0 {
		t.Error("an unfinished backup is listed")
	}
	listing := []string{"running"}
	if read := c.Observe("default", listing, minute(0), t0.Add(19*time.Second)).Read; len(read) > 0 {
		t.Errorf("%v to be read at once again", read)
	}
	want(t, "to be read", strings.Join(c.Observe("default", listing, minute(1), minute(1)).Read, " "), "running")
	c.PutUnreadable("default", "running", "odd", minute(1))
	c.PutUnfinished("default", "running", minute(2), minute(2))
	m.check(c)
	want(t, "an unreadable one that is written anew", names(c.Backups()), "")
}

func volumeUploads(t *testing.T, namespace string, claims ...string) *bytes.Buffer {
	t.Helper()
	var list []format.PodVolumeBackup
	for i, name := range claims {
		list = append(list, format.NewPodVolumeBackup(stored("default", "daily", 1), "daily", format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: namespace, Name: fmt.Sprintf("pod-%d", i)}, Node: "node", Name: "data", ClaimName: name,
			Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s", Progress: enginev1alpha1.VolumeProgress{TotalBytes: 3, BytesDone: 3}},
		}))
	}
	var content bytes.Buffer
	if err := format.WritePodVolumeBackups(&content, list); err != nil {
		t.Fatal(err)
	}
	return &content
}

func TestReadVolumes(t *testing.T) {
	volumes, err := ReadVolumes(volumeUploads(t, "shop", "data", ""))
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%+v", volumes)
	if len(volumes) != 2 || volumes[0].bareName() != "data" || volumes[1].bareName() != "pod:pod-1:data" || !volumes[0].completed() || volumes[0].SizeBytes != 3 {
		t.Errorf("read %s", got)
	}
	for _, bad := range []string{"../../escape", "with space", "a%2fb", "line\nbreak"} {
		if volumes, err := ReadVolumes(volumeUploads(t, "shop", bad)); err == nil {
			t.Errorf("claim %q was read as %+v", bad, volumes)
		}
		if volumes, err := ReadVolumes(volumeUploads(t, bad, "data")); err == nil {
			t.Errorf("namespace %q was read as %+v", bad, volumes)
		}
		for what, place := range map[string]func(*format.PodVolumeBackup){
			"pod":    func(pvb *format.PodVolumeBackup) { pvb.Spec.Pod.Name = bad },
			"volume": func(pvb *format.PodVolumeBackup) { pvb.Spec.Volume = bad },
		} {
			var pvb format.PodVolumeBackup
			pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume = "shop", "web", "data"
			place(&pvb)
			if v, err := newVolume(&pvb); err == nil {
				t.Errorf("%s %q was read as %+v", what, bad, v)
			}
		}
	}
}

// TestMethodOfASnapshot: a list says that a volume was read from a snapshot, if its data is in a repository.
func TestMethodOfASnapshot(t *testing.T) {
	of := format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop"}, ClaimName: "data", Snapshot: &format.SnapshotSource{Driver: "ebs"},
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"},
	}
	for uploader, want := range map[string]string{format.UploaderKopia: MethodMoved, format.UploaderRestic: format.UploaderRestic} {
		pvb := format.NewPodVolumeBackup(stored("default", "daily", 1), "daily", of)
		pvb.Spec.UploaderType = uploader
		if got, err := newVolume(&pvb); err != nil || got.Method != want {
			t.Errorf("%s: the method is %q, want %q: %v", uploader, got.Method, want, err)
		}
	}
}

// TestMethodInStorage: a list says that a snapshot is no second copy, and backups count such volumes.
func TestMethodInStorage(t *testing.T) {
	of := format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop"}, ClaimName: "data",
		Snapshot: &format.SnapshotSource{Driver: "ebs", Kept: true, Cut: &format.SnapshotCut{Handle: "snap-1"}},
		Status:   enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted},
	}
	for _, phase := range []enginev1alpha1.VolumePhase{enginev1alpha1.VolumePhaseCompleted, enginev1alpha1.VolumePhaseFailed} {
		of.Status.Phase = phase
		pvb := format.NewPodVolumeBackup(stored("default", "daily", 1), "daily", of)
		got, err := newVolume(&pvb)
		kept := phase == enginev1alpha1.VolumePhaseCompleted
		if err != nil || (got.Method == MethodInStorage) != kept || (got.Message == format.KeptInStorage) != kept || kept && got.SnapshotName != "snap-1" {
			t.Errorf("%s: listed is %+v, %v", phase, got, err)
		}
		for _, trust := range []v1alpha1.BackupTrust{v1alpha1.BackupTrustOwn, v1alpha1.BackupTrustTrusted} {
			of := &held{row: &v1alpha1.Backup{Status: v1alpha1.BackupStatus{Origin: &v1alpha1.BackupOrigin{Trust: trust}}}}
			if r := newRow(&got, nil); holds(of, r) != (kept && trust == v1alpha1.BackupTrustOwn) || inStorage(r) != kept {
				t.Errorf("%s of a backup that is %s: it holds data: %t, in its storage: %t", phase, trust, holds(of, r), inStorage(r))
			}
		}
		if sum := sum(pack([]row{newRow(&got, nil)}), nil, nil); (sum.InStorage == 1) != kept || sum.Total != 1 {
			t.Errorf("%s: counted is %+v", phase, sum)
		}
	}
}

func TestAVolumeIsAsItWasStored(t *testing.T) {
	start, end := metav1.NewTime(minute(-2)), metav1.NewTime(minute(-1))
	var pvb format.PodVolumeBackup
	pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume, pvb.Spec.Node, pvb.Spec.UploaderType = "shop", "web", "data", "node-1", "restic"
	pvb.Status.Phase, pvb.Status.Message, pvb.Status.SnapshotID, pvb.Status.IncrementalBytes = enginev1alpha1.VolumePhaseCompleted, "slowly", "id", 4
	pvb.Status.Progress.TotalBytes, pvb.Status.Progress.BytesDone = 6, 5
	pvb.Status.StartTimestamp, pvb.Status.CompletionTimestamp = &start, &end
	want := Volume{
		Namespace: "shop", PodName: "web", PodVolume: "data", Node: "node-1", Method: "restic", SnapshotID: "id", Message: "slowly",
		SizeBytes: 6, BytesDone: 5, IncrementalBytes: 4, Start: start, Completion: end, State: v1alpha1.VolumeBackupCompleted,
	}
	if got, err := newVolume(&pvb); err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// What is said of the volume itself may be anything: what can't be true is not listed, and the rest is.
func TestWhatIsSaidOfAVolume(t *testing.T) {
	made := metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	long := strings.Repeat("x", 300)
	for said, want := range map[string]Volume{
		`{"name":"pv-1","sizeBytes":5,"created":"2026-07-01T12:00:00Z","labels":{"app":"db"}}`: {VolumeName: "pv-1", VolumeSize: 5, VolumeCreated: made, Labels: `{"app":"db"}`},
		`{"name":"../pv","sizeBytes":5}`: {VolumeSize: 5},
		`{"name":"` + long + `","labels":{"app":"` + long + `","` + long + `":"","tier":"gold","a b":"c","../":"d"}}`: {Labels: `{"tier":"gold"}`},
		`{"name":"pv-1","sizeBytes":-5,"created":"1969-12-31T23:59:59Z"}`:                                             {VolumeName: "pv-1"},
		`{"name":"pv-1","created":"9999-12-31T23:59:59-12:00"}`:                                                       {VolumeName: "pv-1"},
		`{"name":"pv-1","created":"yesterday"}`:                                                                       {},
		`{"name":"pv-1","labels":["app"]}`:                                                                            {},
		`{"name":"pv-1","labels":{"app":"` + strings.Repeat("x", 16<<10) + `"}}`:                                      {},
		`{"name":"pv-1"`: {},
		`null`:           {},
		``:               {},
	} {
		for _, claim := range []string{"data", ""} {
			var pvb format.PodVolumeBackup
			pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume, pvb.Spec.UploaderType = "shop", "web", "files", "kopia"
			pvb.Annotations = map[string]string{"velero.io/pvc-name": claim, "holdfast.io/volume": said}
			want := want
			if claim == "" {
				want = Volume{} // there is nothing to say
			}
			v, err := newVolume(&pvb)
			got := Volume{VolumeName: v.VolumeName, VolumeSize: v.VolumeSize, VolumeCreated: v.VolumeCreated, Labels: v.Labels}
			if !got.VolumeCreated.Equal(&want.VolumeCreated) {
				t.Errorf("%.60s of the claim %q: made at %s, want %s", said, claim, got.VolumeCreated, want.VolumeCreated)
			}
			got.VolumeCreated = want.VolumeCreated
			if err != nil || got != want || !v.IsOfABackup() {
				t.Errorf("%.60s of the claim %q: got %+v, %v, want %+v", said, claim, got, err, want)
			}
		}
	}
	// A claim that no pod uses is backed up from a snapshot.
	alone := Volume{Namespace: "shop", ClaimName: "data", State: v1alpha1.VolumeBackupCompleted}
	if !alone.IsOfABackup() || alone.bareName() != "data" {
		t.Errorf("%+v is of no backup, or called %q", alone, alone.bareName())
	}
	// Others may say the same of what they have read, and nothing more.
	mine := Volume{Namespace: "shop", ClaimName: "data", PodName: "web", PodVolume: "files", VolumeName: "pv-1", State: v1alpha1.VolumeBackupCompleted}
	for what, change := range map[string]func(*Volume){
		"no claim":          func(v *Volume) { v.ClaimName = "" },
		"no pod's name":     func(v *Volume) { v.PodName = "" },
		"no pod, no claim":  func(v *Volume) { v.PodName, v.PodVolume, v.ClaimName = "", "", "" },
		"no name of one":    func(v *Volume) { v.VolumeName = "../pv" },
		"a name of its own": func(v *Volume) { v.BackupName = "b" },
	} {
		v := mine
		if !v.IsOfABackup() {
			t.Fatalf("%+v is of no backup", v)
		}
		if change(&v); v.IsOfABackup() {
			t.Errorf("%s: %+v is of a backup", what, v)
		}
	}
}

func TestReadVolumesOfOthers(t *testing.T) {
	for _, test := range []struct {
		phase, uploader, method, message string
		completed                        bool
	}{
		{"Completed", "kopia", "kopia", "", true},
		{"Completed", "restic", "restic", "it was not uploaded with Kopia and can't be restored by Holdfast", true},
		{"Completed", "", "restic", "it was not uploaded with Kopia and can't be restored by Holdfast", true},
		{"Failed", "kopia", "kopia", "", false},
		{"Failed", "restic", "restic", "", false},
		{"InProgress", "kopia", "kopia", `the upload ended in the phase "InProgress"`, false},
	} {
		var pvb format.PodVolumeBackup
		pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume = "shop", "web", "data"
		pvb.Spec.UploaderType, pvb.Status.Phase = test.uploader, enginev1alpha1.VolumePhase(test.phase)
		v, err := newVolume(&pvb)
		if err != nil || v.completed() != test.completed || v.Message != test.message || v.Method != test.method {
			t.Errorf("%+v: %+v, %v", test, v, err)
		}
	}
}
