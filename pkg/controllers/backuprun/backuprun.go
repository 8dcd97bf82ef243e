// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has let start, and ends
// those that a process before this one left behind.
//
// No run is executed twice. It is executed by the process that leads, after a
// compare-and-swap of the run and a look at the ledger that came after it; see
// pkg/controllers/backupqueue for why that holds with two leaders. A run in progress
// that another process has claimed was left behind: this one is ended at once, since
// the cluster says, after the run was read, that this process leads, so that the other
// one, which led when it claimed the run, has stopped.
//
// The queue, in the same process, is the only one that writes the ledger. It asks which
// runs are worked on before it drops one whose record is gone.
package backuprun

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// progressInterval bounds the writes of a running backup's progress.
	progressInterval = 5 * time.Second
	// settleTimeout is how long a store may take to be told of a dead run, and cleaned.
	settleTimeout = time.Minute
	// snapshotsTimeout is how long the removal of snapshots from one repository may
	// take. Most of it is for reading the repository's indexes.
	snapshotsTimeout = 5 * time.Minute
	// cancelTimeout is how long a store may take to be told of a cancelled run before
	// the run ends all the same.
	cancelTimeout = 5 * time.Second
	// recheck is how often it is asked whether uploads have stopped.
	recheck = 5 * time.Second
	// DefaultVolumeTimeout is how long the upload of a volume may take unless it is set.
	DefaultVolumeTimeout = 4 * time.Hour
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Workers is how many runs are executed at once: the queue's limit.
	Workers int
	// Identity is this process, and no other, not even one of the same pod.
	Identity string
	// VolumeTimeout is how long the upload of a volume may take from its start, and how
	// long a node's agent may begin and end none while volumes wait for it.
	VolumeTimeout time.Duration
	// AgentTimeout is how long a node may be without an agent.
	AgentTimeout time.Duration
	// Agents knows which nodes have one: liveness.Agents, but in tests.
	Agents agents

	// Leads asks the cluster whether this process leads: nil if so.
	Leads func(ctx context.Context) error
	// Queue is the one of this process.
	Queue queue

	Engine engineclient.EngineV1alpha1Interface
	// ConfigMaps are those of the system namespace, to read the ledger.
	ConfigMaps coreclient.ConfigMapInterface
	// Executor does the work: an Executor, but in tests.
	Executor executor
	// CheckLocation brings the condition of a storage location up to date at once.
	CheckLocation func(ctx context.Context, name string) error
	Events        events.EventRecorder
	Clock         clock.Clock

	RunInformer      engineinformers.BackupRunInformer
	LocationInformer engineinformers.StorageLocationInformer
	VolumeInformer   engineinformers.VolumeUploadInformer
}

// queue is what lets runs start: a backupqueue.Controller, but in tests.
type queue interface {
	// TakeBack removes a run from the ledger that is worked on and not claimed.
	TakeBack(ctx context.Context, run types.UID) error
	// Stopped says that no run of a name is worked on whose record is gone.
	Stopped(name string)
}

// agents knows which nodes have an agent.
type agents interface {
	HasSynced() bool
	// OnNodeRemoved has a function called whenever a node is gone.
	OnNodeRemoved(func())
	Absence(node string, since time.Time) time.Duration
	NodeGone(node string, since time.Time) bool
}

// Controller executes runs.
type Controller struct {
	Config
	runs      engineclient.BackupRunInterface
	uploads   engineclient.VolumeUploadInterface
	runLister enginelisters.BackupRunNamespaceLister
	synced    []cache.InformerSynced
	activity  activity
	// queue has the runs to execute, leftBehind those that another process did not
	// end, and leftoverSnapshots those that have ended and whose snapshots are to be
	// removed. A store that does not answer can make each of the latter two take long,
	// and must not keep the others from their slots.
	queue, leftBehind, leftoverSnapshots workqueue.TypedRateLimitingInterface[string]

	// mu guards what follows.
	mu sync.Mutex
	// working are the runs that this process works on, by name.
	working map[string]*execution
}

