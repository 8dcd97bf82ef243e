// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restorerun executes the restores that the queue has started, and continues restores that an
// earlier process left behind.
//
// A run is claimed by a compare-and-swap of its record, after a look at the ledger. Two processes
// execute it at once only if a paused one has not noticed that it no longer leads. Then nothing is
// doubled; see pkg/restore. Only one writes the end, since both name the executor and the version read.
//
// A run's end is stored before it is in the record. If its store does not answer, it is stored later,
// while this process leads.
package restorerun

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// storeTimeout bounds the storage of a run's end before it is written without, cancelTimeout a
	// cancelled run's.
	storeTimeout, cancelTimeout = 30 * time.Second, 5 * time.Second
	storeRetry                  = 30 * time.Second
	// maxAttempts is how many processes may begin a run before it fails, as it probably ends them.
	// Those told to stop don't count.
	maxAttempts = 10
	maxUnstored = 16
)

// Config configures a Controller.
type Config struct {
	Namespace string
	Workers   int
	// Identity names this process, and no other.
	Identity string
	// Leads returns nil if the cluster says that this process leads.
	Leads  func(ctx context.Context) error
	Queue  runs.Queue
	Engine engineclient.EngineV1alpha1Interface
	// ConfigMaps has the ledger.
	ConfigMaps corev1client.ConfigMapInterface
	Executor   executor
	// HoldLocation is as in package run.
	HoldLocation func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error)
	Events       events.EventRecorder
	Clock        clock.WithTicker

	RunInformer engineinformers.RestoreRunInformer
}

type executor interface {
	Reach(ctx context.Context, run *enginev1alpha1.RestoreRun) error
	Execute(ctx context.Context, run *enginev1alpha1.RestoreRun, progress *Progress) *restore.Ended
	// Stop returns when no write is in progress for a run that Execute has returned from.
	Stop(ctx context.Context, run *enginev1alpha1.RestoreRun) error
	Forget(ctx context.Context, run *enginev1alpha1.RestoreRun) error
	// Store stores a run's end; see restore.Ended.
	Store(ctx context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended) error
}

// Controller executes runs.
type Controller struct {
	Config
	*runs.Runs[*enginev1alpha1.RestoreRun]
	runs   engineclient.RestoreRunInterface
	lister enginelisters.RestoreRunNamespaceLister
	loop   *loop.Loop[string]

	mu       sync.Mutex
	unstored map[string]unstored
}

type unstored struct {
	run   types.UID
	ended *restore.Ended
}

func attemptsOf(run *enginev1alpha1.RestoreRun) runs.Attempts {
	s := &run.Status
	return runs.Attempts{Executor: &s.Executor, Attempts: &s.Attempts, GivenBack: &s.GivenBack}
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:   config,
		runs:     config.Engine.RestoreRuns(config.Namespace),
		lister:   config.RunInformer.Lister().RestoreRuns(config.Namespace),
		loop:     loop.New[string](loop.Config{Controller: "restorerun", Workers: config.Workers, FirstRetry: 100 * time.Millisecond, LastRetry: 10 * time.Second, Clock: config.Clock}),
		unstored: map[string]unstored{},
	}
	c.Runs = runs.New(runs.Config[*enginev1alpha1.RestoreRun]{
		Kind: "Restore", Runs: c.runs, Lister: c.lister, Attempts: attemptsOf, Identity: config.Identity, Queue: config.Queue,
		ConfigMaps: config.ConfigMaps, HoldLocation: config.HoldLocation, Events: config.Events,
	})
	registerMetrics()
	return c, c.loop.Watch(config.RunInformer.Informer(), loop.OnChange(c.changed))
}

// Run works until ctx ends and the last execution has stopped.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx, c.sync) }

// Start implements backupqueue.Executor.
func (c *Controller) Start(name string) { c.loop.Add(name) }

func (c *Controller) changed(before, run *enginev1alpha1.RestoreRun) {
	if before != nil && (run == nil || run.UID != before.UID) {
		c.Stop(before)
	}
	if run == nil {
		return
	}
	if run.Spec.Cancellation != nil {
		c.Stop(run)
	}
	if run.Status.Phase == v1alpha1.RestorePhaseInProgress {
		c.loop.Add(run.Name)
	}
}

