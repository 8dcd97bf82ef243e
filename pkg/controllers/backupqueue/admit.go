// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// refusal is what is known of a record that may not be written.
type refusal struct {
	resourceVersion string
	// until is when it is tried again if it has not changed.
	until time.Time
}

// admit ends the runs that do not come into the queue, and gives the others their
// tickets. It reports whether it has written. A record that can't be written holds nobody
// else up.
func (c *Controller) admit(ctx context.Context, d *decision) (written bool, err error) {
	for name := range c.unadmitted {
		run := c.known[name]
		end := c.endBefore(run)
		if end == nil {
			c.unadmitted.Delete(name)
			continue
		}
		if c.isRefused(run) {
			continue
		}
		switch err := c.write(ctx, run, *end); {
		case err == nil:
			queueEnded.WithLabelValues(string(end.Phase)).Inc()
			c.announceEnd(run, end)
			written = true
		case !c.refuse(ctx, run, err):
			return written, err
		}
	}
	tickets := 0
	for _, ticket := range d.Tickets {
		if tickets == ticketsAtOnce {
			c.queue.Add(theQueue)
			break
		}
		run := c.planner.Run(ticket.UID)
		if !records.Unclaimed(run) || c.isRefused(run) || c.endBefore(run) != nil {
			continue // a moment ago it was ended, or could not be
		}
		switch err := c.enqueue(ctx, run, ticket.Ticket); {
		case err == nil:
			written = true
			tickets++
		case !c.refuse(ctx, run, err):
			return written, err
		}
	}
	return written, nil
}

// announceEnd says that a run has ended without having begun.
func (c *Controller) announceEnd(run *enginev1alpha1.BackupRun, end *enginev1alpha1.BackupRunStatus) {
	kind, note := corev1.EventTypeNormal, "The backup was "+end.FailureReason
	if end.Phase == v1alpha1.BackupPhaseFailedValidation {
		kind, note = corev1.EventTypeWarning, "The backup is not valid: "+strings.Join(end.ValidationErrors, "; ")
	}
	c.Events.Eventf(records.BackupReference(run), nil, kind, string(end.Phase), "Backup", "%s", note)
}

// isRefused reports whether a run was refused as it is, a moment ago.
func (c *Controller) isRefused(run *enginev1alpha1.BackupRun) bool {
	refusal, ok := c.refused[run.Name]
	return ok && refusal.resourceVersion == run.ResourceVersion && c.Clock.Now().Before(refusal.until)
}

// refuse takes note of a write that failed, if that is about this record alone.
func (c *Controller) refuse(ctx context.Context, run *enginev1alpha1.BackupRun, err error) bool {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err):
		if live, readErr := c.live(ctx, run); live == nil {
			return readErr == nil // it is gone, as the informer will see
		}
	case apierrors.IsConflict(err):
		c.unsure = true
		return false // there is another version, and it keeps its place
	case !records.Refused(err):
		return false // the others would get the same
	case errors.As(err, &answer) && answer.Status().Code >= http.StatusInternalServerError:
		c.unsure = true // it may be written
	}
	c.refused[run.Name] = refusal{run.ResourceVersion, c.Clock.Now().Add(refusedRetry)}
	c.queue.AddAfter(theQueue, refusedRetry)
	utilruntime.HandleErrorWithContext(ctx, err, "A record may not be written; its backup waits, and the others do not wait for it", "backupRun", klog.KObj(run))
	c.Events.Eventf(records.BackupReference(run), nil, corev1.EventTypeWarning, "RecordRefused", "Queue", "%v", err)
	return true
}

// endBefore is the end of a run that is not to begin; nil if there is no reason.
// The API server creates none whose spec can't be used, so somebody wrote such a
// record by hand.
func (c *Controller) endBefore(run *enginev1alpha1.BackupRun) *enginev1alpha1.BackupRunStatus {
	status := run.Status.DeepCopy()
	status.CompletionTimestamp = &metav1.Time{Time: c.Clock.Now()}
	switch {
	case !records.Unclaimed(run):
		return nil
	case run.Spec.Cancellation != nil:
		status.Phase = v1alpha1.BackupPhaseCancelled
		status.FailureReason = records.CancelledReason(run)
		return status
	case run.Status.Phase != "" && run.Status.Phase != v1alpha1.BackupPhaseNew:
		return nil
	}
	errs := c.validate(run)
	if len(errs) == 0 {
		return nil
	}
	status.Phase = v1alpha1.BackupPhaseFailedValidation
	for _, err := range errs {
		status.ValidationErrors = append(status.ValidationErrors, err.Error())
	}
	return status
}

// validate checks a run as the API server checks the Backup that it stands for.
// Its name is the backup's name in the store, which no two runs may write to.
func (c *Controller) validate(run *enginev1alpha1.BackupRun) field.ErrorList {
	errs := validation.ValidateBackup(run.AsBackup())
	ref := run.Spec.BackupRef
	if name := format.StoreName(ref.Namespace, ref.Name, c.Namespace); name != run.Name {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), ref.Name, fmt.Sprintf("its BackupRun must be called %q", name)))
	}
	return errs
}

func (c *Controller) enqueue(ctx context.Context, run *enginev1alpha1.BackupRun, ticket int64) error {
	c.planning.Lock()
	c.planner.Remember(ticket) // its write may be done and the answer lost
	c.planning.Unlock()
	now := metav1.NewTime(c.Clock.Now())
	status := *run.Status.DeepCopy()
	status.Phase = v1alpha1.BackupPhaseQueued
	status.Ticket = ticket
	status.QueuedTimestamp = &now
	return c.write(ctx, run, status)
}

// announce sends an event of each run that has got its place and waits, with what it
// waits for. One that is about to start has its event from that. Those for which there
// is no event left have theirs later, if they still wait then.
func (c *Controller) announce() {
	if len(c.unannounced) == 0 {
		return
	}
	namespaces, err := c.namespaceLister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	c.planner.SetExistingNamespaces(namespaces)
	var later []types.UID
	for i, uid := range c.unannounced {
		entry, ok := c.planner.Entry(uid)
		if !ok || entry.Position == 0 {
			continue
		}
		if entry.Reason == v1alpha1.QueueReasonNextToStart {
			later = append(later, uid)
			continue
		}
		if !c.waitEvents.TryAccept() {
			later = append(later, c.unannounced[i:]...)
			break
		}
		entry = queue.Redact(entry, c.Namespace)
		c.Events.Eventf(records.BackupReference(c.planner.Run(uid)), nil, corev1.EventTypeNormal, "Queued", "Queue",
			"The backup waits at position %d: %s", entry.Position, entry.Message)
	}
	c.unannounced = later
}

// write changes a run's status if nobody has changed the run since the decision
// was taken: the update carries its resourceVersion.
func (c *Controller) write(ctx context.Context, run *enginev1alpha1.BackupRun, status enginev1alpha1.BackupRunStatus) error {
	changed := run.DeepCopy()
	changed.Status = status
	updated, err := c.Runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("making BackupRun %s %s: %w", run.Name, status.Phase, err)
	}
	c.written[updated.Name] = updated
	c.know(updated.Name, updated)
	return nil
}
