// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// ledger is what a decision is taken against: the settings in one version, and
// what is known of the runs that they say were let start.
type ledger struct {
	settings *corev1.ConfigMap
	// holding are the entries but those whose run has ended.
	holding []records.Start
	started sets.Set[types.UID]
	// unknown are the entries whose run was not found. They may still be read, by
	// whoever they name.
	unknown []records.Start
	// adopted is set when entries of processes that are gone were made this one's.
	adopted bool
	// others is set when something depends on another process being gone.
	others bool
}

// readLedger judges the entries of the ledger by the runs that are known, to which
// it adds those that the informer does not have.
func (c *Controller) readLedger(ctx context.Context) (*ledger, error) {
	settings, err := c.readSettings(ctx)
	if err != nil {
		return nil, err
	}
	starts, err := records.Ledger(settings)
	if err != nil {
		c.reportUnreadable(settings, err)
		return nil, err
	}
	l := &ledger{settings: settings, started: sets.New[types.UID]()}
	present := sets.New[types.UID]()
	for _, start := range starts {
		present.Insert(start.UID)
		run, err := c.startedRun(ctx, start)
		if err != nil {
			return nil, err
		}
		switch {
		case run == nil && c.news.hasEnded(start.UID), run != nil && !holds(run):
			continue
		case run == nil:
			// The process that let it start removes the entry when it has stopped.
			gone, err := c.gone(ctx, start.By)
			if err != nil {
				return nil, err
			}
			if gone {
				continue
			}
			l.others = true
			l.unknown = append(l.unknown, start)
		case start.By != c.identity && records.Unclaimed(run):
			gone, err := c.gone(ctx, start.By)
			if err != nil {
				return nil, err
			}
			if gone {
				start.By, l.adopted = c.identity, true
			}
			l.others = l.others || !gone
		}
		l.holding = append(l.holding, start)
		l.started.Insert(start.UID)
	}
	c.news.keepEnded(present)
	return l, nil
}

// startedRun is the run of an entry, or nil if it is gone. What the informer does
// not show may be new or gone; only the cluster knows.
func (c *Controller) startedRun(ctx context.Context, start records.Start) (*enginev1alpha1.BackupRun, error) {
	if run := c.known[start.Name]; run != nil && run.UID == start.UID {
		return run, nil
	}
	live, err := c.runs.Get(ctx, start.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != start.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading BackupRun %s: %w", start.Name, err)
	}
	c.written[live.Name] = version{live.UID, live}
	c.know(live.Name, live)
	return live, nil
}

// holds reports whether a run in the ledger holds its slot and what it overlaps.
func holds(run *enginev1alpha1.BackupRun) bool {
	return records.Unclaimed(run) || run.Status.Phase == v1alpha1.BackupPhaseInProgress
}

// blockers stand for the runs in the ledger that were not found: nothing is known
// of what they read, so that they overlap everything.
func (l *ledger) blockers() []queue.Run {
	var runs []queue.Run
	for _, start := range l.unknown {
		runs = append(runs, queue.Run{
			UID:           "unknown " + start.UID, // of no record
			Name:          start.Name,
			Phase:         v1alpha1.BackupPhaseReadyToStart,
			ClusterScoped: true,
		})
	}
	return runs
}

// writeLedger lets runs start, with the rest of the ledger as it was judged: one write,
// which fails if the ledger is not in the version any more that was judged.
func (c *Controller) writeLedger(ctx context.Context, d *decision) error {
	if len(d.Start) == 0 && !d.ledger.adopted {
		return nil
	}
	now := metav1.NewTime(c.clock.Now())
	starts, started := d.ledger.holding, d.ledger.started.Clone()
	for _, uid := range d.Start {
		run := c.planner.Run(uid)
		starts = append(starts, records.Start{UID: run.UID, Name: run.Name, At: now, By: c.identity})
		started.Insert(run.UID)
	}
	settings, err := records.WithLedger(d.ledger.settings, starts)
	if err != nil {
		return err
	}
	settings.Data[records.ConcurrentBackupsKey] = strconv.Itoa(c.limit)
	written, err := c.configMaps.Update(ctx, settings, metav1.UpdateOptions{})
	if err != nil {
		c.settings = nil // whatever it is now
		if records.Refused(err) {
			c.events.Eventf(d.ledger.settings, nil, corev1.EventTypeWarning, "LedgerRefused", "Start", "No backup starts: %v", err)
		}
		return fmt.Errorf("letting %d backups start: %w", len(d.Start), err)
	}
	c.settings = written
	c.planning.Lock()
	c.planner.SetStarted(started)
	c.planning.Unlock()
	for _, uid := range d.Start {
		run := c.planner.Run(uid)
		waited := now.Sub(records.WaitingSince(run))
		queueStarts.Inc()
		queueWait.Observe(waited.Seconds())
		klog.FromContext(ctx).Info("Backup left the queue", "backupRun", klog.KObj(run), "waited", waited.Round(time.Millisecond))
	}
	return nil
}

