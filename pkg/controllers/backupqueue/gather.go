// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// changes are what the informers have shown, until a decision takes it into account.
type changes struct {
	mu sync.Mutex
	// runs are the names of those that have changed.
	runs sets.Set[string]
	// locations and namespaces are set if one of them has.
	locations, namespaces bool
}

// changed takes note of a change, and wakes the worker.
func (c *Controller) changed(note func(*changes)) {
	c.changes.mu.Lock()
	note(&c.changes)
	c.changes.mu.Unlock()
	c.queue.Add(theQueue)
}

// take returns what has changed since it was called last.
func (c *changes) take() (runs sets.Set[string], locations, namespaces bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs, locations, namespaces = c.runs, c.locations, c.namespaces
	c.runs, c.locations, c.namespaces = sets.New[string](), false, false
	return runs, locations, namespaces
}

// version is a run as this controller last wrote or read it; its run is nil if it
// was found to be gone.
type version struct {
	uid types.UID
	run *enginev1alpha1.BackupRun
}

// decision is what is to be done, and the ledger that it was decided on.
type decision struct {
	queue.Decision
	ledger *judged
	// unreadable is why there is no ledger, and nothing starts.
	unreadable error
}

// decide brings the planner up to date, and decides. The ledger comes first: when this
// process has taken it over, nobody writes it any more whom its informers lag behind.
func (c *Controller) decide(ctx context.Context) (*decision, error) {
	latest, err := c.readLedger(ctx)
	if err != nil {
		return nil, err
	}
	names, locations, namespaces := c.changes.take()
	now := c.Clock.Now()
	if c.unsure {
		if err := c.relist(ctx); err != nil {
			return nil, err
		}
		locations, namespaces, c.nextCheck = true, true, now
	}
	if !now.Before(c.nextCheck) {
		if err := c.addAll(names); err != nil {
			return nil, err
		}
		c.nextCheck = now.Add(backstop)
	}
	c.unsure = false
	if err := c.gather(ctx, names); err != nil {
		return nil, err
	}
	ledger, err := c.judgeLedger(ctx, latest)
	var unreadable error
	switch {
	case errors.Is(err, records.ErrLedger):
		unreadable = err
	case err != nil:
		return nil, err
	}

	c.planning.Lock()
	defer c.planning.Unlock()
	begin := c.Clock.Now()
	if locations {
		list, err := c.locationLister.List(labels.Everything())
		if err != nil {
			return nil, err
		}
		c.planner.SetStorageLocations(list)
	}
	if namespaces {
		list, err := c.namespaceLister.List(labels.Everything())
		if err != nil {
			return nil, err
		}
		c.planner.SetExistingNamespaces(list)
	}
	if ledger != nil {
		c.planner.SetStarted(ledger.started)
	}
	next := c.planner.Next()
	queueDecision.Observe(c.Clock.Since(begin).Seconds())
	if ledger == nil || ledger.unknown {
		next.Start = nil
	}
	return &decision{Decision: next, ledger: ledger, unreadable: unreadable}, nil
}

// relist reads the runs from the cluster.
func (c *Controller) relist(ctx context.Context) error {
	list, err := c.Runs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("reading the runs: %w", err)
	}
	clear(c.written)
	for i := range list.Items {
		run := &list.Items[i]
		c.written[run.Name] = version{run.UID, run}
	}
	return nil
}

// addAll adds the names of all runs that the informer or this controller knows of.
func (c *Controller) addAll(names sets.Set[string]) error {
	for name := range c.known {
		names.Insert(name)
	}
	cached, err := c.runLister.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, run := range cached {
		names.Insert(run.Name)
	}
	return nil
}

// gather brings the runs with these names, and those that were written, into the
// latest version that this controller knows of.
func (c *Controller) gather(ctx context.Context, names sets.Set[string]) error {
	for name := range c.written {
		names.Insert(name)
	}
	for name := range names {
		run, err := c.latest(ctx, name)
		if err != nil {
			return err
		}
		c.know(name, run)
	}
	return nil
}

// know takes note of a run, or with nil that there is none of that name.
func (c *Controller) know(name string, run *enginev1alpha1.BackupRun) {
	if run == c.known[name] {
		return
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	before := c.known[name]
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

// latest is the latest version of a run that this controller knows of, or nil.
func (c *Controller) latest(ctx context.Context, name string) (*enginev1alpha1.BackupRun, error) {
	cached, err := c.runLister.Get(name)
	if apierrors.IsNotFound(err) {
		cached = nil
	} else if err != nil {
		return nil, err
	}
	written, ok := c.written[name]
	switch {
	case !ok:
		return cached, nil
	case cached != nil && cached.UID == written.uid:
		if written.run == nil || newer(written.run, cached) {
			return written.run, nil
		}
		delete(c.written, name)
		return cached, nil
	case written.run == nil:
		delete(c.written, name)
		return cached, nil
	}
	// Not in the informer: it has not seen the run yet, or it has seen it go. Only
	// the cluster knows.
	live, err := c.Runs.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != written.uid:
		delete(c.written, name)
		return cached, nil
	case err != nil:
		return nil, fmt.Errorf("reading BackupRun %s: %w", name, err)
	}
	c.written[name] = version{live.UID, live}
	return live, nil
}

// newer reports whether a is a later version of an object than b.
func newer(a, b metav1.Object) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
