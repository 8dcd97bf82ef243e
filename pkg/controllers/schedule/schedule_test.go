// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// The schedule of the tests, and its namespace.
const (
	namespace = "shop"
	name      = "nightly"
	uid       = types.UID("uid-of-nightly")
)

// world is a cluster with one schedule: its record, and the backups that there are.
type world struct {
	engineclient.ScheduleEntryInterface
	clock     *clocktesting.FakeClock
	entry     *enginev1alpha1.ScheduleEntry
	namespace types.UID
	backups   map[string]*domain.Backup
	foreign   map[string]bool
	// made counts the backups that were made, by name; deleted are those that were asked
	// to be deleted.
	made    map[string]int
	deleted []string
	// forbidden and broken are what becomes of requests; lost are the answers to the next
	// writes that don't arrive.
	// unanswered breaks those about backups alone.
	// lastData are the backups that hold the newest data of a claim.
	lastData map[string]bool

	forbidden, broken, unanswered, mayNotDelete, deletionsStay bool
	lost                                                       int
}

func newWorld(spec v1alpha1.ScheduleSpec, now time.Time) *world {
	return &world{
		clock: clocktesting.NewFakeClock(now),
		entry: &enginev1alpha1.ScheduleEntry{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "." + name, ResourceVersion: "1", UID: "uid-of-entry"},
			Spec: enginev1alpha1.ScheduleEntrySpec{
				ScheduleRef: v1alpha1.BackupReference{Namespace: namespace, Name: name}, NamespaceUID: "uid-of-shop",
				Requester: enginev1alpha1.Requester{Username: "ann"}, Since: metav1.NewTime(now), Schedule: spec,
			},
		},
		namespace: "uid-of-shop",
		backups:   map[string]*domain.Backup{}, foreign: map[string]bool{}, made: map[string]int{},
	}
}

// view is what one process knows of the world: the record as it was some time ago.
type view struct {
	*world
	known *enginev1alpha1.ScheduleEntry
	// looked is how often somebody looked at a schedule.
	looked int
}

func (v *view) Schedule(types.NamespacedName) (*v1alpha1.Schedule, *enginev1alpha1.ScheduleEntry, []domain.Backup) {
	v.looked++
	if v.known == nil {
		return nil, nil, nil
	}
	var backups []domain.Backup
	for _, backup := range v.backups {
		backups = append(backups, *backup)
	}
	return &v1alpha1.Schedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}, Spec: v.known.Spec.Schedule,
	}, v.known, backups
}

func (v *view) Names() []types.NamespacedName {
	return []types.NamespacedName{{Namespace: namespace, Name: name}}
}

func (v *view) Observe(entry *enginev1alpha1.ScheduleEntry) { v.known = entry }
func (v *view) Forget(*enginev1alpha1.ScheduleEntry)        { v.known = nil }

var errLost = errors.New("the answer was lost")

func (w *world) answer() error {
	if w.lost > 0 {
		w.lost--
		return errLost
	}
	return nil
}

// asked is what a world does with requests about backups; entries have verbs of these names.
type asked struct{ *world }

func (w asked) Create(_ context.Context, as enginev1alpha1.Requester, of *v1alpha1.Schedule, backup *v1alpha1.Backup) error {
	switch {
	case w.broken || w.unanswered:
		return apierrors.NewServiceUnavailable("broken")
	case as.Username != "ann" || of.UID != uid || backup.Labels[v1alpha1.LabelScheduleName] != name:
		return fmt.Errorf("%s asks for %+v", as.Username, backup)
	case w.forbidden:
		return apierrors.NewForbidden(v1alpha1.Resource("backups"), backup.Name, errors.New("not any more"))
	case w.backups[backup.Name] != nil || w.foreign[backup.Name]:
		return apierrors.NewAlreadyExists(v1alpha1.Resource("backups"), backup.Name)
	}
	w.made[backup.Name]++
	w.backups[backup.Name] = &domain.Backup{Name: backup.Name, Due: domain.DueOf(name, backup.Name), Phase: v1alpha1.BackupPhaseQueued, Created: w.clock.Now()}
	return w.answer()
}

