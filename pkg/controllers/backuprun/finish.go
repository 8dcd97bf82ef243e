// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// finish writes the end of a run whose uploads have stopped, and the namespaces that may have unlisted
// snapshots. Then it deletes the uploads' records. It retries until it succeeds: see run.WriteEnd.
func (c *Controller) finish(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome, namespaces sets.Set[string]) error {
	before, others := run.Status.Phase, false
	now := metav1.NewTime(c.Clock.Now())
	run, takenOver, err := c.WriteEnd(ctx, run, func(ended *enginev1alpha1.BackupRun) {
		left := ended.Status.LeftoverSnapshots
		recordOutcome(&ended.Status, outcome, now)
		ended.Status.LeftoverSnapshots = nil
		if !listsVolumes(outcome) {
			ended.Status.LeftoverSnapshots = sets.List(namespaces.Union(sets.New(left...)))
		}
	}, func(live *enginev1alpha1.BackupRun) bool {
		switch {
		case live.Status.Stored, live.Status.Phase == outcome.Status.Phase && !outcome.Stored && len(live.Status.ValidationErrors) == len(outcome.Status.ValidationErrors):
			return true // already written; a durable end stays
		case before.Executing() && live.Status.Phase.Ended():
			others = true
			klog.FromContext(ctx).Info("Another controller, which took this one for dead, has ended the backup", "phase", live.Status.Phase)
			return true
		}
		return false
	})
	switch {
	case err != nil:
		return err
	case takenOver:
		return fmt.Errorf("BackupRun %s was taken over by the controller %s", run.Name, run.Status.Executor)
	}
	if before != outcome.Status.Phase && !others {
		c.announce(ctx, run, outcome)
	}
	if outcome.Stored || outcome.Status.Phase == v1alpha1.BackupPhaseFailedValidation || len(outcome.Status.ValidationErrors) > 0 {
		c.forgetPostHooks(run)
	}
	c.removeUploads(ctx, run, namespaces)
	return nil
}

// abandonRemoved ends in the store a run without a record, before its place in the ledger is free. It
// does not retry: nothing remembers the run.
func (c *Controller) abandonRemoved(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, namespaces sets.Set[string]) {
	timed, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	outcome, err := c.Executor.Abandon(timed, run, postHooks, v1alpha1.BackupPhaseFailed, "the record of the backup was removed while it was in progress")
	if outcome.Stored && !listsVolumes(outcome) || errors.Is(err, backup.ErrNameTaken) { // nothing else says so
		for _, namespace := range sets.List(namespaces) {
			err = errors.Join(err, c.Executor.DiscardSnapshots(timed, run, namespace))
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "What the backup has stored stays in the store")
	}
}

// settle ends a run without an executor, in the store and then in its record. The store decides: the
// run may have just ended. If the store does not answer, the run ends, and that is stored later.
func (c *Controller) settle(ctx context.Context, run *enginev1alpha1.BackupRun, namespaces sets.Set[string], timeout time.Duration, phase v1alpha1.BackupPhase, reason string) error {
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	outcome, err := c.Executor.Abandon(timed, run, c.postHooksOf(run), phase, reason)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, backup.ErrNameTaken) && run.Status.Phase.Ended():
		// It stays as users have seen it.
		outcome.Status.Phase, outcome.Status.FailureReason = phase, reason
		outcome.Status.ValidationErrors = []string{"the end can't be stored: " + err.Error()}
	case errors.Is(err, backup.ErrNameTaken):
		outcome.Status.Phase = v1alpha1.BackupPhaseFailedValidation
	case err != nil && run.Status.Phase.Ended():
		return fmt.Errorf("storing the end of BackupRun %s: %w", run.Name, err)
	case err != nil:
		// It must not look done.
		outcome = backup.Outcome{Status: v1alpha1.BackupStatus{Phase: phase, FailureReason: reason, HookStatus: run.Status.HookStatus}}
		klog.FromContext(ctx).Info("How the backup ended will be stored when its store answers", "backupRun", klog.KObj(run), "err", err)
	}
	return c.finish(ctx, run, outcome, namespaces)
}

func (c *Controller) takeLeftBehind(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	resumable := c.isResumable(run)
	if resumable && len(run.Status.PendingHooks) > 0 {
		if err := c.spoilUploads(ctx, run); err != nil {
			return err
		}
	}
	// Frozen pods are thawed first.
	run, err := c.runPendingHooks(ctx, run)
	switch {
	case err != nil:
		return err
	case resumable:
		c.queue.Add(run.Name)
		return nil
	}
	return c.endLeftBehind(ctx, run)
}

