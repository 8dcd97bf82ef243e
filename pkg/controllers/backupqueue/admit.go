// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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

type refusal struct {
	resourceVersion string
	until           time.Time
}

// admit ends runs that must not be queued, and gives the others tickets. It reports a write. A refused
// record delays no other; each refusal may take a webhook's timeout, so only a few are tried at once.
func (c *Controller) admit(ctx context.Context, d *decision) (written bool, err error) {
	refusals := 0
	for key := range c.unadmitted {
		run := c.known[key]
		end := c.endBefore(run)
		if end == nil {
			c.unadmitted.Delete(key)
			continue
		}
		if c.isRefused(run) {
			continue
		}
		if refusals == refusalsAtOnce {
			c.queue.Add(theQueue)
			break
		}
		switch err := c.write(ctx, run, *end); {
		case err == nil:
			queueEnded.WithLabelValues(run.Asked().Kind, string(end.Phase)).Inc()
			c.announceEnd(run, end)
			written = true
		case c.refuse(ctx, run, err):
			refusals++
		default:
			return written, err
		}
	}
	tickets := 0
	refusals = 0
	for _, ticket := range c.leastRefusedFirst(d.Tickets) {
		run := c.planner.Run(ticket.UID)
		if !records.Unclaimed(run) || c.isRefused(run) || c.endBefore(run) != nil {
			continue
		}
		if tickets == ticketsAtOnce || refusals == refusalsAtOnce {
			c.queue.Add(theQueue)
			break
		}
		switch err := c.enqueue(ctx, run, ticket.Ticket); {
		case err == nil:
			written = true
			tickets++
		case c.refuse(ctx, run, err):
			refusals++
		default:
			return written, err
		}
	}
	return written, nil
}

func (c *Controller) leastRefusedFirst(tickets []queue.Assignment) []queue.Assignment {
	if len(c.refused) == 0 {
		return tickets
	}
	tickets = slices.Clone(tickets)
	slices.SortStableFunc(tickets, func(a, b queue.Assignment) int {
		return c.refused[keyOf(c.planner.Run(a.UID))].until.Compare(c.refused[keyOf(c.planner.Run(b.UID))].until)
	})
	return tickets
}

func (c *Controller) announceEnd(run record, end *enginev1alpha1.Standing) {
	kind, note := corev1.EventTypeNormal, fmt.Sprintf("The %s was %s", records.ClassOf(run), end.FailureReason)
	if end.Phase == v1alpha1.BackupPhaseFailedValidation {
		kind, note = corev1.EventTypeWarning, fmt.Sprintf("The %s is not valid: %s", records.ClassOf(run), strings.Join(end.ValidationErrors, "; "))
	}
	c.Events.Eventf(records.Reference(run), nil, kind, string(end.Phase), run.Asked().Kind, "%s", format.Note(note))
}

func (c *Controller) isRefused(run record) bool {
	refusal, ok := c.refused[keyOf(run)]
	return ok && refusal.resourceVersion == run.GetResourceVersion() && c.Clock.Now().Before(refusal.until)
}

// refuse records a failed write that concerns only this record.
func (c *Controller) refuse(ctx context.Context, run record, err error) bool {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsNotFound(err):
		if live, readErr := c.live(ctx, run); live == nil {
			return readErr == nil // it is deleted, as the informer will see
		}
	case apierrors.IsConflict(err):
		c.unsure = true
		return false // another version keeps its place
	case !records.Refused(err):
		return false // others would fail likewise
	case errors.As(err, &answer) && answer.Status().Code >= http.StatusInternalServerError:
		c.unsure = true // it may be written
	}
	c.refused[keyOf(run)] = refusal{run.GetResourceVersion(), c.Clock.Now().Add(refusedRetry)}
	c.queue.AddAfter(theQueue, refusedRetry)
	utilruntime.HandleErrorWithContext(ctx, err, "A record may not be written; what it stands for waits, and the others do not wait for it", "run", klog.KObj(run))
	c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "RecordRefused", "Queue", "%v", err)
	return true
}

// endBefore returns the end of a run that must not start, or nil. The API server refuses unusable
// specs, so such a record was written by hand.
func (c *Controller) endBefore(run record) *enginev1alpha1.Standing {
	end := run.Standing()
	end.CompletionTimestamp = &metav1.Time{Time: c.Clock.Now()}
	switch {
	case !records.Unclaimed(run):
		return nil
	case run.Asked().Cancellation != nil:
		end.Phase = v1alpha1.BackupPhaseCancelled
		end.FailureReason = records.CancelledReason(run)
		return &end
	case end.Phase != "" && end.Phase != v1alpha1.BackupPhaseNew:
		return nil
	}
	errs := c.validate(run)
	if len(errs) == 0 {
		return nil
	}
	end.Phase, end.ValidationErrors = v1alpha1.BackupPhaseFailedValidation, nil
	for _, err := range errs {
		end.ValidationErrors = append(end.ValidationErrors, err.Error())
	}
	return &end
}

// validate checks a run as the API server checks the Backup or Restore. Its name must be the one in the
// store, which two runs must not share.
func (c *Controller) validate(run record) (errs field.ErrorList) {
	switch run := run.(type) {
	case *enginev1alpha1.BackupRun:
		errs = validation.ValidateBackup(run.AsBackup(), validation.Options{Snapshots: c.Snapshots})
	case *enginev1alpha1.RestoreRun:
		errs = validation.ValidateRestore(run.AsRestore())
	}
	ref := run.Asked().Ref
	if name := format.StoreName(ref.Namespace, ref.Name, c.Namespace); name != run.GetName() {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), ref.Name, fmt.Sprintf("its %s must be called %q", c.kinds[records.ClassOf(run)].name, name)))
	}
	return errs
}

func (c *Controller) enqueue(ctx context.Context, run record, ticket int64) error {
	c.planning.Lock()
	c.planner.Remember(ticket) // the write may succeed and its answer be lost
	c.planning.Unlock()
	now := metav1.NewTime(c.Clock.Now())
	queued := run.Standing()
	queued.Phase = v1alpha1.BackupPhaseQueued
	queued.Ticket = ticket
	queued.QueuedTimestamp = &now
	return c.write(ctx, run, queued)
}

// announce emits, within a limit, an event of each newly queued run with what it waits for. Starting
// runs have another event. The rest follows later.
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
		c.Events.Eventf(records.Reference(c.planner.Run(uid)), nil, corev1.EventTypeNormal, "Queued", "Queue",
			"The %s waits at position %d: %s", entry.Class, entry.Position, entry.Message)
	}
	c.unannounced = later
}

func (c *Controller) write(ctx context.Context, run record, standing enginev1alpha1.Standing) error {
	kind := c.kinds[records.ClassOf(run)]
	updated, err := kind.update(ctx, run.WithStanding(standing))
	if err != nil {
		return fmt.Errorf("making %s %s %s: %w", kind.name, run.GetName(), standing.Phase, err)
	}
	c.written[keyOf(run)] = updated
	c.know(keyOf(run), updated)
	return nil
}