func (w asked) MadeBy(_ context.Context, _, name string) (types.UID, error) {
	if w.broken || w.unanswered {
		return "", apierrors.NewServiceUnavailable("broken")
	}
	switch {
	case w.backups[name] != nil:
		return uid, nil
	case w.foreign[name]:
		return "", nil
	}
	return "", apierrors.NewNotFound(v1alpha1.Resource("backups"), name)
}

func (d asked) Delete(_ context.Context, _ enginev1alpha1.Requester, _ *v1alpha1.Schedule, name string, _ types.UID) error {
	if d.lastData[name] {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: v1alpha1.StatusReasonBackupState, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: v1alpha1.CauseHoldsLastData, Message: "shop/data"}},
		}}}
	}
	if d.mayNotDelete {
		return apierrors.NewForbidden(v1alpha1.Resource("backups"), name, errors.New("no right to"))
	}
	d.deleted = append(d.deleted, name)
	if d.deletionsStay {
		d.backups[name].Phase = v1alpha1.BackupPhaseDeleting
		return nil
	}
	delete(d.backups, name)
	return nil
}

func (w *world) UpdateStatus(_ context.Context, entry *enginev1alpha1.ScheduleEntry, _ metav1.UpdateOptions) (*enginev1alpha1.ScheduleEntry, error) {
	if w.broken {
		return nil, apierrors.NewServiceUnavailable("broken")
	}
	if entry.ResourceVersion != w.entry.ResourceVersion {
		return nil, apierrors.NewConflict(enginev1alpha1.Resource("scheduleentries"), entry.Name, errors.New("changed"))
	}
	status := entry.Status
	w.entry = w.entry.DeepCopy()
	w.entry.Status = *status.DeepCopy()
	w.touch()
	return w.entry, w.answer()
}

func (w *world) Get(context.Context, string, metav1.GetOptions) (*enginev1alpha1.ScheduleEntry, error) {
	if w.broken {
		return nil, apierrors.NewServiceUnavailable("broken")
	}
	return w.entry, nil
}

func (w *world) touch() {
	version, _ := strconv.Atoi(w.entry.ResourceVersion)
	w.entry.ResourceVersion = strconv.Itoa(version + 1)
}

func (w *world) edit(change func(*enginev1alpha1.ScheduleEntrySpec)) {
	w.entry = w.entry.DeepCopy()
	change(&w.entry.Spec)
	w.touch()
}

func (w *world) Delete(context.Context, string, metav1.DeleteOptions) error {
	w.entry = nil
	return nil
}

// controller is a process that works on the world.
func (w *world) controller() (*Controller, *view) {
	v := &view{world: w, known: w.entry}
	uidOf := func(context.Context, string) (types.UID, error) { return w.namespace, nil }
	return New(Config{
		Schedules: v, Backups: asked{w}, Entries: w, NamespaceUID: uidOf, LiveNamespaceUID: uidOf,
		Leads: func() bool { return true }, Ready: func() bool { return true }, Events: events.NewFakeRecorder(100000), Clock: w.clock,
	}), v
}

// bringUp has the schedule brought up to date as often as it takes.
func bringUp(t interface{ Fatal(...any) }, c *Controller, v *view) {
	for range 10 {
		known := v.known
		err := c.sync(context.Background(), types.NamespacedName{Namespace: namespace, Name: name})
		if err == nil && (v.known == known || v.known != v.entry) {
			return
		}
		if err == nil {
			continue // it has learnt something
		}
		if !errors.Is(err, errLost) && !apierrors.IsConflict(err) && !apierrors.IsServiceUnavailable(err) {
			t.Fatal(err)
		}
		if v.broken || v.unanswered && apierrors.IsServiceUnavailable(err) {
			return
		}
		v.known = v.entry
	}
	t.Fatal("it does not come to an end")
}

