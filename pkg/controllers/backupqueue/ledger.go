// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// judge returns the entries that hold a slot. unknown: the executor is still reading one whose record
// is deleted.
func (c *Controller) judge(starts []records.Start) (holding []records.Start, unknown bool) {
	for _, start := range starts {
		run := c.known[startKey(start)]
		if run == nil || run.GetUID() != start.UID {
			// The record is deleted: this process has read all runs since it took over the ledger. The
			// entry holds its slot during execution.
			executed, working := c.kinds[start.Class()].executing()[start.Name]
			switch {
			case !working, executed != nil && executed.GetUID() != start.UID:
				continue
			case executed == nil:
				unknown = true
			default:
				c.know(startKey(start), executed)
			}
			run = executed
		}
		if run == nil || holds(run) {
			holding = append(holding, start)
		}
	}
	return holding, unknown
}

func holds(run record) bool {
	return records.Unclaimed(run) || run.Standing().Phase == v1alpha1.BackupPhaseInProgress
}

// writeStarts writes starts and judged entries in one update of the judged ledger. A read of the
// cluster excludes deleted and cancelled runs, and causes a new decision.
func (c *Controller) writeStarts(ctx context.Context, d *decision) error {
	now := metav1.NewTime(c.Clock.Now())
	var starts []record
	for _, uid := range d.Start {
		run := c.planner.Run(uid)
		live, err := c.live(ctx, run)
		if err != nil {
			return err
		}
		if live == nil || live.Asked().Cancellation != nil || !records.Unclaimed(live) {
			c.know(keyOf(run), live)
			c.queue.Add(theQueue)
			continue
		}
		starts = append(starts, run)
		d.holding = append(d.holding, records.StartOf(run, now))
	}
	if len(starts) == 0 {
		return d.unreadable
	}
	ledger, err := records.WithLedger(d.ledger, d.holding)
	if err != nil {
		return err
	}
	written, err := c.ConfigMaps.Update(ctx, ledger, metav1.UpdateOptions{})
	if err != nil {
		c.ledger = nil
		if records.Refused(err) {
			c.Events.Eventf(d.ledger, nil, corev1.EventTypeWarning, "LedgerRefused", "Start", "Nothing starts: %v", err)
		}
		return fmt.Errorf("letting %d runs start: %w", len(starts), err)
	}
	c.ledger = written
	c.tellPassedOver(ctx, starts)
	c.planning.Lock()
	c.planner.SetStarted(records.Started(written))
	c.planning.Unlock()
	for _, run := range starts {
		waited := now.Sub(records.WaitingSince(run))
		kind := run.Asked().Kind
		queueStarts.WithLabelValues(kind).Inc()
		queueWait.WithLabelValues(kind).Observe(waited.Seconds())
		klog.FromContext(ctx).Info(kind+" left the queue", "run", klog.KObj(run), "waited", waited.Round(time.Millisecond))
	}
	return nil
}

const passedAtOnce = 100

// tellPassedOver logs which runs the starting ones pass over, each once until it waits for something
// else.
func (c *Controller) tellPassedOver(ctx context.Context, starts []record) {
	namespaces, err := c.namespaceLister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	c.planner.SetExistingNamespaces(namespaces)
	last := 0
	for _, run := range starts {
		if entry, ok := c.planner.Entry(run.GetUID()); ok {
			last = max(last, entry.Position)
		}
	}
	for i := range c.planner.Len() {
		entry := c.planner.EntryAt(i)
		if entry.Position >= min(last, passedAtOnce) {
			break
		}
		if len(entry.Blockers) == 0 || c.passedOver[entry.UID] == entry.Message {
			continue
		}
		c.passedOver[entry.UID] = entry.Message
		klog.FromContext(ctx).Info("Passed over in the queue", "run", klog.KObj(c.planner.Run(entry.UID)), "position", entry.Position,
			"reason", entry.Reason, "message", entry.Message, "conflictNamespaces", entry.ConflictNamespaces)
	}
}