func (c *Controller) isResumable(run *enginev1alpha1.BackupRun) bool {
	return c.isLeftBehind(run) && run.Status.Phase.Executing() && run.Spec.Cancellation == nil && c.ResumeInProgress && mayResume(run)
}

// resume claims and executes another process's run. It claims only with a place, so waiting costs no
// attempt. If the store does not answer, the run waits in its slot: an attempt would fail at once, and
// stop uploads of hours.
func (c *Controller) resume(ctx context.Context, run *enginev1alpha1.BackupRun, e *execution) error {
	if len(run.Status.PendingHooks) > 0 {
		c.leftBehind.Add(run.Name) // they come first
		return nil
	}
	if err := c.Leads(ctx); err != nil { // asked after the run was read
		return err
	}
	spoiled := sets.New[string]()
	if !isMoving(run) { // else its snapshots were cut while the pods were frozen
		if err := c.spoilUploads(ctx, run); err != nil {
			return err
		}
		var stopped bool
		var err error
		spoiled, stopped, err = c.removeSpoiled(ctx, run)
		switch {
		case err != nil:
			return err
		case !stopped:
			c.queue.AddAfter(run.Name, recheck)
			return nil
		}
	}
	if err := c.Executor.Reach(ctx, run); errors.Is(err, store.ErrUnavailable) {
		klog.FromContext(ctx).Info("A backup that another process left behind waits, since its store does not answer", "backupRun", klog.KObj(run), "reason", err.Error())
		c.queue.AddAfter(run.Name, recheck)
		return nil
	}
	ledger, err := c.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the ledger of started backups: %w", err)
	}
	if leader := records.Leader(ledger); leader != c.Identity {
		return fmt.Errorf("the ledger of started backups still belongs to the controller %q", leader)
	}
	claimed, err := c.Acquire(ctx, e.Execution, run, func(claimed *enginev1alpha1.BackupRun) {
		claimed.Status.Attempts = max(claimed.Status.Attempts, 2)
		if spoiled.Len() > 0 { // in case the backup fails
			claimed.Status.LeftoverSnapshots = sets.List(spoiled.Insert(run.Status.LeftoverSnapshots...))
		}
	})
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Going on with a backup that another process left behind", "backupRun", klog.KObj(run), "executor", run.Status.Executor, "attempt", claimed.Status.Attempts)
	return c.executeClaimed(ctx, claimed, e)
}

func (c *Controller) endLeftBehind(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	// Its slot is free once its uploads have stopped.
	namespaces, stopped, err := c.stopUploads(ctx, run)
	switch {
	case err != nil:
		return err
	case !stopped:
		c.leftBehind.AddAfter(run.Name, recheck)
		return nil
	}
	klog.FromContext(ctx).Info("Ending a run that another process left behind", "backupRun", klog.KObj(run), "executor", run.Status.Executor)
	switch {
	case run.Status.Phase.Ended(): // and that is to be stored
		return c.settle(ctx, run, namespaces, settleTimeout, run.Status.Phase, run.Status.FailureReason)
	case run.Spec.Cancellation != nil:
		return c.settle(ctx, run, namespaces, cancelTimeout, v1alpha1.BackupPhaseCancelled, records.CancelledReason(run))
	}
	return c.settle(ctx, run, namespaces, settleTimeout, v1alpha1.BackupPhaseFailed, c.whyNotResumed(run))
}

func mayResume(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Attempts-run.Status.GivenBack < MaxAttempts && run.Status.Attempts < runs.MaxGiven
}

func (c *Controller) whyNotResumed(run *enginev1alpha1.BackupRun) string {
	if !c.ResumeInProgress {
		return "the controller stopped while the backup was in progress"
	}
	if run.Status.Attempts >= runs.MaxGiven {
		return fmt.Sprintf("the controller stopped %d times while the backup was in progress, and %d times it was told to, or had not begun: see in the events of its pods by whom", run.Status.Attempts, run.Status.GivenBack)
	}
	return fmt.Sprintf("the controller stopped %d times while the backup was in progress: see the logs of its pods", run.Status.Attempts-run.Status.GivenBack)
}

func (c *Controller) announce(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome) {
	status := &outcome.Status
	c.RecordEnd(ctx, run, runs.End{
		Phase: status.Phase, Message: status.Message, FailureReason: status.FailureReason,
		Errors: status.Errors, Warnings: status.Warnings, Stored: outcome.Stored,
	})
	observeEnd(run, status)
}
