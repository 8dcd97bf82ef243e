// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

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
		case live.Status.Stored, live.Status.Phase == outcome.Status.Phase && !outcome.Stored:
			return true, nil // written, but the answer was lost; and what is durable stands
		}
		run = live
		return false, nil
	})
	if err != nil {
		return err
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
