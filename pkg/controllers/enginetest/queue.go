// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// System is the system namespace.
const System = "holdfast"

// Queue is a cluster with a ledger, for one test.
type Queue struct {
	*testing.T
	*Cluster
	Events *events.FakeRecorder
}

// NewQueue returns a Queue with an empty ledger.
func NewQueue(t *testing.T) *Queue {
	q := &Queue{T: t, Cluster: New(), Events: events.NewFakeRecorder(10_000)}
	q.WriteLedger()
	return q
}

// Run reads a run.
func (q *Queue) Run(name string) *enginev1alpha1.BackupRun {
	q.Helper()
	run, err := q.EngineV1alpha1().BackupRuns(System).Get(q.Context(), name, metav1.GetOptions{})
	if err != nil {
		q.Fatal(err)
	}
	return run
}

// Update writes a run with its status, as another client.
func (q *Queue) Update(run *enginev1alpha1.BackupRun) {
	q.Helper()
	if _, err := q.EngineV1alpha1().BackupRuns(System).Update(q.Context(), run, metav1.UpdateOptions{}); err != nil {
		q.Fatal(err)
	}
}

// Cancel requests the cancellation of runs, as the API server.
func (q *Queue) Cancel(names ...string) {
	q.Helper()
	for _, name := range names {
		for { // until no controller interferes
			run := q.Run(name)
			run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.Now()}
			_, err := q.EngineV1alpha1().BackupRuns(System).Update(q.Context(), run, metav1.UpdateOptions{})
			if err == nil {
				break
			}
			if !apierrors.IsConflict(err) {
				q.Fatal(err)
			}
		}
	}
}

// Remove deletes a record by hand.
func (q *Queue) Remove(name string) {
	q.Helper()
	if err := q.EngineV1alpha1().BackupRuns(System).Delete(q.Context(), name, metav1.DeleteOptions{}); err != nil {
		q.Fatal(err)
	}
}

// LedgerObject returns the ledger's ConfigMap, which must exist.
func (q *Queue) LedgerObject() *corev1.ConfigMap {
	q.Helper()
	ledger, err := q.Kube.CoreV1().ConfigMaps(System).Get(q.Context(), records.LedgerName, metav1.GetOptions{})
	if err != nil {
		q.Fatal(err)
	}
	return ledger
}

// Ledger returns the ledger's entries, which must be readable.
func (q *Queue) Ledger() []records.Start {
	q.Helper()
	starts, err := records.Ledger(q.LedgerObject())
	if err != nil {
		q.Fatal(err)
	}
	return starts
}

// WriteLedger replaces the ledger's entries, and creates a missing ledger.
func (q *Queue) WriteLedger(starts ...records.Start) {
	q.Helper()
	configMaps := q.Kube.CoreV1().ConfigMaps(System)
	ledger, err := configMaps.Get(q.Context(), records.LedgerName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ledger, err = configMaps.Create(q.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: records.LedgerName}}, metav1.CreateOptions{})
	}
	if err == nil {
		ledger, err = records.WithLedger(ledger, starts)
	}
	if err == nil {
		_, err = configMaps.Update(q.Context(), ledger, metav1.UpdateOptions{})
	}
	if err != nil {
		q.Fatal(err)
	}
}

// AtOnce fails if time has passed.
func (q *Queue) AtOnce(since time.Time) {
	q.Helper()
	if waited := time.Since(since); waited != 0 {
		q.Errorf("it took %s, and not an event", waited)
	}
}

// Told returns the events recorded so far, and forgets them.
func (q *Queue) Told() []string {
	synctest.Wait()
	return Told(q.Events)
}

// Each runs tell for each case, in a bubble of its own.
func Each[C any](t *testing.T, cases map[string]C, tell func(*testing.T, C)) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { tell(t, c) }) })
	}
}

// NoRestores executes none.
type NoRestores struct{}

// Start implements backupqueue.Executor.
func (NoRestores) Start(string) {}

// Executing implements backupqueue.Executor.
func (NoRestores) Executing() map[string]*enginev1alpha1.RestoreRun { return nil }

// Told returns the events recorded so far, and forgets them.
func Told(recorder *events.FakeRecorder) (all []string) {
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}