// TestEachDueTime takes a schedule through years, in which it is edited and paused, people
// lose their rights, the cluster does not answer, answers are lost, and two processes work
// at once on what they knew some time ago; and counts: each time at which something was due
// has one backup, or was counted as missed, and no backup was made twice.
//
// Pitfall 27: nor is one made while another one waits.
func TestEachDueTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schedules := rapid.SampledFrom([]string{"30 2 * * *", "@hourly", "0 */6 * * *", "@weekly", "@daily-random", "15 1,2,3 * * 0", "@monthly"})
		zones := rapid.SampledFrom([]string{"", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"})
		start := time.Date(2026, 3, 20, 12, 0, 0, 0, time.UTC)
		w := newWorld(v1alpha1.ScheduleSpec{Schedule: schedules.Draw(t, "schedule"), TimeZone: zones.Draw(t, "zone")}, start)
		if rapid.Bool().Draw(t, "with a deadline") {
			seconds := int64(3600)
			w.entry.Spec.Schedule.StartingDeadlineSeconds = &seconds
		}
		first, firstView := w.controller()
		second, secondView := w.controller()

		due := map[string]bool{} // each time, by the name of its backup
		from := start            // up to where they are known
		settled := start         // when all that was due was last dealt with
		note := func() {
			now, spec := w.clock.Now(), w.entry.Spec.Schedule
			if !spec.Paused {
				timing, err := domain.Parse(spec.Schedule, spec.TimeZone, uid)
				if err != nil {
					t.Fatal(err)
				}
				for next := timing.Next(from); !next.After(now); next = timing.Next(next) {
					due[domain.BackupName(name, next)] = true
				}
			}
			from = now
		}
		settle := func() {
			firstView.known, w.broken, w.unanswered = w.entry, false, false
			bringUp(t, first, firstView)
			note()
			settled = w.clock.Now()
		}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			switch step := rapid.SampledFrom([]string{"wait", "wait", "wait", "work", "work", "other", "other", "lose", "break", "unanswered", "rights", "end", "edit", "pause", "learn"}).Draw(t, "step"); step {
			case "wait":
				wait := time.Duration(rapid.SampledFrom([]int{1, 30, 59, 60, 61, 600, 1440, 5000, 20000}).Draw(t, "minutes")) * time.Minute
				if w.clock.Now().Add(wait).Sub(settled) > 900*time.Hour {
					settle() // of times missed at once, up to a thousand are counted
				}
				w.clock.SetTime(w.clock.Now().Add(wait))
			case "work":
				bringUp(t, first, firstView)
			case "other":
				bringUp(t, second, secondView)
			case "learn":
				firstView.known, secondView.known = w.entry, w.entry
			case "lose":
				w.lost = rapid.IntRange(0, 2).Draw(t, "answers")
			case "break":
				w.broken = !w.broken
			case "unanswered":
				w.unanswered = !w.unanswered
			case "rights":
				w.forbidden = !w.forbidden
			case "end":
				for _, backup := range w.backups {
					backup.Phase = v1alpha1.BackupPhaseCompleted
				}
			case "edit", "pause":
				if rapid.Bool().Draw(t, "in order") {
					settle()
				} else {
					note() // whatever has come of what was due
				}
				paused := w.entry.Spec.Schedule.Paused != (step == "pause")
				text, zone := w.entry.Spec.Schedule.Schedule, w.entry.Spec.Schedule.TimeZone
				if step == "edit" {
					text, zone = schedules.Draw(t, "schedule"), zones.Draw(t, "zone")
				}
				w.entry = w.entry.DeepCopy()
				domain.Move(w.entry, uid, w.clock.Now())
				w.edit(func(spec *enginev1alpha1.ScheduleEntrySpec) {
					spec.Schedule.Paused, spec.Schedule.Schedule, spec.Schedule.TimeZone = paused, text, zone
				})
			}
		}
		settle()
		made := 0
		for name, n := range w.made {
			if n != 1 {
				t.Fatalf("the backup %s was made %d times", name, n)
			}
			if !due[name] {
				t.Fatalf("the backup %s was made, and was not due", name)
			}
			made++
		}
		if total := int64(len(due)); int64(made)+w.entry.Status.Missed != total {
			t.Fatalf("of %d that were due, %d were made and %d missed", total, made, w.entry.Status.Missed)
		}
	})
}

