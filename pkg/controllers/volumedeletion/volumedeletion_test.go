// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumedeletion

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

var instant = metav1.Unix(1_700_000_000, 0)

// closer is a store that is opened more than once, and whose writes can be counted and
// stopped: put is called before each.
type closer struct {
	*storetest.Faulty
	mu  sync.Mutex
	put func(key string) error // one call at a time
}

func (*closer) Close() error { return nil }

func (c *closer) writes(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(key)
}

func (c *closer) Create(ctx context.Context, key string, content []byte) error {
	if err := c.writes(key); err != nil {
		return err
	}
	return c.Faulty.Create(ctx, key, content)
}

func (c *closer) Put(ctx context.Context, key string, content []byte) error {
	if err := c.writes(key); err != nil {
		return err
	}
	return c.Faulty.Put(ctx, key, content)
}

type world struct {
	*testing.T
	*Controller
	cluster *enginetest.Cluster
	store   *closer
	clock   *clocktesting.FakeClock
	events  *events.FakeRecorder
	// ensured are the repositories that were.
	ensured []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	w := &world{
		T: t, cluster: enginetest.New(), events: events.NewFakeRecorder(100), clock: clocktesting.NewFakeClock(instant.Time),
		store: &closer{Faulty: storetest.NewFaulty(storetest.Memory(t), clocktesting.NewFakeClock(instant.Time)), put: func(string) error { return nil }},
	}
	factory := enginefactory.NewSharedInformerFactory(w.cluster, 0)
	engine := factory.Engine().V1alpha1()
	records := w.cluster.EngineV1alpha1()
	w.Controller, err = New(Config{
		Namespace: system, Cluster: format.Cluster{SystemNamespace: system, UID: "cluster", Key: key}, Keys: []string{key.PublicKey()},
		Deletions: records.VolumeDeletions(system), Changes: records.ExpirationChanges(system), Restores: records.RestoreRuns(system),
		EnsureRepository: func(_ context.Context, namespace, location string) error {
			w.ensured = append(w.ensured, namespace+"."+location)
			return nil
		},
		Events: w.events, Clock: w.clock, DeletionInformer: engine.VolumeDeletions(), LocationInformer: engine.StorageLocations(),
	})
	must(t, err)
	must(t, engine.StorageLocations().Informer().GetStore().Add(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}))
	w.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return w.store, nil }
	must(t, w.store.Faulty.Put(t.Context(), format.RepositoryPrefix("shop")+"kopia.repository", []byte("a repository")))
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
func (w *world) ask(count int, repeats ...int32) *enginev1alpha1.VolumeDeletion {
	w.Helper()
	record := &enginev1alpha1.VolumeDeletion{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: fmt.Sprintf("deletion-%d", len(w.records())), UID: types.UID(fmt.Sprintf("deletion-%d", len(w.records())))},
		Spec: enginev1alpha1.VolumeDeletionSpec{
			Ask: enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: instant}, Namespace: "shop", Volume: "data", ListedIn: "shop",
		},
	}
	for i := range count {
		for _, repeat := range repeats {
			record.Spec.Targets = append(record.Spec.Targets, enginev1alpha1.VolumeDeletionTarget{StorageLocation: "default", StoreName: storeNameOf(i), UID: uidOf(i), Repeat: repeat})
		}
	}
	_, err := w.Deletions.Create(w.Context(), record, metav1.CreateOptions{})
	must(w, err)
	return record
}

func (w *world) records() []enginev1alpha1.VolumeDeletion {
	w.Helper()
	list, err := w.Deletions.List(w.Context(), metav1.ListOptions{})
	must(w, err)
	return list.Items
}

func (w *world) record(name string) *enginev1alpha1.VolumeDeletion {
	w.Helper()
	record, err := w.Deletions.Get(w.Context(), name, metav1.GetOptions{})
	must(w, err)
	return record
}

