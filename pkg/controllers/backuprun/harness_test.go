// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	system        = enginetest.System
	identity      = "this process"
	volumeTimeout = time.Hour
	agentTimeout  = 5 * time.Minute
)

func newRun(name string, phase v1alpha1.BackupPhase) *enginev1alpha1.BackupRun {
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.Now()},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: system, Name: name},
			Backup:    v1alpha1.BackupSpec{StorageLocation: "default", TTL: v1alpha1.Duration{Duration: 48 * time.Hour}},
		},
		Status: enginev1alpha1.BackupRunStatus{Phase: phase, Ticket: 1},
	}
	if phase == v1alpha1.BackupPhaseInProgress {
		run.Status.Executor = "a process before this one"
		start := metav1.NewTime(time.Now().Add(-time.Minute))
		run.Status.StartTimestamp = &start
	}
	return run
}

// work is a fake of the executor's work. The zero value completes at once.
type work struct {
	execute func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error)
	abandon func(ctx context.Context, run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error)

	// end, if set, executes instead, when everything is read.
	end func(ctx, ending context.Context) (backup.Outcome, error)
	// hooks, if set, executes instead.
	hooks func(ctx context.Context, hooks PendingHooks) (backup.Outcome, error)
	// notes, if set, executes instead.
	notes func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes, notes Notes) (backup.Outcome, error)
	// failedPostHooks says which of the pending post hooks fail, and thawing, if set, is called
	// while they run.
	failedPostHooks string
	thawing         func()

	discardSnapshots func(ctx context.Context, namespace string) error

	// unreachable, if set, is why no store answers.
	unreachable error

	mu                sync.Mutex
	executed, settled []string
	cancelled         []string
	// snapshots are the runs and namespaces whose snapshots were to be removed.
	snapshots []string
	reasons   []string
	// thawed are the runs whose pending post hooks were run, and for how many pods, and told what
	// came of them when a run was executed, or ended.
	thawed []string
	told   backup.PostHooks
	// held are the locations that are held, and why.
	held []string
}

func (w *work) Reach(context.Context, *enginev1alpha1.BackupRun) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unreachable
}

func (w *work) holdLocation(_ context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, name+": "+reason.Error())
	return &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (w *work) Execute(ctx, ending context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, volumes backup.Volumes, hooks Notes, _ *backup.Progress) (backup.Outcome, error) {
	if w.end != nil {
		return w.end(ctx, ending)
	}
	if w.hooks != nil {
		return w.hooks(ctx, hooks)
	}
	w.mu.Lock()
	w.executed, w.told = append(w.executed, run.Name), postHooks
	w.mu.Unlock()
	if w.notes != nil {
		return w.notes(ctx, run, volumes, hooks)
	}
	if w.execute == nil {
		return stored(v1alpha1.BackupPhaseCompleted), nil
	}
	return w.execute(ctx, run, volumes)
}

func (w *work) Abandon(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	w.mu.Lock()
	w.told = postHooks
	if phase == cancelled {
		w.cancelled = append(w.cancelled, run.Name)
	} else {
		w.settled = append(w.settled, run.Name)
		w.reasons = append(w.reasons, reason)
	}
	w.mu.Unlock()
	if w.abandon == nil {
		return abandoned(phase, reason), nil
	}
	return w.abandon(ctx, run, phase, reason)
}

func (w *work) RunPostHooks(_ context.Context, run *enginev1alpha1.BackupRun, before backup.PostHooks) backup.PostHooks {
	if w.thawing != nil {
		w.thawing()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = append(w.thawed, fmt.Sprintf("%s %d", run.Name, len(run.Status.PendingHooks)))
	counts := v1alpha1.HookStatus{HooksAttempted: 1}
	if run.Status.HookStatus != nil {
		counts.HooksAttempted += run.Status.HookStatus.HooksAttempted
	}
	return backup.PostHooks{Log: append(slices.Clone(before.Log), '+'), Status: &counts, Failed: w.failedPostHooks}
}

func abandoned(phase v1alpha1.BackupPhase, reason string) backup.Outcome {
	outcome := stored(phase)
	outcome.Status.FailureReason = reason
	return outcome
}

func (w *work) DiscardSnapshots(ctx context.Context, run *enginev1alpha1.BackupRun, namespace string) error {
	w.mu.Lock()
	w.snapshots = append(w.snapshots, run.Name+" "+namespace)
	w.mu.Unlock()
	if w.discardSnapshots == nil {
		return nil
	}
	return w.discardSnapshots(ctx, namespace)
}

// done returns the names of the runs executed and settled so far.
func (w *work) done() (executed, settled []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.executed), slices.Clone(w.settled)
}

