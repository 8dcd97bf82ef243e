// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const system = "holdfast"

// world is an API server with its backups, and the controllers that use it.
type world struct {
	fatal func(format string, args ...any)
	// now is the true time, and also the API server's clock runs ahead by so much.
	now, ahead time.Duration
	backups    map[string]*v1alpha1.Backup
	warnings   []string
	broken     error
	// clocks is what the stores' clocks say to the controller's.
	clocks      error
	clocksAsked int
	// deletions are how many were asked for, and gone what is gone.
	deletions int
	gone      []string
	// onDelete judges each deletion that is accepted.
	onDelete func(*v1alpha1.Backup)

	// last are the backups that hold the newest data of a claim, and asked counts what was
	// asked about each.
	last  map[string]bool
	asked map[string]int

	// snapshots are those of a backup, by its uid.
	snapshots map[types.UID][]string
	engine    *enginefake.Clientset

	namespaces []string
	locations  map[string]*enginev1alpha1.StorageLocation
}

func newWorld(fatal func(string, ...any), namespaces ...string) *world {
	w := &world{
		fatal: fatal, backups: map[string]*v1alpha1.Backup{}, asked: map[string]int{}, namespaces: namespaces,
		locations: map[string]*enginev1alpha1.StorageLocation{"default": {ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}},
		onDelete:  func(*v1alpha1.Backup) {},
		engine:    enginefake.NewSimpleClientset(),
	}
	w.engine.PrependReactor("update", "storagelocations", func(action clienttesting.Action) (bool, runtime.Object, error) {
		changed := action.(clienttesting.UpdateAction).GetObject().(*enginev1alpha1.StorageLocation)
		w.locations[changed.Name] = changed
		return true, changed, nil
	})
	return w
}

func (w *world) time() time.Time { return epoch.Add(w.now) }

func (w *world) add(name string, change ...func(*v1alpha1.Backup)) {
	w.backups[name] = stored(name, w.time(), change...)
}

// List gives pages of three.
func (w *world) List(_ context.Context, options metav1.ListOptions) (*v1alpha1.BackupList, []string, error) {
	if w.broken != nil {
		return nil, nil, w.broken
	}
	list := &v1alpha1.BackupList{}
	for _, name := range slices.Sorted(maps.Keys(w.backups)) {
		if name <= options.Continue {
			continue
		}
		if len(list.Items) == 3 {
			list.Continue = list.Items[2].Name
			return list, nil, nil
		}
		list.Items = append(list.Items, *w.backups[name])
	}
	return list, w.warnings, nil
}

func (w *world) Snapshots(_ context.Context, uid types.UID) ([]string, error) {
	return w.snapshots[uid], w.broken
}

func (w *world) Delete(_ context.Context, namespace, name string, deletion *v1alpha1.BackupDeletion) error {
	if w.broken != nil {
		return w.broken
	}
	b, ok := w.backups[name]
	if !ok || b.Namespace != namespace {
		return apierrors.NewNotFound(v1alpha1.Resource("backups"), name)
	}
	if want := deletion.Preconditions; want == nil || want.UID != b.UID || !want.Expired {
		w.fatal("the deletion of %s has no preconditions: %+v", name, want)
	}
	if b.Status.Phase == v1alpha1.BackupPhaseDeleting {
		return nil
	}
	if b.Status.Expiration == nil || w.time().Add(w.ahead).Before(b.Status.Expiration.Time) {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: v1alpha1.StatusReasonBackupState, Message: "it has not expired"}}
	}
	if w.asked[name]++; w.last[name] && deletion.Preconditions.Superseded {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: v1alpha1.StatusReasonBackupState, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: v1alpha1.CauseHoldsLastData, Message: "a/data"}},
		}}}
	}
	w.onDelete(b)
	w.deletions++
	b.Status.Phase = v1alpha1.BackupPhaseDeleting
	return nil
}

// finish ends the deletions that were asked for.
func (w *world) finish() {
	for name, b := range w.backups {
		if b.Status.Phase == v1alpha1.BackupPhaseDeleting {
			w.gone = append(w.gone, name)
			delete(w.backups, name)
		}
	}
	slices.Sort(w.gone)
}

// process is a controller, with a clock of its own.
type process struct {
	*Controller
	clock  *clocktesting.FakeClock
	events *events.FakeRecorder
	sync   func()
}

