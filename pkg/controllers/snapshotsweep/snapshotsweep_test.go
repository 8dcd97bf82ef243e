// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshotsweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system  = "holdfast"
	cluster = "this-cluster"
)

type harness struct {
	*Controller
	t       *testing.T
	objects *fake.FakeDynamicClient
	store   *store.Bucket
	events  *events.FakeRecorder
	factory enginefactory.SharedInformerFactory
	// exposures are the mover's; hidden were to be hidden, and exposed says that this takes time.
	exposures map[string]types.UID
	hidden    []string
	exposed   bool
	disposals int
	// looked is called when the exposures were read.
	looked func()
}

// newHarness has the location "default".
func newHarness(t *testing.T, runs ...runtime.Object) *harness {
	t.Helper()
	objects := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		snapshots.Snapshots: "VolumeSnapshotList", snapshots.Contents: "VolumeSnapshotContentList", snapshots.Classes: "VolumeSnapshotClassList",
	})
	engine := enginefake.NewSimpleClientset(runs...)
	h := &harness{t: t, objects: objects, store: storetest.Filesystem(t), events: events.NewFakeRecorder(100), factory: enginefactory.NewSharedInformerFactory(engine, 0)}
	locations := h.factory.Engine().V1alpha1().StorageLocations()
	var err error
	h.Controller, err = New(Config{
		Namespace: system, ClusterUID: cluster, Snapshots: snapshots.New(objects, cluster, system), Mover: h,
		Runs: engine.EngineV1alpha1().BackupRuns(system), Events: h.events, Clock: clocktesting.NewFakeClock(time.Now()),
		RunInformer: h.factory.Engine().V1alpha1().BackupRuns(), LocationInformer: locations,
	})
	must(t, err)
	must(t, locations.Informer().GetStore().Add(&enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Status: enginev1alpha1.StorageLocationStatus{StoreID: "the-store"},
	}))
	h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return lent{h.store}, nil }
	return h
}

// Exposed makes it a mover.
func (h *harness) Exposed(context.Context) (map[string]types.UID, error) {
	if h.looked != nil {
		defer h.looked()
	}
	return maps.Clone(h.exposures), nil
}

func (h *harness) HideAll(_ context.Context, names []string) (bool, error) {
	h.hidden = names
	return !h.exposed, nil
}

func (h *harness) DisposeVolumes(context.Context) error { h.disposals++; return nil }

// lent stays open.
type lent struct{ *store.Bucket }

func (lent) Close() error { return nil }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kept adds the content of a cut, whose VolumeSnapshot is deleted.
func (h *harness) kept(name, backup, location string, storeID ...string) {
	h.t.Helper()
	labels := map[string]any{
		snapshots.LabelCluster: cluster, snapshots.LabelBackup: backup, snapshots.LabelClaim: "claim",
		"engine.holdfast.io/store-name.0": "xb-" + backup + "x", "engine.holdfast.io/location.0": "x" + location + "x",
	}
	if len(storeID) > 0 && storeID[0] != "" {
		labels["engine.holdfast.io/store-id.0"] = "x" + storeID[0] + "x"
	}
	must(h.t, h.objects.Tracker().Create(snapshots.Contents, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": snapshots.Version.String(), "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{
			"name": name, "uid": name, "finalizers": []any{"snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection", snapshots.Finalizer},
			"labels": labels,
		},
		"spec": map[string]any{
			"deletionPolicy": "Retain", "driver": "d", "source": map[string]any{"volumeHandle": "v"},
			"volumeSnapshotRef": map[string]any{"namespace": "shop", "name": "hf-x", "uid": "u"},
		},
		"status": map[string]any{"snapshotHandle": "h-" + name, "creationTime": int64(1)},
	}}, ""))
}

// backup stores a backup that can be restored.
func (h *harness) backup(uid string) {
	h.t.Helper()
	instant := metav1.NewTime(time.Now())
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "b-" + uid, UID: types.UID(uid), CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant, Expiration: &instant},
	}
	key, err := format.ParseSigningKey(make([]byte, 32))
	must(h.t, err)
	metadata, err := format.EncodeBackup(backup, format.Contents{}, format.Cluster{UID: cluster, Key: key, SystemNamespace: system})
	must(h.t, err)
	must(h.t, h.store.Create(h.t.Context(), format.MetadataKey("b-"+uid), metadata))
}

// left sweeps, and returns the names of the contents that are left.
// left returns the contents that are left by two sweeps, the second when a missing backup is believed.
func (h *harness) left() (names []string) {
	h.t.Helper()
	for range 2 {
		if _, err := h.sweep(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		h.Clock.(*clocktesting.FakeClock).Step(snapshots.MissingAge)
	}
	all, err := h.objects.Resource(snapshots.Contents).List(h.t.Context(), metav1.ListOptions{})
	must(h.t, err)
	for _, object := range all.Items {
		names = append(names, object.GetName())
	}
	return names
}

// started is a run that may have been stored, and perhaps is known to be.
func started(of *enginev1alpha1.BackupRun, stored ...bool) *enginev1alpha1.BackupRun {
	now := metav1.Now()
	of.Status.StartTimestamp, of.Status.Stored = &now, len(stored) > 0
	return of
}

func run(uid string, phase v1alpha1.BackupPhase) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "b-" + uid, UID: types.UID(uid)}, Status: enginev1alpha1.BackupRunStatus{Phase: phase}}
}

