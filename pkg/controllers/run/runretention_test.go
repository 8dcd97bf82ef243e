// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
)

const system = "holdfast"

func newRun(name string, phase v1alpha1.BackupPhase, stored bool, ended *time.Time) *enginev1alpha1.BackupRun {
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID("uid of " + name)},
		Status:     enginev1alpha1.BackupRunStatus{Phase: phase, Stored: stored},
	}
	if ended != nil {
		run.Status.CompletionTimestamp = &metav1.Time{Time: *ended}
	}
	return run
}

func TestTimeLeft(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const retention = 10 * time.Minute
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	cases := map[string]struct {
		phase     v1alpha1.BackupPhase
		stored    bool
		ended     *time.Time
		left      time.Duration
		removable bool
	}{
		"new":                       {phase: "", removable: false},
		"queued":                    {phase: v1alpha1.BackupPhaseQueued, removable: false},
		"running":                   {phase: v1alpha1.BackupPhaseInProgress, removable: false},
		"just completed":            {v1alpha1.BackupPhaseCompleted, true, ago(0), retention, true},
		"completed a while ago":     {v1alpha1.BackupPhaseCompleted, true, ago(9 * time.Minute), time.Minute, true},
		"due":                       {v1alpha1.BackupPhasePartiallyFailed, true, ago(10 * time.Minute), 0, true},
		"overdue":                   {v1alpha1.BackupPhaseFailed, true, ago(time.Hour), -50 * time.Minute, true},
		"failed and not stored":     {v1alpha1.BackupPhaseFailed, false, ago(time.Hour), 23 * time.Hour, true},
		"refused":                   {v1alpha1.BackupPhaseFailedValidation, false, ago(time.Hour), 23 * time.Hour, true},
		"ended nobody knows when":   {v1alpha1.BackupPhaseCompleted, true, nil, -50 * time.Minute, true},
		"refused nobody knows when": {v1alpha1.BackupPhaseFailedValidation, false, nil, 23 * time.Hour, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			run := newRun("a", c.phase, c.stored, c.ended)
			run.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
			left, removable := timeLeft(run, retention, now)
			if left != c.left || removable != c.removable {
				t.Errorf("timeLeft: %s, %t; want %s, %t", left, removable, c.left, c.removable)
			}
		})
	}
}

// It is all that tells what is still to be removed from the store.
func TestARunWhoseSnapshotsAreLeftIsKept(t *testing.T) {
	now := time.Now()
	run := newRun("a", v1alpha1.BackupPhaseFailed, true, &now)
	run.Status.LeftoverSnapshots = []string{"shop"}
	if left, removable := timeLeft(run, 0, now); left != UnstoredRetention || !removable {
		t.Errorf("timeLeft: %s, %t", left, removable)
	}
}

// start runs a controller on a cluster, in a synctest bubble.
func start(t *testing.T, retention time.Duration, objects ...runtime.Object) *enginetest.Cluster {
	t.Helper()
	cluster := enginetest.New(objects...)
	records := enginefactory.NewSharedInformerFactory(cluster, 0)
	controller, err := NewBackupRetention(cluster.EngineV1alpha1(), records.Engine().V1alpha1().BackupRuns(), clock.RealClock{}, retention)
	if err != nil {
		t.Fatal(err)
	}
	records.StartWithContext(t.Context())
	t.Cleanup(records.Shutdown)
	records.WaitForCacheSync(t.Context().Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	go controller.Run(t.Context())
	synctest.Wait()
	return cluster
}

func exists(t *testing.T, cluster *enginetest.Cluster, name string) bool {
	t.Helper()
	synctest.Wait()
	_, err := cluster.EngineV1alpha1().BackupRuns(system).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// Each is removed with one write, to the moment: also one that has ended long after it
// was seen first.
func TestRunsAreRemovedOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const retention = 10 * time.Minute
		now, tick := time.Now(), time.Nanosecond
		cluster := start(t, retention,
			newRun("stored", v1alpha1.BackupPhaseCompleted, true, &now),
			newRun("refused", v1alpha1.BackupPhaseFailedValidation, false, &now),
			newRun("runs", v1alpha1.BackupPhaseInProgress, false, nil))
		expectRemoved := func(name string, at time.Time) {
			t.Helper()
			time.Sleep(time.Until(at.Add(-tick)))
			if !exists(t, cluster, name) {
				t.Errorf("the run %q was removed too early", name)
			}
			time.Sleep(tick)
			if exists(t, cluster, name) {
				t.Errorf("the run %q is kept too long", name)
			}
		}
		expectRemoved("stored", now.Add(retention))
		expectRemoved("refused", now.Add(24*time.Hour))
		time.Sleep(1000 * time.Hour)
		ended := time.Now()
		update(t, cluster, func(run *enginev1alpha1.BackupRun) {
			run.Status.Phase, run.Status.Stored, run.Status.CompletionTimestamp = v1alpha1.BackupPhaseCompleted, true, &metav1.Time{Time: ended}
		}, "runs")
		expectRemoved("runs", ended.Add(retention))
		if writes := len(cluster.Writes("backupruns")); writes != 3+1 {
			t.Errorf("%d writes removed 3 runs, one of which was ended by one", writes)
		}
	})
}