// start begins a process, as after a restart.
func (w *world) start(config Config) *process {
	kube := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	records := enginefactory.NewSharedInformerFactory(w.engine, 0)
	p := &process{clock: clocktesting.NewFakeClock(w.time()), events: events.NewFakeRecorder(10_000)}
	config.Namespace, config.Interval = system, time.Minute
	config.Engine = w.engine.EngineV1alpha1()
	config.Backups, config.Events, config.Clock = w, p.events, p.clock
	config.CheckClock = func(context.Context, *enginev1alpha1.StorageLocation) error { w.clocksAsked++; return w.clocks }
	config.NamespaceInformer, config.LocationInformer = kube.Core().V1().Namespaces(), records.Engine().V1alpha1().StorageLocations()
	c, err := New(config)
	if err != nil {
		w.fatal("%v", err)
	}
	p.Controller = c
	p.sync = func() {
		var namespaces, locations []any
		for _, name := range w.namespaces {
			namespaces = append(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		for _, location := range w.locations {
			locations = append(locations, location)
		}
		if err := errors.Join(config.NamespaceInformer.Informer().GetStore().Replace(namespaces, ""), config.LocationInformer.Informer().GetStore().Replace(locations, "")); err != nil {
			w.fatal("%v", err)
		}
	}
	return p
}

// once looks once, at a time that is the true one or ahead of it.
func (p *process) once(w *world, ahead time.Duration) {
	p.clock.SetTime(w.time().Add(ahead))
	p.sync()
	if _, err := p.look(context.Background()); err != nil && w.broken == nil {
		w.fatal("%v", err)
	}
}

func (p *process) told() (all []string) {
	for {
		select {
		case text := <-p.events.Events:
			all = append(all, text)
		default:
			return all
		}
	}
}

func defaults() Config { return Config{KeepLast: true, Percent: DefaultPercent} }

func TestExpiredBackupsGo(t *testing.T) {
	w := newWorld(t.Fatalf, "a", "b")
	for day := range 5 {
		w.now = time.Duration(day) * 24 * time.Hour
		w.add(fmt.Sprint("a", day), of("a"))
		w.add(fmt.Sprint("b", day), of("b"))
		w.add(fmt.Sprint("failed", day), of("b"), ended(v1alpha1.BackupPhaseFailed))
		w.add(fmt.Sprint("velero", day), of("a"), func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForeign })
	}
	w.add("forever", of("a"), func(b *v1alpha1.Backup) { b.Status.Expiration = nil })
	w.now += 12 * time.Hour
	p := w.start(Config{KeepLast: true, Percent: 100})
	var order []time.Time
	w.onDelete = func(b *v1alpha1.Backup) { order = append(order, b.Status.Expiration.Time) }
	p.once(w, 0)
	w.finish()
	if want := []string{"a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "failed0", "failed1", "failed2", "failed3"}; !slices.Equal(w.gone, want) {
		t.Errorf("gone are %q, want %q", w.gone, want)
	}
	if !slices.IsSortedFunc(order, time.Time.Compare) {
		t.Errorf("they go in the order %v", order)
	}
	if told := strings.Join(p.told(), "\n"); strings.Count(told, "Normal Expired ") != 12 {
		t.Errorf("people were told %s", told)
	}

	// What is left expires too, but for the last good ones, of which people are told once.
	w.now += 24 * time.Hour
	for range 3 {
		p.once(w, 0)
		w.finish()
	}
	if left := slices.Sorted(maps.Keys(w.backups)); !slices.Equal(left, []string{"b4", "forever", "velero0", "velero1", "velero2", "velero3", "velero4"}) {
		t.Errorf("left are %q", left)
	}
	if told := strings.Join(p.told(), "\n"); strings.Count(told, "ExpiryKept") != 1 || !strings.Contains(told, `the last good one of the namespace "b"`) {
		t.Errorf("people were told %s", told)
	}

	// Its namespace goes, and it goes.
	w.namespaces = []string{"a"}
	p.once(w, 0)
	w.finish()
	if w.backups["b4"] != nil {
		t.Error("the last one of a namespace that is gone stays")
	}
}

// The backup before an application was scaled to zero holds its last data: newer backups that
// are Completed without these do not let it go, and it does not count as due.
func TestTheLastDataOfAClaimStay(t *testing.T) {
	w := newWorld(t.Fatalf, "a")
	w.last = map[string]bool{"data": true}
	w.add("data", of("a"))
	for day := range 4 {
		w.now = time.Duration(day+1) * 24 * time.Hour
		w.add(fmt.Sprint("zero", day), of("a"))
	}
	w.now += 12 * time.Hour
	p := w.start(Config{KeepLast: true, Percent: 100})
	for range 3 {
		p.once(w, 0)
		w.finish()
	}
	if w.backups["data"] == nil || w.asked["data"] != 1 {
		t.Errorf("after %d questions, gone are %q", w.asked["data"], w.gone)
	}
	if told := strings.Join(p.told(), "\n"); strings.Count(told, "ExpiryKept") != 1 || !strings.Contains(told, "the newest data of a/data") {
		t.Errorf("people were told %s", told)
	}
	w.now += refusalPause
	p.once(w, 0)
	if w.asked["data"] != 2 || len(p.told()) > 0 {
		t.Errorf("it was asked about %d times", w.asked["data"])
	}
	w.last = nil // a newer backup holds these data
	w.now += refusalPause
	p.once(w, 0)
	w.finish()
	if w.backups["data"] != nil {
		t.Error("it stays when it is superseded")
	}
}

func TestWithoutKeepLastTheLastDataGo(t *testing.T) {
	w := newWorld(t.Fatalf, "a")
	w.last = map[string]bool{"data": true}
	w.add("data", of("a"))
	w.now = 25 * time.Hour
	p := w.start(Config{Percent: DefaultPercent})
	p.once(w, 0)
	w.finish()
	if !slices.Equal(w.gone, []string{"data"}) {
		t.Errorf("gone are %q", w.gone)
	}
}

// What a restore reads, or waits to read, stays until it has ended.
func TestRestoresKeepWhatTheyRead(t *testing.T) {
	w := newWorld(t.Fatalf)
	w.add("read", of("a"))
	w.add("other", of("a"))
	w.snapshots = map[types.UID][]string{"uid of read": {"s1", "s2"}, "uid of other": {"s3"}}
	restores := w.engine.EngineV1alpha1().VolumeRestores(system)
	restore := &enginev1alpha1.VolumeRestore{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "r"}, Spec: enginev1alpha1.VolumeRestoreSpec{SnapshotID: "s2"}}
	if _, err := restores.Create(t.Context(), restore, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.now = 25 * time.Hour
	p := w.start(defaults())
	p.once(w, 0)
	w.finish()
	if !slices.Equal(w.gone, []string{"other"}) {
		t.Errorf("%q are gone", w.gone)
	}
	restore.Status.Phase = enginev1alpha1.VolumePhaseFailed
	if _, err := restores.UpdateStatus(t.Context(), restore, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.once(w, 0)
	if w.deletions != 2 {
		t.Error("it stays after the restore")
	}
}

func TestWithoutKeepLast(t *testing.T) {
	w := newWorld(t.Fatalf, "a")
	w.add("a0", of("a"))
	w.now = 25 * time.Hour
	p := w.start(Config{Percent: DefaultPercent})
	p.once(w, 0)
	if w.deletions != 1 {
		t.Errorf("%d deletions", w.deletions)
	}
}

// A clock that jumps ahead by a year must not empty the store, even if the API server's
// does the same.
func TestAClockThatJumps(t *testing.T) {
	year := 365 * 24 * time.Hour
	for _, count := range []int{3, 10, 40, 100} {
		w := newWorld(t.Fatalf) // of namespaces that are gone, so that nothing else keeps them
		for i := range count {
			w.add(fmt.Sprintf("b%03d", i), of("a"), func(b *v1alpha1.Backup) {
				b.Status.StartTimestamp = &metav1.Time{Time: epoch.Add(-30 * 24 * time.Hour)}
				b.Status.Expiration = &metav1.Time{Time: epoch.Add(time.Duration(i+1) * time.Hour)}
			})
		}
		w.ahead = year
		p := w.start(defaults())
		for range 24 * 4 {
			w.now += 15 * time.Minute
			p.once(w, year)
			w.finish()
		}
		if len(w.backups) != count {
			t.Errorf("%d of %d backups are left", len(w.backups), count)
		}
		told := p.told()
		if len(told) != 1 || !strings.Contains(told[0], fmt.Sprintf("%d of %d backups", count, count)) ||
			!strings.Contains(told[0], "kubectl annotate hfl default -n holdfast --overwrite holdfast.io/accept-expiry-until=2026-") {
			t.Errorf("people were told %q", told)
		}
		if !meta.IsStatusConditionTrue(w.locations["default"].Status.Conditions, enginev1alpha1.ConditionExpiryFrozen) {
			t.Errorf("the location says %+v", w.locations["default"].Status.Conditions)
		}
		// Who restarts it gets no more.
		w.start(defaults()).once(w, year)
		if w.deletions != 0 {
			t.Errorf("%d deletions after a restart", w.deletions)
		}

		// Somebody accepts a part, in which the others are not.
		w.locations["default"].Annotations = map[string]string{enginev1alpha1.AnnotationAcceptExpiry: epoch.Add(2 * time.Hour).Format(time.RFC3339)}
		p.once(w, year)
		w.finish()
		if len(w.gone) != 2 {
			t.Errorf("of %d backups %q are gone, after two were accepted", count, w.gone)
		}
		// An annotation that can't be read accepts nothing.
		w.locations["default"].Annotations[enginev1alpha1.AnnotationAcceptExpiry] = "yes"
		if count > 3 {
			p.once(w, year)
			w.finish()
			if len(w.gone) != 2 {
				t.Errorf("%q are gone", w.gone)
			}
		}
		// And all of it.
		w.locations["default"].Annotations[enginev1alpha1.AnnotationAcceptExpiry] = epoch.Add(year).Format(time.RFC3339)
		for range 10 {
			p.once(w, year)
			w.finish()
		}
		if len(w.backups) != 0 {
			t.Errorf("%d backups are left that were accepted to go", len(w.backups))
		}
		if !meta.IsStatusConditionFalse(w.locations["default"].Status.Conditions, enginev1alpha1.ConditionExpiryFrozen) {
			t.Errorf("the location says %+v", w.locations["default"].Status.Conditions)
		}
	}
}

// While the clock is not that of the store nothing expires, whoever has accepted what, and the
// location says by how much. Who has nothing to delete asks no store.
func TestNothingExpiresWhileTheClockDiffers(t *testing.T) {
	w := newWorld(t.Fatalf, "a")
	w.add("old", of("a"))
	w.now = 23 * time.Hour
	w.add("new", of("a"))
	p := w.start(defaults())
	p.once(w, 0)
	if w.clocksAsked != 0 {
		t.Errorf("%d questions for the time while nothing had expired", w.clocksAsked)
	}
	w.clocks = fmt.Errorf("%w: this one is 2h0m0s ahead of the store's", store.ErrClock)
	w.locations["default"].Annotations = map[string]string{enginev1alpha1.AnnotationAcceptExpiry: epoch.Add(1000 * time.Hour).Format(time.RFC3339)}
	for range 3 {
		p.once(w, 2*time.Hour)
	}
	condition := meta.FindStatusCondition(w.locations["default"].Status.Conditions, enginev1alpha1.ConditionExpiryFrozen)
	if condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != enginev1alpha1.ReasonClockDiffers || !strings.Contains(condition.Message, "2h0m0s ahead") {
		t.Errorf("the location says %+v", condition)
	}
	if told := p.told(); len(told) != 1 || !strings.Contains(told[0], "Warning ExpiryFrozen") || !strings.Contains(told[0], "2h0m0s ahead") {
		t.Errorf("people were told %q", told)
	}
	w.start(defaults()).once(w, 2*time.Hour) // nor after a restart
	// A store that does not say is no proof that the clock is right.
	w.clocks = store.ErrUnavailable
	p.once(w, 2*time.Hour)
	if w.deletions != 0 {
		t.Errorf("%d deletions by a clock that differs", w.deletions)
	}

	w.clocks, w.now = nil, 25*time.Hour
	p.once(w, 0)
	w.finish()
	if !slices.Equal(w.gone, []string{"old"}) || !meta.IsStatusConditionFalse(w.locations["default"].Status.Conditions, enginev1alpha1.ConditionExpiryFrozen) {
		t.Errorf("%q are gone, and the location says %+v", w.gone, w.locations["default"].Status.Conditions)
	}
}

// What goes bit by bit is bounded by the hour.
func TestTooManyInAnHour(t *testing.T) {
	w := newWorld(t.Fatalf)
	for i := range 400 {
		w.add(fmt.Sprintf("b%03d", i), of("a"), func(b *v1alpha1.Backup) {
			b.Status.StartTimestamp = &metav1.Time{Time: epoch.Add(-30 * 24 * time.Hour)}
			b.Status.Expiration = &metav1.Time{Time: epoch.Add(time.Duration(i) * 6 * time.Second)} // ten in a minute
		})
	}
	p := w.start(defaults())
	for range 59 {
		w.now += time.Minute
		p.once(w, 0)
		w.finish()
	}
	if len(w.gone) < 90 || len(w.gone) > 100 {
		t.Errorf("%d of 400 backups are gone within an hour", len(w.gone))
	}
	if told := p.told(); !strings.Contains(told[len(told)-1], "ExpiryFrozen") {
		t.Errorf("people were told last %q", told[len(told)-1])
	}
}

// Only the controller's clock is wrong: the API server refuses each.
func TestTheAPIServersClockCounts(t *testing.T) {
	w := newWorld(t.Fatalf, "a")
	for i := range 5 {
		w.add(fmt.Sprint("a", i), of("a"))
	}
	p := w.start(defaults())
	for range 50 {
		w.now += time.Minute
		p.once(w, 48*time.Hour)
	}
	if w.deletions != 0 {
		t.Errorf("%d deletions", w.deletions)
	}
	if told := p.told(); len(told) != 5 { // four refusals, and the one that is kept
		t.Errorf("people were told %q", told)
	}
}

// What the API server is not certain of stays, and lets nothing else go.
func TestInDoubt(t *testing.T) {
	for name, doubt := range map[string]func(*world){
		"a listing that is not believed": func(w *world) {
			w.warnings = []string{`storage location "other": the store lists 1 of 30 known backups`}
		},
		"a store that is not read": func(w *world) {
			w.warnings = []string{`the backups of storage location "other" may be missing, since it has not been read yet`}
		},
		"something that this version does not know": func(w *world) { w.warnings = []string{"what is shown may be incomplete"} },
		"a location that does not answer": func(w *world) {
			w.locations["other"].Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionFalse}}
		},
		"another cluster with the same uid": func(w *world) {
			w.locations["other"].Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionTrue}}
		},
		"a location that is gone": func(w *world) { delete(w.locations, "other") },
	} {
		w := newWorld(t.Fatalf, "a", "b")
		w.locations["other"] = &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}}
		elsewhere := func(b *v1alpha1.Backup) { b.Spec.StorageLocation = "other" }
		w.add("a0", of("a"))
		w.add("b0", of("b"), elsewhere)
		w.now = time.Hour
		w.add("a1", of("a"), elsewhere)
		w.add("b1", of("b"))
		w.now = 48 * time.Hour
		doubt(w)
		p := w.start(defaults())
		p.once(w, 0)
		if w.deletions != 0 {
			t.Errorf("%s: %d deletions", name, w.deletions)
		}
		// That somebody replaces metadata there is no doubt, nor that others' backups are left out.
		w.locations["other"] = &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}}
		w.warnings = []string{`storage location "other": another writer, such as Velero, has replaced the metadata of 3 backups, which have the condition MetadataReplaced`,
			fmt.Sprintf("storage location %q: %s", "other", refresh.LeftOut(3, "b"))}
		p.once(w, 0)
		w.finish()
		if !slices.Equal(w.gone, []string{"a0", "b0"}) {
			t.Errorf("%s, after it has passed: %q are gone", name, w.gone)
		}
	}
}

