// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

var now = time.Unix(5000, 0)

// recorded puts a run of the namespace shop into the cluster, and its backup into
// the log.
func (h *harness) recorded(name string, phase v1alpha1.BackupPhase) {
	h.Helper()
	run, err := h.Records.Create(h.Context(), &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: "shop." + name},
		Spec:       enginev1alpha1.BackupRunSpec{BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: name}},
		Status:     enginev1alpha1.BackupRunStatus{Phase: phase},
	}, metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
	}
	h.Observe(run)
	h.observed = nil
}

// storedOnly puts a backup into the log that has no run.
func (h *harness) storedOnly(backup *v1alpha1.Backup) {
	h.Helper()
	if _, err := h.log.Apply(backup); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) cancel(name string, options metav1.CreateOptions) (string, error) {
	return h.post(NewCancelREST(h.REST, clocktesting.NewFakePassiveClock(now)), name, &v1alpha1.BackupCancellation{}, options)
}

func (h *harness) delete(name string) (string, error) {
	return h.post(NewDeletionREST(h.REST, clocktesting.NewFakePassiveClock(now)), name, &v1alpha1.BackupDeletion{}, metav1.CreateOptions{})
}

func (h *harness) post(storage *recorded.Subresource, name string, body runtime.Object, options metav1.CreateOptions) (string, error) {
	return h.postIn("shop", storage, name, body, options)
}

func (h *harness) postIn(namespace string, storage *recorded.Subresource, name string, body runtime.Object, options metav1.CreateOptions) (string, error) {
	answer, err := storage.Create(h.ctx(namespace), name, body, nil, &options)
	if err != nil {
		return "", err
	}
	return answer.(*metav1.Status).Message, nil
}

func TestCancel(t *testing.T) {
	for _, phase := range []v1alpha1.BackupPhase{"", v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseInProgress} {
		h := newHarness(t, nil)
		h.recorded("a", phase)
		if _, err := h.cancel("a", metav1.CreateOptions{}); err != nil {
			t.Fatalf("%q: %v", phase, err)
		}
		got := h.run("shop.a").Spec.Cancellation
		if got == nil || got.Requester.Username != "jane" || !got.Timestamp.Time.Equal(now) {
			t.Errorf("%q: recorded %+v", phase, got)
		}
		if backup, _ := h.log.GetObject("shop", "a"); backup.Status.Phase != v1alpha1.BackupPhaseCancelling {
			t.Errorf("%q: shown as %s, want Cancelling", phase, backup.Status.Phase)
		}
		message, err := h.cancel("a", metav1.CreateOptions{})
		if err != nil || !strings.Contains(message, "jane asked") {
			t.Errorf("%q: the second time it answers %q, %v", phase, message, err)
		}
	}
}

func TestCancelWhatHasEnded(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("ended", v1alpha1.BackupPhaseCompleted)
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "stored", UID: "1"},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed},
	})
	for name, want := range map[string]string{"ended": "it has ended already, as Completed", "stored": "it has ended already, as PartiallyFailed"} {
		if _, err := h.cancel(name, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), want) || apierrors.ReasonForError(err) != "BackupState" {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := h.cancel("unknown", metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("unknown: %v, want not found", err)
	}
}

// A stored backup of the system namespace may have the name in the store of another
// namespace's live one. A request about the former must not reach the latter.
func TestRequestsReachTheBackupThatTheyName(t *testing.T) {
	for _, phase := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseCompleted} {
		h := newHarness(t, nil)
		h.recorded("b", phase)
		h.storedOnly(&v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.b", UID: "1"},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted},
		})
		clock := clocktesting.NewFakePassiveClock(now)
		for what, err := range map[string]error{
			"cancel": second(h.postIn(system, NewCancelREST(h.REST, clock), "shop.b", &v1alpha1.BackupCancellation{}, metav1.CreateOptions{})),
			"delete": second(h.postIn(system, NewDeletionREST(h.REST, clock), "shop.b", &v1alpha1.BackupDeletion{}, metav1.CreateOptions{})),
		} {
			if err == nil || apierrors.ReasonForError(err) != "BackupState" || !strings.Contains(err.Error(), "backup b in the namespace shop") {
				t.Errorf("%s, %s: %v", phase, what, err)
			}
		}
		if spec := h.run("shop.b").Spec; spec.Cancellation != nil || spec.Deletion != nil {
			t.Errorf("%s: the other one's record has %+v", phase, spec)
		}
	}
}

