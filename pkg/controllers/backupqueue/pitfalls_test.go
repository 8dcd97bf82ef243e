// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// Pitfall 9: a record that stands for a stored backup, which somebody wants deleted,
// is never executed, whatever its status says.
func TestADeletionIsNoWork(t *testing.T) {
	enginetest.Each(t, map[string]v1alpha1.BackupPhase{"without a phase": isNew, "new": v1alpha1.BackupPhaseNew, "queued": queued}, func(t *testing.T, phase v1alpha1.BackupPhase) {
		deletion := inPhase(newRun("stored", 1, "a"), phase, 1)
		deletion.Spec.Deletion = &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{UID: "uid-in-store"}}
		h := newHarness(t, location("default", metav1.ConditionTrue), deletion)
		h.start(1)
		time.Sleep(time.Hour)
		synctest.Wait()
		if writes := h.writesTo(queued)["stored"] + h.starts()["stored"]; writes != 0 || len(h.Ledger()) != 0 {
			t.Errorf("%d writes, and the ledger has %v", writes, h.Ledger())
		}
		h.Create(newRun("other", 2, "a"))
		h.expect(ready, "other") // nor does it overlap anything
	})
}

// Pitfall 11: tickets are given once. If two runs had the same one all the same,
// the older is ahead of the other, also for a controller that sees the past.
func TestTwinsDoNotRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("younger", 2, "a"), queued, 7), inPhase(newRun("older", 1, "a"), queued, 7))
		h.Hold()
		h.start(5)
		time.Sleep(time.Hour)
		h.expect(ready, "older")
		h.expect(queued, "younger")
		h.end("older")
		time.Sleep(time.Hour)
		h.expect(queued, "younger") // it has not seen that
	})
}

// Pitfall 14: whichever way a run ends, and from whichever phase, the next one is
// woken by that, and not by the time that passes.
func TestEveryEndWakesTheQueue(t *testing.T) {
	type way struct{ from, end v1alpha1.BackupPhase }
	ways := map[string]way{}
	for _, from := range []v1alpha1.BackupPhase{ready, running} {
		for _, end := range []v1alpha1.BackupPhase{ended, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed, rejected, cancelled} {
			ways[fmt.Sprintf("%s from %s", end, from)] = way{from, end}
		}
	}
	enginetest.Each(t, ways, func(t *testing.T, c way) {
		h := newHarness(t, location("default", metav1.ConditionTrue),
			inPhase(newRun("first", 1, "a"), c.from, 1), newRun("overlaps", 2, "a"), newRun("needs-a-slot", 3, "b"))
		h.start(1)
		h.expect(queued, "needs-a-slot", "overlaps")
		begin := time.Now()
		h.endIn(c.end, "first")
		h.expect(ready, "overlaps")
		h.endIn(c.end, "overlaps")
		h.expect(ready, "needs-a-slot")
		h.AtOnce(begin)
	})
}

// Pitfall 19: filters of resources and labels do not part backups of one namespace,
// on purpose: which objects they leave out is known only when they are read. Nor does
// the label by which a namespace excludes itself.
func TestFiltersDoNotPartBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets, configMaps, labelled := newRun("secrets", 1, "a"), newRun("configmaps", 2, "a"), newRun("labelled", 3, "a")
		secrets.Spec.Backup.IncludedResources = []string{"secrets"}
		configMaps.Spec.Backup.IncludedResources = []string{"configmaps"}
		labelled.Spec.Backup.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		h := newHarness(t, location("default", metav1.ConditionTrue), secrets, configMaps, labelled)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"velero.io/exclude-from-backup": "true"}}}
		if _, err := h.Kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.start(3)
		h.expect(ready, "secrets")
		h.expect(queued, "configmaps", "labelled")
	})
}

// Pitfall 25: what waits for a storage location that does not exist leaves the queue
// as any other backup does.
func TestWhatWaitsForNoLocationCanBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newRun("waits", 1, "a"))
		h.start(1)
		h.expect(queued, "waits")
		begin := time.Now()
		h.Cancel("waits")
		h.expect(cancelled, "waits")
		h.AtOnce(begin)
	})
}
