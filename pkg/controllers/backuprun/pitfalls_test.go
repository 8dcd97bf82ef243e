// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// newQueueHarness is one whose queue works, too, and whose only location is available.
func newQueueHarness(t *testing.T, work *work) *harness {
	location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}
	location.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}}
	return newHarness(t, work, location)
}

// createRun adds a run that selects a namespace.
func (h *harness) createRun(name, namespace string) {
	run := newRun(name, "")
	run.CreationTimestamp = metav1.Now()
	run.Status.Ticket = 0
	run.Spec.Backup.IncludedNamespaces = []string{namespace}
	h.Create(run)
}

// Pitfall 4: the record of a run is deleted that was let start and is not claimed
// yet. Its slot, and what it selects, are free as soon as the claim has failed.
func TestARecordThatIsRemovedBeforeItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims := make(chan struct{})
		h := newQueueHarness(t, &work{execute: untilStopped})
		h.engine = func(engine engineclient.EngineV1alpha1Interface) engineclient.EngineV1alpha1Interface {
			return slowEngine{engine, claims}
		}
		h.startWithQueue(1)
		h.createRun("gone", "a")
		h.createRun("next", "a")
		synctest.Wait() // its claim is on its way
		h.Remove("gone")
		h.expectExecuted() // it is not certain yet that the one before is not
		begin := time.Now()
		close(claims)
		h.expectExecuted("next")
		h.AtOnce(begin)
	})
}

// Pitfall 15: an end and a start follow each other without any time between, in the
// queue and the executor together. An event that came too early would leave a gap.
func TestADrainTakesNoTimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 30
		next := make(chan struct{})
		h := newQueueHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			<-next
			return stored(done), nil
		}})
		h.startWithQueue(2)
		begin := time.Now()
		for i := range n {
			h.createRun(fmt.Sprintf("run-%02d", i), []string{"a", "b", "c"}[i%3])
		}
		for i := range n {
			synctest.Wait()
			if executed, _ := h.work.done(); len(executed) != min(i+2, n) {
				t.Fatalf("%d have begun when %d have ended", len(executed), i)
			}
			next <- struct{}{}
		}
		synctest.Wait()
		for i := range n {
			h.expect(fmt.Sprintf("run-%02d", i), done, true)
		}
		h.AtOnce(begin)
	})
}

// slowEngine is an API server that does not answer to writes of progress, nor to claims
// until it may.
type slowEngine struct {
	engineclient.EngineV1alpha1Interface
	claims chan struct{}
}

func (e slowEngine) BackupRuns(namespace string) engineclient.BackupRunInterface {
	return slowRuns{e.EngineV1alpha1Interface.BackupRuns(namespace), e.claims}
}

type slowRuns struct {
	engineclient.BackupRunInterface
	claims chan struct{}
}

func (r slowRuns) UpdateStatus(ctx context.Context, run *enginev1alpha1.BackupRun, options metav1.UpdateOptions) (*enginev1alpha1.BackupRun, error) {
	if run.Status.Phase == running && run.Status.Volumes != nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if run.Status.Phase == running && r.claims != nil {
		<-r.claims
	}
	return r.BackupRunInterface.UpdateStatus(ctx, run, options)
}

// Pitfall 31: nobody who works for a backup waits for the write of its progress,
// nor does its end.
func TestProgressHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"one", "two"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.engine = func(engine engineclient.EngineV1alpha1Interface) engineclient.EngineV1alpha1Interface {
			return slowEngine{EngineV1alpha1Interface: engine}
		}
		h.start(1)
		h.report("one", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		time.Sleep(10 * runs.ProgressInterval)
		h.expect("a", running, false)
		if h.Run("a").Status.Volumes != nil {
			t.Fatal("the progress was written")
		}
		begin := time.Now()
		h.report("two", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", v1alpha1.BackupPhaseCompleted, true)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("the end waited %s for the progress", waited)
		}
	})
}

// TestWhatIsPutBackIsNotForgotten: a run that the ledger does not allow is put back in the end,
// though a server that knows no better says that it does not exist.
func TestWhatIsPutBackIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		claimed, denied := false, false
		h.Kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			if claimed {
				time.Sleep(time.Second) // so that the informer shows the claim first
			}
			return false, nil, nil
		})
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			run := enginetest.Written(action)
			switch {
			case run == nil:
			case run.Status.Phase == running && !claimed:
				claimed = true
				known, err := h.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), system, records.LedgerName)
				if err != nil {
					t.Error(err)
				}
				ledger := known.(*corev1.ConfigMap).DeepCopy()
				ledger.Data[records.LeaderKey] = "another process"
				h.Meanwhile(ledger)
			case run.Status.Phase == queued && !denied:
				denied = true
				return enginetest.Fault{Err: apierrors.NewNotFound(v1alpha1.Resource("backupruns"), "a")}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		time.Sleep(time.Minute)
		if status := h.Run("a").Status; status.Phase != queued || status.Executor != "" {
			t.Errorf("it is %s by %q", status.Phase, status.Executor)
		}
		if !denied {
			t.Error("no write was denied")
		}
	})
}
