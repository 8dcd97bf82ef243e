// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// expectTooMany checks the answer to a request that is beyond a limit.
func expectTooMany(t *testing.T, err error, says ...string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Fatalf("answered %v", err)
	}
	status, _ := errors.AsType[*apierrors.StatusError](err)
	if got := status.Status(); got.Code != http.StatusForbidden || got.Details.RetryAfterSeconds != 0 ||
		len(got.Details.Causes) != 1 || got.Details.Causes[0].Type != CauseTooManyBackups {
		t.Errorf("answered %+v", got)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("it does not say %q: %v", text, err)
		}
	}
}

// What waits of one namespace is bounded, and its answer says by what. Others don't
// notice, and what begins or is cancelled makes room.
func TestWaitingBackupsAreLimited(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	for i := range 3 {
		if _, err := h.create(newBackup("shop", fmt.Sprintf("a%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.create(newBackup("shop", "a3"))
	expectTooMany(t, err, `3 backups of namespace "shop" wait`, "at most 3", "--waiting-backups-per-namespace", "cancel one")
	_, err = h.create(newBackup("shop", "a3"), metav1.DryRunAll)
	expectTooMany(t, err)
	if h.calls("create") != 3 {
		t.Errorf("%d were recorded", h.calls("create"))
	}
	if _, err := h.create(newBackup("shop", "a0")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("one that is there already: %v", err)
	}
	if _, err := h.create(newBackup("web", "a")); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	for i := range 5 {
		if _, err := h.create(newBackup(system, fmt.Sprintf("a%d", i))); err != nil {
			t.Errorf("the system namespace: %v", err)
		}
	}
	_, err = h.create(newBackup(system, "a5"))
	expectTooMany(t, err, "at most 5", "--waiting-backups-in-system-namespace")

	begun := h.run("shop.a0")
	begun.Status.Phase = v1alpha1.BackupPhaseInProgress
	h.Observe(begun)
	if _, err := h.create(newBackup("shop", "a3")); err != nil {
		t.Errorf("when one has begun: %v", err)
	}
	if _, err := h.cancel("a1", metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.create(newBackup("shop", "a4")); err != nil {
		t.Errorf("when one was cancelled: %v", err)
	}
	_, err = h.create(newBackup("shop", "a5"))
	expectTooMany(t, err)
}

// Records of cancelled backups stay for a day. Creating and cancelling all the time
// must not fill the cluster with them.
func TestRecordsAreLimited(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	for i := range 3 * recordsPerWaiting {
		run := record("shop", fmt.Sprintf("ended-%d", i))
		run.UID = types.UID(run.Name)
		run.Status.Phase = v1alpha1.BackupPhaseCancelled
		h.planner.UpdateRun(run, nil)
	}
	_, err := h.create(newBackup("shop", "a"))
	expectTooMany(t, err, `30 records of backups of namespace "shop"`, "at most 30", "after a day")
	h.planner.RemoveRun("shop.ended-0")
	if _, err := h.create(newBackup("shop", "a")); err != nil {
		t.Errorf("when one has gone: %v", err)
	}
}

func TestNoLimit(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	h.kind.quota.Limit = func(string) (int, string) { return 0, "" }
	for i := range 100 {
		if _, err := h.create(newBackup("shop", fmt.Sprintf("a%d", i))); err != nil {
			t.Fatal(err)
		}
	}
}

// A record that could not be written takes no place.
func TestARefusedRecordTakesNoPlace(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	for range 5 {
		if err := h.records.Tracker().Add(record("shop", "taken")); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if _, err := h.create(newBackup("shop", "taken")); !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if _, err := h.create(newBackup("shop", "dry"), metav1.DryRunAll); err != nil {
			t.Fatal(err)
		}
	}
}

// What a namespace stores is bounded, by number and by time, but for the administrator's.
func TestStoredBackupsAreLimited(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	h.stored = map[string]int{"shop": 2, "web": 1, system: 1000}
	_, err := h.create(newBackup("shop", "a"))
	expectTooMany(t, err, `2 backups of namespace "shop" are stored`, "at most 2", "--stored-backups-per-namespace", "delete some", "spec.ttl")
	for _, namespace := range []string{"web", system} {
		if _, err := h.create(newBackup(namespace, "a")); err != nil {
			t.Errorf("one more in %s: %v", namespace, err)
		}
	}
	if h.calls("create") != 2 {
		t.Errorf("%d were recorded, want 2", h.calls("create"))
	}
	long := newBackup("web", "long")
	long.Spec.TTL.Duration = 2*DefaultTTL + 1
	if _, err := h.create(long); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.ttl") || !strings.Contains(err.Error(), "--max-backup-ttl") {
		t.Errorf("a ttl that is too long: %v", err)
	}
	long.Namespace = system
	if _, err := h.create(long); err != nil {
		t.Errorf("the same of the administrator's: %v", err)
	}
	most := newBackup("web", "most")
	most.Spec.TTL.Duration = 2 * DefaultTTL
	if _, err := h.create(most); err != nil {
		t.Errorf("as long as may be: %v", err)
	}
}
