// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has let start, and ends
// those that a process before this one left behind.
//
// No run is executed twice. The ledger names the process that may claim a run, and
// the claim is a compare-and-swap of the run, prepared by reading the run and then
// the ledger; see pkg/controllers/backupqueue for why that holds with two leaders.
// A run in progress is ended by another process only when its executor is gone for
// good, which pkg/liveness decides. This process removes from the ledger the runs
// that it was to execute and whose record was deleted, when it has stopped reading.
package backuprun

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
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
	// informed is how long after the end of a run was written the informer has told it,
	// if it does.
	informed = 10 * time.Second
	// settleTimeout is how long a store may take to be told of a dead run, and cleaned.
	settleTimeout = time.Minute
	// snapshotsTimeout is how long the removal of snapshots from one repository may
	// take. Most of it is for reading the repository's indexes.
	snapshotsTimeout = 5 * time.Minute
	// cancelTimeout is how long a store may take to be told of a cancelled run before
	// the run ends all the same.
	cancelTimeout = 5 * time.Second
	// recheck is how often it is asked whether the executor of a run is gone.
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

	// Gone reports whether another process has ended for good.
	Gone func(ctx context.Context, identity string) (bool, error)

	Engine     engineclient.EngineV1alpha1Interface
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
	// SettingsInformer knows the ConfigMap records.SettingsName.
	SettingsInformer coreinformers.ConfigMapInformer
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
	settings  corelisters.ConfigMapNamespaceLister
	synced    []cache.InformerSynced
	activity  activity
	// queue has the runs to execute, leftBehind those that another process did not
	// end, and leftoverSnapshots those that have ended and whose snapshots are to be
	// removed. A store that does not answer can make each of the latter two take long,
	// and must not keep the others from their slots.
	queue, leftBehind, leftoverSnapshots workqueue.TypedRateLimitingInterface[string]

	// mu guards what follows.
	mu sync.Mutex
	// active are the executions of this process.
	active map[types.UID]*execution
	// ended are runs in the ledger that had ended when their record was removed.
	ended sets.Set[types.UID]
	// finished are runs whose end this process has written, and when, if that is not
	// long ago.
	finished map[types.UID]time.Time
}

// execution is a run that this process works on.
type execution struct {
	cancel  context.CancelFunc
	volumes *volumes
	// removed is set when the record is gone, and cancelled when that was asked for,
	// so that the execution is to stop.
	removed, cancelled bool
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:            config,
		runs:              config.Engine.BackupRuns(config.Namespace),
		uploads:           config.Engine.VolumeUploads(config.Namespace),
		runLister:         config.RunInformer.Lister().BackupRuns(config.Namespace),
		settings:          config.SettingsInformer.Lister().ConfigMaps(config.Namespace),
		queue:             newQueue("backuprun", 10*time.Second),
		leftBehind:        newQueue("backuprun_left_behind", 10*time.Second),
		leftoverSnapshots: newQueue("backuprun_leftover_snapshots", time.Minute),
		active:            map[types.UID]*execution{},
		ended:             sets.New[types.UID](),
		finished:          map[types.UID]time.Time{},
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
		{config.SettingsInformer.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    c.settingsChanged,
			UpdateFunc: func(_, obj any) { c.settingsChanged(obj) },
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
	case records.Unclaimed(run):
		settings, err := c.settings.Get(records.SettingsName)
		if err == nil && c.isStart(settings, run) {
			c.queue.Add(run.Name)
		}
	}
}

// settingsChanged looks for the starts of this process that are not under way.
func (c *Controller) settingsChanged(obj any) {
	settings, ok := obj.(*corev1.ConfigMap)
	if !ok || settings.Name != records.SettingsName {
		return
	}
	starts, err := records.Ledger(settings)
	if err != nil {
		return // the queue says so
	}
	present := sets.New[types.UID]()
	for _, start := range starts {
		present.Insert(start.UID)
		if start.By != c.Identity || c.isActive(start.UID) {
			continue
		}
		// One that the informer does not show may be gone.
		run, err := c.runLister.Get(start.Name)
		if err != nil || run.UID != start.UID || records.Unclaimed(run) {
			c.queue.Add(start.Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = c.ended.Intersection(present)
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
	if execution := c.active[run.UID]; execution != nil && !execution.cancelled {
		execution.cancelled = true
		execution.cancel()
	}
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
	execution := c.active[run.UID]
	if execution != nil {
		execution.removed = true
		execution.cancel()
	}
	if run.Status.Phase.Ended() {
		c.ended.Insert(run.UID)
	} else {
		delete(c.finished, run.UID) // the queue can't know of its end, so its entry goes now
	}
	c.mu.Unlock()
	if execution == nil && !run.Status.Phase.Ended() {
		c.queue.Add(run.Name) // it may be in the ledger
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
	// First the run and then the ledger, see start.
	run, err := c.fresh(ctx, key)
	if err != nil {
		return err
	}
	settings, err := c.releaseRemoved(ctx, key, run)
	switch {
	case err != nil || run == nil:
		return err
	case c.claimed(run):
		return c.executeClaimed(ctx, run, settings)
	case records.Unclaimed(run) && run.Spec.Cancellation == nil && c.isStart(settings, run):
		return c.start(ctx, run)
	}
	return nil
}

func (c *Controller) syncLeftBehind(ctx context.Context, key string) error {
	run, err := c.fresh(ctx, key)
	if err != nil || run == nil || !c.isLeftBehind(run) {
		return err
	}
	if mine, err := c.isMine(ctx, run, c.leftBehind); err != nil || !mine {
		return err
	}
	return c.settle(ctx, run)
}

// isMine reports whether no other process works on a run. If one does, the run comes
// into the queue again.
func (c *Controller) isMine(ctx context.Context, run *enginev1alpha1.BackupRun, queue workqueue.TypedRateLimitingInterface[string]) (bool, error) {
	if run.Status.Executor == c.Identity {
		return true, nil
	}
	gone, err := c.Gone(ctx, run.Status.Executor)
	if err == nil && !gone {
		queue.AddAfter(run.Name, recheck)
	}
	return gone, err
}

// fresh reads a run from the cluster, since each step is taken once. It is nil if
// there is none.
func (c *Controller) fresh(ctx context.Context, key string) (*enginev1alpha1.BackupRun, error) {
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

func (c *Controller) isActive(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active[uid] != nil
}