var noon = time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)

// TestWhyNot: each reason is in the condition, and what is not known yet is tried again.
func TestWhyNot(t *testing.T) {
	for reason, prepare := range map[string]func(*world){
		v1alpha1.ScheduleReasonForbidden: func(w *world) { w.forbidden = true },
		v1alpha1.ScheduleReasonNameTaken: func(w *world) { w.foreign["nightly-20260506000000"] = true },
		v1alpha1.ScheduleReasonWaiting: func(w *world) {
			w.backups["nightly-20260505000000"] = &domain.Backup{Name: "nightly-20260505000000", Phase: v1alpha1.BackupPhaseQueued}
		},
		v1alpha1.ScheduleReasonPaused: func(w *world) { w.edit(func(spec *enginev1alpha1.ScheduleEntrySpec) { spec.Schedule.Paused = true }) },
	} {
		w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
		prepare(w)
		c, v := w.controller()
		w.clock.Step(13 * time.Hour)
		bringUp(t, c, v)
		bringUp(t, c, v)
		got := meta.FindStatusCondition(w.entry.Status.Conditions, v1alpha1.ConditionScheduled)
		if got == nil || got.Status != metav1.ConditionFalse || got.Reason != reason || got.Message == "" || len(w.made) > 0 {
			t.Errorf("%s: the condition is %+v, and %v were made", reason, got, w.made)
		}
		if missed := int64(1); w.entry.Status.Missed != missed && reason != v1alpha1.ScheduleReasonPaused {
			t.Errorf("%s: %d missed", reason, w.entry.Status.Missed)
		}
	}
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
	c, v := w.controller()
	w.clock.Step(13 * time.Hour)
	w.broken = true
	if err := c.sync(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}); err == nil || w.entry.Status.LastDueTimestamp != nil {
		t.Errorf("with a cluster that does not answer: %v, %+v", err, w.entry.Status)
	}
	w.broken = false
	bringUp(t, c, v)
	if len(w.made) != 1 || !meta.IsStatusConditionTrue(w.entry.Status.Conditions, v1alpha1.ConditionScheduled) {
		t.Errorf("with one that answers again: %v, %+v", w.made, w.entry.Status)
	}
	for _, backup := range w.backups {
		backup.Phase = v1alpha1.BackupPhaseCompleted
	}
	bringUp(t, c, v)
	w.clock.Step(24 * time.Hour)
	w.unanswered = true
	bringUp(t, c, v)
	said := meta.FindStatusCondition(w.entry.Status.Conditions, v1alpha1.ConditionScheduled)
	if said == nil || said.Reason != v1alpha1.ScheduleReasonNotAnswered || said.Message != "the backup of 2026-05-07T00:00:00Z is asked for again and again: asking for the backup nightly-20260507000000: broken" || w.entry.Status.Missed != 0 {
		t.Errorf("when backups can't be asked for it says %+v, %+v", said, w.entry.Status)
	}
	written := w.entry.ResourceVersion
	bringUp(t, c, v)
	if w.entry.ResourceVersion != written {
		t.Error("what lasts is written again and again")
	}
	w.unanswered = false
	bringUp(t, c, v)
	if len(w.made) != 2 || !meta.IsStatusConditionTrue(w.entry.Status.Conditions, v1alpha1.ConditionScheduled) {
		t.Errorf("when they can: %v, %+v", w.made, w.entry.Status)
	}
	before := w.entry.ResourceVersion
	bringUp(t, c, v)
	if w.entry.ResourceVersion != before {
		t.Error("with nothing new, the record is written again")
	}
}

