// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const system = enginetest.System

// bubbleStart is when time begins in a synctest bubble.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// newRun makes a run of a backup of the system namespace that includes some
// namespaces, created at a second of the test's time.
func newRun(name string, second int, namespaces ...string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         system,
			Name:              format.StoreName(system, name, system),
			CreationTimestamp: metav1.NewTime(bubbleStart.Add(time.Duration(second) * time.Second)),
		},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: system, Name: name},
			Backup:    v1alpha1.BackupSpec{IncludedNamespaces: namespaces, StorageLocation: "default"},
		},
	}
}

func inPhase(run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, ticket int64) *enginev1alpha1.BackupRun {
	run.Status.Phase, run.Status.Ticket = phase, ticket
	return run
}

func location(name string, available metav1.ConditionStatus) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Status: enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{
			{Type: enginev1alpha1.ConditionAvailable, Status: available},
		}},
	}
}

// harness runs controllers on a cluster, in a synctest bubble. ReadyToStart is
// what a run is that waits and is in the ledger: the harness writes and reads it
// like any other phase.
type harness struct {
	*enginetest.Queue
	processes int

	mu sync.Mutex
	// elected is the process that leads.
	elected string
	// executing are the runs that the executors work on, by name, and toStart those that
	// they were asked to start.
	executing map[string]*enginev1alpha1.BackupRun
	toStart   sets.Set[string]
	// restores executes those, by whom nothing is known of backups.
	restores *restorer
}

// restorer is the Executor of restores.
type restorer struct {
	mu        sync.Mutex
	executing map[string]*enginev1alpha1.RestoreRun
	toStart   sets.Set[string]
}

func (r *restorer) Start(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.toStart.Insert(name)
}

func (r *restorer) Executing() map[string]*enginev1alpha1.RestoreRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.executing)
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	h := &harness{Queue: enginetest.NewQueue(t), executing: map[string]*enginev1alpha1.BackupRun{}, toStart: sets.New[string](),
		restores: &restorer{toStart: sets.New[string]()}}
	for _, obj := range objects {
		h.Create(obj)
	}
	h.ClearActions()
	h.Kube.ClearActions()
	return h
}

// Start and Executing make it an Executor.
func (h *harness) Start(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.toStart.Insert(name)
}

func (h *harness) Executing() map[string]*enginev1alpha1.BackupRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.executing)
}

// Create adds an object. Runs that were let start, or are in progress, are in the
// ledger.
func (h *harness) Create(obj runtime.Object) {
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok || run.Status.Phase != ready && run.Status.Phase != running {
		h.Cluster.Create(obj)
		return
	}
	if run.Status.Phase == ready {
		run.Status.Phase = queued
	}
	h.Cluster.Create(run)
	h.WriteLedger(append(h.Ledger(), records.Start{UID: h.Run(run.Name).UID, Name: run.Name})...)
}

// setLedger replaces what the ledger's ConfigMap holds; nil deletes it.
func (h *harness) setLedger(data map[string]string) {
	h.Helper()
	configMaps := h.Kube.CoreV1().ConfigMaps(system)
	var err error
	if data == nil {
		err = configMaps.Delete(h.Context(), records.LedgerName, metav1.DeleteOptions{})
	} else {
		ledger := h.LedgerObject()
		ledger.Data = data
		_, err = configMaps.Update(h.Context(), ledger, metav1.UpdateOptions{})
	}
	if err != nil {
		h.Fatal(err)
	}
}

// start runs a controller with informers of its own.
func (h *harness) start(limit int) {
	h.Helper()
	controller := h.prepare(limit)
	go controller.Run(h.Context(), h, h.restores)
	synctest.Wait()
}

// elect lets a process lead, and no other.
func (h *harness) elect(identity string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elected = identity
}

