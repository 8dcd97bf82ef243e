// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// finish writes the end of a run, and whether it left something in the store. It
// tries until it succeeds: a run that has ended must not look as if it went on.
func (c *Controller) finish(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome, leftovers bool) error {
	before, others := run.Status.Phase, false
	now := metav1.NewTime(c.Clock.Now())
	err := untilDone(ctx, func(ctx context.Context) (bool, error) {
		ended := run.DeepCopy()
		recordOutcome(&ended.Status, outcome, now)
		ended.Status.Leftovers = leftovers
		if listsVolumes(outcome) {
			ended.Status.LeftoverSnapshots = nil
		}
		_, err := c.runs.UpdateStatus(ctx, ended, metav1.UpdateOptions{})
		if err == nil {
			c.noteFinished(run)
			return true, nil
		}
		if !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Info("Writing the end of the backup failed; it will be tried again", "err", err)
			c.tellRefused(run, err)
		}
		live, getErr := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr) || getErr == nil && live.UID != run.UID:
			return true, nil // removed by hand
		case getErr != nil:
			return false, nil
		case live.Status.Executor != run.Status.Executor:
			return false, fmt.Errorf("BackupRun %s was taken over by the controller %s", run.Name, live.Status.Executor)
		case live.Status.Stored, live.Status.Phase == outcome.Status.Phase && live.Status.Leftovers == leftovers && !outcome.Stored:
			c.noteFinished(live)
			return true, nil // written, but the answer was lost; and what is durable stands
		case before == v1alpha1.BackupPhaseInProgress && live.Status.Phase.Ended():
			others = true
			klog.FromContext(ctx).Info("Another controller, which took this one for dead, has ended the backup", "phase", live.Status.Phase)
			return true, nil
		}
		run = live
		return false, nil
	})
	if err != nil {
		return err
	}
	if before != outcome.Status.Phase && !others {
		c.announce(ctx, run, outcome)
	}
	return nil
}

// untilDone tries at once, and again and again until it is done, fails, or ctx ends.
func untilDone(ctx context.Context, try wait.ConditionWithContextFunc) error {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 10 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, true, try)
}

// discard removes from the store what a cancelled run has left there, and gives its
// end: what is stored stands, if the run had ended after all. While the store does
// not answer, the run has ended, and is cleaned out when it is back.
func (c *Controller) discard(ctx context.Context, run *enginev1alpha1.BackupRun) (outcome backup.Outcome, leftovers error) {
	timed, cancel := context.WithTimeout(ctx, discardTimeout)
	defer cancel()
	outcome, err := c.Executor.Discard(timed, run)
	if err == nil && outcome.Stored {
		return outcome, nil
	}
	if errors.Is(err, backup.ErrNameTaken) {
		err = nil // there was no place for anything of this run
	}
	return backup.Outcome{Status: v1alpha1.BackupStatus{
		Phase:         v1alpha1.BackupPhaseCancelled,
		FailureReason: records.CancelledReason(run),
	}}, err
}

// discardRemoved removes from the store what a run has left there whose record is
// gone, before its place in the ledger is free for another one of its name. What
// can't be removed now stays: nothing is left to remember it by.
func (c *Controller) discardRemoved(ctx context.Context, run *enginev1alpha1.BackupRun, namespaces sets.Set[string]) {
	timed, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	outcome, err := c.discard(timed, run)
	if err == nil && !listsVolumes(outcome) { // else the answer was lost, or nobody knows
		for _, namespace := range sets.List(namespaces) {
			err = errors.Join(err, c.Executor.DiscardSnapshots(timed, run, namespace))
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "What the backup has stored stays in the store")
	}
}

// finishCancelled ends a run that was in progress when it was cancelled.
func (c *Controller) finishCancelled(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	// The cancellation came after the run was claimed.
	if live, err := c.fresh(ctx, run.Name); err == nil && live != nil && live.UID == run.UID {
		run = live
	}
	outcome, leftovers := c.discard(ctx, run)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if leftovers != nil {
		klog.FromContext(ctx).Info("What the cancelled backup has stored will be removed when its store answers", "err", leftovers)
	}
	return c.finish(ctx, run, outcome, leftovers != nil)
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
		namespaces, err := c.submittedNamespaces(ctx, run)
		if err != nil {
			return err
		}
		if run, err = c.noteSnapshots(ctx, run, namespaces); err != nil {
			return err
		}
	}
	if err := stop(ctx, c.pvbs, run.UID); err != nil {
		return err
	}
	switch {
	case run.Status.Phase == v1alpha1.BackupPhaseCancelled:
		outcome, leftovers := c.discard(ctx, run)
		if leftovers != nil {
			return fmt.Errorf("removing what the cancelled BackupRun %s has stored: %w", run.Name, leftovers)
		}
		return c.finish(ctx, run, outcome, false)
	case run.Spec.Cancellation != nil && run.Status.Phase == v1alpha1.BackupPhaseInProgress:
		return c.finishCancelled(ctx, run)
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
	return c.finish(ctx, run, outcome, false)
}

// announce tells people how a run ended.
func (c *Controller) announce(ctx context.Context, run *enginev1alpha1.BackupRun, outcome backup.Outcome) {
	status := &outcome.Status
	kind := corev1.EventTypeWarning
	note := fmt.Sprintf("The backup has ended with %d errors and %d warnings", status.Errors, status.Warnings)
	switch {
	case status.Phase == v1alpha1.BackupPhaseCompleted:
		kind = corev1.EventTypeNormal
	case status.Phase == v1alpha1.BackupPhaseCancelled:
		kind, note = corev1.EventTypeNormal, "The backup was "+status.FailureReason
	case status.FailureReason != "":
		note = "The backup has failed: " + status.FailureReason
	}
	c.Events.Eventf(records.BackupReference(run), nil, kind, string(status.Phase), "Backup", "%s", note)
	klog.FromContext(ctx).Info("Backup ended", "backupRun", klog.KObj(run), "phase", status.Phase, "errors", status.Errors, "warnings", status.Warnings, "failureReason", status.FailureReason, "stored", outcome.Stored)
	observeEnd(run, status)
}
