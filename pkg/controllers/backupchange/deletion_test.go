// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func uidOf(i int) types.UID {
	return types.UID(fmt.Sprintf("%08d-2f0a-4a57-9d0e-6f6b1a2f3c4d", i))
}

func storeNameOf(i int) string { return fmt.Sprintf("shop.daily-%d", i) }

// stored stores backups, each of the claims data and logs and of one more of data that another
// pod has mounted.
func (w *world) stored(count int, by format.Cluster) {
	w.Helper()
	for i := range count {
		backup := &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("daily-%d", i), UID: uidOf(i), CreationTimestamp: instant},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant, Expiration: &instant},
		}
		var volumes []format.PodVolumeBackup
		for j, claim := range []string{"data", "logs", "data"} {
			snapshot := fmt.Sprintf("snapshot-%d-%s", i, claim)
			volumes = append(volumes, format.NewPodVolumeBackup(backup, storeNameOf(i), format.Volume{
				Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: fmt.Sprintf("pod-%d", j)}, Name: "volume", ClaimName: claim,
				Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: snapshot},
			}))
		}
		var list bytes.Buffer
		must(w, format.WritePodVolumeBackups(&list, volumes))
		key := format.PodVolumeBackupsKey(storeNameOf(i))
		must(w, w.store.Faulty.Put(w.Context(), key, list.Bytes()))
		contents := format.Contents{}
		contents.Set(key, format.NewContent(list.Bytes()))
		metadata, err := format.EncodeBackup(backup, contents, by)
		must(w, err)
		must(w, w.store.Faulty.Put(w.Context(), format.MetadataKey(storeNameOf(i)), metadata))
	}
}

// ask records a deletion of the volume data, of one mount or of both, as the API server does.
func (w *world) ask(count int, repeats ...int32) *enginev1alpha1.BackupChange {
	w.Helper()
	record := &enginev1alpha1.BackupChange{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: fmt.Sprintf("deletion-%d", len(w.records())), UID: types.UID(fmt.Sprintf("deletion-%d", len(w.records()))), Labels: map[string]string{enginev1alpha1.LabelDeletesVolumes: "true"}},
		Spec: enginev1alpha1.BackupChangeSpec{
			Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: instant}, Namespace: "shop", Volume: "data", ListedIn: "shop",
		},
	}
	for i := range count {
		for _, repeat := range repeats {
			record.Spec.Targets = append(record.Spec.Targets, enginev1alpha1.BackupChangeTarget{StorageLocation: "default", StoreName: storeNameOf(i), UID: uidOf(i), Repeat: repeat})
		}
	}
	_, err := w.Engine.BackupChanges(system).Create(w.Context(), record, metav1.CreateOptions{})
	must(w, err)
	return record
}

func (w *world) records() []enginev1alpha1.BackupChange {
	w.Helper()
	list, err := w.Engine.BackupChanges(system).List(w.Context(), metav1.ListOptions{})
	must(w, err)
	return list.Items
}

func (w *world) record(name string) *enginev1alpha1.BackupChange {
	w.Helper()
	record, err := w.Engine.BackupChanges(system).Get(w.Context(), name, metav1.GetOptions{})
	must(w, err)
	return record
}

// deleted are the snapshots that go of a backup, and how many volumes are deleted.
func (w *world) deleted(i int) (snapshots []string, volumes int) {
	w.Helper()
	work := &work{lane: w.deletions}
	deleted, err := work.folder(w.store, &enginev1alpha1.BackupChangeTarget{StorageLocation: "default", StoreName: storeNameOf(i), UID: uidOf(i)}).
		DeletedVolumes(w.Context(), "cluster", w.Keys)
	must(w, err)
	for _, d := range deleted {
		if d.SnapshotID != "" {
			snapshots = append(snapshots, d.SnapshotID)
		}
	}
	return snapshots, len(deleted)
}

