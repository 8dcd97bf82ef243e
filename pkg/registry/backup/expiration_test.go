// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// storedBackup is one of this cluster's own.
func storedBackup(name string, change func(*v1alpha1.Backup)) *v1alpha1.Backup {
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-of-" + "shop." + "a"},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "default"},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, FormatVersion: format.FormatVersion, Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn},
		},
	}
	if change != nil {
		change(backup)
	}
	return backup
}

func (h *harness) change(name string, body *v1alpha1.BackupExpiration, options metav1.CreateOptions) (string, error) {
	h.Helper()
	storage := NewExpirationREST(ExpirationConfig{
		Backups: h.REST, Changes: h.records.EngineV1alpha1().BackupChanges(system), Former: h.records.EngineV1alpha1().ExpirationChanges(system), Clock: clocktesting.NewFakePassiveClock(now),
		Observe: func(*enginev1alpha1.BackupChange) { h.observed = append(h.observed, "a change") },
	})
	answer, err := storage.Create(h.ctx("shop"), name, body, nil, &options)
	if err != nil {
		return "", err
	}
	return answer.(*metav1.Status).Message, nil
}

func (h *harness) recordedChange() *enginev1alpha1.BackupChange {
	h.Helper()
	change, err := h.records.EngineV1alpha1().BackupChanges(system).Get(h.Context(), "shop.a", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return change
}

// A request is recorded with who asked; a later one, before the first is in the store, adds
// to it, and after that replaces it.
func TestExpirationIsRecorded(t *testing.T) {
	h := newHarness(t, nil)
	h.storedOnly(storedBackup("a", nil))
	hold, release := true, false
	later := metav1.NewTime(now.Add(time.Hour))
	message, err := h.change("a", &v1alpha1.BackupExpiration{Hold: &hold, Reason: "evidence"}, metav1.CreateOptions{})
	if err != nil || !strings.Contains(message, "held") {
		t.Fatalf("it answers %q, %v", message, err)
	}
	change := h.recordedChange()
	if spec := change.Spec; spec.UID != "uid-of-shop.a" || spec.Ask.Requester.Username != "jane" || !*spec.Hold || spec.Reason != "evidence" || spec.Expiration != nil || spec.StorageLocation != "default" {
		t.Errorf("recorded %+v", spec)
	}
	if len(h.observed) != 1 {
		t.Error("it is not shown")
	}
	change.Generation = 1 // which the fake does not count
	if _, err := h.records.EngineV1alpha1().BackupChanges(system).Update(t.Context(), change, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.change("a", &v1alpha1.BackupExpiration{Expiration: &later}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if change = h.recordedChange(); change.Spec.Hold == nil || !*change.Spec.Hold || change.Spec.Reason != "evidence" || !change.Spec.Expiration.Equal(&later) {
		t.Errorf("the second request made %+v of it", change.Spec)
	}
	change.Status.ObservedGeneration = change.Generation
	if _, err := h.records.EngineV1alpha1().BackupChanges(system).Update(t.Context(), change, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.change("a", &v1alpha1.BackupExpiration{Hold: &release}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if change = h.recordedChange(); *change.Spec.Hold || change.Spec.Expiration != nil {
		t.Errorf("what is in the store already is asked for again: %+v", change.Spec)
	}
}

func TestExpirationIsRefused(t *testing.T) {
	hold, release := true, false
	for name, test := range map[string]struct {
		backup *v1alpha1.Backup
		body   v1alpha1.BackupExpiration
		want   string
	}{
		"nothing":                            {storedBackup("a", nil), v1alpha1.BackupExpiration{}, "changes nothing"},
		"another uid":                        {storedBackup("a", nil), v1alpha1.BackupExpiration{Hold: &hold, UID: "7"}, "its uid is uid-of-shop.a"},
		"another name":                       {storedBackup("a", nil), v1alpha1.BackupExpiration{Hold: &hold, ObjectMeta: metav1.ObjectMeta{Name: "b"}}, `metadata.name is "b"`},
		"a long reason":                      {storedBackup("a", nil), v1alpha1.BackupExpiration{Hold: &hold, Reason: strings.Repeat("a", maxReason+1)}, "reason has more"},
		"a far year":                         {storedBackup("a", nil), v1alpha1.BackupExpiration{Expiration: &metav1.Time{Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}, "up to 9999"},
		"it runs":                            {storedBackup("a", func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseInProgress }), v1alpha1.BackupExpiration{Hold: &hold}, "wait for its end"},
		"never stored":                       {storedBackup("a", func(b *v1alpha1.Backup) { b.Status.FormatVersion = "" }), v1alpha1.BackupExpiration{Hold: &hold}, "not in its store"},
		"of another cluster":                 {storedBackup("a", func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustTrusted }), v1alpha1.BackupExpiration{Hold: &hold}, "not one of this cluster's own"},
		"being deleted":                      {storedBackup("a", func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseDeleting }), v1alpha1.BackupExpiration{Hold: &hold}, "it is being deleted"},
		"a release of what is being deleted": {storedBackup("a", func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseDeleting }), v1alpha1.BackupExpiration{Hold: &release}, ""},
		"of two locations":                   {storedBackup("a@offsite", nil), v1alpha1.BackupExpiration{Hold: &hold}, "another storage location"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.storedOnly(test.backup)
			_, err := h.change(test.backup.Name, &test.body, metav1.CreateOptions{})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("it answers %v", err)
			}
			if test.want != "" && h.calls("create")+h.calls("update") > 0 {
				t.Error("it is recorded")
			}
		})
	}
}

