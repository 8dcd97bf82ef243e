// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// decision is what is to be done, and the ledger that it was decided on.
type decision struct {
	queue.Decision
	ledger *corev1.ConfigMap
	// holding are its entries but those whose run has ended, or is gone and not executed.
	holding []records.Start
	// unreadable is why the ledger can't be read, and nothing starts.
	unreadable error
}

// decide brings the planner up to date, and decides. The ledger comes first: when this
// process has taken it over, nobody writes it any more whom its informers lag behind.
func (c *Controller) decide(ctx context.Context) (*decision, error) {
	ledger, err := c.readLedger(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.gather(ctx); err != nil {
		return nil, err
	}
	locations, err := c.locationLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	d := &decision{ledger: ledger}
	starts, err := records.Ledger(ledger)
	if err != nil {
		c.reportUnreadable(ledger, err)
		d.unreadable = err
	}
	holding, unknown := c.judge(starts)
	d.holding = holding

	c.planning.Lock()
	defer c.planning.Unlock()
	begin := c.Clock.Now()
	c.planner.SetStorageLocations(locations)
	if d.unreadable == nil {
		started := sets.New[types.UID]()
		for _, start := range holding {
			started.Insert(start.UID)
		}
		c.planner.SetStarted(started)
	}
	d.Decision = c.planner.Next()
	queueDecision.Observe(c.Clock.Since(begin).Seconds())
	if unknown || d.unreadable != nil {
		d.Start = nil
	}
	return d, nil
}

// gather brings the runs that have changed, and those that were written, into the latest
// version that this controller knows of: all runs now and then, and when in doubt.
func (c *Controller) gather(ctx context.Context) error {
	c.changing.Lock()
	names := c.changed
	c.changed = sets.New[string]()
	c.changing.Unlock()
	now := c.Clock.Now()
	if all := c.unsure || !now.Before(c.nextCheck); all {
		cached, err := c.runLister.List(labels.Everything())
		if err != nil {
			return err
		}
		for _, run := range cached {
			names.Insert(run.Name)
		}
		names = names.Union(sets.KeySet(c.known))
		c.nextCheck = now.Add(backstop)
	}
	if c.unsure {
		list, err := c.Runs.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("reading the runs: %w", err)
		}
		clear(c.written)
		for i := range list.Items {
			c.written[list.Items[i].Name] = &list.Items[i]
		}
	}
	for name := range names.Union(sets.KeySet(c.written)) {
		run, err := c.latest(ctx, name)
		if err != nil {
			return err
		}
		c.know(name, run)
	}
	c.unsure = false
	return nil
}

// latest is the latest version of a run that this controller knows of, or nil.
func (c *Controller) latest(ctx context.Context, name string) (*enginev1alpha1.BackupRun, error) {
	cached, err := c.runLister.Get(name)
	if apierrors.IsNotFound(err) {
		cached = nil
	} else if err != nil {
		return nil, err
	}
	written := c.written[name]
	if written == nil {
		return cached, nil
	}
	if cached != nil && cached.UID == written.UID {
		if newer(written, cached) {
			return written, nil
		}
		delete(c.written, name)
		return cached, nil
	}
	// Not in the informer: it has not seen the run yet, or it has seen it go. Only
	// the cluster knows.
	if live, err := c.live(ctx, written); live != nil || err != nil {
		return live, err
	}
	return cached, nil
}

// live is a run as it is in the cluster, or nil if it is gone: that counts until the
// informer has seen it.
func (c *Controller) live(ctx context.Context, run *enginev1alpha1.BackupRun) (*enginev1alpha1.BackupRun, error) {
	live, err := c.Runs.Get(ctx, run.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != run.UID:
		delete(c.written, run.Name)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading BackupRun %s: %w", run.Name, err)
	}
	c.written[run.Name] = live
	return live, nil
}

// know takes note of a run, or with nil that there is none of that name.
func (c *Controller) know(name string, run *enginev1alpha1.BackupRun) {
	before := c.known[name]
	if run == before {
		return
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	if before != nil && (run == nil || run.UID != before.UID) {
		c.planner.RemoveRun(before.UID)
	}
	if run == nil {
		delete(c.known, name)
		delete(c.refused, name)
		c.unadmitted.Delete(name)
		return
	}
	c.known[name] = run
	c.unadmitted.Insert(name)
	c.planner.UpdateRun(run, nil)
	if before != nil && before.UID == run.UID && before.Status.Ticket == 0 && run.Status.Ticket != 0 {
		c.unannounced = append(c.unannounced, run.UID)
	}
}

// newer reports whether a is a later version of an object than b.
func newer(a, b metav1.Object) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