// removal is what was asked of the maintenance; nil for nothing.
func (w *world) removal(of *enginev1alpha1.BackupChange) *format.VolumeRemoval {
	w.Helper()
	content, err := w.store.Get(w.Context(), format.VolumeRemovalKey("cluster", "shop", of.UID))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	must(w, err)
	defer content.Close()
	data, err := io.ReadAll(content)
	must(w, err)
	removal, err := format.DecodeVolumeRemoval(data)
	must(w, err)
	return &removal
}

// A history goes by one record: a change beside each backup, one removal, and no object is
// rewritten.
func TestHistory(t *testing.T) {
	w := newWorld(t)
	const count = 250
	w.stored(count, w.Cluster)
	asked := w.ask(count, 0, 1)
	written := map[string]int{}
	w.store.put = func(key string) error { written[key]++; return nil }
	must(t, w.deletions.sync(t.Context(), asked.Name))
	for key, times := range written {
		if times > 1 && !strings.Contains(key, ".expiration-") {
			t.Errorf("%s was written %d times", key, times)
		}
	}
	if got := w.store.Count(storetest.Put) - 2*count - 1; got != 1 { // what the test has put
		t.Errorf("%d objects were put, and not created", got)
	}
	for i := range count {
		if snapshots, volumes := w.deleted(i); volumes != 2 || len(snapshots) != 2 {
			t.Fatalf("of backup %d %d volumes are deleted, with the snapshots %q", i, volumes, snapshots)
		}
	}
	if removal := w.removal(asked); removal == nil || len(removal.Backups) != 2*count || strings.Join(w.ensured, " ") != "shop.default" {
		t.Errorf("the removal is %v, of the repositories %q", removal, w.ensured)
	}
	record := w.record(asked.Name)
	if !record.Done() || int(record.Status.Processed) != 2*count || len(record.Status.Refused) > 0 {
		t.Errorf("the record says %+v", record.Status)
	}
	if told := enginetest.Told(w.events); len(told) != 1 || !strings.Contains(told[0], "jane has deleted 500 volume backups") {
		t.Errorf("told %q", told)
	}
	w.clock.Step(deletionRetention)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if _, err := w.Engine.BackupChanges(system).Get(t.Context(), asked.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the record stays: %v", err)
	}
}

// A process dies before or after any of its writes, and the next one ends its work: each volume
// is deleted once, and nothing is asked of the maintenance before that.
func TestKilledAnywhere(t *testing.T) {
	killed := errors.New("killed")
	for at := 0; ; at++ {
		w := newWorld(t)
		w.stored(3, w.Cluster)
		asked := w.ask(3, 0, 1)
		writes, after := 0, at%2 == 1
		w.store.put = func(key string) error {
			if strings.Contains(key, "removals") {
				for i := range 3 {
					if _, volumes := w.deleted(i); volumes != 2 {
						t.Errorf("killed at %d: the removal is asked for when of backup %d %d volumes are deleted", at, i, volumes)
					}
				}
			}
			if writes++; writes == at/2+1 {
				if after {
					w.store.put = func(string) error { return killed }
					return nil
				}
				return killed
			}
			return nil
		}
		err := w.deletions.sync(t.Context(), asked.Name)
		if err == nil && !after {
			if at < 8 {
				t.Errorf("only %d writes", at/2)
			}
			return
		}
		w.store.put = func(string) error { return nil }
		must(t, w.deletions.sync(t.Context(), asked.Name))
		for i := range 3 {
			if snapshots, volumes := w.deleted(i); volumes != 2 || len(snapshots) != 2 {
				t.Errorf("killed at %d: of backup %d %d volumes are deleted, with the snapshots %q", at, i, volumes, snapshots)
			}
		}
		if record := w.record(asked.Name); !record.Done() || w.removal(asked) == nil {
			t.Errorf("killed at %d: the record says %+v", at, record.Status)
		}
	}
}