func (c *Controller) sync(ctx context.Context, name string) error {
	e := c.Begin(ctx, name, func() {})
	defer c.Leave(name)
	run, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	if run == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.unstored, name)
		return nil
	}
	e.Set(run)
	switch {
	case run.Status.Phase.Ended():
		return c.storeLate(ctx, run)
	case e.Working.Err() != nil:
		c.loop.Add(name) // it, or an earlier one, was finished during the read
		return nil
	case run.Status.Phase != v1alpha1.RestorePhaseInProgress && run.Spec.Cancellation != nil:
		return nil // the queue ends it
	}
	started, err := c.IsStarted(ctx, run)
	if err != nil {
		return err
	}
	switch {
	case !started && run.Status.Phase == v1alpha1.RestorePhaseInProgress:
		c.loop.AddAfter(name, time.Second) // the queue has not taken the ledger over yet
		return nil
	case !started:
		return nil
	case run.Status.Phase == v1alpha1.RestorePhaseInProgress && run.Status.Executor == c.Identity:
		defer c.GiveBack(ctx, run, nil)
		return c.execute(ctx, run, e) // the answer to the claim was lost
	}
	return c.acquire(ctx, run, e)
}

// acquire claims a run that waits, or that another process left behind. If its store does not answer, a
// begun run waits in its slot; another one is taken back. A run that may not use its location ends on
// execution.
func (c *Controller) acquire(ctx context.Context, run *enginev1alpha1.RestoreRun, e *runs.Execution[*enginev1alpha1.RestoreRun]) error {
	begun := run.Status.Phase == v1alpha1.RestorePhaseInProgress
	if begun {
		if err := c.Leads(ctx); err != nil { // asked after the run was read
			return err
		}
		klog.FromContext(ctx).Info("Going on with a restore that another process left behind", "restoreRun", klog.KObj(run), "executor", run.Status.Executor)
	} else if err := c.Executor.Reach(ctx, run); err != nil && !location.IsFinal(err) {
		return c.TakeBack(ctx, run, err)
	}
	now := metav1.NewTime(c.Clock.Now())
	claimed, err := c.Acquire(ctx, e, run, func(claimed *enginev1alpha1.RestoreRun) {
		claimed.Status.Phase = v1alpha1.RestorePhaseInProgress
		if claimed.Status.StartTimestamp == nil {
			claimed.Status.StartTimestamp = &now
		}
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	// Its start may have been taken back during the claim.
	defer c.GiveBack(ctx, claimed, nil)
	started, err := c.IsStarted(ctx, claimed)
	switch {
	case err != nil:
		return err
	case !started && !begun:
		waiting := claimed.DeepCopy()
		waiting.Status.Phase, waiting.Status.Executor, waiting.Status.StartTimestamp = v1alpha1.RestorePhaseQueued, "", nil
		waiting.Status.Attempts--
		_, err := c.runs.UpdateStatus(ctx, waiting, metav1.UpdateOptions{})
		return err
	}
	return c.execute(ctx, claimed, e)
}

func (c *Controller) execute(ctx context.Context, run *enginev1alpha1.RestoreRun, e *runs.Execution[*enginev1alpha1.RestoreRun]) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "restoreRun", klog.KObj(run))
	ctx, working := klog.NewContext(ctx, logger), klog.NewContext(e.Working, logger)
	e.Set(run)
	if run.Spec.Cancellation != nil {
		e.Stop()
	}
	if run.Status.Attempts <= 1 {
		logger.Info("Restore started")
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeNormal, "Started", "Restore", "The restore has started, from the backup %s/%s", run.Spec.Backup.Namespace, run.Spec.Backup.Name)
	} else {
		logger.Info("Restore goes on", "attempt", run.Status.Attempts)
		c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeNormal, "Resumed", "Restore", "The restore goes on where another process of the controller left it (attempt %d)", run.Status.Attempts)
	}
	progress := &Progress{waits: waits.New(c.Clock), namespace: run.Spec.RestoreRef.Namespace, system: c.Namespace}
	working = waits.With(working, progress.waits)
	record := c.Record(run)
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) {
		runs.ReportProgress(ctx, func(ctx context.Context) error {
			return record.Write(ctx, func(changed *enginev1alpha1.RestoreRun) bool { return progress.set(&changed.Status) })
		})
	})
	var ended *restore.Ended
	if run.Status.Attempts-run.Status.GivenBack > maxAttempts || run.Status.Attempts > runs.MaxGiven {
		ended = c.giveUp(ctx, run)
	} else {
		ended = c.Executor.Execute(working, run, progress)
	}
	stopReporting()
	reporting.Wait()
	latest := record.Latest()
	if ctx.Err() != nil {
		// The next process continues.
		return ctx.Err()
	}
	if !lease.Holds(ctx) {
		// A cancelled run stops at once; errors from that are not its end.
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return lease.ErrLost
	}
	// The run holds its slot and namespaces until its writes have ended, or another process has taken
	// it over.
	others := false
	if err := runs.RetryUntilDone(ctx, func(ctx context.Context) (bool, error) {
		live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		others = err == nil && live.UID == run.UID && live.Status.Executor != run.Status.Executor
		if err == nil && !others || apierrors.IsNotFound(err) {
			err = c.Executor.Stop(ctx, run)
		}
		if err != nil {
			logger.Info("Stopping what the restore still writes failed; it will be tried again", "err", err)
		}
		return err == nil, nil
	}); err != nil || others {
		return err
	}
	timeout := storeTimeout
	if working.Err() != nil {
		live, err := c.GetWithRetry(ctx, run)
		switch {
		case err != nil:
			return err
		case live == nil:
			logger.Info("Restore stopped, since its record was removed; what it has written stays")
			return nil
		case live.Spec.Cancellation != nil && errors.Is(ended.Err, context.Canceled):
			ended.Cancelled(records.CancelledReason(live))
			timeout = cancelTimeout
		}
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stored := c.Executor.Store(timed, latest, ended)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.tellReplaced(ctx, latest, ended)
	if stored != nil {
		logger.Info("What is to be told of the restore will be stored when its store answers", "err", stored)
	}
	return c.finish(ctx, latest, ended, stored == nil)
}