// That of a namespace which was made anew is shown in the system namespace, and there it
// is cancelled.
func TestRequestsReachABackupThatIsShownElsewhere(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("b", v1alpha1.BackupPhaseQueued)
	h.log.Remove("shop", "b")
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.b", UID: h.run("shop.b").UID},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseQueued},
	})
	cancellation := NewCancelREST(h.REST, clocktesting.NewFakePassiveClock(now))
	if _, err := h.postIn(system, cancellation, "shop.b", &v1alpha1.BackupCancellation{}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if h.run("shop.b").Spec.Cancellation == nil {
		t.Error("its record does not have the request")
	}
}

func second(_ string, err error) error { return err }

func TestCancelDryRunWritesNothing(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("a", v1alpha1.BackupPhaseQueued)
	h.records.PrependReactor("update", "backupruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update := action.(clienttesting.UpdateActionImpl)
		if len(update.UpdateOptions.DryRun) == 0 {
			t.Error("the update is not a dry run")
		}
		return true, update.GetObject(), nil
	})
	if _, err := h.cancel("a", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if len(h.observed) > 0 {
		t.Error("a dry run is shown")
	}
}

func TestRacingRequestsAreTriedAgain(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("a", v1alpha1.BackupPhaseQueued)
	attempts := 0
	h.records.PrependReactor("update", "backupruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		attempts++
		if attempts == 1 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "backupruns"}, "shop.a", nil)
		}
		return false, nil, nil
	})
	if _, err := h.cancel("a", metav1.CreateOptions{}); err != nil || h.run("shop.a").Spec.Cancellation == nil {
		t.Errorf("got %v and %+v", err, h.run("shop.a").Spec.Cancellation)
	}
}

func TestBodyOfAnotherBackupIsRefused(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("a", v1alpha1.BackupPhaseQueued)
	body := &v1alpha1.BackupCancellation{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	_, err := h.post(NewCancelREST(h.REST, clocktesting.NewFakePassiveClock(now)), "a", body, metav1.CreateOptions{})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want a bad request", err)
	}
}

func TestDeleteABackupThatHasItsRun(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("a", v1alpha1.BackupPhaseCompleted)
	if _, err := h.delete("a"); err != nil {
		t.Fatal(err)
	}
	if d := h.run("shop.a").Spec.Deletion; d == nil || d.Requester.Username != "jane" || d.Stored != nil {
		t.Errorf("recorded %+v", d)
	}
	if message, err := h.delete("a"); err != nil || !strings.Contains(message, "jane asked") {
		t.Errorf("the second time it answers %q, %v", message, err)
	}
	if _, err := h.cancel("a", metav1.CreateOptions{}); err == nil {
		t.Error("what is being deleted can be cancelled")
	}
}

func TestDeleteABackupThatIsOnlyStored(t *testing.T) {
	h := newHarness(t, nil)
	created := metav1.Unix(77, 0)
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old", UID: "uid-in-store", CreationTimestamp: created},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "offsite"},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, Requester: "root",
			Origin: &v1alpha1.BackupOrigin{ClaimedRequester: "root"},
		},
	})
	if _, err := h.delete("old"); err != nil {
		t.Fatal(err)
	}
	run := h.run("shop.old")
	if run.Spec.Deletion == nil || run.Spec.Deletion.Stored == nil || run.Spec.Backup.StorageLocation != "offsite" {
		t.Fatalf("recorded %+v", run.Spec)
	}
	// Nobody here has authenticated whom the store names.
	if !reflect.DeepEqual(run.Spec.Requester, enginev1alpha1.Requester{}) || run.Spec.Deletion.Requester.Username != "jane" {
		t.Errorf("asked for by %+v, and to be deleted by %+v", run.Spec.Requester, run.Spec.Deletion.Requester)
	}
	if shown := run.AsBackup(); shown.UID != "uid-in-store" || !shown.CreationTimestamp.Equal(&created) || shown.Status.Phase != v1alpha1.BackupPhaseDeleting {
		t.Errorf("shown as %+v, want the same object, Deleting", shown)
	}
}

