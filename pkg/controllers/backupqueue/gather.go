// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// decision is what is to be done, and what that was decided on.
type decision struct {
	runs   map[string]*enginev1alpha1.BackupRun
	ledger *ledger
	plan   queue.Plan
}

// decide gathers the records and decides.
func (c *Controller) decide(ctx context.Context) (*decision, error) {
	runs, err := c.gather(ctx)
	if err != nil {
		return nil, err
	}
	ledger, err := c.readLedger(ctx, runs)
	if err != nil {
		return nil, err
	}
	locations, err := c.locationLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	namespaces, err := c.namespaceLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	snapshot := queue.Snapshot{
		Runs:       ledger.blockers(),
		Locations:  make(map[string]queue.LocationState, len(locations)),
		Limit:      c.limit,
		LastTicket: c.lastTicket,
	}
	for _, run := range runs {
		snapshot.Runs = append(snapshot.Runs, c.compiler.Run(run, ledger.started))
	}
	for _, location := range locations {
		snapshot.Locations[location.Name] = records.Location(location)
	}
	for _, namespace := range namespaces {
		snapshot.Namespaces = append(snapshot.Namespaces, namespace.Name)
	}
	begin := c.clock.Now()
	plan, err := queue.Decide(snapshot)
	queueDecision.Observe(c.clock.Since(begin).Seconds())
	return &decision{runs: runs, ledger: ledger, plan: plan}, err
}

// gather returns the runs by name, each in the latest version that this
// controller knows of.
func (c *Controller) gather(ctx context.Context) (map[string]*enginev1alpha1.BackupRun, error) {
	if c.unsure {
		list, err := c.runs.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the runs: %w", err)
		}
		clear(c.written)
		for i := range list.Items {
			c.written[list.Items[i].UID] = &list.Items[i]
		}
		c.unsure = false
	}
	cached, err := c.runLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	runs := make(map[string]*enginev1alpha1.BackupRun, len(cached))
	seen := make(map[types.UID]bool, len(cached))
	for _, run := range cached {
		seen[run.UID] = true
		if written, ok := c.written[run.UID]; ok {
			switch {
			case written == nil:
				continue
			case newer(written, run):
				run = written
			default:
				delete(c.written, run.UID)
			}
		}
		runs[run.Name] = run
	}
	for uid, run := range c.written {
		if seen[uid] {
			continue
		}
		if run == nil {
			delete(c.written, uid)
			continue
		}
		// Not in the informer: it has not seen the run yet, or it has seen it go. Only
		// the cluster knows.
		live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && live.UID != uid:
			delete(c.written, uid)
		case err != nil:
			return nil, fmt.Errorf("reading BackupRun %s: %w", run.Name, err)
		default:
			c.written[uid] = live
			runs[live.Name] = live
		}
	}
	return runs, nil
}

// newer reports whether a is a later version of an object than b.
func newer(a, b metav1.Object) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
