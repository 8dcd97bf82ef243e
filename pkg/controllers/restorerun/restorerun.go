// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restorerun executes the restores that the queue has let start, and goes on with
// those that a process before this one left behind.
//
// A run is claimed by a compare-and-swap of its record, after a look at the ledger by which
// this process leads; so two processes that know of each other never execute it at once.
// Where one that was paused has not noticed yet that it leads no more, both do, and nothing
// is doubled: see pkg/restore. Of such two only one writes the end, since both their writes
// name the executor, in the version that they have read.
//
// A run's end is stored before it is written into the record. While its store does not
// answer, the end is written all the same, and what is to be stored is kept in memory and
// tried again for as long as this process leads.
package restorerun

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/wait"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// progressInterval bounds the writes of a running restore's progress.
	progressInterval = 5 * time.Second
	// storeTimeout is how long a store may take to be told of the end of a run before that is
	// written all the same, and cancelTimeout of a cancelled one.
	storeTimeout, cancelTimeout = 30 * time.Second, 5 * time.Second
	// storeRetry is how often a store is tried that did not answer.
	storeRetry = 30 * time.Second
	// maxAttempts is how many processes may have begun with a run: then it is likely that it
	// ends them. Those do not count that were told to stop.
	maxAttempts = 10
	// maxGiven bounds all of them, with those that do not count: a restore whose process is told to
	// stop again and again may be why.
	maxGiven = 20
	// giveBackTimeout is how long it may take to write that an attempt is given back.
	giveBackTimeout = 3 * time.Second
	// maxUnstored is how many ends are kept in memory.
	maxUnstored = 16
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Workers is how many runs are executed at once: the queue's limit.
	Workers int
	// Identity is this process, and no other, not even one of the same pod.
	Identity string
	// Leads asks the cluster whether this process leads: nil if so.
	Leads func(ctx context.Context) error
	// Queue is the one of this process.
	Queue  queue
	Engine engineclient.EngineV1alpha1Interface
	// ConfigMaps are those of the system namespace, to read the ledger.
	ConfigMaps coreclient.ConfigMapInterface
	// Executor does the work: an Executor, but in tests.
	Executor executor
	// HoldLocation makes a storage location unavailable for a while, since its store did not
	// answer a run that was to start, and returns its record as it is then; nil if there is none.
	HoldLocation func(ctx context.Context, name string, reason error) (*engine.StorageLocation, error)
	Events       events.EventRecorder
	Clock        clock.WithTicker

	RunInformer engineinformers.RestoreRunInformer
}

// queue is what lets runs start: a backupqueue.Controller, but in tests.
type queue interface {
	// TakeBack removes a run from the ledger that is worked on and not claimed, since the store
	// of its location did not answer.
	TakeBack(ctx context.Context, run types.UID, location *engine.StorageLocation) error
	// Changed says that a run is not worked on any more whose record is gone.
	Changed(name string)
}

// executor does a run's work in the cluster and the store.
type executor interface {
	// Reach reports why the store of a run does not answer; nil if it does.
	Reach(ctx context.Context, run *engine.RestoreRun) error
	// Execute works on a run until it has ended or ctx ends.
	Execute(ctx context.Context, run *engine.RestoreRun, progress *Progress) *restore.Ended
	// Stop returns when nothing is written for a run any more that Execute has returned from.
	Stop(ctx context.Context, run *engine.RestoreRun) error
	// Forget removes what a process that goes on with a run needs, once its end is recorded.
	Forget(ctx context.Context, run *engine.RestoreRun) error
	// Store tells the store how a run has ended; see restore.Ended.
	Store(ctx context.Context, run *engine.RestoreRun, ended *restore.Ended) error
}

// Controller executes runs.
type Controller struct {
	Config
	runs   engineclient.RestoreRunInterface
	lister enginelisters.RestoreRunNamespaceLister
	loop   *loop.Loop[string]

	mu sync.Mutex
	// working are the runs that this process works on, by name.
	working map[string]*execution
	// unstored are the ends of runs that are to be stored, by the names of the runs.
	unstored map[string]unstored
}