// execution is a run that this process works on. The Controller's mu guards it.
type execution struct {
	// run is the run as it was read, and from before its claim as it is claimed; nil before.
	run *enginev1alpha1.BackupRun
	// cancel and volumes are set once it is executed.
	cancel  context.CancelFunc
	volumes *volumes
	// removed is set when the record is gone, and cancelled when that was asked for,
	// so that the execution is to stop.
	removed, cancelled bool
	// gone is set when a record of this name is gone, of which the queue may wait to hear
	// that it is not worked on any more.
	gone bool
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:            config,
		runs:              config.Engine.BackupRuns(config.Namespace),
		uploads:           config.Engine.VolumeUploads(config.Namespace),
		runLister:         config.RunInformer.Lister().BackupRuns(config.Namespace),
		queue:             newQueue("backuprun", 10*time.Second),
		leftBehind:        newQueue("backuprun_left_behind", 10*time.Second),
		leftoverSnapshots: newQueue("backuprun_leftover_snapshots", time.Minute),
		working:           map[string]*execution{},
	}
	registerMetrics()
	registrations := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{config.RunInformer.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    c.enqueue,
			UpdateFunc: c.runChanged,
			DeleteFunc: c.runDeleted,
		}},
		{config.VolumeInformer.Informer(), c.volumeHandler()},
		{config.LocationInformer.Informer(), cache.ResourceEventHandlerFuncs{}},
	}
	for _, r := range registrations {
		if _, err := r.informer.AddEventHandler(r.handler); err != nil {
			return nil, err
		}
		c.synced = append(c.synced, r.informer.HasSynced)
	}
	c.synced = append(c.synced, config.Agents.HasSynced)
	config.Agents.OnNodeRemoved(c.nodeRemoved)
	return c, nil
}

func newQueue(name string, longestPause time.Duration) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, longestPause),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}

// Run works until ctx ends, and returns when the last execution has stopped.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
		c.leftBehind.ShutDown()
		c.leftoverSnapshots.ShutDown()
	}()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	var workers wait.Group
	start := func(queue workqueue.TypedRateLimitingInterface[string], sync func(context.Context, string) error) {
		workers.StartWithContext(ctx, func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				for c.processNext(ctx, queue, sync) {
				}
			}, time.Second)
		})
	}
	for range c.Workers {
		start(c.queue, c.sync)
		start(c.leftBehind, c.syncLeftBehind)
	}
	start(c.leftoverSnapshots, c.syncLeftoverSnapshots)
	workers.Wait()
}

// Start implements backupqueue.Executor.
func (c *Controller) Start(name string) { c.queue.Add(name) }

// Executing implements backupqueue.Executor.
func (c *Controller) Executing() map[string]*enginev1alpha1.BackupRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := map[string]*enginev1alpha1.BackupRun{}
	for name, working := range c.working {
		runs[name] = working.run
	}
	return runs
}

// enqueue puts a run into the queue where it belongs, or tells its execution that
// it is cancelled.
func (c *Controller) enqueue(obj any) {
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok {
		return
	}
	if run.Spec.Cancellation != nil {
		c.cancel(run)
	}
	switch {
	case c.claimed(run):
		c.queue.Add(run.Name)
	case c.isLeftBehind(run):
		c.leftBehind.Add(run.Name)
	case hasLeftoverSnapshots(run):
		c.leftoverSnapshots.Add(run.Name)
	}
}

// claimed reports whether this process has claimed a run; it may not have got the
// answer.
func (c *Controller) claimed(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase == v1alpha1.BackupPhaseInProgress && run.Status.Executor == c.Identity
}

