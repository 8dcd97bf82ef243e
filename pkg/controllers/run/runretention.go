// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package run

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
	DefaultRetention = 10 * time.Minute
	// UnstoredRetention is for backups that are not stored, or have snapshots to remove.
	UnstoredRetention       = 24 * time.Hour
	DefaultRestoreRetention = 30 * 24 * time.Hour
	// StoredRestoreRetention is the maximum for stored restores, which are listed from the store.
	StoredRestoreRetention = time.Hour
	MostRestores           = 200
	byNamespace            = "byNamespace"
)

// Retention deletes the records of ended runs, so that etcd has only live work. Stored backups stay. An
// unstored restore's record, its only trace, is kept long.
type Retention struct {
	queue  *loop.Loop[cache.ObjectName]
	clock  clock.PassiveClock
	get    func(key cache.ObjectName) (metav1.Object, error)
	left   func(run metav1.Object, now time.Time) (left time.Duration, removable bool)
	remove func(ctx context.Context, key cache.ObjectName, options metav1.DeleteOptions) error
}

// NewBackupRetention returns a Retention that keeps a stored backup's record for retention.
func NewBackupRetention(runs engineclient.BackupRunsGetter, informer engineinformers.BackupRunInformer, clock clock.WithTicker, retention time.Duration) (*Retention, error) {
	lister := informer.Lister()
	c := &Retention{
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

// NewRestoreRetention returns a Retention that keeps restores' records for retention, at most
// MostRestores of a namespace.
func NewRestoreRetention(runs engineclient.RestoreRunsGetter, informer engineinformers.RestoreRunInformer, clock clock.WithTicker, retention time.Duration) (*Retention, error) {
	lister := informer.Lister()
	err := informer.Informer().AddIndexers(cache.Indexers{byNamespace: func(run any) ([]string, error) {
		return []string{run.(*enginev1alpha1.RestoreRun).Spec.RestoreRef.Namespace}, nil
	}})
	if err != nil {
		return nil, err
	}
	tooMany := func(namespace string) []*enginev1alpha1.RestoreRun {
		found, _ := informer.Informer().GetIndexer().ByIndex(byNamespace, namespace)
		return beyond(found, MostRestores)
	}
	c := &Retention{
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

func endOf(run *enginev1alpha1.RestoreRun) time.Time {
	if run.Status.CompletionTimestamp != nil {
		return run.Status.CompletionTimestamp.Time
	}
	return run.CreationTimestamp.Time
}

// Run works until ctx ends.
func (c *Retention) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Retention) sync(ctx context.Context, key cache.ObjectName) error {
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
	// Another version, or a namesake, causes another event.
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

func restoreTimeLeft(run *enginev1alpha1.RestoreRun, retention time.Duration, now time.Time) (left time.Duration, removable bool) {
	if !run.Status.Phase.Ended() {
		return 0, false
	}
	if run.Status.Stored {
		retention = min(retention, StoredRestoreRetention)
	}
	return endOf(run).Add(retention).Sub(now), true
}

// timeLeft returns a backup record's remaining time. It is removable only after its end.
func timeLeft(run *enginev1alpha1.BackupRun, retention time.Duration, now time.Time) (left time.Duration, removable bool) {
	if !run.Status.Phase.Ended() || run.Spec.Deletion != nil {
		return 0, false // its deletion removes the record
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
