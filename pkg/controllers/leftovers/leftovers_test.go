// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package leftovers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system  = "holdfast"
	cluster = "this-cluster"
)

type harness struct {
	*Controller
	t      *testing.T
	store  *store.Bucket
	clock  *clocktesting.FakeClock
	events *events.FakeRecorder
	// differs is what the store's clock says to the controller's.
	differs error
}

func newHarness(t *testing.T, runs ...runtime.Object) *harness {
	t.Helper()
	client := enginefake.NewSimpleClientset(runs...)
	h := &harness{t: t, store: storetest.Filesystem(t), clock: clocktesting.NewFakeClock(time.Now()), events: events.NewFakeRecorder(100)}
	var err error
	h.Controller, err = New(Config{
		Namespace: system, ClusterUID: cluster, Runs: client.EngineV1alpha1().BackupRuns(system), Restores: client.EngineV1alpha1().RestoreRuns(system), Events: h.events, Clock: h.clock,
		LocationInformer: enginefactory.NewSharedInformerFactory(client, 0).Engine().V1alpha1().StorageLocations(),
	})
	must(t, err)
	return h
}

// folder is one of a backup that has begun, with more objects.
func (h *harness) folder(name string, owner format.Owner, more ...string) {
	h.t.Helper()
	content, err := format.EncodeOwner(owner)
	must(h.t, err)
	must(h.t, h.store.Create(h.t.Context(), format.OwnerKey(name), content))
	for _, key := range append(more, format.BackupPrefix(name)+name+".tar.gz") {
		must(h.t, h.store.Create(h.t.Context(), key, []byte("{}")))
	}
}

func ours(uid string) format.Owner {
	return format.Owner{UID: types.UID(uid), ClusterUID: cluster}
}

func (h *harness) tidyUp() {
	h.t.Helper()
	h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) {
		return lent{h.store, h.differs}, nil
	}
	must(h.t, h.tidy(h.t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}))
}

// would is what a dry run says, which removes nothing and makes no event.
func (h *harness) would() (all []Leftover) {
	h.t.Helper()
	h.report = func(leftover Leftover) { all = append(all, leftover) }
	known := h.of
	h.of = map[string]map[string]restoredBackup{}
	h.tidyUp()
	h.report, h.of = nil, known
	if len(h.events.Events) > 0 {
		h.t.Errorf("a dry run makes the event %s", <-h.events.Events)
	}
	return all
}

// A store that does not list what is unfinished has its folders looked through, and that is no
// failure.
func TestUnfinishedUnknown(t *testing.T) {
	for _, failure := range []error{store.ErrDenied, errors.ErrUnsupported} {
		h := newHarness(t)
		h.folder("abandoned", ours("1"))
		h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
		h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) {
			return unlisted{lent{h.store, nil}, failure}, nil
		}
		must(t, h.tidy(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}))
		h.expect()
	}
}

type unlisted struct {
	lent
	err error
}

func (u unlisted) RemoveUnfinished(context.Context, string, time.Time, bool) ([]string, error) {
	return nil, fmt.Errorf("it can't: %w", u.err)
}

// lent is not closed by who it is lent to, and its clock is the controller's unless it differs.
type lent struct {
	*store.Bucket
	differs error
}

func (l lent) CheckClock(context.Context, clock.PassiveClock) error { return l.differs }

func (lent) Close() error { return nil }

// left are the names of the folders that are there.
func (h *harness) left() (names []string) {
	h.t.Helper()
	for object, err := range h.store.List(h.t.Context(), format.BackupsPrefix, store.ListOptions{}) {
		must(h.t, err)
		names = append(names, strings.Trim(strings.TrimPrefix(object.Key, format.BackupsPrefix), "/"))
	}
	return names
}

