// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runretention removes the records of backups that have ended, so that
// etcd holds live work only. It removes records, never a backup: what is in the
// store stays.
package runretention

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

const (
	// DefaultRetention is how long the record of a stored backup is kept.
	DefaultRetention = 10 * time.Minute
	// UnstoredRetention is how long the record of a backup is kept that ended
	// before anything could be stored: it is all that is left of it. So is one that
	// tells what is still to be removed from the store.
	UnstoredRetention = 24 * time.Hour
)

// Controller removes ended runs.
type Controller struct {
	runs      engineclient.BackupRunsGetter
	lister    enginelisters.BackupRunLister
	queue     *loop.Loop[cache.ObjectName]
	clock     clock.PassiveClock
	retention time.Duration
}

// New returns a Controller that keeps the record of a stored backup for retention.
func New(runs engineclient.BackupRunsGetter, informer engineinformers.BackupRunInformer, clock clock.WithTicker, retention time.Duration) (*Controller, error) {
	c := &Controller{
		runs:      runs,
		lister:    informer.Lister(),
		queue:     loop.New[cache.ObjectName](loop.Config{Controller: "runretention", Clock: clock}),
		clock:     clock,
		retention: retention,
	}
	return c, c.queue.Watch(informer.Informer(), loop.OnChange(func(_, run *enginev1alpha1.BackupRun) {
		if run != nil && run.Status.Phase.Ended() {
			c.queue.Add(cache.MetaObjectToName(run))
		}
	}))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) error {
	run, err := c.lister.BackupRuns(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	left, removable := timeLeft(run, c.retention, c.clock.Now())
	switch {
	case !removable || run.DeletionTimestamp != nil:
		return nil
	case left > 0:
		c.queue.AddAfter(key, left)
		return nil
	}
	// The decision was taken on this version: if there is another one, or a namesake,
	// its event is on the way.
	err = c.runs.BackupRuns(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &run.UID, ResourceVersion: &run.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("removing BackupRun %s: %w", key, err)
	}
	klog.FromContext(ctx).V(4).Info("Removed an ended run", "backupRun", key, "phase", run.Status.Phase)
	return nil
}

// timeLeft says how long a run is to be kept from now on. It is not removable
// while it has not ended.
func timeLeft(run *enginev1alpha1.BackupRun, retention time.Duration, now time.Time) (left time.Duration, removable bool) {
	if !run.Status.Phase.Ended() || run.Spec.Deletion != nil {
		return 0, false // whoever deletes the backup removes its record
	}
	if !run.Status.Stored || len(run.Status.LeftoverSnapshots) > 0 {
		retention = UnstoredRetention
	}
	ended := run.CreationTimestamp
	if run.Status.CompletionTimestamp != nil {
		ended = *run.Status.CompletionTimestamp
	}
	return ended.Add(retention).Sub(now), true
}
