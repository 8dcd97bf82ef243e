// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

const system = "holdfast"

var instant = metav1.Unix(1_700_000_000, 0)

type getter struct{ volume string }

func (g getter) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &v1alpha1.VolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VolumeBackupSpec{VolumeName: g.volume}}, nil
}

type world struct {
	*testing.T
	VolumeDeletionConfig
	items    []catalog.HistoryItem
	shown    map[types.NamespacedName]*v1alpha1.Backup
	allowed  []string // namespaces where backups may be deleted
	asked    []string
	observed []*enginev1alpha1.BackupChange
	notReady error
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, shown: map[types.NamespacedName]*v1alpha1.Backup{}}
	w.VolumeDeletionConfig = VolumeDeletionConfig{
		Ready: func() error { return w.notReady },
		History: func(namespace, name string) ([]catalog.HistoryItem, types.UID) {
			if namespace != "shop" || name != "data" {
				return nil, ""
			}
			return w.items, "uid-of-data"
		},
		Backup: func(namespace, name string) (*v1alpha1.Backup, bool) {
			backup := w.shown[types.NamespacedName{Namespace: namespace, Name: name}]
			return backup, backup != nil
		},
		Changes: enginetest.New().EngineV1alpha1().BackupChanges(system),
		Observe: func(d *enginev1alpha1.BackupChange) { w.observed = append(w.observed, d) },
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			w.asked = append(w.asked, fmt.Sprintf("%s %s %s/%s in %s", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace()))
			if slices.Contains(w.allowed, a.GetNamespace()) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		}),
		Clock: clocktesting.NewFakePassiveClock(instant.Time),
	}
	return w
}

// add adds a backup that holds the volume.
func (w *world) add(namespace, name string, change func(*v1alpha1.Backup)) {
	storeName := format.StoreName(namespace, name, system)
	uid := types.UID("uid-of-" + storeName)
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn}},
	}
	if change != nil {
		change(backup)
	}
	w.items = append(w.items, catalog.HistoryItem{
		VolumeInBackup: catalog.VolumeInBackup{Backup: catalog.BackupID{Location: "default", StoreName: storeName, UID: uid}, Volume: format.VolumeID{Namespace: "shop", Name: "data"}},
		Listed:         types.NamespacedName{Namespace: "shop", Name: storeName + ":data"}, UID: "of-" + uid, Of: backup,
	})
}

func (w *world) ask(storage *recorded.Subresource, name string, body *v1alpha1.VolumeDeletion, dryRun ...string) (string, error) {
	w.Helper()
	ctx := genericapirequest.WithNamespace(genericapirequest.WithUser(w.Context(), &user.DefaultInfo{Name: "jane"}), "shop")
	answer, err := storage.Create(ctx, name, body, nil, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return "", err
	}
	return answer.(*metav1.Status).Message, nil
}

func targets(d *enginev1alpha1.BackupChange) (names []string) {
	for _, target := range d.Spec.Targets {
		names = append(names, target.StoreName)
	}
	return names
}

// TestLimit: what is recorded of a namespace's deletions is bounded, each location counts, and the
// answer names the limit.
func TestLimit(t *testing.T) {
	w := newWorld(t)
	w.add("shop", "a", nil)
	w.add("shop", "b", nil)
	w.items[1].Backup.Location = "archive"
	var records, unfinished int
	w.Limit, w.SystemNamespace = 5, system
	w.Load = func(namespace string, _ sets.Set[string]) (int, int) {
		if namespace != "shop" {
			t.Errorf("the records of %q are counted", namespace)
		}
		return records, unfinished
	}
	for _, c := range []struct {
		records, unfinished int
		refused             string
	}{
		{unfinished: 3, records: 48},
		{unfinished: 4, records: 4, refused: `4 deletions of volumes of the namespace "shop" are under way, this one would be 2 more, and at most 5 may be (--volume-deletions-per-namespace`},
		{unfinished: 0, records: 49, refused: `at most 50 may be (10 times --volume-deletions-per-namespace`},
	} {
		records, unfinished, w.observed = c.records, c.unfinished, nil
		_, err := w.ask(NewHistoryDeletion(w.VolumeDeletionConfig), "data", &v1alpha1.VolumeDeletion{})
		switch {
		case c.refused == "" && (err != nil || len(w.observed) != 2):
			t.Errorf("%d of %d: %v", c.unfinished, c.records, err)
		case c.refused != "" && (!apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, CauseTooManyDeletions) || !strings.Contains(err.Error(), c.refused) || len(w.observed) > 0):
			t.Errorf("%d of %d: %v, and %d are recorded", c.unfinished, c.records, err, len(w.observed))
		}
	}
	w.Limit = 0
	if _, err := w.ask(NewHistoryDeletion(w.VolumeDeletionConfig), "data", &v1alpha1.VolumeDeletion{}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	w.Limit, w.SystemNamespace = 1, "shop"
	if _, err := w.ask(NewHistoryDeletion(w.VolumeDeletionConfig), "data", &v1alpha1.VolumeDeletion{}); err != nil {
		t.Errorf("in the system namespace: %v", err)
	}
}