func (h *harness) expect(want ...string) {
	h.t.Helper()
	if got := h.left(); !slices.Equal(got, want) {
		h.t.Errorf("the store has the folders %v, want %v", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Nothing goes by its age while nobody knows what time it is.
func TestNothingGoesWhileTheClockDiffers(t *testing.T) {
	h := newHarness(t)
	h.folder("abandoned", ours("1"))
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	h.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) {
		return lent{h.store, store.ErrClock}, nil
	}
	if err := h.tidy(t.Context(), &enginev1alpha1.StorageLocation{}); !errors.Is(err, store.ErrClock) {
		t.Errorf("it ended with %v", err)
	}
	h.expect("abandoned")
	h.tidyUp()
	h.expect()
}

// Only what never ended, is this cluster's, has no record and is old goes.
func TestTidy(t *testing.T) {
	h := newHarness(t, &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "recorded"}})
	h.folder("abandoned", ours("1"), format.BackupPrefix("abandoned")+"abandoned-logs.gz")
	h.folder("copied", ours("2"), format.CopyKey("copied"))
	h.folder("finished", ours("3"), format.MetadataKey("finished"))
	h.folder("foreign", format.Owner{UID: "4", ClusterUID: "another"})
	must(t, h.store.Create(t.Context(), format.BackupPrefix("nobodys")+"nobodys.tar.gz", nil))
	h.folder("recorded", ours("5"))
	must(t, h.store.Create(t.Context(), format.OwnerKey("unreadable"), []byte("?")))
	all := h.left()
	h.clock.SetTime(time.Now().Add(MinAge - time.Hour))
	h.tidyUp()
	h.expect(all...)
	if len(h.events.Events) > 0 {
		t.Errorf("an event: %s", <-h.events.Events)
	}
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	if got, want := h.would(), []Leftover{{"backups/abandoned/", "its backup, with the uid 1, has never ended, and has no record"}}; !slices.Equal(got, want) {
		t.Errorf("a dry run says %v, want %v", got, want)
	}
	h.expect(all...)
	h.tidyUp()
	h.expect(all[1:]...)
	if event := <-h.events.Events; !strings.Contains(event, "LeftoversRemoved") || !strings.Contains(event, "backups/abandoned/") {
		t.Errorf("the event is %q", event)
	}
}

// A record that appears in the last moment, as of a backup of the same name, keeps its folder.
func TestRecordAppears(t *testing.T) {
	h := newHarness(t)
	h.folder("app", ours("1"))
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	deletion, err := h.judge(t.Context(), &enginev1alpha1.StorageLocation{}, lent{h.store, nil}, "app")
	must(t, err)
	_, err = h.Runs.Create(t.Context(), &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "app"}}, metav1.CreateOptions{})
	must(t, err)
	if err := deletion.RemoveRest(t.Context()); err == nil {
		t.Error("a folder was removed whose backup has a record")
	}
	h.expect("app")
}

// A store that has lost its metadata is doubted.
func TestDoubt(t *testing.T) {
	h := newHarness(t)
	for i := range few {
		h.folder(fmt.Sprintf("app-%02d", i), ours(fmt.Sprint(i)))
	}
	h.folder("last", ours("last"))
	all := h.left()
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	if got := h.would(); len(got) != 1 || got[0].Key != "" || !strings.Contains(got[0].Reason, "11 of the 11 folders") {
		t.Errorf("a dry run says %v", got)
	}
	h.tidyUp()
	h.expect(all...)
	if event := <-h.events.Events; !strings.Contains(event, "LeftoversDoubted") {
		t.Errorf("the event is %q", event)
	}
	for i := range (few + 1) * oneOf {
		h.folder(fmt.Sprintf("whole-%03d", i), ours(fmt.Sprint("whole", i)), format.MetadataKey(fmt.Sprintf("whole-%03d", i)))
	}
	h.tidyUp()
	if got := len(h.left()); got != (few+1)*oneOf {
		t.Errorf("%d folders are left", got)
	}
}

// TestUnfinishedOfABackupThatRuns: the tarball of a backup whose volumes take days is not
// taken for one that a dead writer has left.
func TestUnfinishedOfABackupThatRuns(t *testing.T) {
	started := metav1.NewTime(time.Now().Add(-time.Minute))
	run := &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "long"}}
	run.Spec.Backup.StorageLocation = "default"
	run.Status.Phase, run.Status.StartTimestamp = v1alpha1.BackupPhaseInProgress, &started
	h := newHarness(t, run)
	w, err := h.store.NewWriter(t.Context(), format.BackupPrefix("long")+"long-second.tar.gz")
	must(t, err)
	defer w.Abort()
	_, err = w.Write([]byte("half"))
	must(t, err)
	h.folder("long", ours("1"))
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	h.tidyUp()
	must(t, w.Commit())
}

// What a dead writer has left goes, of backups that are whole too.
func TestUnfinished(t *testing.T) {
	h := newHarness(t)
	w, err := h.store.NewWriter(t.Context(), format.BackupPrefix("whole")+"whole.tar.gz")
	must(t, err)
	defer w.Abort()
	_, err = w.Write([]byte("half"))
	must(t, err)
	h.folder("whole", ours("1"), format.MetadataKey("whole"))
	unfinished := func() (n int) {
		for object, err := range h.store.List(t.Context(), "", store.ListOptions{Recursive: true, Unfinished: true}) {
			must(t, err)
			if strings.HasSuffix(object.Key, ".tmp") {
				n++
			}
		}
		return n
	}
	h.tidyUp()
	if unfinished() != 1 {
		t.Error("what is still written was removed")
	}
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	if got := h.would(); len(got) != 1 || !strings.HasPrefix(got[0].Key, "backups/whole/.holdfast-") || unfinished() != 1 {
		t.Errorf("a dry run says %v, and leaves %d", got, unfinished())
	}
	h.tidyUp()
	if unfinished() != 0 {
		t.Error("what was left unfinished is still there")
	}
	h.expect("whole")
}
