// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

var noon = time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)

var nightly = types.NamespacedName{Namespace: "shop", Name: "nightly"}

func entry(t *testing.T, version string, uid types.UID) *enginev1alpha1.ScheduleEntry {
	t.Helper()
	metadata, err := json.Marshal(metav1.ObjectMeta{UID: "uid-of-nightly", Labels: map[string]string{"a": "b"}, Generation: 7})
	if err != nil {
		t.Fatal(err)
	}
	return &enginev1alpha1.ScheduleEntry{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.nightly", ResourceVersion: version, UID: uid},
		Spec: enginev1alpha1.ScheduleEntrySpec{
			ScheduleRef: v1alpha1.BackupReference(nightly), Since: metav1.NewTime(noon), Metadata: string(metadata),
			Requester: enginev1alpha1.Requester{Username: "ann"}, Schedule: v1alpha1.ScheduleSpec{Schedule: "@daily"},
		},
	}
}

func publisher(t *testing.T) *Publisher {
	t.Helper()
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &enginev1alpha1.ScheduleEntry{}, 0, nil)
	p, err := NewPublisher(informer, clocktesting.NewFakePassiveClock(noon))
	if err != nil {
		t.Fatal(err)
	}
	p.Log.SetReady()
	return p
}

func backupOf(name string, change func(*v1alpha1.Backup)) *v1alpha1.Backup {
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(noon), Labels: map[string]string{v1alpha1.LabelScheduleName: "nightly"}},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, CompletionTimestamp: &metav1.Time{Time: noon.Add(time.Minute)},
			Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn, ScheduleUID: "uid-of-nightly"},
		},
	}
	change(backup)
	return backup
}

// TestOwnBackups: a schedule's backups are those that this cluster made for it. A label,
// another cluster's word, and what was displaced make none; neither does another
// schedule's of the same name.
func TestOwnBackups(t *testing.T) {
	p := publisher(t)
	var changed int
	p.Notify(func(types.NamespacedName) { changed++ })
	for name, change := range map[string]func(*v1alpha1.Backup){
		"labelled":  func(b *v1alpha1.Backup) { b.Status.Origin.ScheduleUID = "" },
		"without":   func(b *v1alpha1.Backup) { b.Status.Origin = nil },
		"foreign":   func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForeign },
		"forged":    func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForged },
		"trusted":   func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustTrusted },
		"displaced": func(b *v1alpha1.Backup) { b.Status.Origin.Message = "of another namespace" },
		"former":    func(b *v1alpha1.Backup) { b.Status.Origin.ScheduleUID = "uid-of-another" },
		"elsewhere": func(b *v1alpha1.Backup) { b.Namespace = "attic" },
	} {
		backup := backupOf(name, change)
		p.OnBackup(types.NamespacedName{Namespace: backup.Namespace, Name: name}, backup)
	}
	p.Observe(entry(t, "1", "record"))
	if _, _, backups := p.Schedule(nightly); len(backups) != 0 {
		t.Errorf("it has the backups %v", backups)
	}
	name := types.NamespacedName{Namespace: "shop", Name: "nightly-20260505000000"}
	own := backupOf(name.Name, func(*v1alpha1.Backup) {})
	p.OnBackup(name, own)
	s, _, backups := p.Schedule(nightly)
	if len(backups) != 1 || !backups[0].Due.Equal(noon.Add(-12*time.Hour)) || s.Status.LastBackup.Name != name.Name || !s.Status.LastSuccessTimestamp.Time.Equal(noon.Add(time.Minute)) {
		t.Errorf("with a backup: %v, %+v", backups, s.Status)
	}
	before := changed
	p.OnBackup(name, own)
	if changed != before {
		t.Error("it changes when its backup does not")
	}
	own = own.DeepCopy()
	own.Status.Origin.Message = "of another namespace"
	p.OnBackup(name, own)
	if s, _, backups = p.Schedule(nightly); len(backups) != 0 || s.Status.LastBackup != nil {
		t.Errorf("with its backup displaced: %v, %+v", backups, s.Status)
	}
	p.OnBackup(name, nil)
	for reason, change := range map[string]func(*v1alpha1.Backup){
		"by-hand": func(b *v1alpha1.Backup) { b.Annotations = map[string]string{domain.AnnotationTriggeredBy: "eve"} },
		"replaced": func(b *v1alpha1.Backup) {
			b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionMetadataReplaced, Status: metav1.ConditionTrue}}
		},
		"lacking": func(b *v1alpha1.Backup) { b.Status.Volumes = &v1alpha1.BackupVolumesProgress{Deleted: 1} },
		"not-whole": func(b *v1alpha1.Backup) {
			b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionVolumesListed, Status: metav1.ConditionFalse}}
		},
	} {
		p.OnBackup(types.NamespacedName{Namespace: "shop", Name: reason}, backupOf(reason, change))
		if _, _, backups := p.Schedule(nightly); len(backups) != 1 || !backups[0].Exempt {
			t.Errorf("%s: %+v", reason, backups)
		}
		p.OnBackup(types.NamespacedName{Namespace: "shop", Name: reason}, nil)
	}
	// Each backup of a namespace with a claim that no pod uses is such.
	p.OnBackup(types.NamespacedName{Namespace: "shop", Name: "left-out"}, backupOf("left-out", func(b *v1alpha1.Backup) {
		b.Status.Volumes = &v1alpha1.BackupVolumesProgress{Completed: 1, Total: 1, LeftOut: 1}
	}))
	if _, _, backups := p.Schedule(nightly); len(backups) != 1 || backups[0].Exempt {
		t.Errorf("no rule counts a backup without the data of one claim: %+v", backups)
	}
}