// TestWhatOfAHistoryGoes: what the requester may delete, of the backups from which something may
// be, by one record for each location; the rest stays, and is counted, and not named to those whose it is not.
func TestWhatOfAHistoryGoes(t *testing.T) {
	w := newWorld(t)
	w.add("shop", "a", nil)
	w.add("shop", "b", nil)
	w.add("shop", "held", func(b *v1alpha1.Backup) { b.Status.Hold = &v1alpha1.BackupHold{Requester: "joe", Timestamp: instant} })
	w.add("shop", "unreadable", func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseUnreadable })
	w.add("shop", "foreign", func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForeign })
	w.add("shop", "deleting", nil)
	deleting := w.items[5].Of.DeepCopy()
	deleting.Status.Phase = v1alpha1.BackupPhaseDeleting
	w.shown[types.NamespacedName{Namespace: "shop", Name: "deleting"}] = deleting
	w.add(system, "secret-1", nil)
	w.add(system, "secret-2", nil)
	w.add("partner", "ours", nil)
	w.add("shop", "elsewhere", nil)
	w.items[9].Backup.Location = "archive"
	w.allowed = []string{"partner"}

	storage := NewHistoryDeletion(w.VolumeDeletionConfig)
	if message, err := w.ask(storage, "data", &v1alpha1.VolumeDeletion{}, metav1.DryRunAll); err != nil || !strings.Contains(message, "4 volume backups would be deleted") || len(w.observed) > 0 {
		t.Errorf("a dry run is answered with %q, %v", message, err)
	}
	w.asked = nil
	message, err := w.ask(storage, "data", &v1alpha1.VolumeDeletion{})
	for _, want := range []string{"4 volume backups are deleted", "2 stay in backups of other namespaces", "4 stay: ", "shop/held is held by joe", "shop/unreadable can't be read", "shop/foreign is not one of this cluster's own", "shop/deleting is being deleted"} {
		if err != nil || !strings.Contains(message, want) {
			t.Errorf("it is answered with %q, %v, without %q", message, err, want)
		}
	}
	if strings.Contains(message, "secret") {
		t.Errorf("it names what is not the requester's: %q", message)
	}
	if len(w.observed) != 2 || !slices.Equal(targets(w.observed[0]), []string{"shop.elsewhere"}) || !slices.Equal(targets(w.observed[1]), []string{"shop.a", "shop.b", "partner.ours"}) ||
		w.observed[1].Spec.Ask.Requester.Username != "jane" {
		t.Errorf("recorded is %v", w.observed)
	}
	if want := []string{"jane create backups/deletion in holdfast", "jane create backups/deletion in partner"}; !slices.Equal(w.asked, want) {
		t.Errorf("the rights asked for are %q, want %q", w.asked, want)
	}
}

// TestVolumeInStorage: a snapshot in the storage of its volume is deleted with its backup only.
func TestVolumeInStorage(t *testing.T) {
	w := newWorld(t)
	w.add("shop", "a", nil)
	w.add("shop", "kept", nil)
	w.items[1].InStorage = true
	message, err := w.ask(NewHistoryDeletion(w.VolumeDeletionConfig), "data", &v1alpha1.VolumeDeletion{})
	if err != nil || !strings.Contains(message, "shop/kept keeps it as a snapshot") || len(w.observed) != 1 || !slices.Equal(targets(w.observed[0]), []string{"shop.a"}) {
		t.Errorf("it is answered with %q, %v: %v", message, err, w.observed)
	}
}

// TestOneVolumeBackup: by its name, if it is the one that is meant.
func TestOneVolumeBackup(t *testing.T) {
	w := newWorld(t)
	w.add("shop", "a", nil)
	w.add("shop", "b", nil)
	w.add(system, "secret", nil)
	storage := NewVolumeDeletion(w.VolumeDeletionConfig, getter{"data"})
	uid := func(uid types.UID) *v1alpha1.VolumeDeletion {
		return &v1alpha1.VolumeDeletion{Preconditions: &v1alpha1.VolumeDeletionPreconditions{UID: uid}}
	}
	if _, err := w.ask(storage, "shop.b:data", uid("another")); apierrors.ReasonForError(err) != v1alpha1.StatusReasonBackupState {
		t.Errorf("of another uid it is answered with %v", err)
	}
	if _, err := w.ask(storage, "shop.c:data", uid("")); !apierrors.IsNotFound(err) {
		t.Errorf("what is not there is answered with %v", err)
	}
	if _, err := w.ask(storage, "secret:data", uid("")); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), system+"/") {
		t.Errorf("what lies in another's is answered with %v", err)
	}
	other := uid("")
	other.Name = "another"
	if _, err := w.ask(storage, "shop.b:data", other); !apierrors.IsBadRequest(err) {
		t.Errorf("another name is answered with %v", err)
	}
	w.notReady = errors.New("a store has not been read")
	if _, err := w.ask(storage, "shop.b:data", uid("")); !apierrors.IsTooManyRequests(err) {
		t.Errorf("before the stores were read it is answered with %v", err)
	}
	w.notReady = nil
	if len(w.observed) > 0 {
		t.Errorf("recorded is %v", w.observed)
	}
	if message, err := w.ask(storage, "shop.b:data", uid("of-uid-of-shop.b")); err != nil || !strings.Contains(message, "the volume backup is deleted") {
		t.Errorf("it is answered with %q, %v", message, err)
	}
	if len(w.observed) != 1 || !slices.Equal(targets(w.observed[0]), []string{"shop.b"}) {
		t.Errorf("recorded is %v", w.observed)
	}
}

// TestLongHistory: one record takes as much as etcd does, and the answer says that there is more.
func TestLongHistory(t *testing.T) {
	w := newWorld(t)
	for i := range enginev1alpha1.MaxBackupChangeTargets + 7 {
		w.add("shop", fmt.Sprintf("nightly-%d", i), nil)
	}
	message, err := w.ask(NewHistoryDeletion(w.VolumeDeletionConfig), "data", &v1alpha1.VolumeDeletion{})
	if err != nil || !strings.Contains(message, "ask again for 7 more") || len(w.observed[0].Spec.Targets) != enginev1alpha1.MaxBackupChangeTargets {
		t.Errorf("it is answered with %q, %v", message, err)
	}
}