// Pitfall 26: what waits, is about to start, or runs, is not deleted; the answer
// says to cancel it first.
func TestDeleteIsRefused(t *testing.T) {
	h := newHarness(t, nil)
	h.recorded("new", "")
	h.recorded("queued", v1alpha1.BackupPhaseQueued)
	h.recorded("ready", v1alpha1.BackupPhaseReadyToStart)
	h.recorded("running", v1alpha1.BackupPhaseInProgress)
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "broken", UID: "1"},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseUnreadable},
	})
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "twin@offsite", UID: "2"},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted},
	})
	for name, want := range map[string]string{
		"new":          "it is New: wait for its end, or cancel it first: kubectl holdfast backup cancel new -n shop, or POST to backups/new/cancel",
		"queued":       "it is Queued: wait for its end, or cancel it first: kubectl holdfast backup cancel queued -n shop, or POST to backups/queued/cancel",
		"ready":        "it is ReadyToStart: wait for its end, or cancel it first: kubectl holdfast backup cancel ready -n shop, or POST to backups/ready/cancel",
		"running":      "it is InProgress: wait for its end, or cancel it first: kubectl holdfast backup cancel running -n shop, or POST to backups/running/cancel",
		"broken":       "metadata can't be read",
		"twin@offsite": "another storage location has a backup of the same name",
	} {
		if _, err := h.delete(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if n := h.calls("update"); n != 0 {
		t.Errorf("%d requests were recorded", n)
	}
}

// What must be true of a backup is looked at where its deletion is recorded.
func TestDeletionPreconditions(t *testing.T) {
	own := func(uid types.UID, trust v1alpha1.BackupTrust, expiration time.Time) *v1alpha1.Backup {
		b := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: uid}, Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, Origin: &v1alpha1.BackupOrigin{Trust: trust},
		}}
		if !expiration.IsZero() {
			b.Status.Expiration = &metav1.Time{Time: expiration}
		}
		return b
	}
	for name, c := range map[string]struct {
		backup *v1alpha1.Backup
		want   string
	}{
		"expired":       {own("1", v1alpha1.BackupTrustOwn, now), ""},
		"not yet":       {own("1", v1alpha1.BackupTrustOwn, now.Add(time.Second)), "it expires at 1970-01-01T01:23:21Z, and here it is 1970-01-01T01:23:20Z"},
		"another one":   {own("2", v1alpha1.BackupTrustOwn, now), "its uid is 2"},
		"never":         {own("1", v1alpha1.BackupTrustOwn, time.Time{}), "it does not expire"},
		"somebody's":    {own("1", v1alpha1.BackupTrustForeign, now), "not one of this cluster's own"},
		"a neighbour's": {own("1", v1alpha1.BackupTrustTrusted, now), "not one of this cluster's own"},
		"nobody knows":  {&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}}, "not one of this cluster's own"},
	} {
		h := newHarness(t, nil)
		h.storedOnly(c.backup)
		body := &v1alpha1.BackupDeletion{Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: "1", Expired: true}}
		_, err := h.post(NewDeletionREST(h.REST, clocktesting.NewFakePassiveClock(now)), "a", body, metav1.CreateOptions{})
		if c.want == "" {
			if err != nil || h.run("shop.a").Spec.Deletion == nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || apierrors.ReasonForError(err) != v1alpha1.StatusReasonBackupState || h.calls("create") > 0 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What the preconditions are about is what the deletion is recorded on.
func TestDeletionOfWhatWasReplaced(t *testing.T) {
	k := newHarness(t, nil).REST.Kind.(*kind)
	listed := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}, Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted}}
	run := &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Name: "shop.a", UID: "2"}, Status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted}}
	body := &v1alpha1.BackupDeletion{Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: "1"}}
	ask := enginev1alpha1.Ask{Timestamp: metav1.NewTime(now)}
	if changed, _, err := k.remove(listed, run, ask, body); err == nil || changed != nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("another backup of the name: %+v, %v", changed, err)
	}
	run.UID = "1"
	if changed, _, err := k.remove(listed, run, ask, body); err != nil || changed.Spec.Deletion == nil {
		t.Errorf("the one that is meant: %+v, %v", changed, err)
	}
}