// One mount of a volume may be deleted, without the other one, which is another row with a
// snapshot of its own, or with the same.
func TestOneOfTwoMounts(t *testing.T) {
	w := newWorld(t)
	w.stored(1, w.Cluster)
	must(t, w.deletions.sync(t.Context(), w.ask(1, 1).Name))
	if snapshots, volumes := w.deleted(0); volumes != 1 || len(snapshots) != 0 {
		t.Errorf("%d volumes are deleted, with the snapshots %q, which another volume needs", volumes, snapshots)
	}
	must(t, w.deletions.sync(t.Context(), w.ask(1, 0).Name))
	if snapshots, volumes := w.deleted(0); volumes != 2 || len(snapshots) != 2 || snapshots[0] != "snapshot-0-data" {
		t.Errorf("%d volumes are deleted, with the snapshots %q", volumes, snapshots)
	}
}

// What is not to be deleted is refused, with the reason, and the others are deleted.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	foreign := w.Cluster
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	foreign.Key = key
	w.stored(6, w.Cluster)
	w.stored(5, foreign)
	w.stored(4, w.Cluster)
	held := format.Expiration{StoreName: storeNameOf(0), UID: uidOf(0), Number: 1, Hold: &format.Hold{Requester: "joe", Timestamp: instant}, Timestamp: instant}
	content, err := format.EncodeExpiration(held, w.Cluster)
	must(t, err)
	must(t, w.store.Faulty.Create(t.Context(), format.ExpirationKey(held.StoreName, held.UID, 1), content))
	yes := true
	_, err = w.Engine.BackupChanges(system).Create(t.Context(), &enginev1alpha1.BackupChange{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeNameOf(1), Generation: 1},
		Spec:       enginev1alpha1.BackupChangeSpec{UID: uidOf(1), Hold: &yes},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.store.Faulty.Put(t.Context(), format.PodVolumeBackupsKey(storeNameOf(2)), []byte("somebody else's")))
	many := format.Expiration{StoreName: storeNameOf(5), UID: uidOf(5), Number: mostChanges, Timestamp: instant}
	content, err = format.EncodeExpiration(many, w.Cluster)
	must(t, err)
	must(t, w.store.Faulty.Create(t.Context(), format.ExpirationKey(many.StoreName, many.UID, many.Number), content))
	asked := w.ask(7, 0) // of which one is not in the store
	must(t, w.deletions.sync(t.Context(), asked.Name))
	var got []string
	for _, refused := range w.record(asked.Name).Status.Refused {
		got = append(got, fmt.Sprintf("%d %s", refused.Target, refused.Message))
	}
	want := []string{"0 the backup is held", "1 the backup is held", "2 the list of its volumes is not the one", "4 the backup is not one of this cluster's own", "5 the backup has had too many changes"}
	if len(got) != len(want) {
		t.Fatalf("refused %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("refused %q, want %q", got[i], want[i])
		}
	}
	for i := range 5 {
		if _, volumes := w.deleted(i); (volumes > 0) != (i == 3) {
			t.Errorf("of backup %d %d volumes are deleted", i, volumes)
		}
	}
	if removal := w.removal(asked); removal == nil || len(removal.Backups) != 2 {
		t.Errorf("the removal is %v", removal)
	}
}