// isLeftBehind reports whether a run was begun by another process, or has ended and
// its end is still to be stored.
func (c *Controller) isLeftBehind(run *enginev1alpha1.BackupRun) bool {
	if run.Deleting() {
		return false // whoever deletes the backup cleans up
	}
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseInProgress:
		return run.Status.Executor != c.Identity
	case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled:
		return !run.Status.Stored && run.Status.StartTimestamp != nil
	}
	return false
}

// cancel stops the execution of a run, if there is one.
func (c *Controller) cancel(run *enginev1alpha1.BackupRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if working := c.working[run.Name]; working.is(run.UID) && !working.cancelled {
		working.cancelled = true
		working.cancel()
	}
}

// is reports whether it is the execution of a run.
func (e *execution) is(run types.UID) bool {
	return e != nil && e.volumes != nil && e.run.UID == run
}

// runChanged is told, after a gap of the informer, of a run that was replaced, too.
func (c *Controller) runChanged(before, after any) {
	if before.(*enginev1alpha1.BackupRun).UID != after.(*enginev1alpha1.BackupRun).UID {
		c.runDeleted(before)
	}
	c.enqueue(after)
}

func (c *Controller) runDeleted(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	working := c.working[run.Name]
	if working == nil {
		return // the queue sees that by itself
	}
	working.gone = true
	if working.is(run.UID) {
		working.removed = true
		working.cancel()
	}
}

func (c *Controller) processNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], sync func(context.Context, string) error) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(key)
	if ctx.Err() != nil {
		// What was added while it was worked on comes once more.
		return true
	}
	if err := sync(ctx, key); err != nil && ctx.Err() == nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Working on a run failed; it will be tried again", "backupRun", key)
		queue.AddRateLimited(key)
		return true
	}
	queue.Forget(key)
	return true
}

func (c *Controller) sync(ctx context.Context, key string) error {
	working := &execution{}
	c.mu.Lock()
	c.working[key] = working
	c.mu.Unlock()
	defer c.leave(key, working)
	run, err := c.read(ctx, key)
	if err != nil {
		return err
	}
	c.setRun(working, run)
	switch {
	case run == nil:
		return nil
	case c.claimed(run):
		return c.executeClaimed(ctx, run, working)
	case !records.Unclaimed(run) || run.Spec.Cancellation != nil:
		return nil
	}
	if started, err := c.isStarted(ctx, run); err != nil || !started {
		return err
	}
	return c.start(ctx, run, working)
}

// setRun notes which run is being worked on, nil if there is none.
func (c *Controller) setRun(working *execution, run *enginev1alpha1.BackupRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	working.run = run
	working.gone = working.gone || run == nil
}

// leave is called when a run is not worked on any more.
func (c *Controller) leave(name string, working *execution) {
	c.mu.Lock()
	delete(c.working, name)
	gone := working.gone
	c.mu.Unlock()
	if gone {
		c.Queue.Stopped(name)
	}
}

// isStarted reads in the ledger whether this process may execute a run.
func (c *Controller) isStarted(ctx context.Context, run *enginev1alpha1.BackupRun) (bool, error) {
	ledger, err := c.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the ledger of started backups: %w", err)
	}
	return records.Leader(ledger) == c.Identity && records.Started(ledger).Has(run.UID), nil
}

func (c *Controller) syncLeftBehind(ctx context.Context, key string) error {
	run, err := c.read(ctx, key)
	if err != nil || run == nil || !c.isLeftBehind(run) {
		return err
	}
	if err := c.Leads(ctx); err != nil { // asked after the run was read
		return err
	}
	return c.endLeftBehind(ctx, run)
}

// read reads a run from the cluster, since each step is taken once. It is nil if
// there is none.
func (c *Controller) read(ctx context.Context, key string) (*enginev1alpha1.BackupRun, error) {
	run, err := c.runs.Get(ctx, key, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading BackupRun %s: %w", key, err)
	}
	return run, nil
}

// flags reports why an execution was told to stop, if it was.
func (c *Controller) flags(execution *execution) (removed, cancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return execution.removed, execution.cancelled
}