// TestHistories: whatever happens, nothing goes that must not, and all else does in the end.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t.Fatalf, "a", "b")
		w.locations["other"] = &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}}
		processes := []*process{w.start(defaults()), w.start(defaults())}
		asked := map[string][]time.Duration{} // in the last hour, by location
		restarts := 0
		w.onDelete = func(b *v1alpha1.Backup) {
			if b.Status.Origin.Trust != v1alpha1.BackupTrustOwn {
				t.Fatalf("%s is not the cluster's own", b.Name)
			}
			if w.ahead == 0 && w.time().Before(b.Status.Expiration.Time) {
				t.Fatalf("%s goes before its time", b.Name)
			}
			var all []backup
			for _, object := range w.backups {
				if own, ok := own(object); ok {
					all = append(all, own)
				}
			}
			if namespace := lastGood(all, w.namespaces)[b.UID]; namespace != "" {
				t.Fatalf("%s is the last good one of %s", b.Name, namespace)
			}
			at := b.Spec.StorageLocation
			asked[at] = append(slices.DeleteFunc(asked[at], func(then time.Duration) bool { return w.now-then >= time.Hour }), w.now)
			total := len(asked[at])
			for _, own := range all {
				if own.location == at && !own.deleting {
					total++
				}
			}
			// Two processes have an hour each, and so does one that was started anew.
			if n := len(asked[at]); n > (2+restarts)*max(floor, total*DefaultPercent/100) && w.ahead > 0 {
				t.Fatalf("%d backups went within an hour", n)
			}
		}
		made := 0
		t.Repeat(map[string]func(*rapid.T){
			"make": func(t *rapid.T) {
				made++
				ttl := time.Duration(rapid.IntRange(1, 72).Draw(t, "ttl")) * time.Hour
				w.add(fmt.Sprint("m", made), of(rapid.SampledFrom([]string{"a", "b", "gone", "*"}).Draw(t, "namespace")),
					ended(rapid.SampledFrom([]v1alpha1.BackupPhase{v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseFailed}).Draw(t, "phase")),
					func(b *v1alpha1.Backup) {
						b.Status.Expiration.Time = w.time().Add(ttl)
						b.Spec.StorageLocation = rapid.SampledFrom([]string{"default", "other"}).Draw(t, "location")
						b.Status.Origin.Trust = rapid.SampledFrom([]v1alpha1.BackupTrust{v1alpha1.BackupTrustOwn, v1alpha1.BackupTrustOwn, v1alpha1.BackupTrustForeign}).Draw(t, "trust")
					})
			},
			"wait": func(t *rapid.T) { w.now += time.Duration(rapid.IntRange(1, 1000).Draw(t, "minutes")) * time.Minute },
			"look": func(t *rapid.T) { rapid.SampledFrom(processes).Draw(t, "process").once(w, w.ahead) },
			"look with a wrong clock": func(t *rapid.T) {
				rapid.SampledFrom(processes).Draw(t, "process").once(w, time.Duration(rapid.IntRange(-9000, 9000).Draw(t, "hours"))*time.Hour)
			},
			"both clocks jump": func(t *rapid.T) { w.ahead = time.Duration(rapid.IntRange(0, 9000).Draw(t, "hours")) * time.Hour },
			"restart":          func(*rapid.T) { processes[0], restarts = w.start(defaults()), restarts+1 },
			"finish":           func(*rapid.T) { w.finish() },
			"doubt": func(t *rapid.T) {
				w.warnings = rapid.SampledFrom([][]string{nil, {`storage location "other": doubt`}, {"doubt"}}).Draw(t, "warnings")
			},
			"break": func(t *rapid.T) {
				w.broken = rapid.SampledFrom([]error{nil, errors.New("it is broken")}).Draw(t, "error")
			},
		})
		w.ahead, w.warnings, w.broken = 0, nil, nil
		w.now += 100 * time.Hour
		for _, location := range w.locations {
			location.Annotations = map[string]string{enginev1alpha1.AnnotationAcceptExpiry: w.time().Format(time.RFC3339)}
		}
		for range 10 {
			w.now += time.Hour
			w.finish()
			processes[1].once(w, 0)
		}
		w.finish()
		var left []backup
		for _, object := range w.backups {
			if b, ok := own(object); ok {
				left = append(left, b)
			}
		}
		last := lastGood(left, w.namespaces)
		for _, b := range left {
			if last[b.uid] == "" {
				t.Fatalf("%s never goes", b.Name)
			}
		}
	})
}

// A webhook that denies a deletion for no reason that Kubernetes has a name for denies this
// one, and does not keep the others from being asked for.
func TestARefusalWithoutAReason(t *testing.T) {
	for _, err := range []error{
		&apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: "admission webhook denied the request"}},
		apierrors.NewForbidden(v1alpha1.Resource("backups"), "a", errors.New("denied")),
	} {
		if !isRefusal(err) {
			t.Errorf("%v is no refusal", err)
		}
	}
	if isRefusal(apierrors.NewTooManyRequests("later", 1)) {
		t.Error("a server that has much to do refuses the backup")
	}
}
