// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// hasty are executors that end each run before the answer to its start arrives.
type hasty struct {
	coreclient.ConfigMapInterface
	runs engineclient.BackupRunInterface
	// before are the runs in the ledger as last written.
	before []records.Start
}

func (c *hasty) Update(ctx context.Context, ledger *corev1.ConfigMap, options metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	written, err := c.ConfigMapInterface.Update(ctx, ledger, options)
	if err != nil {
		return nil, err
	}
	starts, err := records.Ledger(written)
	for _, start := range starts {
		if slices.Contains(c.before, start) {
			continue
		}
		run, err := c.runs.Get(ctx, start.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		run.Status.Phase = rejected
		if _, err := c.runs.UpdateStatus(ctx, run, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
	}
	c.before = starts
	return written, err
}

// Pitfall 3: a slot is an entry whose run has not ended, and no counter, so that
// none is lost with a run that ends before its start is answered.
func TestARunThatEndsBeforeItsStartIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, limit = 40, 4
		objects := []runtime.Object{location("default", metav1.ConditionTrue)}
		for i := range n {
			objects = append(objects, newRun(fmt.Sprintf("b%02d", i), i, fmt.Sprintf("ns-%02d", i)))
		}
		h := newHarness(t, objects...)
		runs := h.EngineV1alpha1().BackupRuns(system)
		controller := h.controller(limit, "hasty", runs, &hasty{ConfigMapInterface: h.Kube.CoreV1().ConfigMaps(system), runs: runs})
		begin := time.Now()
		go controller.Run(t.Context(), h)
		synctest.Wait()
		h.atOnce(begin)
		if phases := h.inPhases(); len(phases[rejected]) != n {
			t.Errorf("of %d runs that end at once, these wait: %q, and these have a slot: %q", n, phases[queued], phases[ready])
		}
	})
}

// Pitfall 8: the order of creation holds within a second too, where names say
// something else.
func TestTicketsAfterADowntimeOfManyCreations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		var names []string
		for i := range 20 { // versions with one digit, and with two
			name := fmt.Sprintf("b%02d", 99-i)
			names = append(names, name)
			h.Create(newRun(name, 1, "a"))
		}
		h.start(1)
		for i, name := range names {
			if got := h.run(name).Status.Ticket; got != int64(i+1) {
				t.Errorf("%s, which was created as number %d, has the ticket %d", name, i+1, got)
			}
		}
	})
}

// Pitfall 9: a record that stands for a stored backup, which somebody wants deleted,
// is never executed, whatever its status says.
func TestADeletionIsNoWork(t *testing.T) {
	for _, phase := range []v1alpha1.BackupPhase{isNew, v1alpha1.BackupPhaseNew, queued} {
		t.Run(fmt.Sprintf("%q", phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				deletion := inPhase(newRun("stored", 1, "a"), phase, 1)
				deletion.Spec.Deletion = &enginev1alpha1.Deletion{Stored: &enginev1alpha1.StoredBackup{UID: "uid-in-store"}}
				h := newHarness(t, location("default", metav1.ConditionTrue), deletion)
				h.start(1)
				time.Sleep(time.Hour)
				synctest.Wait()
				if writes := h.writesTo(queued)["stored"] + h.starts()["stored"]; writes != 0 || len(h.ledger()) != 0 {
					t.Errorf("%d writes, and the ledger has %v", writes, h.ledger())
				}
				h.Create(newRun("other", 2, "a"))
				h.expect(ready, "other") // nor does it overlap anything
			})
		})
	}
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
	for _, from := range []v1alpha1.BackupPhase{ready, running} {
		for _, end := range []v1alpha1.BackupPhase{
			ended, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed, rejected, cancelled,
		} {
			t.Run(fmt.Sprintf("%s from %s", end, from), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t, location("default", metav1.ConditionTrue),
						inPhase(newRun("first", 1, "a"), from, 1), newRun("overlaps", 2, "a"), newRun("needs-a-slot", 3, "b"))
					h.start(1)
					h.expect(queued, "needs-a-slot", "overlaps")
					begin := time.Now()
					h.endIn(end, "first")
					h.expect(ready, "overlaps")
					h.endIn(end, "overlaps")
					h.expect(ready, "needs-a-slot")
					h.atOnce(begin)
				})
			})
		}
	}
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
		h.cancel("waits")
		h.expect(cancelled, "waits")
		h.atOnce(begin)
	})
}