// TakeBack removes from the ledger a run that this process does not execute, as the location's store
// does not answer. The location is as then written, or nil: while it is unavailable the queue holds the
// run. The executor calls TakeBack during its work on the run, and claims the run only after another
// start.
func (c *Controller) TakeBack(ctx context.Context, run types.UID, location *enginev1alpha1.StorageLocation) error {
	if location != nil {
		c.changing.Lock()
		c.held[location.Name] = location
		c.changing.Unlock()
	}
	for {
		ledger, err := c.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the ledger of what was let start: %w", err)
		}
		starts, err := records.Ledger(ledger)
		at := slices.IndexFunc(starts, func(start records.Start) bool { return start.UID == run })
		if err != nil || at < 0 || records.Leader(ledger) != c.Identity {
			return nil // nothing starts, or this process does not lead
		}
		if ledger, err = records.WithLedger(ledger, slices.Delete(starts, at, at+1)); err != nil {
			return err
		}
		_, err = c.ConfigMaps.Update(ctx, ledger, metav1.UpdateOptions{})
		if err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
}

// readLedger returns the latest known ledger. It takes over a missing one, or one with another leader
// or limits.
func (c *Controller) readLedger(ctx context.Context) (*corev1.ConfigMap, error) {
	cached, err := c.ledgerLister.Get(records.LedgerName)
	switch {
	case apierrors.IsNotFound(err):
		// It is deleted, or new.
		c.ledger = nil
	case err != nil:
		return nil, err
	case c.ledger != nil && newer(cached, c.ledger):
		c.ledger = cached
	}
	if !c.isMine(c.ledger) {
		if c.ledger, err = c.takeLedger(ctx); err != nil {
			c.ledger = nil
			return nil, err
		}
	}
	return c.ledger, nil
}

func (c *Controller) isMine(ledger *corev1.ConfigMap) bool {
	_, err := records.Ledger(ledger)
	return !errors.Is(err, records.ErrNoLedger) && records.Leader(ledger) == c.Identity && records.HasLimits(ledger, c.Limits)
}

// takeLedger makes this process the ledger's leader: docs/design/fences.md. It reads the ledger before
// it asks whether it leads, so no later leader has written in between.
//
// A missing ledger is made from runs that this process executes without a record, and runs in progress.
// These are read after the empty version that it replaces. Other started runs return to the queue:
// claims read the ledger again.
func (c *Controller) takeLedger(ctx context.Context) (*corev1.ConfigMap, error) {
	ledger, err := c.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
	if err == nil && c.isMine(ledger) {
		return ledger, nil // the informer lags
	}
	if apierrors.IsNotFound(err) {
		ledger, err = c.ConfigMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: records.LedgerName}}, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ledger of what was let start: %w", err)
	}
	if err := c.Leads(ctx); err != nil {
		return nil, err
	}
	if _, err := records.Ledger(ledger); errors.Is(err, records.ErrNoLedger) {
		runs, err := c.list(ctx)
		if err != nil {
			return nil, err
		}
		running := map[types.UID]record{}
		for _, kind := range c.kinds {
			for _, run := range kind.executing() {
				if run != nil {
					running[run.GetUID()] = run
				}
			}
		}
		for _, run := range runs {
			running[run.GetUID()] = run
		}
		var starts []records.Start
		for _, run := range running {
			if standing := run.Standing(); standing.Phase == v1alpha1.BackupPhaseInProgress {
				starts = append(starts, records.StartOf(run, ptr.Deref(standing.StartTimestamp, metav1.Time{})))
			}
		}
		slices.SortFunc(starts, func(a, b records.Start) int { return a.At.Compare(b.At.Time) })
		if ledger, err = records.WithLedger(ledger, starts); err != nil {
			return nil, err
		}
	}
	ledger = ledger.DeepCopy()
	c.unsure = true // the earlier leader may have written since
	ledger.Data[records.LeaderKey] = c.Identity
	records.SetLimits(ledger, c.Limits)
	ledger, err = c.ConfigMaps.Update(ctx, ledger, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("taking over the ledger of what was let start: %w", err)
	}
	return ledger, nil
}

func (c *Controller) reportUnreadable(ledger *corev1.ConfigMap, err error) {
	if c.unreadable == ledger.ResourceVersion {
		return
	}
	c.unreadable = ledger.ResourceVersion
	c.Events.Eventf(ledger, nil, corev1.EventTypeWarning, "LedgerUnreadable", "Start", "Nothing starts: %v", err)
}
