// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has let start, and ends
// those that a process before this one left behind.
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

const (
	// progressInterval bounds the writes of a running backup's progress.
	progressInterval = 5 * time.Second
	// settleTimeout is how long a store may take to be cleaned of a dead run.
	settleTimeout = time.Minute
	// takeoverDelay is how long a run is left alone that another process claimed
	// while this one led. That process must have stopped by then: it is longer than
	// a Lease lasts.
	takeoverDelay = time.Minute
	// DefaultVolumeTimeout is how long a volume may take unless it is set.
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
	// VolumeTimeout is how long a volume may take, waiting for its agent included.
	VolumeTimeout time.Duration

	Engine engineclient.EngineV1alpha1Interface
	// Executor does the work: an Executor, but in tests.
	Executor executor
	// CheckLocation brings the condition of a storage location up to date at once.
	CheckLocation func(ctx context.Context, name string) error
	Events        events.EventRecorder
	Clock         clock.Clock

	RunInformer      engineinformers.BackupRunInformer
	LocationInformer engineinformers.BackupStorageLocationInformer
	VolumeInformer   engineinformers.PodVolumeBackupInformer
}

// Controller executes runs.
type Controller struct {
	Config
	runs      engineclient.BackupRunInterface
	pvbs      engineclient.PodVolumeBackupInterface
	runLister enginelisters.BackupRunNamespaceLister
	synced    []cache.InformerSynced
	// queue has the runs to execute, leftBehind those that another process did not
	// end. A store that does not answer can make each of the latter take long, and
	// must not keep the others from their slots.
	queue, leftBehind workqueue.TypedRateLimitingInterface[string]

	// mu guards what follows.
	mu sync.Mutex
	// active are the executions of this process.
	active map[types.UID]*execution
}

// execution is a run that this process works on.
type execution struct {
	cancel  context.CancelFunc
	volumes *volumes
	// removed is set when the record is gone, so that the execution is to stop.
	removed bool
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:     config,
		runs:       config.Engine.BackupRuns(config.Namespace),
		pvbs:       config.Engine.PodVolumeBackups(config.Namespace),
		runLister:  config.RunInformer.Lister().BackupRuns(config.Namespace),
		queue:      newQueue("backuprun"),
		leftBehind: newQueue("backuprun_left_behind"),
		active:     map[types.UID]*execution{},
	}
	registerMetrics()
	registrations := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{config.RunInformer.Informer(), cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    c.enqueue,
			UpdateFunc: func(_, obj any) { c.enqueue(obj, false) },
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
	return c, nil
}

func newQueue(name string) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 10*time.Second),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}

// Run works until ctx ends, and returns when the last execution has stopped.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
		c.leftBehind.ShutDown()
	}()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	var workers wait.Group
	for _, work := range []func(context.Context) bool{
		func(ctx context.Context) bool { return c.processNext(ctx, c.queue, c.sync) },
		func(ctx context.Context) bool { return c.processNext(ctx, c.leftBehind, c.syncLeftBehind) },
	} {
		for range c.Workers {
			workers.StartWithContext(ctx, func(ctx context.Context) {
				wait.UntilWithContext(ctx, func(ctx context.Context) {
					for work(ctx) {
					}
				}, time.Second)
			})
		}
	}
	workers.Wait()
}

// enqueue puts a run into the queue where it belongs. One that was there before
// this process began is nobody else's.
func (c *Controller) enqueue(obj any, inherited bool) {
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok {
		return
	}
	switch {
	case c.executable(run):
		c.queue.Add(run.Name)
	case !c.isLeftBehind(run):
	case inherited || run.Status.Phase != v1alpha1.BackupPhaseInProgress:
		c.leftBehind.Add(run.Name)
	default:
		c.leftBehind.AddAfter(run.Name, takeoverDelay)
	}
}

// executable reports whether a run is to be started, or was claimed by this process,
// which may not have got the answer.
func (c *Controller) executable(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase == v1alpha1.BackupPhaseReadyToStart ||
		run.Status.Phase == v1alpha1.BackupPhaseInProgress && run.Status.Executor == c.Identity
}

// isLeftBehind reports whether a run was begun by a process that is gone, or has
// failed and is still to be cleaned out of the store, and its failure to be stored.
func (c *Controller) isLeftBehind(run *enginev1alpha1.BackupRun) bool {
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseInProgress:
		return run.Status.Executor != c.Identity
	case v1alpha1.BackupPhaseFailed:
		return !run.Status.Stored && run.Status.StartTimestamp != nil
	}
	return false
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
	if execution := c.active[run.UID]; execution != nil {
		execution.removed = true
		execution.cancel()
	}
}

func (c *Controller) processNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], sync func(context.Context, string) error) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(key)
	if err := sync(ctx, key); err != nil && ctx.Err() == nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Working on a run failed; it will be tried again", "backupRun", key)
		queue.AddRateLimited(key)
		return true
	}
	queue.Forget(key)
	return true
}

func (c *Controller) sync(ctx context.Context, key string) error {
	run, err := c.fresh(ctx, key)
	switch {
	case err != nil:
		return err
	case run == nil || !c.executable(run) || c.stopping():
		return nil
	case run.Status.Phase == v1alpha1.BackupPhaseReadyToStart:
		return c.start(ctx, run)
	}
	return c.execute(ctx, run)
}

func (c *Controller) syncLeftBehind(ctx context.Context, key string) error {
	run, err := c.fresh(ctx, key)
	if err != nil || run == nil || !c.isLeftBehind(run) {
		return err
	}
	return c.settle(ctx, run)
}

// fresh reads a run from the cluster, since each step is taken once. It is nil if
// nothing is left to do.
func (c *Controller) fresh(ctx context.Context, key string) (*enginev1alpha1.BackupRun, error) {
	cached, err := c.runLister.Get(key)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	run, err := c.runs.Get(ctx, key, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading BackupRun %s: %w", key, err)
	}
	if run.UID != cached.UID {
		return nil, nil // the informer has yet to see that a namesake took its place
	}
	return run, nil
}

func (c *Controller) isRemoved(execution *execution) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return execution.removed
}

// stopping reports whether an execution still stops whose record is gone. The
// queue counts it no more, so the next run waits for its end here.
func (c *Controller) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, execution := range c.active {
		if execution.removed {
			return true
		}
	}
	return false
}