// TestWhichSnapshotsLeave: snapshots of failed backups leave, and of backups that their store lacks.
func TestWhichSnapshotsLeave(t *testing.T) {
	for name, test := range map[string]struct {
		run      *enginev1alpha1.BackupRun
		stored   bool
		location string
		storeID  string // of the content
		change   func(*enginev1alpha1.StorageLocation)
		stays    bool
	}{
		"failed, which is not stored":           {run: started(run("x", v1alpha1.BackupPhaseFailed)), stored: true, stays: true},
		"failed, not stored at all":             {run: started(run("x", v1alpha1.BackupPhaseFailed))},
		"failed, as stored":                     {run: started(run("x", v1alpha1.BackupPhaseFailed), true), stored: true},
		"without a record, with a store's id":   {storeID: "the-store"},
		"of a store that has another name now":  {storeID: "the-store", location: "lost"},
		"of another store that has the name":    {storeID: "another", stays: true},
		"of a newer location that has the name": {change: func(record *enginev1alpha1.StorageLocation) { record.CreationTimestamp = metav1.Now() }, stays: true},
		"of a location as of a time": {
			storeID: "the-store", stays: true,
			change: func(record *enginev1alpha1.StorageLocation) {
				record.Spec.S3 = &enginev1alpha1.S3Location{AsOf: &metav1.Time{Time: time.Now()}}
			},
		},
		"of a location in doubt": {
			storeID: "the-store", stays: true,
			change: func(record *enginev1alpha1.StorageLocation) {
				meta.SetStatusCondition(&record.Status.Conditions, metav1.Condition{Type: enginev1alpha1.ConditionBackupsMissing, Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonBackupsMissing})
			},
		},
		"live":                {run: run("x", v1alpha1.BackupPhaseInProgress), stays: true},
		"waits":               {run: run("x", "WaitingForPluginOperations"), stays: true},
		"stored, with record": {run: run("x", v1alpha1.BackupPhaseCompleted), stored: true, stays: true},
		"stored":              {stored: true, stays: true},
		"cancelled":           {run: run("x", v1alpha1.BackupPhaseCancelled)},
		"failed":              {run: run("x", v1alpha1.BackupPhaseFailed)},
		"deleted":             {run: run("x", v1alpha1.BackupPhaseCompleted)},
		"without a record":    {},
		"of a lost location":  {location: "lost", stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			var runs []runtime.Object
			if test.run != nil {
				runs = append(runs, test.run)
			}
			h := newHarness(t, runs...)
			h.backup("another")
			if test.stored {
				h.backup("x")
			}
			location := "default"
			if test.location != "" {
				location = test.location
			}
			h.kept("c", "x", location, test.storeID)
			if test.change != nil {
				record, err := h.locations.Get("default")
				must(t, err)
				test.change(record)
			}
			if left := h.left(); (len(left) == 1) != test.stays {
				t.Errorf("left is %v", left)
			}
		})
	}
}

// TestFailureThatIsNotStored: until its store tells more, the newest snapshot beside moved data neither leaves nor has
// an older one leave.
func TestFailureThatIsNotStored(t *testing.T) {
	h := newHarness(t, started(run("new", v1alpha1.BackupPhaseCancelled)), started(run("old", v1alpha1.BackupPhaseCompleted), true))
	for i, uid := range []string{"old", "new"} {
		h.backup(uid)
		h.kept(uid, uid, "default", "the-store")
		content, err := h.objects.Resource(snapshots.Contents).Get(t.Context(), uid, metav1.GetOptions{})
		must(t, err)
		labels := content.GetLabels()
		labels[snapshots.LabelKeepLocal] = "1"
		content.SetLabels(labels)
		must(t, unstructured.SetNestedField(content.Object, int64(i+1), "status", "creationTime"))
		must(t, h.objects.Tracker().Update(snapshots.Contents, content, ""))
	}
	if left := h.left(); len(left) != 2 {
		t.Errorf("left is %v", left)
	}
}

// TestExposedSnapshots: what was exposed for a backup is hidden once its run has ended, even without any
// kept snapshot, and the next sweep comes soon. A run that begins meanwhile keeps its exposures.
func TestExposedSnapshots(t *testing.T) {
	h := newHarness(t, run("live", v1alpha1.BackupPhaseInProgress), run("failed", v1alpha1.BackupPhaseFailed))
	h.exposed = true
	h.exposures = map[string]types.UID{"a": "live", "b": "failed", "c": "unknown", "d": "begins"}
	h.looked = func() {
		_, err := h.Runs.Create(t.Context(), run("begins", v1alpha1.BackupPhaseInProgress), metav1.CreateOptions{})
		must(t, err)
	}
	next, err := h.sweep(t.Context())
	must(t, err)
	if next != snapshots.OrphanAge || !slices.Equal(h.hidden, []string{"b", "c"}) {
		t.Errorf("the next sweep is in %s, hidden are %q", next, h.hidden)
	}
	h.looked = nil
	_, err = h.sweep(t.Context())
	must(t, err)
	h.exposures = nil // one volume may come later, so it is looked for from time to time
	_, err = h.sweep(t.Context())
	must(t, err)
	if h.disposals != 2 {
		t.Errorf("volumes were looked for %d times, want 2: once for each sweep with exposures", h.disposals)
	}
	h.Clock.(*clocktesting.FakeClock).Step(interval)
	if _, err = h.sweep(t.Context()); err != nil || h.disposals != 3 {
		t.Errorf("volumes were looked for %d times, want 3, %v", h.disposals, err)
	}
}