// unstored is the end of a run, which has a uid.
type unstored struct {
	run   types.UID
	ended *restore.Ended
}

// execution is a run that this process works on. The Controller's mu guards it.
type execution struct {
	// run is the run as it was read, and from before its claim as it is claimed; nil before.
	run *engine.RestoreRun
	// working ends, by stop, when the run is cancelled or its record is gone.
	working context.Context
	stop    context.CancelFunc
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:   config,
		runs:     config.Engine.RestoreRuns(config.Namespace),
		lister:   config.RunInformer.Lister().RestoreRuns(config.Namespace),
		loop:     loop.New[string](loop.Config{Controller: "restorerun", Workers: config.Workers, FirstRetry: 100 * time.Millisecond, LastRetry: 10 * time.Second, Clock: config.Clock}),
		working:  map[string]*execution{},
		unstored: map[string]unstored{},
	}
	registerMetrics()
	return c, c.loop.Watch(config.RunInformer.Informer(), loop.OnChange(c.changed))
}

// Run works until ctx ends, and returns when the last execution has stopped.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx, c.sync) }

// Start implements backupqueue.Executor.
func (c *Controller) Start(name string) { c.loop.Add(name) }

// Executing implements backupqueue.Executor.
func (c *Controller) Executing() map[string]*engine.RestoreRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := map[string]*engine.RestoreRun{}
	for name, e := range c.working {
		runs[name] = e.run
	}
	return runs
}

// changed has a run worked on that is in progress, and stops the execution of one that is
// cancelled or whose record is gone.
func (c *Controller) changed(before, run *engine.RestoreRun) {
	if before != nil && (run == nil || run.UID != before.UID) {
		c.stop(before)
	}
	if run == nil {
		return
	}
	if run.Spec.Cancellation != nil {
		c.stop(run)
	}
	if run.Status.Phase == v1alpha1.RestorePhaseInProgress {
		c.loop.Add(run.Name)
	}
}

// stop stops the execution of a run, if there is one. While it is not known yet which run of
// that name is worked on, it may be this one.
func (c *Controller) stop(run *engine.RestoreRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.working[run.Name]; e != nil && (e.run == nil || e.run.UID == run.UID) {
		e.stop()
	}
}

func (c *Controller) sync(ctx context.Context, name string) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	e := &execution{working: working, stop: stop}
	c.mu.Lock()
	c.working[name] = e
	c.mu.Unlock()
	defer c.leave(name)
	run, err := c.runs.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.unstored, name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading RestoreRun %s: %w", name, err)
	}
	c.setRun(e, run)
	switch {
	case run.Status.Phase.Ended():
		return c.storeLate(ctx, run)
	case working.Err() != nil:
		c.loop.Add(name) // something became of it, or of one before it, while it was read
		return nil
	case run.Status.Phase != v1alpha1.RestorePhaseInProgress && run.Spec.Cancellation != nil:
		return nil // the queue ends it
	}
	started, err := c.isStarted(ctx, run)
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
		defer c.giveBack(ctx, run)
		return c.execute(ctx, run, e) // the answer to the claim was lost
	}
	return c.claim(ctx, run, e)
}

// setRun notes which run is being worked on.
func (c *Controller) setRun(e *execution, run *engine.RestoreRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.run = run
}

// leave is called when a run is not worked on any more. If its record is gone, the queue may
// have seen that before, and waits to hear this.
func (c *Controller) leave(name string) {
	c.mu.Lock()
	run := c.working[name].run
	delete(c.working, name)
	c.mu.Unlock()
	if known, err := c.lister.Get(name); err != nil || run != nil && run.UID != known.UID {
		c.Queue.Changed(name)
	}
}

