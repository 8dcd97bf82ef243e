// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runretention removes the records of backups and restores that have ended, so
// that etcd holds live work only. It removes records, never a backup: what is in the
// store stays. A restore that is not stored is listed by its record alone, which is kept
// for long.
package runretention

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
)

const (
	// DefaultRetention is how long the record of a stored backup is kept.
	DefaultRetention = 10 * time.Minute
	// UnstoredRetention is how long the record of a backup is kept that ended
	// before anything could be stored: it is all that is left of it. So is one that
	// tells what is still to be removed from the store.
	UnstoredRetention = 24 * time.Hour
	// DefaultRestoreRetention is how long the record of a restore is kept that is not stored.
	DefaultRestoreRetention = 30 * 24 * time.Hour
	// StoredRestoreRetention is how long that of a stored one is kept at most: it is listed
	// from its store then.
	StoredRestoreRetention = time.Hour
	// MostRestores is how many restores of a namespace are kept that have ended, the newest.
	MostRestores = 200
	// byNamespace is an index of restores by the namespace of the Restore.
	byNamespace = "byNamespace"
)

// Controller removes ended runs.
type Controller struct {
	queue *loop.Loop[cache.ObjectName]
	clock clock.PassiveClock
	// get reads a run, left says for how long it is to be kept, and remove removes it.
	get    func(key cache.ObjectName) (metav1.Object, error)
	left   func(run metav1.Object, now time.Time) (left time.Duration, removable bool)
	remove func(ctx context.Context, key cache.ObjectName, options metav1.DeleteOptions) error
}

// New returns a Controller that keeps the record of a stored backup for retention.
func New(runs engineclient.BackupRunsGetter, informer engineinformers.BackupRunInformer, clock clock.WithTicker, retention time.Duration) (*Controller, error) {
	lister := informer.Lister()
	c := &Controller{
		queue: loop.New[cache.ObjectName](loop.Config{Controller: "runretention", Clock: clock}),
		clock: clock,
		get: func(key cache.ObjectName) (metav1.Object, error) {
			return lister.BackupRuns(key.Namespace).Get(key.Name)
		},
		left: func(run metav1.Object, now time.Time) (time.Duration, bool) {
			return timeLeft(run.(*enginev1alpha1.BackupRun), retention, now)
		},
		remove: func(ctx context.Context, key cache.ObjectName, options metav1.DeleteOptions) error {
			return runs.BackupRuns(key.Namespace).Delete(ctx, key.Name, options)
		},
	}
	return c, c.queue.Watch(informer.Informer(), loop.OnChange(func(_, run *enginev1alpha1.BackupRun) {
		if run != nil && run.Status.Phase.Ended() {
			c.queue.Add(cache.MetaObjectToName(run))
		}
	}))
}

// NewRestores returns a Controller that keeps the record of a restore for retention, but no
// more than MostRestores of a namespace.
func NewRestores(runs engineclient.RestoreRunsGetter, informer engineinformers.RestoreRunInformer, clock clock.WithTicker, retention time.Duration) (*Controller, error) {
	lister := informer.Lister()
	err := informer.Informer().AddIndexers(cache.Indexers{byNamespace: func(run any) ([]string, error) {
		return []string{run.(*enginev1alpha1.RestoreRun).Spec.RestoreRef.Namespace}, nil
	}})
	if err != nil {
		return nil, err
	}
	tooMany := func(namespace string) []*enginev1alpha1.RestoreRun {
		found, _ := informer.Informer().GetIndexer().ByIndex(byNamespace, namespace) // which exists
		return beyond(found, MostRestores)
	}
	c := &Controller{
		queue: loop.New[cache.ObjectName](loop.Config{Controller: "restoreretention", Clock: clock}),
		clock: clock,
		get: func(key cache.ObjectName) (metav1.Object, error) {
			return lister.RestoreRuns(key.Namespace).Get(key.Name)
		},
		left: func(object metav1.Object, now time.Time) (time.Duration, bool) {
			run := object.(*enginev1alpha1.RestoreRun)
			if slices.ContainsFunc(tooMany(run.Spec.RestoreRef.Namespace), func(other *enginev1alpha1.RestoreRun) bool { return other.UID == run.UID }) {
				return 0, true
			}
			return restoreTimeLeft(run, retention, now)
		},
		remove: func(ctx context.Context, key cache.ObjectName, options metav1.DeleteOptions) error {
			return runs.RestoreRuns(key.Namespace).Delete(ctx, key.Name, options)
		},
	}
	return c, c.queue.Watch(informer.Informer(), loop.OnChange(func(_, run *enginev1alpha1.RestoreRun) {
		if run == nil || !run.Status.Phase.Ended() {
			return
		}
		c.queue.Add(cache.MetaObjectToName(run))
		for _, other := range tooMany(run.Spec.RestoreRef.Namespace) {
			c.queue.Add(cache.MetaObjectToName(other))
		}
	}))
}

// beyond are the runs that have ended, without the newest.
func beyond(runs []any, most int) (old []*enginev1alpha1.RestoreRun) {
	if len(runs) <= most {
		return nil
	}
	for _, run := range runs {
		if run := run.(*enginev1alpha1.RestoreRun); run.Status.Phase.Ended() {
			old = append(old, run)
		}
	}
	slices.SortFunc(old, func(a, b *enginev1alpha1.RestoreRun) int {
		return cmp.Or(endOf(b).Compare(endOf(a)), cmp.Compare(a.Name, b.Name))
	})
	return old[min(most, len(old)):]
}

// endOf is when a run has ended, or, if nobody knows, was created.
func endOf(run *enginev1alpha1.RestoreRun) time.Time {
	if run.Status.CompletionTimestamp != nil {
		return run.Status.CompletionTimestamp.Time
	}
	return run.CreationTimestamp.Time
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) error {
	run, err := c.get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	left, removable := c.left(run, c.clock.Now())
	switch {
	case !removable || run.GetDeletionTimestamp() != nil:
		return nil
	case left > 0:
		c.queue.AddAfter(key, left)
		return nil
	}
	// The decision was taken on this version: if there is another one, or a namesake,
	// its event is on the way.
	err = c.remove(ctx, key, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: new(run.GetUID()), ResourceVersion: new(run.GetResourceVersion())},
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("removing the record %s: %w", key, err)
	}
	klog.FromContext(ctx).V(4).Info("Removed an ended run", "run", key)
	return nil
}

// restoreTimeLeft says how long the run of a restore is to be kept from now on.
func restoreTimeLeft(run *enginev1alpha1.RestoreRun, retention time.Duration, now time.Time) (left time.Duration, removable bool) {
	if !run.Status.Phase.Ended() {
		return 0, false
	}
	if run.Status.Stored {
		retention = min(retention, StoredRestoreRetention)
	}
	return endOf(run).Add(retention).Sub(now), true
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