// readSettings returns the settings in the latest version that this controller
// knows of. Where there is no ledger, it makes one.
func (c *Controller) readSettings(ctx context.Context) (*corev1.ConfigMap, error) {
	cached, err := c.settingsLister.Get(records.SettingsName)
	switch {
	case apierrors.IsNotFound(err):
		// It is gone, or the informer has not seen it yet.
		c.settings = nil
	case err != nil:
		return nil, err
	case c.settings != nil && newer(cached, c.settings):
		c.settings = cached
	}
	if c.settings == nil {
		live, err := c.configMaps.Get(ctx, records.SettingsName, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading the ConfigMap %s: %w", records.SettingsName, err)
		}
		if err == nil {
			c.settings = live
		}
	}
	if _, err := records.Ledger(c.settings); errors.Is(err, records.ErrNoLedger) {
		if err := c.createLedger(ctx); err != nil {
			c.settings = nil
			return nil, fmt.Errorf("making a ledger of the started backups: %w", err)
		}
	}
	return c.settings, nil
}

// createLedger makes the ledger where there is none: of the runs in progress, read
// after the version of the settings without a ledger that it replaces, so that no
// other ledger was there in between. What else was let start goes back to its place.
// Its process may not know that and be about to claim it: it finds out by reading the
// ledger once more after the claim. So no other record is written, however many wait.
func (c *Controller) createLedger(ctx context.Context) error {
	if c.settings == nil {
		settings := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: records.SettingsName},
			Data:       map[string]string{records.ConcurrentBackupsKey: strconv.Itoa(c.limit)},
		}
		settings, err := c.configMaps.Create(ctx, settings, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		c.settings = settings
	}
	list, err := c.runs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var starts []records.Start
	for i := range list.Items {
		run := &list.Items[i]
		if run.Status.Phase != v1alpha1.BackupPhaseInProgress {
			continue
		}
		start := records.Start{UID: run.UID, Name: run.Name, By: run.Status.Executor}
		if run.Status.StartTimestamp != nil {
			start.At = *run.Status.StartTimestamp
		}
		starts = append(starts, start)
	}
	settings, err := records.WithLedger(c.settings, starts)
	if err != nil {
		return err
	}
	settings.Data[records.ConcurrentBackupsKey] = strconv.Itoa(c.limit)
	settings, err = c.configMaps.Update(ctx, settings, metav1.UpdateOptions{})
	if err == nil {
		c.settings = settings
	}
	return err
}

// publishLimit tells the API server the number of slots, so that what it shows
// is what this controller does.
func (c *Controller) publishLimit(ctx context.Context) error {
	settings, err := c.readSettings(ctx)
	if err != nil {
		return err
	}
	wanted := strconv.Itoa(c.limit)
	if settings.Data[records.ConcurrentBackupsKey] == wanted {
		return nil
	}
	settings = settings.DeepCopy()
	settings.Data[records.ConcurrentBackupsKey] = wanted
	c.settings = nil
	_, err = c.configMaps.Update(ctx, settings, metav1.UpdateOptions{})
	return err
}

// correctLimit publishes the limit again if somebody has changed it: now and then, in
// case that another controller has another limit.
func (c *Controller) correctLimit(ctx context.Context) error {
	if c.settings == nil || c.settings.Data[records.ConcurrentBackupsKey] == strconv.Itoa(c.limit) {
		return nil
	}
	now := c.clock.Now()
	if now.Before(c.nextPublish) {
		c.queue.AddAfter(theQueue, c.nextPublish.Sub(now))
		return nil
	}
	c.nextPublish = now.Add(backstop)
	return c.publishLimit(ctx)
}

// reportUnreadable tells people that nothing starts, once for each such version.
func (c *Controller) reportUnreadable(settings *corev1.ConfigMap, err error) {
	if c.unreadable == settings.ResourceVersion {
		return
	}
	c.unreadable = settings.ResourceVersion
	c.events.Eventf(settings, nil, corev1.EventTypeWarning, "LedgerUnreadable", "Start", "No backup starts: %v", err)
}