// A store that does not answer lets a deletion wait, and a restore lets the data stay.
func TestWaits(t *testing.T) {
	w := newWorld(t)
	w.stored(2, w.Cluster)
	asked := w.ask(2, 0, 1)
	for _, fault := range []storetest.Fault{
		{Operation: storetest.Create, Err: store.ErrUnavailable}, {Operation: storetest.List, Err: store.ErrDenied}, {Operation: storetest.Get, Err: store.ErrUnavailable},
	} {
		w.store.Inject(fault)
		if err := w.deletions.sync(t.Context(), asked.Name); !errors.Is(err, fault.Err) {
			t.Errorf("%v: %v", fault, err)
		}
		if record := w.record(asked.Name); record.Done() || !strings.Contains(record.Status.Message, "waits") || len(record.Status.Refused) > 0 {
			t.Errorf("the record says %+v", record.Status)
		}
	}
	w.store.Inject()
	if told := enginetest.Told(w.events); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	restore, err := w.Engine.RestoreRuns(system).Create(t.Context(), &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back"},
		Spec:       enginev1alpha1.RestoreRunSpec{Backup: enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{UID: uidOf(1), StorageLocation: "default"}, StoreName: storeNameOf(1)}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if record := w.record(asked.Name); record.Done() || w.removal(asked) != nil || !strings.Contains(record.Status.Message, "restores") {
		t.Errorf("while a restore runs the record says %+v", record.Status)
	}
	if _, volumes := w.deleted(1); volumes != 2 {
		t.Error("the deletion is not in the store")
	}
	restore.Status.Phase = v1alpha1.RestorePhaseCompleted
	_, err = w.Engine.RestoreRuns(system).UpdateStatus(t.Context(), restore, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if !w.record(asked.Name).Done() || w.removal(asked) == nil {
		t.Error("it is not done when the restore has ended")
	}
}

// What lies in a location that is gone is refused, and holds up nothing that lies elsewhere,
// whenever it goes.
func TestLocationGone(t *testing.T) {
	w := newWorld(t)
	w.stored(2, w.Cluster)
	asked := w.ask(2, 0)
	asked.Spec.Targets[0].StorageLocation = "gone"
	_, err := w.Engine.BackupChanges(system).Update(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	record := w.record(asked.Name)
	if refused := record.Status.Refused; !record.Done() || len(refused) != 1 || refused[0].Target != 0 || !strings.Contains(refused[0].Message, `no storage location "gone"`) {
		t.Errorf("the record says %+v", record.Status)
	}
	if _, volumes := w.deleted(1); volumes != 1 || w.removal(asked) == nil {
		t.Error("what lies in another location is not deleted")
	}

	asked = w.ask(1, 1)
	asked.Status.Processed = 1 // and then the location goes
	_, err = w.Engine.BackupChanges(system).UpdateStatus(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	locations := w.LocationInformer.Informer().GetStore()
	must(t, locations.Delete(locations.List()[0]))
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if record := w.record(asked.Name); !record.Done() || w.removal(asked) != nil {
		t.Errorf("the record says %+v", record.Status)
	}
}

// Longhorn's store is written to when nothing else is waited for, and no more than is needed, and
// as long as the location allows it.
func TestLonghorns(t *testing.T) {
	w := newWorld(t)
	w.stored(1, w.Cluster)
	longhorns := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "longhorns"}}
	longhorns.Spec.Format, longhorns.Spec.Longhorn = enginev1alpha1.StorageFormatLonghorn, &enginev1alpha1.LonghornLocation{AllowDeletion: true}
	must(t, w.LocationInformer.Informer().GetStore().Add(longhorns))
	down, opened := errors.New("down"), 0
	w.openLonghorn = func(context.Context, *enginev1alpha1.StorageLocation) (longhornStore, error) {
		opened++
		return nil, down
	}
	asked := w.ask(1, 0)
	asked.Spec.Targets = append(asked.Spec.Targets, enginev1alpha1.BackupChangeTarget{StorageLocation: "longhorns", StoreName: "db-data", BackupName: "backup-1"})
	_, err := w.Engine.BackupChanges(system).Update(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	restore, err := w.Engine.RestoreRuns(system).Create(t.Context(), &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back"}}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if opened != 0 || w.record(asked.Name).Done() {
		t.Errorf("while a restore runs Longhorn's store is opened %d times", opened)
	}
	alone := w.ask(1, 0)
	alone.Spec.Targets = asked.Spec.Targets[1:]
	_, err = w.Engine.BackupChanges(system).Update(t.Context(), alone, metav1.UpdateOptions{})
	must(t, err)
	if err := w.deletions.sync(t.Context(), alone.Name); !errors.Is(err, down) || opened != 1 {
		t.Errorf("Longhorn's backups, of which no restore is made, wait for one: %v", err)
	}
	must(t, w.Engine.RestoreRuns(system).Delete(t.Context(), restore.Name, metav1.DeleteOptions{}))
	if err := w.deletions.sync(t.Context(), asked.Name); !errors.Is(err, down) || opened != 2 || w.record(asked.Name).Done() {
		t.Errorf("a store that does not answer is opened %d times: %v", opened-1, err)
	}

	longhorns = longhorns.DeepCopy()
	longhorns.Spec.Longhorn.AllowDeletion = false
	must(t, w.LocationInformer.Informer().GetStore().Update(longhorns))
	must(t, w.deletions.sync(t.Context(), asked.Name))
	record := w.record(asked.Name)
	if refused := record.Status.Refused; !record.Done() || len(refused) != 1 || refused[0].Target != 1 || !strings.Contains(refused[0].Message, "allowDeletion") {
		t.Errorf("the record says %+v", record.Status)
	}
	if opened != 2 {
		t.Error("Longhorn's store is opened although that is not allowed any more")
	}
}

// TestLocalSnapshotsLeave: the snapshots beside deleted data leave, when the deletion is in the store and no restore
// may need them, and before it is done. Those of other backups, and of a copy's original, stay.
func TestLocalSnapshotsLeave(t *testing.T) {
	w := newWorld(t)
	w.stored(2, w.Cluster)
	asked := w.ask(2, 0, 1)
	calls, fails := 0, errors.New("no right")
	w.LeaveSnapshots = func(_ context.Context, namespace, claim string, isOf func(types.UID, snapshots.Place) bool) error {
		if calls++; namespace != "shop" || claim != "data" {
			t.Errorf("the snapshots of %s/%s leave", namespace, claim)
		}
		for i := range 2 {
			if _, volumes := w.deleted(i); volumes != 2 {
				t.Errorf("they leave when of backup %d %d volumes are deleted", i, volumes)
			}
		}
		for _, c := range []struct {
			backup              types.UID
			storeName, location string
			want                bool
		}{
			{uidOf(0), storeNameOf(0), "default", true}, {uidOf(1), storeNameOf(1), "default", true},
			{uidOf(1), storeNameOf(1), "original", false}, {uidOf(2), storeNameOf(2), "default", false}, {uidOf(1), storeNameOf(0), "default", false},
		} {
			if got := isOf(c.backup, snapshots.Place{StoreName: c.storeName, Location: c.location}); got != c.want {
				t.Errorf("the one of %s at %s in %s leaves: %t", c.backup, c.storeName, c.location, got)
			}
		}
		return fails
	}
	restore, err := w.Engine.RestoreRuns(system).Create(t.Context(), &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back"},
		Spec:       enginev1alpha1.RestoreRunSpec{Backup: enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{UID: uidOf(1), StorageLocation: "default"}, StoreName: storeNameOf(1)}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if calls > 0 {
		t.Error("they leave while a restore may need them")
	}
	restore.Status.Phase = v1alpha1.RestorePhaseCompleted
	_, err = w.Engine.RestoreRuns(system).UpdateStatus(t.Context(), restore, metav1.UpdateOptions{})
	must(t, err)
	if err := w.deletions.sync(t.Context(), asked.Name); !errors.Is(err, fails) {
		t.Errorf("got %v, want %v", err, fails)
	}
	if record := w.record(asked.Name); record.Done() || w.removal(asked) == nil || !strings.Contains(record.Status.Message, "snapshots") {
		t.Errorf("while they can't leave, the record says %+v", record.Status)
	}
	fails = nil
	must(t, w.deletions.sync(t.Context(), asked.Name))
	if !w.record(asked.Name).Done() || calls != 2 {
		t.Errorf("after %d calls the record says %+v", calls, w.record(asked.Name).Status)
	}
}