// TestClockThatWasAhead: what was dealt with in a future that was none delays nothing, and
// makes nothing twice.
func TestClockThatWasAhead(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
	c, v := w.controller()
	w.clock.SetTime(noon.AddDate(1, 0, 0))
	bringUp(t, c, v)
	for _, backup := range w.backups {
		backup.Phase = v1alpha1.BackupPhaseCompleted
	}
	w.clock.SetTime(noon.Add(time.Hour))
	bringUp(t, c, v)
	for day := range 3 {
		w.clock.SetTime(noon.Add(time.Duration(12+24*day) * time.Hour))
		bringUp(t, c, v)
		bringUp(t, c, v)
		for _, backup := range w.backups {
			backup.Phase = v1alpha1.BackupPhaseCompleted
		}
	}
	want := map[string]int{"nightly-20270505000000": 1, "nightly-20260506000000": 1, "nightly-20260507000000": 1, "nightly-20260508000000": 1}
	if !maps.Equal(w.made, want) {
		t.Errorf("made: %v, want %v", w.made, want)
	}

	// It was ahead when somebody edited it.
	w = newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
	c, v = w.controller()
	w.edit(func(spec *enginev1alpha1.ScheduleEntrySpec) { spec.Since = metav1.NewTime(noon.AddDate(1, 0, 0)) })
	v.known = w.entry
	bringUp(t, c, v)
	w.clock.SetTime(noon.Add(12 * time.Hour))
	bringUp(t, c, v)
	if len(w.made) != 1 {
		t.Errorf("made: %v", w.made)
	}
}

// TestEditedBeforeItWasDealtWith: what was due before a change, and was not asked for, is counted
// and told, also of a schedule that is paused by that; what was asked for is no such thing.
func TestEditedBeforeItWasDealtWith(t *testing.T) {
	for name, asked := range map[string]bool{"not asked for": false, "asked for, and not recorded": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@hourly"}, noon)
			c, v := w.controller()
			w.clock.Step(2 * time.Hour)
			last := domain.BackupName("nightly", w.clock.Now())
			if w.broken = !asked; asked {
				w.lost = 1
				if err := c.sync(t.Context(), types.NamespacedName{Namespace: namespace, Name: "nightly"}); !errors.Is(err, errLost) || w.made[last] != 1 {
					t.Fatalf("asking: %v, %v", err, w.made)
				}
			}
			for _, change := range []func(*v1alpha1.ScheduleSpec){
				func(s *v1alpha1.ScheduleSpec) { s.Schedule = "@daily" },
				func(s *v1alpha1.ScheduleSpec) { s.Paused = true },
			} {
				w.entry = w.entry.DeepCopy()
				domain.Move(w.entry, uid, w.clock.Now())
				w.edit(func(spec *enginev1alpha1.ScheduleEntrySpec) { change(&spec.Schedule) })
				w.clock.Step(time.Second)
			}
			w.broken, v.known = false, w.entry
			bringUp(t, c, v)
			bringUp(t, c, v)
			want := int64(2)
			if asked {
				want = 1 // that of 13:00 had none when that of 14:00 was asked for
			}
			if status := w.entry.Status; status.Missed != want || status.LastDueTimestamp == nil || domain.BackupName("nightly", status.LastDueTimestamp.Time) != last {
				t.Errorf("%d are missed up to %s, want %d up to %s", status.Missed, status.LastDueTimestamp, want, last)
			}
			told := false
			for len(c.Events.(*events.FakeRecorder).Events) > 0 {
				told = told || strings.Contains(<-c.Events.(*events.FakeRecorder).Events, v1alpha1.ScheduleReasonChanged)
			}
			if told == asked {
				t.Errorf("whether an event tells of it: %t", told)
			}
		})
	}
}

// TestNamespaceGone: the schedule of a namespace that is no more goes, and so does that of
// one which was made anew.
func TestNamespaceGone(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
	c, v := w.controller()
	w.namespace = "uid-of-another"
	w.clock.Step(48 * time.Hour)
	bringUp(t, c, v)
	if w.entry != nil || len(w.made) > 0 {
		t.Errorf("it is %+v, and %v were made", w.entry, w.made)
	}
}