func (c *Controller) giveUp(ctx context.Context, run *enginev1alpha1.RestoreRun) *restore.Ended {
	before, given := run.Status.Attempts-1, run.Status.GivenBack
	why := fmt.Errorf("the controller stopped %d times while it executed the restore: what was restored by then stays; see the logs of its pods", before-given)
	if before-given < maxAttempts {
		why = fmt.Errorf("the controller stopped %d times while it executed the restore, and %d times it was told to: what was restored by then stays; see in the events of its pods by whom", before, given)
	}
	return restore.Fail(ctx, restore.Request{Run: run, SystemNamespace: c.Namespace}, c.Clock, why)
}

func (c *Controller) finish(ctx context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended, stored bool) error {
	run, others, err := c.WriteEnd(ctx, run, func(written *enginev1alpha1.RestoreRun) {
		recordEnd(&written.Status, ended, stored)
	}, func(live *enginev1alpha1.RestoreRun) bool { return live.Status.Phase.Ended() }) // the answer was lost
	if err != nil || others {
		return err
	}
	if !stored {
		c.keep(run, ended)
	}
	if err := c.Executor.Forget(ctx, run); err != nil { // the sweep does it, or the removal of the run
		klog.FromContext(ctx).Info("What is left of the restore will be removed later", "err", err)
	}
	c.announce(ctx, run, ended, stored)
	return nil
}

func (c *Controller) keep(run *enginev1alpha1.RestoreRun, ended *restore.Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unstored) < maxUnstored {
		c.unstored[run.Name] = unstored{run.UID, ended}
		c.loop.AddAfter(run.Name, storeRetry)
	}
}

func (c *Controller) storeLate(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
	c.mu.Lock()
	late, ok := c.unstored[run.Name]
	c.mu.Unlock()
	if !ok || late.run != run.UID || run.Status.Stored {
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := c.Executor.Store(timed, run, late.ended)
	if location.IsFinal(err) {
		return nil
	}
	if err != nil {
		c.loop.AddAfter(run.Name, storeRetry)
		klog.FromContext(ctx).Info("The store of the restore does not answer still", "restoreRun", klog.KObj(run), "err", err)
		return nil
	}
	c.tellReplaced(ctx, run, late.ended)
	stored := run.DeepCopy()
	recordEnd(&stored.Status, late.ended, true) // an end stored by another process stays
	if _, err := c.runs.UpdateStatus(ctx, stored, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing that the end of RestoreRun %s is stored: %w", run.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unstored, run.Name)
	return nil
}

func (c *Controller) tellReplaced(ctx context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended) {
	if ended.Replaced == "" {
		return
	}
	klog.FromContext(ctx).Info("The end of a restore was overwritten in its store, since it was another's", "restoreRun", klog.KObj(run), "reason", ended.Replaced)
	c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "EndReplaced", "Restore", "%s", ended.Replaced)
	ended.Replaced = ""
}

func (c *Controller) announce(ctx context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended, stored bool) {
	status := &ended.Status
	c.RecordEnd(ctx, run, runs.End{
		Phase: v1alpha1.BackupPhase(status.Phase), Message: status.Message, FailureReason: status.FailureReason, ValidationErrors: status.ValidationErrors,
		Errors: status.Errors, Warnings: status.Warnings, Stored: stored,
	})
	observeEnd(run, status)
}