// Of a hold and a deletion that meet, either the hold is refused or the deletion sees it: the
// hold is recorded before its asker looks for a deletion.
func TestHoldMeetsDeletion(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("a", v1alpha1.BackupPhaseCompleted)
	h.storedOnly(storedBackup("a", nil))
	run := h.run("shop.a")
	h.records.PrependReactor("create", "backupchanges", func(clienttesting.Action) (bool, runtime.Object, error) {
		run.Spec.Deletion = &enginev1alpha1.Deletion{}
		return false, nil, h.records.Tracker().Update(enginev1alpha1.SchemeGroupVersion.WithResource("backupruns"), run, system)
	})
	hold := true
	_, err := h.change("a", &v1alpha1.BackupExpiration{Hold: &hold}, metav1.CreateOptions{})
	if apierrors.ReasonForError(err) != v1alpha1.StatusReasonBackupState || !strings.Contains(err.Error(), "its deletion was asked for") {
		t.Errorf("it answers %v", err)
	}
	if !*h.recordedChange().Spec.Hold {
		t.Error("the deletion can't see it")
	}

	held := newHarness(t, nil)
	held.storedOnly(storedBackup("a", func(b *v1alpha1.Backup) { b.Status.Hold = &v1alpha1.BackupHold{Requester: "joe", Reason: "evidence"} }))
	if _, err := held.delete("a"); apierrors.ReasonForError(err) != v1alpha1.StatusReasonBackupState || !strings.Contains(err.Error(), "joe holds it") {
		t.Errorf("a deletion of what is held is answered with %v", err)
	}
}

// Nobody keeps a backup of a tenant's namespace for longer than it may be asked for.
func TestExpirationIsLimited(t *testing.T) {
	h := newHarness(t, nil)
	h.storedOnly(storedBackup("a", func(b *v1alpha1.Backup) { b.CreationTimestamp = metav1.NewTime(now) }))
	storage := NewExpirationREST(ExpirationConfig{
		Backups: h.REST, Changes: h.records.EngineV1alpha1().BackupChanges(system), Former: h.records.EngineV1alpha1().ExpirationChanges(system), Clock: clocktesting.NewFakePassiveClock(now),
		Observe: func(*enginev1alpha1.BackupChange) {}, SystemNamespace: system, MaxTTL: time.Hour,
	})
	ask := func(after time.Duration) error {
		expiration := metav1.NewTime(now.Add(after))
		_, err := storage.Create(h.ctx("shop"), "a", &v1alpha1.BackupExpiration{Expiration: &expiration}, nil, &metav1.CreateOptions{})
		return err
	}
	if err := ask(time.Hour + time.Second); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "--max-backup-ttl") {
		t.Errorf("longer than an hour: %v", err)
	}
	if err := ask(time.Hour); err != nil {
		t.Errorf("an hour: %v", err)
	}
}

// A request is never recorded as the earlier one of two, whatever the clock of the replica that
// recorded the former one: what is recorded later applies.
func TestExpirationFollowsAFormerOne(t *testing.T) {
	h := newHarness(t, nil)
	h.storedOnly(storedBackup("a", nil))
	hold, release := true, false
	ahead := metav1.NewTime(now.Add(time.Minute))
	former := &enginev1alpha1.ExpirationChange{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.a", Generation: 1},
		Spec:       enginev1alpha1.BackupChangeSpec{UID: "uid-of-shop.a", Hold: &release, Ask: enginev1alpha1.Ask{Timestamp: ahead}},
	}
	if _, err := h.records.EngineV1alpha1().ExpirationChanges(system).Create(t.Context(), former, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.change("a", &v1alpha1.BackupExpiration{Hold: &hold}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inOrder := enginev1alpha1.InOrder(h.recordedChange(), (*enginev1alpha1.BackupChange)(former))
	if last := inOrder[1]; last.Spec.Hold == nil || !*last.Spec.Hold || inOrder[0].Spec.Hold != nil {
		t.Errorf("they apply in the order %+v, %+v", inOrder[0].Spec, inOrder[1].Spec)
	}
}
