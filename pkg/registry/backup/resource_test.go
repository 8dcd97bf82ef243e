// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Pitfall 28: what waits has no start and no expiry yet, and shows neither.
func TestCells(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(d)); return &at }
	cases := map[string]struct {
		spec   v1alpha1.BackupSpec
		status v1alpha1.BackupStatus
		want   []any
	}{
		"new": {
			status: v1alpha1.BackupStatus{Phase: "New"},
			want:   []any{"x", "New", "-", "-", "-", int64(0), int64(0), "-", "60m", "-", "-", "-", "-", "-", "-"},
		},
		"queued": {
			spec: v1alpha1.BackupSpec{StorageLocation: "default"},
			status: v1alpha1.BackupStatus{Phase: "Queued", QueuePosition: 2, Requester: "jane", Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse, Reason: "Queued"},
				{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionTrue, Reason: "NamespaceOverlap"},
			}},
			want: []any{"x", "Queued", "-", "-", "-", int64(0), int64(0), "-", "60m", "2", "-", "default", "jane", "-", "NamespaceOverlap"},
		},
		"running": {
			status: v1alpha1.BackupStatus{Phase: "InProgress", StartTimestamp: at(-time.Minute), Expiration: at(720 * time.Hour),
				Progress:   &v1alpha1.BackupProgress{ItemsBackedUp: 3, TotalItems: 10},
				Volumes:    &v1alpha1.BackupVolumesProgress{Total: 2, Completed: 1, LeftOut: 1, BytesDone: 1536},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionFalse, Reason: "InProgress"}}},
			want: []any{"x", "InProgress", "3/10", "1/3", "1.5Ki", int64(0), int64(0), "in 30d", "60m", "-", "60s", "-", "-", "-", "-"},
		},
		"what another's store says": {
			status: v1alpha1.BackupStatus{Phase: "Completed", Volumes: &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1, LeftOut: math.MaxInt32}},
			want:   []any{"x", "Completed", "-", "1/2147483648", "0", int64(0), int64(0), "-", "60m", "-", "-", "-", "-", "-", "-"},
		},
		"failed in part, and expired": {
			status: v1alpha1.BackupStatus{Phase: "PartiallyFailed", Errors: 2, Warnings: 1, Expiration: at(-time.Hour),
				StartTimestamp: at(-3 * time.Hour), CompletionTimestamp: at(-2 * time.Hour), Volumes: &v1alpha1.BackupVolumesProgress{}},
			want: []any{"x", "PartiallyFailed", "-", "-", "-", int64(1), int64(2), "60m ago", "60m", "-", "60m", "-", "-", "-", "-"},
		},
		"failed in part, as Velero says": {
			status: v1alpha1.BackupStatus{Phase: "PartiallyFailed", Errors: 2, Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Message: "2 errors (see the results)"},
			}},
			want: []any{"x", "PartiallyFailed", "-", "-", "-", int64(0), int64(2), "-", "60m", "-", "-", "-", "-", "-", "2 errors (see the results)"},
		},
		"failed": {
			status: v1alpha1.BackupStatus{Phase: "Failed", FailureReason: "the power went out"},
			want:   []any{"x", "Failed", "-", "-", "-", int64(0), int64(0), "-", "60m", "-", "-", "-", "-", "-", "the power went out"},
		},
		"stored here": {
			status: v1alpha1.BackupStatus{Phase: "Completed", Requester: "jane", Origin: &v1alpha1.BackupOrigin{Trust: "Own", ClaimedRequester: "jane"}},
			want:   []any{"x", "Completed", "-", "-", "-", int64(0), int64(0), "-", "60m", "-", "-", "-", "jane", "Own", "-"},
		},
		"found in the store": {
			status: v1alpha1.BackupStatus{Phase: "Completed", Origin: &v1alpha1.BackupOrigin{Trust: "Forged", ClaimedRequester: "root"}},
			want:   []any{"x", "Completed", "-", "-", "-", int64(0), int64(0), "-", "60m", "-", "-", "-", "(root)", "Forged", "-"},
		},
		"refused": {
			status: v1alpha1.BackupStatus{Phase: "FailedValidation", ValidationErrors: []string{"spec.ttl: bad", "spec.hooks: bad"}},
			want:   []any{"x", "FailedValidation", "-", "-", "-", int64(0), int64(0), "-", "60m", "-", "-", "-", "-", "-", "spec.ttl: bad"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "x", CreationTimestamp: *at(-time.Hour)}, Spec: c.spec, Status: c.status}
			var got []any
			for _, column := range Resource.Columns {
				got = append(got, column.Cell(backup, now))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("cells %v\nwant  %v", got, c.want)
			}
		})
	}
}

func TestTheNewestBackupOfANamespaceComesFirst(t *testing.T) {
	backup := func(namespace, name string, second int64) *v1alpha1.Backup {
		return &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(second, 0)}}
	}
	list := []*v1alpha1.Backup{backup("b", "old", 1), backup("b", "new", 3), backup("a", "oldest", 0), backup("b", "newer", 3)}
	slices.SortStableFunc(list, Resource.Compare)
	var names []string
	for _, b := range list {
		names = append(names, b.Name)
	}
	if want := []string{"oldest", "new", "newer", "old"}; !slices.Equal(names, want) {
		t.Errorf("order %q, want %q", names, want)
	}
}