func stored(phase v1alpha1.BackupPhase) backup.Outcome {
	return backup.Outcome{Stored: true, Status: v1alpha1.BackupStatus{Phase: phase}}
}

// untilStopped is an execution that ends when it is told to.
func untilStopped(ctx context.Context, _ *enginev1alpha1.BackupRun, _ backup.Volumes) (backup.Outcome, error) {
	<-ctx.Done()
	return backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed}}, ctx.Err()
}

// harness runs a controller on a cluster, in a synctest bubble. ReadyToStart is
// what a run is that waits and that the ledger lets this process start: the harness
// writes and reads it like any other phase.
type harness struct {
	*enginetest.Queue
	work *work
	// mover, if set, makes snapshots.
	mover Mover
	// announcing, if set, is called before an event is recorded.
	announcing func()
	// engine, if set, stands between the controller and the cluster.
	engine func(engineclient.EngineV1alpha1Interface) engineclient.EngineV1alpha1Interface
	stop   context.CancelFunc
	// stopped is closed when the controller has stopped.
	stopped chan struct{}

	// agents of the nodes, and whether they do not obey.
	agents   *fakeAgents
	stubborn bool
	// failing has what another process left behind fail.
	failing bool

	controller *Controller
	// queue, if set, works in the same process. Else the harness stands for it.
	queue *backupqueue.Controller

	mu sync.Mutex
	// outvoted is set while another process leads.
	outvoted bool
	// stoppedNames are the names of runs that the queue was told to be worked on no more.
	stoppedNames sets.Set[string]
}

func newHarness(t *testing.T, work *work, objects ...runtime.Object) *harness {
	h := &harness{Queue: enginetest.NewQueue(t), work: work, stopped: make(chan struct{}), stoppedNames: sets.New[string](),
		agents: &fakeAgents{absent: map[string]time.Time{}, gone: sets.New[string]()}}
	h.setLeader(identity)
	for _, obj := range objects {
		h.Create(obj)
	}
	h.Kube.ClearActions()
	return h
}

// Create adds an object.
func (h *harness) Create(obj runtime.Object) {
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if ok && run.Status.Phase == running {
		h.Cluster.Create(run)
		h.WriteLedger(append(h.Ledger(), records.Start{UID: run.UID, Name: run.Name})...)
		return
	}
	if !ok || run.Status.Phase != ready {
		h.Cluster.Create(obj)
		return
	}
	run.Status.Phase = queued
	h.Cluster.Create(run)
	h.writeLedger(append(h.Ledger(), records.Start{UID: run.UID, Name: run.Name})...)
}

// writeLedger replaces the ledger, as the queue does.
func (h *harness) writeLedger(starts ...records.Start) {
	h.Helper()
	h.WriteLedger(starts...)
	for _, start := range starts {
		if h.controller != nil {
			h.controller.Start(start.Name)
		}
	}
}

