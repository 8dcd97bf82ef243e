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
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

type decision struct {
	queue.Decision
	ledger *corev1.ConfigMap
	// holding has the ledger's entries except ended runs, and deleted ones without execution.
	holding []records.Start
	// unreadable says why the ledger can't be read; then nothing starts.
	unreadable error
}

// decide reads the ledger first: once this process has taken it over, no earlier leader writes.
func (c *Controller) decide(ctx context.Context) (*decision, error) {
	ledger, err := c.readLedger(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.gather(ctx); err != nil {
		return nil, err
	}
	locations, err := c.locations()
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

func (c *Controller) locations() ([]*enginev1alpha1.StorageLocation, error) {
	cached, err := c.locationLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	held := c.held
	c.held = map[string]*enginev1alpha1.StorageLocation{}
	for i, location := range cached {
		if written := held[location.Name]; written != nil && written.UID == location.UID && newer(written, location) {
			cached[i], c.held[location.Name] = written, written
		}
	}
	return cached, nil
}

// gather updates changed and written runs; all runs now and then, and in doubt.
func (c *Controller) gather(ctx context.Context) error {
	c.changing.Lock()
	keys := c.changed
	c.changed = sets.New[key]()
	c.changing.Unlock()
	now := c.Clock.Now()
	if all := c.unsure || !now.Before(c.nextCheck); all {
		for class, kind := range c.kinds {
			for _, name := range kind.cached.ListKeys() {
				_, name, _ = cache.SplitMetaNamespaceKey(name)
				keys.Insert(key{queue.Class(class), name})
			}
		}
		keys = keys.Union(sets.KeySet(c.known))
		c.nextCheck = now.Add(backstop)
	}
	if c.unsure {
		runs, err := c.list(ctx)
		if err != nil {
			return err
		}
		clear(c.written)
		for _, run := range runs {
			c.written[keyOf(run)] = run
		}
	}
	for key := range keys.Union(sets.KeySet(c.written)) {
		run, err := c.latest(ctx, key)
		if err != nil {
			return err
		}
		c.know(key, run)
	}
	c.unsure = false
	return nil
}

func (c *Controller) list(ctx context.Context) (runs []record, err error) {
	for _, kind := range c.kinds {
		of, err := kind.list(ctx)
		if err != nil {
			return nil, err
		}
		runs = append(runs, of...)
	}
	return runs, nil
}

func (c *Controller) latest(ctx context.Context, key key) (record, error) {
	cached, err := c.kinds[key.class].known(key.name)
	if err != nil {
		return nil, err
	}
	written := c.written[key]
	if written == nil {
		return cached, nil
	}
	if cached != nil && cached.GetUID() == written.GetUID() {
		if newer(written, cached) {
			return written, nil
		}
		delete(c.written, key)
		return cached, nil
	}
	// The informer has not seen the run yet, or seen its deletion.
	if live, err := c.live(ctx, written); live != nil || err != nil {
		return live, err
	}
	return cached, nil
}

func (c *Controller) live(ctx context.Context, run record) (record, error) {
	kind := c.kinds[records.ClassOf(run)]
	live, err := kind.get(ctx, run.GetName())
	switch {
	case apierrors.IsNotFound(err), err == nil && live.GetUID() != run.GetUID():
		delete(c.written, keyOf(run))
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s: %w", kind.name, run.GetName(), err)
	}
	c.written[keyOf(run)] = live
	return live, nil
}

func (c *Controller) know(key key, run record) {
	before := c.known[key]
	if run == before {
		return
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	if before != nil && (run == nil || run.GetUID() != before.GetUID()) {
		c.planner.RemoveRun(before.GetUID())
		delete(c.passedOver, before.GetUID())
	}
	if run == nil {
		delete(c.known, key)
		delete(c.refused, key)
		c.unadmitted.Delete(key)
		return
	}
	c.known[key] = run
	c.unadmitted.Insert(key)
	c.planner.UpdateRun(run, nil)
	if before != nil && before.GetUID() == run.GetUID() && before.Standing().Ticket == 0 && run.Standing().Ticket != 0 {
		c.unannounced = append(c.unannounced, run.GetUID())
	}
}

func newer(a, b metav1.Object) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