// A store that is read has thousands of backups of a schedule: what follows from them is
// published with pauses, and at once to whoever works with it.
func TestBackupsArePublishedTogether(t *testing.T) {
	p := publisher(t)
	p.Observe(entry(t, "1", "record"))
	before := p.Log.Version()
	for i := range 1000 {
		name := domain.BackupName("nightly", noon.Add(time.Duration(i)*time.Minute))
		p.OnBackup(types.NamespacedName{Namespace: "shop", Name: name}, backupOf(name, func(*v1alpha1.Backup) {}))
	}
	if got := p.Log.Version(); got != before {
		t.Errorf("it was published %d times", got-before)
	}
	p.publishOutdated()
	if got := p.Log.Version(); got != before+1 {
		t.Errorf("it was published %d times", got-before)
	}
	count := func(namespace string) int {
		n, _ := p.load(namespace, nil)
		return n
	}
	if _, _, backups := p.Schedule(nightly); len(backups) != 1000 || count("shop") != 1 || count("bank") != 0 {
		t.Errorf("it has %d backups", len(backups))
	}
}

// entries answers a read of a record late: another one has been made meanwhile.
type entries struct {
	engineclient.ScheduleEntryInterface
	meanwhile func()
}

func (e entries) Get(context.Context, string, metav1.GetOptions) (*enginev1alpha1.ScheduleEntry, error) {
	e.meanwhile()
	return nil, apierrors.NewNotFound(enginev1alpha1.Resource("scheduleentries"), "shop.nightly")
}

// TestALateAnswer: that there was none says nothing of one that was made after that.
func TestALateAnswer(t *testing.T) {
	p := publisher(t)
	w := &written{Log: p.Log, publisher: p, recordName: recordNames("holdfast"), entries: entries{meanwhile: func() { p.Observe(entry(t, "2", "new")) }}}
	if e, _, err := w.current(t.Context(), logstore.Prefix(Resource.GroupResource)+"shop/nightly"); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if s, _, _ := p.Schedule(nightly); s == nil {
		t.Error("the new one is hidden")
	}
	w.entries = entries{meanwhile: func() {}}
	if e, _, err := w.current(t.Context(), logstore.Prefix(Resource.GroupResource)+"shop/nightly"); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if s, _, _ := p.Schedule(nightly); s != nil {
		t.Error("one that is gone is still shown")
	}
}