// setLeader has the ledger name a process.
func (h *harness) setLeader(name string) {
	h.Helper()
	ledger := h.LedgerObject()
	ledger.Data[records.LeaderKey] = name
	if _, err := h.Kube.CoreV1().ConfigMaps(system).Update(h.Context(), ledger, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

// TakeBack and Changed make it a queue.
func (h *harness) TakeBack(_ context.Context, run types.UID, held *enginev1alpha1.StorageLocation) error {
	if held == nil {
		h.Errorf("the queue is not told which location is held")
	}
	h.WriteLedger(slices.DeleteFunc(h.Ledger(), func(start records.Start) bool { return start.UID == run })...)
	return nil
}

func (h *harness) Changed(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stoppedNames.Insert(name)
}

func (h *harness) setOutvoted(outvoted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outvoted = outvoted
}

func (h *harness) leads(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.outvoted {
		return errors.New("another process leads")
	}
	return nil
}

// startWithQueue runs a controller, and the queue of its process.
func (h *harness) startWithQueue(limit int) {
	h.Helper()
	h.queue = &backupqueue.Controller{}
	h.start(limit)
}

// start runs a controller for so many runs at once.
func (h *harness) start(workers int) *Controller {
	h.Helper()
	records := enginefactory.NewSharedInformerFactory(h.Cluster, 0)
	v1alpha1 := records.Engine().V1alpha1()
	objects := informers.NewSharedInformerFactory(h.Kube, 0)
	engine := h.EngineV1alpha1()
	if h.engine != nil {
		engine = h.engine(engine)
	}
	var asked runs.Queue = h
	if h.queue != nil {
		var err error
		h.queue, err = backupqueue.New(backupqueue.Config{
			Namespace: system, Limits: [...]int{workers, 1}, Identity: identity, Leads: h.leads,
			Runs: engine.BackupRuns(system), Restores: engine.RestoreRuns(system), ConfigMaps: h.Kube.CoreV1().ConfigMaps(system), Events: h, Clock: clock.RealClock{},
			RunInformer: v1alpha1.BackupRuns(), RestoreInformer: v1alpha1.RestoreRuns(), LocationInformer: v1alpha1.StorageLocations(),
			NamespaceInformer: objects.Core().V1().Namespaces(), LedgerInformer: objects.Core().V1().ConfigMaps(),
		})
		if err != nil {
			h.Fatal(err)
		}
		asked = h.queue
	}
	controller, err := New(Config{
		Namespace:        system,
		Workers:          workers,
		Identity:         identity,
		VolumeTimeout:    volumeTimeout,
		Timeout:          10 * volumeTimeout,
		ClusterUID:       "cluster",
		AgentTimeout:     agentTimeout,
		Agents:           h.agents,
		Leads:            h.leads,
		ResumeInProgress: !h.failing,
		Queue:            asked,
		Engine:           engine,
		ConfigMaps:       h.Kube.CoreV1().ConfigMaps(system),
		Executor:         h.work,
		Mover:            h.mover,
		HoldLocation:     h.work.holdLocation,
		Events:           h,
		Clock:            clock.RealClock{},
		RunInformer:      v1alpha1.BackupRuns(),
		LocationInformer: v1alpha1.StorageLocations(),
		VolumeInformer:   v1alpha1.VolumeUploads(),
	})
	if err != nil {
		h.Fatal(err)
	}
	ctx, stop := context.WithCancel(h.Context())
	h.stop = stop
	records.StartWithContext(h.Context())
	objects.StartWithContext(h.Context())
	h.Cleanup(records.Shutdown)
	h.Cleanup(objects.Shutdown)
	records.WaitForCacheSync(h.Context().Done())
	objects.WaitForCacheSync(h.Context().Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	go func() {
		defer close(h.stopped)
		controller.Run(ctx)
	}()
	h.controller = controller
	if h.queue != nil {
		go h.queue.Run(ctx, controller, enginetest.NoRestores{})
	} else {
		for _, start := range h.Ledger() {
			controller.Start(start.Name)
		}
	}
	if !h.stubborn {
		if _, err := v1alpha1.VolumeUploads().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { h.obey(nil, obj) }, UpdateFunc: h.obey}); err != nil {
			h.Fatal(err)
		}
	}
	synctest.Wait()
	return controller
}

// obey stops an upload that is cancelled, as its agent does.
func (h *harness) obey(_, obj any) {
	record := obj.(*enginev1alpha1.VolumeUpload)
	away := h.agents.NodeGone(record.Spec.Node, time.Time{}) || h.agents.Absence(record.Spec.Node, time.Time{}) > 0
	if record.Spec.Cancel && !record.Status.Phase.Done() && !away {
		h.tellStopped(record)
	}
}

func (h *harness) tellStopped(record *enginev1alpha1.VolumeUpload) {
	record = record.DeepCopy()
	record.Status.Phase, record.Status.Message = enginev1alpha1.VolumePhaseFailed, "it was cancelled"
	if _, err := h.EngineV1alpha1().VolumeUploads(system).UpdateStatus(h.Context(), record, metav1.UpdateOptions{}); err != nil {
		h.Error(err)
	}
}

// fakeAgents are those of all nodes, and there are all nodes, but for exceptions.
type fakeAgents struct {
	lease.Activity
	mu      sync.Mutex
	absent  map[string]time.Time // since when
	gone    sets.Set[string]
	removed []func()
}

func (a *fakeAgents) HasSynced() bool { return true }

func (a *fakeAgents) OnNodeRemoved(call func()) { a.removed = append(a.removed, call) }

func (a *fakeAgents) Absence(node string, since time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, absent := a.absent[node]
	switch {
	case !absent:
		return 0
	case at.After(since):
		since = at
	}
	return time.Since(since)
}

func (a *fakeAgents) NodeGone(node string, _ time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone.Has(node)
}

// leave lets the agent of a node stop working.
func (a *fakeAgents) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absent[node] = time.Now()
}