// isStarted reads in the ledger whether this process may execute a run.
func (c *Controller) isStarted(ctx context.Context, run *engine.RestoreRun) (bool, error) {
	ledger, err := c.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the ledger of what was let start: %w", err)
	}
	return records.Leader(ledger) == c.Identity && records.Started(ledger).Has(run.UID), nil
}

// claim makes a run that waits, or that another process has left behind, this process's own.
// A run whose store does not answer goes back to its place in the queue instead, unless it
// has begun: then it waits in its slot. One that can have nothing of its location ends
// when it is executed.
func (c *Controller) claim(ctx context.Context, run *engine.RestoreRun, e *execution) error {
	begun := run.Status.Phase == v1alpha1.RestorePhaseInProgress
	if begun {
		if err := c.Leads(ctx); err != nil { // asked after the run was read
			return err
		}
		klog.FromContext(ctx).Info("Going on with a restore that another process left behind", "restoreRun", klog.KObj(run), "executor", run.Status.Executor)
	} else if err := c.Executor.Reach(ctx, run); err != nil && !location.IsFinal(err) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		held, failure := c.HoldLocation(ctx, run.Spec.Backup.StorageLocation, err)
		if failure != nil {
			return failure
		}
		klog.FromContext(ctx).Info("Restore goes back to its place in the queue, since its store does not answer", "restoreRun", klog.KObj(run), "reason", err.Error())
		return c.Queue.TakeBack(ctx, run.UID, held)
	}
	now := metav1.NewTime(c.Clock.Now())
	claimed := run.DeepCopy()
	claimed.Status.Phase = v1alpha1.RestorePhaseInProgress
	claimed.Status.Executor = c.Identity
	claimed.Status.Attempts++
	if claimed.Status.StartTimestamp == nil {
		claimed.Status.StartTimestamp = &now
	}
	c.setRun(e, claimed)
	claimed, err := c.runs.UpdateStatus(ctx, claimed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		c.tellRefused(run, err)
		return fmt.Errorf("claiming RestoreRun %s: %w", run.Name, err)
	}
	// Its start may have been taken back while the claim was under way.
	defer c.giveBack(ctx, claimed)
	started, err := c.isStarted(ctx, claimed)
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

// tellRefused tells people that a record may not be written, for instance since an admission
// webhook does not want it: the restore keeps its slot until it may.
func (c *Controller) tellRefused(run *engine.RestoreRun, err error) {
	if records.Refused(err) {
		c.Events.Eventf(reference(run), nil, corev1.EventTypeWarning, "RecordRefused", "Restore",
			"The record of the restore may not be written, and it keeps its slot until it may: %v", err)
	}
}