// TestRecords: the newest version of a record counts, and none that is gone.
func TestRecords(t *testing.T) {
	p := publisher(t)
	p.Observe(entry(t, "10", "record"))
	s, _, _ := p.Schedule(nightly)
	if s.Labels["a"] != "b" || s.Generation != 7 || s.UID != "uid-of-nightly" || s.Status.Requester != "ann" || !s.Status.NextDueTimestamp.Time.Equal(noon.Add(12*time.Hour)) {
		t.Errorf("it is %+v", s)
	}
	late := entry(t, "9", "record")
	late.Spec.Requester.Username = "eve"
	p.Observe(late)
	if s, _, _ = p.Schedule(nightly); s.Status.Requester != "ann" {
		t.Errorf("a late version counts: %+v", s)
	}
	told := map[types.NamespacedName]int{}
	p.Notify(func(name types.NamespacedName) { told[name]++ })
	if told[nightly] != 1 {
		t.Errorf("whoever begins a term is told of %v", told)
	}
	p.Forget(entry(t, "10", "another"))
	if s, _, _ = p.Schedule(nightly); s == nil {
		t.Error("it goes with another record of its name")
	}
	p.Forget(entry(t, "10", "record"))
	p.Observe(entry(t, "10", "record"))
	if s, _, _ = p.Schedule(nightly); s != nil || len(p.Names()) != 0 {
		t.Errorf("its record is gone, and it is %+v", s)
	}
}

func TestErrorsAreAboutTheTemplate(t *testing.T) {
	err := ofTemplate(apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Backup").GroupKind(), "nightly-1", field.ErrorList{
		field.Invalid(field.NewPath("spec", "ttl"), "-1s", "must not be negative"),
		field.Invalid(field.NewPath("spec", "ttl"), "-1s", "really"),
		field.Required(field.NewPath("metadata", "name"), "it is needed"),
	}), "nightly")
	status := err.(*apierrors.StatusError).ErrStatus
	want := []string{"spec.template.ttl", "spec.template.ttl", "metadata.name"}
	for i, cause := range status.Details.Causes {
		if cause.Field != want[i] {
			t.Errorf("cause %d is about %s", i, cause.Field)
		}
	}
	if got := status.Message; got != `Backup.holdfast.io "nightly-1" is invalid: [spec.template.ttl: Invalid value: "-1s": must not be negative, spec.template.ttl: Invalid value: "-1s": really, metadata.name: Required value: it is needed]` {
		t.Errorf("it says %s", got)
	}
}

// TestLimit: a namespace has so many schedules and no more, but the system namespace any number.
func TestLimit(t *testing.T) {
	p := publisher(t)
	reached := errors.New("the limit lets it pass")
	w := &written{Log: p.Log, publisher: p, quota: newQuota(Config{Publisher: p, Limit: 1, SystemNamespace: "holdfast"}), recordName: recordNames("holdfast"),
		namespaceUID: func(context.Context, string) (types.UID, error) { return "", reached }}
	for namespace, passes := range map[string]bool{"shop": false, "holdfast": true, "other": true} {
		if namespace != "other" {
			one := entry(t, "1", types.UID("uid-in-"+namespace))
			one.Name, one.Spec.ScheduleRef.Namespace = namespace+".nightly", namespace
			p.Observe(one)
		}
		err := w.create(t.Context(), logstore.Prefix(Resource.GroupResource)+namespace+"/another", &v1alpha1.Schedule{}, nil)
		if got := err != nil && strings.Contains(err.Error(), reached.Error()); got != passes || !passes && !apierrors.IsForbidden(err) {
			t.Errorf("in %s: %v", namespace, err)
		}
	}
}

// TestCopiesAreNotCounted: a backup that is listed with its location behind its name is a copy, so it
// takes no place among those that a schedule keeps.
func TestCopiesAreNotCounted(t *testing.T) {
	for name, want := range map[string]bool{"nightly-1": false, "nightly-1@before": true} {
		if got := summary(backupOf(name, func(*v1alpha1.Backup) {})).Exempt; got != want {
			t.Errorf("%s is exempt: %t", name, got)
		}
	}
}