// remove removes a node.
func (a *fakeAgents) remove(node string) {
	a.mu.Lock()
	a.gone.Insert(node)
	a.mu.Unlock()
	for _, call := range a.removed {
		call()
	}
}

// Eventf implements events.EventRecorder.
func (h *harness) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if h.announcing != nil {
		h.announcing()
	}
	h.Events.Eventf(regarding, related, kind, reason, action, note, args...)
}

func (h *harness) expect(name string, phase v1alpha1.BackupPhase, isStored bool) {
	h.Helper()
	synctest.Wait()
	run := h.Run(name)
	is := run.Status.Phase
	if is == queued && slices.ContainsFunc(h.Ledger(), func(start records.Start) bool { return start.UID == run.UID }) {
		is = ready
	}
	if is != phase || run.Status.Stored != isStored {
		h.Fatalf("%s is %s, stored %t, want %s, %t", name, is, run.Status.Stored, phase, isStored)
	}
}

func (h *harness) expectExecuted(names ...string) {
	h.Helper()
	synctest.Wait()
	executed, _ := h.work.done()
	if slices.Sort(executed); !slices.Equal(executed, names) {
		h.Fatalf("executed were %q, want %q", executed, names)
	}
}

func (h *harness) expectSettled(names ...string) {
	h.Helper()
	synctest.Wait()
	_, settled := h.work.done()
	if slices.Sort(settled); !slices.Equal(settled, names) {
		h.Fatalf("settled were %q, want %q", settled, names)
	}
}

// writes counts the writes of a run's status that were tried.
func (h *harness) writes(name string) int {
	n := 0
	for _, action := range h.Writes("backupruns") {
		if run := enginetest.Written(action); run != nil && run.Name == name {
			n++
		}
	}
	return n
}

// faultFirst goes wrong with the first writes that bring a run into a phase.
func (h *harness) faultFirst(n int, fault enginetest.Fault, phase v1alpha1.BackupPhase) {
	h.FaultRuns(fault, func(run *enginev1alpha1.BackupRun) bool {
		if run.Status.Phase == phase {
			n--
		}
		return run.Status.Phase == phase && n >= 0
	})
}

// newUpload is a record of a volume of a run, which waits for its agent.
func newUpload(name string, run *enginev1alpha1.BackupRun, namespace string) *enginev1alpha1.VolumeUpload {
	return &enginev1alpha1.VolumeUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, Labels: map[string]string{enginev1alpha1.LabelRun: string(run.UID)}},
		Spec:       enginev1alpha1.VolumeUploadSpec{Node: "node-1", Volume: name, Pod: enginev1alpha1.PodReference{Namespace: namespace}},
	}
}

// runsOf returns the Runs of a process.
func (h *harness) runsOf(identity string) *runs.Runs[*enginev1alpha1.BackupRun] {
	return runs.New(runs.Config[*enginev1alpha1.BackupRun]{Kind: "Backup", Runs: h.EngineV1alpha1().BackupRuns(system), Attempts: attemptsOf, Identity: identity})
}