// update writes the status of a run, as its executor does.
func update(t *testing.T, cluster *enginetest.Cluster, change func(*enginev1alpha1.BackupRun), name string) {
	t.Helper()
	runs := cluster.EngineV1alpha1().BackupRuns(system)
	run, err := runs.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(run)
	if _, err := runs.UpdateStatus(t.Context(), run, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A failure may be stored at the last moment. Its record is then kept as that of
// any stored backup, although the informer does not know yet.
func TestARunThatChangesAtTheLastMoment(t *testing.T) {
	enginetest.Each(t, map[string]func(*testing.T, *enginetest.Cluster){
		"stored after all": func(t *testing.T, cluster *enginetest.Cluster) {
			update(t, cluster, func(run *enginev1alpha1.BackupRun) {
				run.Status.Stored, run.Status.CompletionTimestamp = true, &metav1.Time{Time: time.Now()}
			}, "a")
		},
		"replaced by a namesake": func(t *testing.T, cluster *enginetest.Cluster) {
			if err := cluster.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			namesake := newRun("a", v1alpha1.BackupPhaseQueued, false, nil)
			namesake.UID = "another"
			cluster.Create(namesake)
		},
	}, func(t *testing.T, change func(*testing.T, *enginetest.Cluster)) {
		ended := time.Now()
		cluster := start(t, time.Hour, newRun("a", v1alpha1.BackupPhaseFailed, false, &ended))
		time.Sleep(24*time.Hour - time.Second)
		release := cluster.Hold()
		change(t, cluster)
		time.Sleep(time.Minute)
		if !exists(t, cluster, "a") {
			t.Error("it was removed by what it was before")
		}
		release()
		if !exists(t, cluster, "a") {
			t.Error("it was removed")
		}
	})
}

func TestARemovalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := time.Now()
		cluster := start(t, time.Minute, newRun("a", v1alpha1.BackupPhaseCompleted, true, &ended))
		refusals := 3
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.GetVerb() != "delete" || refusals == 0 {
				return enginetest.Fault{}
			}
			refusals--
			return enginetest.Fault{Err: errors.New("the connection broke")}
		})
		time.Sleep(2 * time.Minute)
		if exists(t, cluster, "a") {
			t.Error("it is kept")
		}
	})
}

// Of a namespace's restores only so many are kept: the newest that have ended, and all that
// have not.
func TestMostRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restore := func(namespace string, n int, phase v1alpha1.RestorePhase) *enginev1alpha1.RestoreRun {
			name := fmt.Sprintf("%s.%s-%d", namespace, phase, n)
			run := &enginev1alpha1.RestoreRun{
				ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: strings.ToLower(name), UID: types.UID("uid of " + name)},
				Spec:       enginev1alpha1.RestoreRunSpec{RestoreRef: v1alpha1.BackupReference{Namespace: namespace, Name: name}},
				Status:     enginev1alpha1.RestoreRunStatus{Phase: phase},
			}
			if phase.Ended() {
				run.Status.CompletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Duration(n) * time.Second)}
			}
			return run
		}
		var objects []runtime.Object
		for n := range MostRestores + 3 {
			objects = append(objects, restore("shop", n, v1alpha1.RestorePhaseCompleted))
		}
		objects = append(objects, restore("shop", 0, v1alpha1.RestorePhaseInProgress), restore("other", 0, v1alpha1.RestorePhaseFailed))
		cluster := enginetest.New(objects...)
		records := enginefactory.NewSharedInformerFactory(cluster, 0)
		controller, err := NewRestoreRetention(cluster.EngineV1alpha1(), records.Engine().V1alpha1().RestoreRuns(), clock.RealClock{}, DefaultRestoreRetention)
		if err != nil {
			t.Fatal(err)
		}
		records.StartWithContext(t.Context())
		t.Cleanup(records.Shutdown)
		records.WaitForCacheSync(t.Context().Done())
		synctest.Wait()
		go controller.Run(t.Context())
		synctest.Wait()
		left := func() []enginev1alpha1.RestoreRun {
			synctest.Wait()
			list, err := cluster.EngineV1alpha1().RestoreRuns(system).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		}
		kept := left()
		for _, run := range kept {
			if name := run.Spec.RestoreRef.Name; name == "shop.Completed-0" || name == "shop.Completed-2" {
				t.Errorf("%s is kept", name)
			}
		}
		if len(kept) != MostRestores+2 {
			t.Errorf("%d are kept", len(kept))
		}
		time.Sleep(DefaultRestoreRetention + time.Hour)
		if kept := left(); len(kept) != 1 || kept[0].Status.Phase.Ended() {
			t.Errorf("%d are kept for ever", len(kept))
		}
	})
}

// What lies in a store is listed from there, so the record of a stored restore goes soon. One that
// is not stored is all that there is.
func TestStoredRestoresGoSoon(t *testing.T) {
	ended := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		stored    bool
		phase     v1alpha1.RestorePhase
		retention time.Duration
		left      time.Duration
		removable bool
	}{
		"stored":               {true, v1alpha1.RestorePhaseCompleted, DefaultRestoreRetention, StoredRestoreRetention, true},
		"stored, kept shorter": {true, v1alpha1.RestorePhaseCompleted, time.Minute, time.Minute, true},
		"not stored":           {false, v1alpha1.RestorePhaseFailed, DefaultRestoreRetention, DefaultRestoreRetention, true},
		"not ended":            {false, v1alpha1.RestorePhaseInProgress, DefaultRestoreRetention, 0, false},
	} {
		run := &enginev1alpha1.RestoreRun{Status: enginev1alpha1.RestoreRunStatus{Phase: c.phase, Stored: c.stored, CompletionTimestamp: &metav1.Time{Time: ended}}}
		if left, removable := restoreTimeLeft(run, c.retention, ended); left != c.left || removable != c.removable {
			t.Errorf("%s: %s, %t, want %s, %t", name, left, removable, c.left, c.removable)
		}
	}
}
