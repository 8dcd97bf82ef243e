// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// What is shown is the queue as it is when somebody asks: a wait grows though
// nothing happens.
func TestMetricsFollowTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := newRun("held", 4, "d")
		held.Spec.Backup.StorageLocation = "down"
		h := newHarness(t, location("default", metav1.ConditionTrue), location("down", metav1.ConditionFalse),
			inPhase(newRun("runs", 1, "a"), running, 1))
		h.start(2)
		for _, run := range []*enginev1alpha1.BackupRun{newRun("overlaps", 2, "a", "b"), newRun("behind", 3, "b"), held, newRun("starts", 5, "c"), newRun("waits", 6, "e")} {
			h.Create(run)
			synctest.Wait()
		}
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if run := enginetest.Written(action); run != nil && run.Name == "unwritten" {
				return enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("backupruns"), run.Name, errors.New("denied"))}
			}
			return enginetest.Fault{}
		})
		unwritten := newRun("unwritten", 7, "f")
		unwritten.CreationTimestamp = metav1.Now()
		h.Create(unwritten)
		gone := newRun("gone", 8, "g")
		gone.Spec.Cancellation = &enginev1alpha1.Ask{}
		before := endedBefore(t)
		h.Create(gone)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := endedBefore(t); got != before+1 {
			t.Errorf("%v have ended before they started, want %v", got, before+1)
		}
		want := `
# HELP holdfast_queue_backups [ALPHA] The backups by state: Running, Ready, Queued, or New if they have no place in the queue yet.
# TYPE holdfast_queue_backups gauge
holdfast_queue_backups{state="New"} 1
holdfast_queue_backups{state="Queued"} 4
holdfast_queue_backups{state="Ready"} 1
holdfast_queue_backups{state="Running"} 1
# HELP holdfast_queue_blocked_backups [ALPHA] The queued backups by the reason why they wait.
# TYPE holdfast_queue_blocked_backups gauge
holdfast_queue_blocked_backups{reason="BehindOverlapping"} 1
holdfast_queue_blocked_backups{reason="ClusterScopeOverlap"} 0
holdfast_queue_blocked_backups{reason="ConcurrencyLimit"} 1
holdfast_queue_blocked_backups{reason="NamespaceOverlap"} 1
holdfast_queue_blocked_backups{reason="NextToStart"} 0
holdfast_queue_blocked_backups{reason="StorageUnavailable"} 1
# HELP holdfast_queue_oldest_wait_seconds [ALPHA] How long the oldest queued backup or restore has been waiting.
# TYPE holdfast_queue_oldest_wait_seconds gauge
holdfast_queue_oldest_wait_seconds 5
# HELP holdfast_queue_slots [ALPHA] How many backups may run at once.
# TYPE holdfast_queue_slots gauge
holdfast_queue_slots 2
# HELP holdfast_queue_restores [ALPHA] The restores by state: Running, Ready, Queued, or New if they have no place in the queue yet.
# TYPE holdfast_queue_restores gauge
holdfast_queue_restores{state="Queued"} 0
holdfast_queue_restores{state="Ready"} 0
holdfast_queue_restores{state="Running"} 0
# HELP holdfast_queue_blocked_restores [ALPHA] The queued restores by the reason why they wait.
# TYPE holdfast_queue_blocked_restores gauge
holdfast_queue_blocked_restores{reason="BehindOverlapping"} 0
holdfast_queue_blocked_restores{reason="ClusterScopeOverlap"} 0
holdfast_queue_blocked_restores{reason="ConcurrencyLimit"} 0
holdfast_queue_blocked_restores{reason="NamespaceOverlap"} 0
holdfast_queue_blocked_restores{reason="NextToStart"} 0
holdfast_queue_blocked_restores{reason="StorageUnavailable"} 0
# HELP holdfast_queue_restore_slots [ALPHA] How many restores may run at once.
# TYPE holdfast_queue_restore_slots gauge
holdfast_queue_restore_slots 2
`
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want),
			"holdfast_queue_backups", "holdfast_queue_blocked_backups", "holdfast_queue_oldest_wait_seconds", "holdfast_queue_slots",
			"holdfast_queue_restores", "holdfast_queue_blocked_restores", "holdfast_queue_restore_slots"); err != nil {
			t.Error(err)
		}
	})
}

func endedBefore(t *testing.T) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(queueEnded.WithLabelValues("Backup", string(v1alpha1.BackupPhaseCancelled)))
	if err != nil {
		t.Fatal(err)
	}
	return value
}
