// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package locks extends the locks of backups' objects in locations with spec.lock, and reports their
// ends in the location's condition Locked and status.lock: see docs/lock.md.
//
//   - The objects are the folders of this cluster's own backups that are not being deleted, the store's
//     id, and this cluster's wrapped keys. A repository's maintenance extends its blobs (package
//     repository); a late one is reported here.
//   - A pass only moves ends of locks, to later times. It may be killed anywhere, and repeated.
package locks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	longestInterval = 24 * time.Hour
	// lookInterval is for comparing the repositories' records. It costs no request.
	lookInterval = time.Hour
	// soon is when a location with unknown backups is looked at again.
	soon                  = 10 * time.Second
	firstRetry, lastRetry = time.Minute, time.Hour
	workers               = 2
)

// Backups lists backups.
type Backups interface {
	List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.BackupList, error)
}

// Config configures a Controller.
type Config struct {
	Namespace, ClusterUID string

	Locations engineclient.StorageLocationsGetter
	Backups   Backups
	Secrets   location.Secrets
	Clock     clock.WithTicker

	LocationInformer   engineinformers.StorageLocationInformer
	RepositoryInformer engineinformers.VolumeRepositoryInformer
}

type bucket interface {
	store.Reader
	io.Closer
	CheckLock(ctx context.Context) error
	ExtendLock(ctx context.Context, key string, least time.Duration) (time.Time, error)
}

// Controller extends locks.
type Controller struct {
	Config
	locations    enginelisters.StorageLocationNamespaceLister
	repositories enginelisters.VolumeRepositoryNamespaceLister
	queue        *loop.Loop[string]
	open         func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:       config,
		locations:    config.LocationInformer.Lister().StorageLocations(config.Namespace),
		repositories: config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
		queue: loop.New[string](loop.Config{
			Controller: "locks", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
			Synced: config.RepositoryInformer.Informer().HasSynced,
		}),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
	}
	registerMetrics(c)
	return c, c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
		if after != nil && (before == nil || before.UID != after.UID || before.Closed() != after.Closed() ||
			before.Status.StoreID != after.Status.StoreID || !equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
			c.queue.Soon(after.Name)
		}
	}))
}

// Run works until ctx ends and all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func intervalOf(lock *enginev1alpha1.StorageLock) time.Duration {
	return min(longestInterval, lock.Period()/4)
}

func (c *Controller) sync(ctx context.Context, name string) error {
	record, err := c.locations.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case record.Spec.Lock == nil:
		return c.write(ctx, record, nil, nil)
	case isLoading(record):
		c.queue.AddAfter(name, soon)
		return nil
	}
	now := c.Clock.Now()
	status := c.begin(record, now)
	if due(record, status, now) {
		until, err := c.extend(ctx, record)
		if ctx.Err() != nil {
			return nil
		}
		if _, ok := errors.AsType[*unlisted](err); ok && status.CheckedAt != nil && now.Sub(status.CheckedAt.Time) < 2*intervalOf(record.Spec.Lock) {
			c.queue.AddAfter(name, soon) // the API server may be starting; no lock is in danger yet
			return nil
		}
		if err != nil {
			err = fmt.Errorf("extending the locks of storage location %s: %w", name, err)
			return errors.Join(err, c.write(ctx, record, failed(err, status), status))
		}
		if before := status.Until; before != nil && meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionBackupsMissing) && (until.IsZero() || until.After(before.Time)) {
			until = before.Time // the versions of missing backups are hidden, and not extended
		}
		status.CheckedAt = &metav1.Time{Time: now}
		if status.Until = nil; !until.IsZero() {
			status.Until = &metav1.Time{Time: until}
		}
	}
	condition, err := c.judge(record, status, now)
	if err != nil {
		return err
	}
	next := status.CheckedAt.Add(intervalOf(record.Spec.Lock)).Sub(now)
	c.queue.AddAfter(name, max(soon, min(next, lookInterval)))
	return c.write(ctx, record, condition, status)
}

func isLoading(record *enginev1alpha1.StorageLocation) bool {
	synced := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionSynced)
	return !record.Closed() && (synced == nil || synced.Reason == enginev1alpha1.ReasonLoading)
}

func (c *Controller) begin(record *enginev1alpha1.StorageLocation, now time.Time) *enginev1alpha1.StorageLockStatus {
	if status := record.Status.Lock; status != nil && status.StorageLock == *record.Spec.Lock {
		return status.DeepCopy()
	}
	return &enginev1alpha1.StorageLockStatus{StorageLock: *record.Spec.Lock, Since: metav1.NewTime(now)}
}