// deleted are the snapshots that go of a backup, and how many volumes are deleted.
func (w *world) deleted(i int) (snapshots []string, volumes int) {
	w.Helper()
	work := &work{Controller: w.Controller}
	deleted, err := work.folder(w.store, &enginev1alpha1.VolumeDeletionTarget{StorageLocation: "default", StoreName: storeNameOf(i), UID: uidOf(i)}).
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
func (w *world) removal(of *enginev1alpha1.VolumeDeletion) *format.VolumeRemoval {
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
	must(t, w.sync(t.Context(), asked.Name))
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
	w.clock.Step(retention)
	must(t, w.sync(t.Context(), asked.Name))
	if _, err := w.Deletions.Get(t.Context(), asked.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
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
		err := w.sync(t.Context(), asked.Name)
		if err == nil && !after {
			if at < 8 {
				t.Errorf("only %d writes", at/2)
			}
			return
		}
		w.store.put = func(string) error { return nil }
		must(t, w.sync(t.Context(), asked.Name))
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
	must(t, w.sync(t.Context(), w.ask(1, 1).Name))
	if snapshots, volumes := w.deleted(0); volumes != 1 || len(snapshots) != 0 {
		t.Errorf("%d volumes are deleted, with the snapshots %q, which another volume needs", volumes, snapshots)
	}
	must(t, w.sync(t.Context(), w.ask(1, 0).Name))
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
	_, err = w.Changes.Create(t.Context(), &enginev1alpha1.ExpirationChange{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeNameOf(1), Generation: 1},
		Spec:       enginev1alpha1.ExpirationChangeSpec{UID: uidOf(1), Hold: &yes},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.store.Faulty.Put(t.Context(), format.PodVolumeBackupsKey(storeNameOf(2)), []byte("somebody else's")))
	many := format.Expiration{StoreName: storeNameOf(5), UID: uidOf(5), Number: mostChanges, Timestamp: instant}
	content, err = format.EncodeExpiration(many, w.Cluster)
	must(t, err)
	must(t, w.store.Faulty.Create(t.Context(), format.ExpirationKey(many.StoreName, many.UID, many.Number), content))
	asked := w.ask(7, 0) // of which one is not in the store
	must(t, w.sync(t.Context(), asked.Name))
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
		if err := w.sync(t.Context(), asked.Name); !errors.Is(err, fault.Err) {
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
	restore, err := w.Restores.Create(t.Context(), &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back"},
		Spec:       enginev1alpha1.RestoreRunSpec{Backup: enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{UID: uidOf(1), StorageLocation: "default"}, StoreName: storeNameOf(1)}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.sync(t.Context(), asked.Name))
	if record := w.record(asked.Name); record.Done() || w.removal(asked) != nil || !strings.Contains(record.Status.Message, "restores") {
		t.Errorf("while a restore runs the record says %+v", record.Status)
	}
	if _, volumes := w.deleted(1); volumes != 2 {
		t.Error("the deletion is not in the store")
	}
	restore.Status.Phase = v1alpha1.RestorePhaseCompleted
	_, err = w.Restores.UpdateStatus(t.Context(), restore, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.sync(t.Context(), asked.Name))
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
	_, err := w.Deletions.Update(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.sync(t.Context(), asked.Name))
	record := w.record(asked.Name)
	if refused := record.Status.Refused; !record.Done() || len(refused) != 1 || refused[0].Target != 0 || !strings.Contains(refused[0].Message, `no storage location "gone"`) {
		t.Errorf("the record says %+v", record.Status)
	}
	if _, volumes := w.deleted(1); volumes != 1 || w.removal(asked) == nil {
		t.Error("what lies in another location is not deleted")
	}

	asked = w.ask(1, 1)
	asked.Status.Processed = 1 // and then the location goes
	_, err = w.Deletions.UpdateStatus(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	locations := w.LocationInformer.Informer().GetStore()
	must(t, locations.Delete(locations.List()[0]))
	must(t, w.sync(t.Context(), asked.Name))
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
	asked.Spec.Targets = append(asked.Spec.Targets, enginev1alpha1.VolumeDeletionTarget{StorageLocation: "longhorns", StoreName: "db-data", BackupName: "backup-1"})
	_, err := w.Deletions.Update(t.Context(), asked, metav1.UpdateOptions{})
	must(t, err)
	restore, err := w.Restores.Create(t.Context(), &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.back"}}, metav1.CreateOptions{})
	must(t, err)
	must(t, w.sync(t.Context(), asked.Name))
	if opened != 0 || w.record(asked.Name).Done() {
		t.Errorf("while a restore runs Longhorn's store is opened %d times", opened)
	}
	alone := w.ask(1, 0)
	alone.Spec.Targets = asked.Spec.Targets[1:]
	_, err = w.Deletions.Update(t.Context(), alone, metav1.UpdateOptions{})
	must(t, err)
	if err := w.sync(t.Context(), alone.Name); !errors.Is(err, down) || opened != 1 {
		t.Errorf("Longhorn's backups, of which no restore is made, wait for one: %v", err)
	}
	must(t, w.Restores.Delete(t.Context(), restore.Name, metav1.DeleteOptions{}))
	if err := w.sync(t.Context(), asked.Name); !errors.Is(err, down) || opened != 2 || w.record(asked.Name).Done() {
		t.Errorf("a store that does not answer is opened %d times: %v", opened-1, err)
	}

	longhorns = longhorns.DeepCopy()
	longhorns.Spec.Longhorn.AllowDeletion = false
	must(t, w.LocationInformer.Informer().GetStore().Update(longhorns))
	must(t, w.sync(t.Context(), asked.Name))
	record := w.record(asked.Name)
	if refused := record.Status.Refused; !record.Done() || len(refused) != 1 || refused[0].Target != 1 || !strings.Contains(refused[0].Message, "allowDeletion") {
		t.Errorf("the record says %+v", record.Status)
	}
	if opened != 2 {
		t.Error("Longhorn's store is opened although that is not allowed any more")
	}
}
