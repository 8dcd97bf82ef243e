// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has let start, and ends
// those that a process before this one left behind.
package backuprun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
)

const (
	// progressInterval bounds the writes of a running backup's progress.
	progressInterval = 5 * time.Second
	// settleTimeout is how long a store may take to be cleaned of a dead run.
	settleTimeout = time.Minute
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

	Engine  engineclient.EngineV1alpha1Interface
	Secrets location.Secrets
	// Executor does the work: an Executor, but in tests.
	Executor executor
	Events   events.EventRecorder
	Clock    clock.Clock

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
	locations enginelisters.BackupStorageLocationNamespaceLister
	synced    []cache.InformerSynced
	queue     workqueue.TypedRateLimitingInterface[string]

	// mu guards what follows.
	mu sync.Mutex
	// active are the executions of this process.
	active map[types.UID]*execution
	// finished are the runs whose end this process has written, until they are
	// removed: the informer may still show them as they were.
	finished map[types.UID]bool
}

// execution is a run that this process works on.
type execution struct {
	cancel  context.CancelFunc
	volumes *volumes
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		runs:      config.Engine.BackupRuns(config.Namespace),
		pvbs:      config.Engine.PodVolumeBackups(config.Namespace),
		runLister: config.RunInformer.Lister().BackupRuns(config.Namespace),
		locations: config.LocationInformer.Lister().BackupStorageLocations(config.Namespace),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 10*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "backuprun"}),
		active:   map[types.UID]*execution{},
		finished: map[types.UID]bool{},
	}
	registrations := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{config.RunInformer.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    c.enqueue,
			UpdateFunc: func(_, obj any) { c.enqueue(obj) },
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

// Run works until ctx ends, and returns when the last execution has stopped.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	var workers wait.Group
	// One more than there are slots, so that what a dead process left behind is
	// ended while every slot is in use.
	for range c.Workers + 1 {
		workers.StartWithContext(ctx, func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				for c.processNext(ctx) {
				}
			}, time.Second)
		})
	}
	workers.Wait()
}

func (c *Controller) enqueue(obj any) {
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok {
		return
	}
	switch {
	case run.Status.Phase == v1alpha1.BackupPhaseReadyToStart,
		run.Status.Phase == v1alpha1.BackupPhaseInProgress,
		needsSettling(run):
		c.queue.Add(run.Name)
	}
}

// needsSettling reports whether a failed run is still to be cleaned out of the
// store, and its failure to be stored.
func needsSettling(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase == v1alpha1.BackupPhaseFailed && !run.Status.Stored && run.Status.StartTimestamp != nil
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
	delete(c.finished, run.UID)
	if execution := c.active[run.UID]; execution != nil {
		execution.cancel()
	}
}

func (c *Controller) processNext(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if err := c.sync(ctx, key); err != nil && ctx.Err() == nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Working on a run failed; it will be tried again", "backupRun", key)
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	return true
}

func (c *Controller) sync(ctx context.Context, key string) error {
	cached, err := c.runLister.Get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	finished := c.finished[cached.UID]
	c.mu.Unlock()
	if finished {
		return nil
	}
	// Each of the steps below is taken once, so it is decided on a fresh object.
	run, err := c.runs.Get(ctx, key, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading BackupRun %s: %w", key, err)
	}
	switch {
	case run.Status.Phase == v1alpha1.BackupPhaseReadyToStart:
		return c.start(ctx, run)
	case run.Status.Phase == v1alpha1.BackupPhaseInProgress && run.Status.Executor == c.Identity:
		// Claimed by this process, which did not get the answer.
		return c.execute(ctx, run)
	case run.Status.Phase == v1alpha1.BackupPhaseInProgress, needsSettling(run):
		return c.settle(ctx, run)
	}
	return nil
}

// start claims a run for this process: a compare-and-swap, so that no two
// processes execute it.
func (c *Controller) start(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	now := metav1.NewTime(c.Clock.Now())
	expiration := metav1.NewTime(now.Add(run.Spec.Backup.TTL.Duration))
	claimed := run.DeepCopy()
	claimed.Status.Phase = v1alpha1.BackupPhaseInProgress
	claimed.Status.Executor = c.Identity
	claimed.Status.StartTimestamp = &now
	claimed.Status.Expiration = &expiration
	claimed, err := c.runs.UpdateStatus(ctx, claimed, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("claiming BackupRun %s: %w", run.Name, err)
	}
	note := "The backup has started"
	if queued := run.Status.QueuedTimestamp; queued != nil {
		note += fmt.Sprintf("; it waited %s", now.Sub(queued.Time).Round(time.Second))
	}
	c.Events.Eventf(backupReference(run), nil, corev1.EventTypeNormal, "Started", "Backup", "%s", note)
	return c.execute(ctx, claimed)
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "backupRun", klog.KObj(run))
	ctx = klog.NewContext(ctx, logger)
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	current := &execution{
		cancel: cancel,
		volumes: newVolumes(run, c.pvbs, func(ctx context.Context, volumeNamespace string) error {
			return c.ensureRepository(ctx, volumeNamespace, run.Spec.Backup.StorageLocation)
		}, c.Clock, c.VolumeTimeout),
	}
	c.mu.Lock()
	c.active[run.UID] = current
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.active, run.UID)
		c.mu.Unlock()
	}()

	logger.Info("Backup started")
	progress := &backup.Progress{}
	latest := run
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) {
		latest = c.reportProgress(ctx, run, progress, current.volumes)
	})
	outcome, err := c.Executor.Execute(working, run, current.volumes, progress)
	stopReporting()
	reporting.Wait()
	if ctx.Err() != nil {
		// The process stops. The next one finds the run InProgress, and says so.
		return ctx.Err()
	}
	if err != nil {
		logger.Error(err, "Backup failed, and its failure is not stored yet")
	}
	outcome = refuseTakenName(outcome, err)
	if current.volumes.counts() != nil {
		if err := stop(ctx, c.pvbs, run.UID); err != nil {
			logger.Error(err, "The records of the volumes stay until the run is removed")
		}
	}
	return c.finish(ctx, latest, outcome)
}