// execute runs a claimed run to its end.
func (c *Controller) execute(ctx context.Context, run *engine.RestoreRun, e *execution) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "restoreRun", klog.KObj(run))
	ctx, working := klog.NewContext(ctx, logger), klog.NewContext(e.working, logger)
	c.setRun(e, run)
	if run.Spec.Cancellation != nil {
		e.stop()
	}
	if run.Status.Attempts <= 1 {
		logger.Info("Restore started")
		c.Events.Eventf(reference(run), nil, corev1.EventTypeNormal, "Started", "Restore", "The restore has started, from the backup %s/%s", run.Spec.Backup.Namespace, run.Spec.Backup.Name)
	} else {
		logger.Info("Restore goes on", "attempt", run.Status.Attempts)
		c.Events.Eventf(reference(run), nil, corev1.EventTypeNormal, "Resumed", "Restore", "The restore goes on where another process of the controller left it (attempt %d)", run.Status.Attempts)
	}
	progress := &Progress{waits: waits.New(c.Clock), namespace: run.Spec.RestoreRef.Namespace, system: c.Namespace}
	working = waits.With(working, progress.waits)
	latest := run
	var reporting wait.Group
	reportCtx, stopReporting := context.WithCancel(working)
	reporting.StartWithContext(reportCtx, func(ctx context.Context) { latest = c.reportProgress(ctx, run, progress) })
	var ended *restore.Ended
	if run.Status.Attempts-run.Status.GivenBack > maxAttempts || run.Status.Attempts > maxGiven {
		ended = c.giveUp(ctx, run)
	} else {
		ended = c.Executor.Execute(working, run, progress)
	}
	stopReporting()
	reporting.Wait()
	if ctx.Err() != nil {
		// The process stops. The next one goes on.
		return ctx.Err()
	}
	if !liveness.Holds(ctx) {
		// It stops at once: what failed for that is no end of the run.
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return liveness.ErrLost
	}
	// The run holds its slot and its namespaces while they are written to. What another process
	// writes that has taken it over is not this one's to stop.
	others := false
	if err := untilDone(ctx, func(ctx context.Context) (bool, error) {
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
		live, err := c.readAtLast(ctx, run.Name)
		switch {
		case err != nil:
			return err
		case live == nil || live.UID != run.UID:
			logger.Info("Restore stopped, since its record was removed; what it has written stays")
			return nil
		case live.Spec.Cancellation != nil && errors.Is(ended.Err, context.Canceled):
			ended.Cancelled(cancelledReason(live))
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

// giveBack writes that the attempt has ended with ctx, since the process is told to stop. One that
// ends since the Lease is lost counts, and one that has ended the run gives nothing back.
func (c *Controller) giveBack(ctx context.Context, run *engine.RestoreRun) {
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), liveness.ErrLost) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err),
		err == nil && (live.UID != run.UID || live.Status.Executor != c.Identity || live.Status.Phase != v1alpha1.RestorePhaseInProgress):
		return
	case err == nil:
		live.Status.GivenBack++
		_, err = c.runs.UpdateStatus(ctx, live, metav1.UpdateOptions{})
	}
	if err != nil {
		klog.FromContext(ctx).Info("The attempt counts, though the controller was told to stop: writing that failed", "restoreRun", klog.KObj(run), "err", err)
	}
}

// giveUp ends a run that has ended every process which executed it.
func (c *Controller) giveUp(ctx context.Context, run *engine.RestoreRun) *restore.Ended {
	before, given := run.Status.Attempts-1, run.Status.GivenBack
	why := fmt.Errorf("the controller stopped %d times while it executed the restore: what was restored by then stays; see the logs of its pods", before-given)
	if before-given < maxAttempts {
		why = fmt.Errorf("the controller stopped %d times while it executed the restore, and %d times it was told to: what was restored by then stays; see in the events of its pods by whom", before, given)
	}
	return restore.Fail(ctx, restore.Request{Run: run, SystemNamespace: c.Namespace}, c.Clock, why)
}

// finish writes the end of a run. It tries until it succeeds: a run that has ended must not
// look as if it went on.
func (c *Controller) finish(ctx context.Context, run *engine.RestoreRun, ended *restore.Ended, stored bool) error {
	others := false
	err := untilDone(ctx, func(ctx context.Context) (bool, error) {
		written := run.DeepCopy()
		recordEnd(&written.Status, ended, stored)
		_, err := c.runs.UpdateStatus(ctx, written, metav1.UpdateOptions{})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Info("Writing the end of the restore failed; it will be tried again", "err", err)
			c.tellRefused(run, err)
		}
		live, getErr := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr) || getErr == nil && live.UID != run.UID:
			return true, nil // removed by hand
		case getErr != nil:
			return false, nil
		case live.Status.Executor != run.Status.Executor:
			others = true
			return true, nil // another process has taken it over, and ends it
		case live.Status.Phase.Ended():
			return true, nil // written, but the answer was lost
		}
		run = live
		return false, nil
	})
	if err != nil || others {
		return err
	}
	if !stored {
		c.keep(run, ended)
	}
	if err := c.Executor.Forget(ctx, run); err != nil { // the sweep does it, or who removes the run
		klog.FromContext(ctx).Info("What is left of the restore will be removed later", "err", err)
	}
	c.announce(ctx, run, ended, stored)
	return nil
}