// TestPrune: what no rule keeps is asked to be deleted; that one may not is said.
func TestPrune(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily", Keep: &v1alpha1.ScheduleKeep{Last: 2}}, noon)
	for i := range 5 {
		name := fmt.Sprintf("nightly-2026050%d000000", i+1)
		w.backups[name] = &domain.Backup{Name: name, Phase: v1alpha1.BackupPhaseCompleted, Created: noon.AddDate(0, 0, i-5)}
	}
	c, v := w.controller()
	w.mayNotDelete = true
	bringUp(t, c, v)
	if pruned := meta.FindStatusCondition(w.entry.Status.Conditions, v1alpha1.ConditionPruned); pruned == nil || pruned.Reason != v1alpha1.ScheduleReasonForbidden || len(w.deleted) > 0 {
		t.Errorf("without the right to: %+v, %v", pruned, w.deleted)
	}
	w.mayNotDelete = false
	bringUp(t, c, v)
	if fmt.Sprint(w.deleted) != "[nightly-20260501000000 nightly-20260502000000 nightly-20260503000000]" || len(w.backups) != 2 ||
		!meta.IsStatusConditionTrue(w.entry.Status.Conditions, v1alpha1.ConditionPruned) {
		t.Errorf("deleted: %v, %+v", w.deleted, w.entry.Status.Conditions)
	}
}

// TestPruneLeavesTheLastData: what no rule keeps stays while it holds the newest data of a claim,
// the others go, and nothing is wrong.
func TestPruneLeavesTheLastData(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily", Keep: &v1alpha1.ScheduleKeep{Last: 2}}, noon)
	for i := range 5 {
		name := fmt.Sprintf("nightly-2026050%d000000", i+1)
		w.backups[name] = &domain.Backup{Name: name, Phase: v1alpha1.BackupPhaseCompleted, Created: noon.AddDate(0, 0, i-5)}
	}
	w.lastData = map[string]bool{"nightly-20260501000000": true}
	c, v := w.controller()
	bringUp(t, c, v)
	if fmt.Sprint(w.deleted) != "[nightly-20260502000000 nightly-20260503000000]" || !meta.IsStatusConditionTrue(w.entry.Status.Conditions, v1alpha1.ConditionPruned) {
		t.Errorf("deleted: %v, %+v", w.deleted, w.entry.Status.Conditions)
	}
}

// However many backups no rule keeps, few are deleted at once, also where the store refuses
// that for long: each has a record until it is gone.
func TestPruneIsBounded(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@hourly", Keep: &v1alpha1.ScheduleKeep{Last: 2}}, noon)
	for i := range 3 * deletedAtOnce {
		at := noon.Add(time.Duration(i-100) * time.Hour)
		name := domain.BackupName("nightly", at)
		w.backups[name] = &domain.Backup{Name: name, Phase: v1alpha1.BackupPhaseCompleted, Created: at}
	}
	c, v := w.controller()
	w.deletionsStay = true
	for range 3 {
		bringUp(t, c, v)
	}
	if len(w.deleted) != deletedAtOnce {
		t.Errorf("%d were deleted at once", len(w.deleted))
	}
}

// While the stores are being read no schedule is looked at, however many there are, and one look a
// second is for all. Then each is looked at.
func TestSchedulesWaitForTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
		c, v := w.controller()
		c.queue.ShutDown()
		var ready atomic.Bool
		c.Ready, c.Clock = ready.Load, clock.RealClock{}
		c = New(c.Config)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var looks atomic.Int32
		go c.queue.Run(ctx, func(ctx context.Context, name types.NamespacedName) error {
			looks.Add(1)
			return c.sync(ctx, name)
		})
		for n := range 100 {
			c.Changed(types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)})
		}
		c.Changed(types.NamespacedName{Namespace: namespace, Name: name})
		time.Sleep(time.Minute + time.Millisecond)
		if n := looks.Load(); n != 101+60 || v.looked != 0 {
			t.Errorf("%d looks in a minute, %d of them at schedules, want 161 and none", n, v.looked)
		}
		ready.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if v.looked != 1 {
			t.Errorf("then %d looks at the schedule, want 1", v.looked)
		}
		stop()
		synctest.Wait()
	})
}