// TestExposuresThatHang: an exposure that is not deleted within an hour counts as stuck, until it is deleted.
func TestExposuresThatHang(t *testing.T) {
	h := newHarness(t, run("failed", v1alpha1.BackupPhaseFailed))
	h.exposed, h.exposures = true, map[string]types.UID{"a": "failed"}
	for _, test := range []struct {
		after time.Duration
		stuck int
		next  time.Duration
	}{{0, 0, snapshots.OrphanAge}, {snapshots.StuckAge, 0, snapshots.OrphanAge}, {time.Second, 1, waitingInterval}} {
		h.Clock.(*clocktesting.FakeClock).Step(test.after)
		if next, err := h.sweep(t.Context()); err != nil || next != test.next {
			t.Errorf("the next sweep is in %s, %v, want %s", next, err, test.next)
		}
		expectCount(t, snapshots.StateStuck, test.stuck)
	}
	h.exposed, h.exposures = false, nil
	_, err := h.sweep(t.Context())
	must(t, err)
	expectCount(t, snapshots.StateStuck, 0)
}

// TestStoresThatAreNotBelieved: without an answer, or with no backup at all, nothing leaves.
func TestStoresThatAreNotBelieved(t *testing.T) {
	h := newHarness(t)
	h.kept("c", "x", "default")
	if left := h.left(); len(left) != 1 {
		t.Error("a snapshot leaves for a store without backups")
	}
	h.backup("another")
	h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) {
		return nil, errors.New("no answer")
	}
	if left := h.left(); len(left) != 1 {
		t.Error("a snapshot leaves for a store that does not answer")
	}
	h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return lent{h.store}, nil }
	if left := h.left(); len(left) != 0 {
		t.Errorf("left is %v", left)
	}
}

// TestMassLoss: many snapshots without a backup stay, and an event says so.
func TestMassLoss(t *testing.T) {
	h := newHarness(t)
	h.backup("another")
	for i := range 11 {
		h.kept(fmt.Sprint("c", i), fmt.Sprint("x", i), "default")
	}
	if left := h.left(); len(left) != 11 {
		t.Errorf("left is %v", left)
	}
	select {
	case event := <-h.events.Events:
		if !strings.Contains(event, reasonDoubt) || !strings.Contains(event, "11 backups") {
			t.Errorf("the event is %q", event)
		}
	default:
		t.Error("there is no event")
	}
	want := `
# HELP holdfast_snapshots [ALPHA] Snapshots of volumes that the cluster has for backups, by state: kept, leaving, stuck, since it or a volume made from it has been leaving for more than an hour, or doubt, since the store of its backup was not read, has lacked it for less than a day, or lacks too many.
# TYPE holdfast_snapshots gauge
holdfast_snapshots{state="doubt"} 11
holdfast_snapshots{state="kept"} 0
holdfast_snapshots{state="leaving"} 0
holdfast_snapshots{state="stuck"} 0
`
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_snapshots"); err != nil {
		t.Error(err)
	}
}

// expectCount checks the metric for a state.
func expectCount(t *testing.T, state snapshots.State, want int) {
	t.Helper()
	got, err := testutil.GetGaugeMetricValue(count.WithLabelValues(string(state)))
	if err != nil || got != float64(want) {
		t.Errorf("%v snapshots are %s, %v, want %d", got, state, err, want)
	}
}

// TestWoken: the end of a run starts a sweep at once, which a clock that stands still would not.
func TestWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := run("x", v1alpha1.BackupPhaseInProgress)
		h := newHarness(t, live)
		h.kept("c", "x", "default")
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer h.factory.Shutdown()
		defer cancel()
		h.factory.Start(ctx.Done())
		running.Go(func() { h.Run(ctx) })
		time.Sleep(time.Second) // of the bubble: the fake client loses changes before its watch
		ended := live.DeepCopy()
		ended.Status.Phase = v1alpha1.BackupPhaseCancelled
		_, err := h.Runs.UpdateStatus(ctx, ended, metav1.UpdateOptions{})
		must(t, err)
		time.Sleep(time.Minute) // of the bubble
		all, err := h.objects.Resource(snapshots.Contents).List(ctx, metav1.ListOptions{})
		must(t, err)
		if len(all.Items) > 0 {
			t.Error("the snapshot is not forgotten")
		}
	})
}