// keep remembers an end that is to be stored.
func (c *Controller) keep(run *engine.RestoreRun, ended *restore.Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unstored) < maxUnstored {
		c.unstored[run.Name] = unstored{run.UID, ended}
		c.loop.AddAfter(run.Name, storeRetry)
	}
}

// storeLate stores the end of a run whose store did not answer when it ended.
func (c *Controller) storeLate(ctx context.Context, run *engine.RestoreRun) error {
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
	recordEnd(&stored.Status, late.ended, true) // what another process has stored before stands
	if _, err := c.runs.UpdateStatus(ctx, stored, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing that the end of RestoreRun %s is stored: %w", run.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unstored, run.Name)
	return nil
}

// tellReplaced says that the store had something else in the place of the end of a run.
func (c *Controller) tellReplaced(ctx context.Context, run *engine.RestoreRun, ended *restore.Ended) {
	if ended.Replaced == "" {
		return
	}
	klog.FromContext(ctx).Info("The end of a restore was overwritten in its store, since it was another's", "restoreRun", klog.KObj(run), "reason", ended.Replaced)
	c.Events.Eventf(reference(run), nil, corev1.EventTypeWarning, "EndReplaced", "Restore", "%s", ended.Replaced)
	ended.Replaced = ""
}

// untilDone tries at once, and again and again until it is done, fails, or ctx ends.
func untilDone(ctx context.Context, try wait.ConditionWithContextFunc) error {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 10 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, true, try)
}

// readAtLast reads a run, however long that takes. It is nil if there is none.
func (c *Controller) readAtLast(ctx context.Context, name string) (run *engine.RestoreRun, err error) {
	err = untilDone(ctx, func(ctx context.Context) (bool, error) {
		live, err := c.runs.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			run = live
		}
		return err == nil || apierrors.IsNotFound(err), nil
	})
	return run, err
}

// reportProgress writes the progress of a run now and then, until ctx ends, and returns the
// run as last written.
func (c *Controller) reportProgress(ctx context.Context, run *engine.RestoreRun, progress *Progress) *engine.RestoreRun {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return run
		case <-ticker.C:
		}
		changed := run.DeepCopy()
		if !progress.set(&changed.Status) {
			continue
		}
		updated, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Writing the progress failed", "err", err)
			if live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{}); err == nil && live.UID == run.UID && live.Status.Executor == run.Status.Executor {
				run = live
			}
			continue
		}
		run = updated
	}
}

// announce tells people how a run ended.
func (c *Controller) announce(ctx context.Context, run *engine.RestoreRun, ended *restore.Ended, stored bool) {
	status := &ended.Status
	kind := corev1.EventTypeWarning
	note := "The restore has ended with " + cmp.Or(status.Message, "neither errors nor warnings")
	switch {
	case status.Phase == v1alpha1.RestorePhaseCompleted:
		kind = corev1.EventTypeNormal
	case status.Phase == v1alpha1.RestorePhaseCancelled:
		kind, note = corev1.EventTypeNormal, "The restore was "+status.FailureReason
	case status.Phase == v1alpha1.RestorePhaseFailedValidation:
		note = "The restore was refused, and has written nothing: " + strings.Join(status.ValidationErrors, "; ")
	case status.FailureReason != "":
		note = "The restore has failed: " + status.FailureReason
	}
	c.Events.Eventf(reference(run), nil, kind, string(status.Phase), "Restore", "%s", format.Note(note))
	klog.FromContext(ctx).Info("Restore ended", "phase", status.Phase, "errors", status.Errors, "warnings", status.Warnings, "failureReason", status.FailureReason, "stored", stored)
	observeEnd(run, status)
}