// reportProgress writes the progress of a run now and then, until ctx ends, and
// returns the run as last written.
func (c *Controller) reportProgress(ctx context.Context, run *enginev1alpha1.BackupRun, progress *backup.Progress, volumes *volumes) *enginev1alpha1.BackupRun {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return run
		case <-ticker.C:
		}
		changed := run.DeepCopy()
		if !setProgress(&changed.Status, progress, volumes) {
			continue
		}
		updated, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Writing the progress failed", "err", err)
			if live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{}); err == nil && live.UID == run.UID {
				run = live
			}
			continue
		}
		run = updated
	}
}

// finish writes the end of a run. It tries until it succeeds: a run that has
// ended must not look as if it went on.
func (c *Controller) finish(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome) error {
	now := metav1.NewTime(c.Clock.Now())
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 10 * time.Second}
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		ended := run.DeepCopy()
		recordOutcome(&ended.Status, outcome, now)
		_, err := c.runs.UpdateStatus(ctx, ended, metav1.UpdateOptions{})
		if err == nil {
			return true, nil
		}
		live, getErr := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr) || getErr == nil && live.UID != run.UID:
			return true, nil // removed by hand
		case getErr != nil:
			klog.FromContext(ctx).Info("Writing the end of the backup failed; it will be tried again", "err", err)
			return false, nil
		case live.Status.Executor != run.Status.Executor:
			return false, fmt.Errorf("BackupRun %s was taken over by the controller %s", run.Name, live.Status.Executor)
		case live.Status.Phase.Ended() && live.Status.Stored == outcome.Stored:
			return true, nil // written, but the answer was lost
		}
		run = live
		return false, nil
	})
	if err != nil {
		return err
	}
	if outcome.Stored {
		c.mu.Lock()
		c.finished[run.UID] = true
		c.mu.Unlock()
	}
	c.announce(ctx, run, outcome)
	return nil
}

// refuseTakenName makes the outcome of a run, whose name another backup has in the
// store, one of which nothing will ever be stored.
func refuseTakenName(outcome backup.Outcome, err error) backup.Outcome {
	if errors.Is(err, backup.ErrNameTaken) {
		outcome.Status.Phase = v1alpha1.BackupPhaseFailedValidation
	}
	return outcome
}

// settle ends a run whose process is gone. What is in the store decides: the run
// may have ended a moment before. While the store does not answer, the run has
// failed, and the store is cleaned up when it is back.
func (c *Controller) settle(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	reason := run.Status.FailureReason
	if run.Status.Phase == v1alpha1.BackupPhaseInProgress {
		reason = "the controller stopped while the backup was in progress"
	}
	if err := stop(ctx, c.pvbs, run.UID); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	outcome, err := c.Executor.Settle(timed, run, reason)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, backup.ErrNameTaken):
		outcome = refuseTakenName(outcome, err)
	case err != nil && run.Status.Phase != v1alpha1.BackupPhaseInProgress:
		return fmt.Errorf("storing the failure of BackupRun %s: %w", run.Name, err)
	case err != nil:
		outcome = failed(errors.New(reason))
	}
	klog.FromContext(ctx).Info("Ended a run that another process left behind", "backupRun", klog.KObj(run), "executor", run.Status.Executor, "phase", outcome.Status.Phase, "stored", outcome.Stored)
	return c.finish(ctx, run, outcome)
}

// announce tells people how a run ended.
func (c *Controller) announce(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome) {
	status := &outcome.Status
	kind := corev1.EventTypeNormal
	if status.Phase != v1alpha1.BackupPhaseCompleted {
		kind = corev1.EventTypeWarning
	}
	note := fmt.Sprintf("The backup has ended with %d errors and %d warnings", status.Errors, status.Warnings)
	if status.FailureReason != "" {
		note = "The backup has failed: " + status.FailureReason
	}
	const maxNote = 1000 // an event's note may have 1,024 characters
	if len(note) > maxNote {
		note = note[:maxNote]
	}
	c.Events.Eventf(backupReference(run), nil, kind, string(status.Phase), "Backup", "%s", strings.ToValidUTF8(note, ""))
	klog.FromContext(ctx).Info("Backup ended", "backupRun", klog.KObj(run), "phase", status.Phase, "errors", status.Errors, "warnings", status.Warnings, "failureReason", status.FailureReason, "stored", outcome.Stored)
	observeEnd(run, status)
}

// backupReference is the Backup that people know a run by.
func backupReference(run *enginev1alpha1.BackupRun) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(),
		Kind:       "Backup",
		Namespace:  run.Spec.BackupRef.Namespace,
		Name:       run.Spec.BackupRef.Name,
		UID:        run.UID,
	}
}