// due reports whether to look through the objects: at first, once the store has its id, regularly, and
// after a failure or a clock set back.
func due(record *enginev1alpha1.StorageLocation, status *enginev1alpha1.StorageLockStatus, now time.Time) bool {
	condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionLocked)
	if condition == nil || status.CheckedAt == nil || status.Until == nil && record.Status.StoreID != "" && condition.Reason != enginev1alpha1.ReasonLockPending {
		return true
	}
	switch condition.Reason {
	case enginev1alpha1.ReasonLocked, enginev1alpha1.ReasonLockPending, enginev1alpha1.ReasonMaintenanceLate:
		age := now.Sub(status.CheckedAt.Time)
		return age < 0 || age >= intervalOf(record.Spec.Lock)
	}
	return true
}

func failed(err error, status *enginev1alpha1.StorageLockStatus) *metav1.Condition {
	condition := &metav1.Condition{Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonExtensionFailed, Message: err.Error()}
	switch {
	case errors.Is(err, store.ErrNoLock):
		condition.Reason = enginev1alpha1.ReasonNoObjectLock
	case errors.Is(err, store.ErrDenied):
		condition.Reason = enginev1alpha1.ReasonAccessDenied
	}
	if status.Until != nil {
		condition.Message += ". Objects are still locked until " + stamp(status.Until.Time) + " at least"
	}
	return condition
}

// judge compares a location's repositories with its lock, and returns the condition after a good pass.
// status.Until becomes the first end of a lock, of objects and blobs.
func (c *Controller) judge(record *enginev1alpha1.StorageLocation, status *enginev1alpha1.StorageLockStatus, now time.Time) (*metav1.Condition, error) {
	all, err := c.repositories.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	period := status.Period()
	var pending, late []string
	for _, repository := range all {
		if repository.Spec.BackupStorageLocation != record.Name {
			continue
		}
		until := repository.Status.LockedUntil
		switch {
		case until != nil:
		case repository.CreationTimestamp.Time.Before(status.Since.Time):
			pending = append(pending, repository.Name)
			continue
		default: // all its blobs were written with a lock
			until = &metav1.Time{Time: repository.CreationTimestamp.Add(period)}
		}
		if until.Time.Before(now.Add(period / 4)) {
			late = append(late, fmt.Sprintf("%s, which is locked until %s", repository.Name, stamp(until.Time)))
		}
		if status.Until == nil || until.Before(status.Until) {
			status.Until = until
		}
	}
	slices.Sort(pending)
	slices.Sort(late)
	condition := &metav1.Condition{Status: metav1.ConditionFalse}
	switch {
	case len(late) > 0:
		condition.Reason = enginev1alpha1.ReasonMaintenanceLate
		condition.Message = fmt.Sprintf("the maintenance of %d repositories has not extended the locks of their data in time: %s. See the condition Maintained of the VolumeRepository", len(late), some(late))
	case len(pending) > 0:
		status.Until = nil // there is data without a lock
		condition.Reason = enginev1alpha1.ReasonLockPending
		condition.Message = fmt.Sprintf("%d repositories have data that is older than spec.lock: %s. Their next full maintenance locks it, within about a day", len(pending), some(pending))
	case status.Until == nil:
		condition.Status, condition.Reason = metav1.ConditionTrue, enginev1alpha1.ReasonLocked
		condition.Message = "nothing is stored that needs a lock"
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, enginev1alpha1.ReasonLocked
		condition.Message = fmt.Sprintf("objects are locked until at least %s (%s), and are extended while a backup needs them", stamp(status.Until.Time), status.Mode)
	}
	return condition, nil
}

func some(names []string) string {
	const most = 3
	text := strings.Join(names[:min(len(names), most)], "; ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// write writes the condition and the status, if they differ. Both are nil without a lock. Other
// conditions may have changed since the record was read.
func (c *Controller) write(ctx context.Context, record *enginev1alpha1.StorageLocation, condition *metav1.Condition, status *enginev1alpha1.StorageLockStatus) error {
	locations, latest, written := c.Locations.StorageLocations(c.Namespace), record, false
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if latest == nil {
			latest, err = locations.Get(ctx, record.Name, metav1.GetOptions{})
			if err != nil || latest.UID != record.UID || !equality.Semantic.DeepEqual(latest.Spec.Lock, record.Spec.Lock) {
				return err
			}
		}
		changed := latest.DeepCopy()
		changed.Status.Lock = status
		if condition == nil {
			meta.RemoveStatusCondition(&changed.Status.Conditions, enginev1alpha1.ConditionLocked)
		} else {
			condition.Type, condition.ObservedGeneration, condition.LastTransitionTime = enginev1alpha1.ConditionLocked, record.Generation, metav1.NewTime(c.Clock.Now())
			meta.SetStatusCondition(&changed.Status.Conditions, *condition)
		}
		if equality.Semantic.DeepEqual(latest.Status, changed.Status) {
			return nil
		}
		_, err = locations.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		latest, written = nil, err == nil
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing until when StorageLocation %s is locked: %w", record.Name, err)
	}
	if written && condition != nil {
		klog.FromContext(ctx).Info("Locks of a storage location", "storageLocation", record.Name, "locked", condition.Status, "reason", condition.Reason, "message", condition.Message)
	}
	return nil
}