// A backup that another maker stored may be larger than a record may be.
func TestDeletingALargeStoredBackup(t *testing.T) {
	h := newHarness(t, nil)
	stored := with(newBackup("shop", "big"), func(spec *v1alpha1.BackupSpec) {
		spec.StorageLocation = "main"
		for i := range 2000 {
			spec.IncludedNamespaces = append(spec.IncludedNamespaces, fmt.Sprintf("n%d", i))
		}
	})
	stored.UID, stored.Labels = "1", map[string]string{"a": "b"}
	h.storedOnly(stored)
	if _, err := h.delete("big"); err != nil {
		t.Fatal(err)
	}
	spec := h.run("shop.big").Spec
	if spec.Deletion == nil || spec.Deletion.Stored.UID != "1" || !reflect.DeepEqual(spec.Backup, v1alpha1.BackupSpec{StorageLocation: "main"}) || len(spec.Labels) != 0 {
		t.Errorf("recorded %+v", spec)
	}
}

// A deletion that wants a superseded backup leaves the last data of a claim alone; one by a
// person who asks for nothing of the kind is recorded.
func TestDeletionLeavesTheLastData(t *testing.T) {
	last, broken := []types.NamespacedName{{Namespace: "shop", Name: "data"}, {Namespace: "shop", Name: "db"}}, error(nil)
	h := newHarness(t, nil)
	h.kind.lastData = func(context.Context, *v1alpha1.Backup) ([]types.NamespacedName, error) { return last, broken }
	h.storedOnly(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}, Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted}})
	remove := func(superseded bool) error {
		body := &v1alpha1.BackupDeletion{Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: "1", Superseded: superseded}}
		_, err := h.post(NewDeletionREST(h.REST, clocktesting.NewFakePassiveClock(now)), "a", body, metav1.CreateOptions{})
		return err
	}
	err := remove(true)
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Reason != v1alpha1.StatusReasonBackupState || !strings.Contains(err.Error(), "the newest data of shop/data and 1 more") {
		t.Fatalf("it holds the last data: %v", err)
	}
	if causes := status.ErrStatus.Details.Causes; len(causes) != 1 || causes[0].Type != v1alpha1.CauseHoldsLastData {
		t.Errorf("the causes are %+v", causes)
	}
	broken = errors.New("no answer")
	if err := remove(true); !apierrors.IsInternalError(err) || h.calls("create") > 0 {
		t.Errorf("while that is not known: %v", err)
	}
	broken = nil
	if err := remove(false); err != nil || h.run("shop.a").Spec.Deletion == nil {
		t.Errorf("asked for without the precondition: %v", err)
	}
}

// TestDeletionOfSnapshotsByHandle: a deletion of snapshots that only the backup names takes the right to delete
// any VolumeSnapshotContent. It is recorded for a backup with a run and without.
func TestDeletionOfSnapshotsByHandle(t *testing.T) {
	for name, test := range map[string]struct{ asked, allowed, recorded, want bool }{
		"with the right":                {asked: true, allowed: true, want: true},
		"with the right, and a run":     {asked: true, allowed: true, recorded: true, want: true},
		"without the right":             {asked: true},
		"without the right, and a run":  {asked: true, recorded: true},
		"not asked for needs no right":  {want: true},
		"not asked for, though allowed": {allowed: true, recorded: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.kind.authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() != "delete" || a.GetAPIGroup() != "snapshot.storage.k8s.io" || a.GetResource() != "volumesnapshotcontents" || a.GetNamespace() != "" || !test.asked {
					t.Errorf("asked for the right %+v", a)
				}
				if test.allowed {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			if test.recorded {
				h.recorded("a", v1alpha1.BackupPhaseCompleted)
			} else {
				h.storedOnly(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}, Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted}})
			}
			_, err := h.post(NewDeletionREST(h.REST, clocktesting.NewFakePassiveClock(now)), "a", &v1alpha1.BackupDeletion{SnapshotsByHandle: test.asked}, metav1.CreateOptions{})
			if !test.want {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "snapshotsByHandle") {
					t.Errorf("got %v", err)
				}
				if test.recorded && h.run("shop.a").Spec.Deletion != nil || !test.recorded && h.calls("create") > 0 {
					t.Error("it is recorded")
				}
				return
			}
			if err != nil || h.run("shop.a").Spec.Deletion == nil || h.run("shop.a").Spec.Deletion.SnapshotsByHandle != test.asked {
				t.Errorf("got %v, recorded %+v", err, h.run("shop.a").Spec.Deletion)
			}
		})
	}
}