// prepare makes a controller, of the process that leads, whose informers have seen
// the cluster.
func (h *harness) prepare(limit int) *Controller {
	h.Helper()
	h.processes++
	name := fmt.Sprintf("process-%d", h.processes)
	h.elect(name)
	records := enginefactory.NewSharedInformerFactory(h.Cluster, 0)
	objects := informers.NewSharedInformerFactory(h.Kube, 0)
	controller, err := New(Config{
		Namespace: system,
		Limits:    queue.Slots{limit, 2},
		Identity:  name,
		Leads: func(context.Context) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.elected != name {
				return errors.New("another process leads")
			}
			return nil
		},
		Runs:              h.EngineV1alpha1().BackupRuns(system),
		Restores:          h.EngineV1alpha1().RestoreRuns(system),
		ConfigMaps:        h.Kube.CoreV1().ConfigMaps(system),
		Events:            h.Events,
		Clock:             clock.RealClock{},
		RunInformer:       records.Engine().V1alpha1().BackupRuns(),
		RestoreInformer:   records.Engine().V1alpha1().RestoreRuns(),
		LocationInformer:  records.Engine().V1alpha1().StorageLocations(),
		NamespaceInformer: objects.Core().V1().Namespaces(),
		LedgerInformer:    objects.Core().V1().ConfigMaps(),
	})
	if err != nil {
		h.Fatal(err)
	}
	records.StartWithContext(h.Context())
	objects.StartWithContext(h.Context())
	h.Cleanup(records.Shutdown)
	h.Cleanup(objects.Shutdown)
	records.WaitForCacheSync(h.Context().Done())
	objects.WaitForCacheSync(h.Context().Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	executedBy(controller.kinds[queue.Backup], h)
	executedBy(controller.kinds[queue.Restore], h.restores)
	return controller
}

// inPhases returns the names of the runs in each phase, in order of names.
func (h *harness) inPhases() map[v1alpha1.BackupPhase][]string {
	h.Helper()
	list, err := h.EngineV1alpha1().BackupRuns(system).List(h.Context(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	phases := map[v1alpha1.BackupPhase][]string{}
	started := records.Started(h.LedgerObject())
	for i := range list.Items {
		run := &list.Items[i]
		phase := records.Phase(run, started)
		phases[phase] = append(phases[phase], run.Name)
	}
	for _, names := range phases {
		slices.Sort(names)
	}
	return phases
}

// expect waits until the controllers have nothing to do, and compares a phase.
func (h *harness) expect(phase v1alpha1.BackupPhase, names ...string) {
	h.Helper()
	synctest.Wait()
	if got := h.inPhases()[phase]; !slices.Equal(got, names) {
		h.Fatalf("%s are %q, want %q", phase, got, names)
	}
}

// end lets a run end, as the process that executes it does.
func (h *harness) end(name string) {
	h.Helper()
	h.endIn(ended, name)
}

func (h *harness) endIn(phase v1alpha1.BackupPhase, name string) {
	h.Helper()
	run := h.Run(name)
	run.Status.Phase = phase
	h.Update(run)
}

func (h *harness) setAvailable(name string, available metav1.ConditionStatus) {
	h.Helper()
	locations := h.EngineV1alpha1().StorageLocations(system)
	current, err := locations.Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	current.Status = location(name, available).Status
	if _, err := locations.UpdateStatus(h.Context(), current, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

// writesTo counts the attempts to bring each run into a phase.
func (h *harness) writesTo(phase v1alpha1.BackupPhase) map[string]int {
	h.Helper()
	if phase == ready {
		return h.starts()
	}
	counts := map[string]int{}
	for _, action := range h.Writes("backupruns") {
		if run := enginetest.Written(action); run != nil && run.Status.Phase == phase {
			counts[run.Name]++
		}
	}
	return counts
}

// starts counts how often each run was put into the ledger.
func (h *harness) starts() map[string]int {
	h.Helper()
	counts := map[string]int{}
	var before []records.Start
	for _, action := range h.Writes("configmaps") {
		ledger := writtenLedger(action)
		for _, start := range ledger {
			if !slices.Contains(before, start) {
				counts[start.Name]++
			}
		}
		before = ledger
	}
	return counts
}

// writtenLedger is the ledger that an action writes, or nil.
func writtenLedger(action clienttesting.Action) []records.Start {
	update, ok := action.(clienttesting.UpdateActionImpl)
	if !ok {
		return nil
	}
	ledger, ok := update.GetObject().(*corev1.ConfigMap)
	if !ok {
		return nil
	}
	starts, _ := records.Ledger(ledger)
	return starts
}

// isStart reports whether an action lets a run start.
func isStart(action clienttesting.Action, name string) bool {
	return slices.ContainsFunc(writtenLedger(action), func(start records.Start) bool { return start.Name == name })
}
