// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repository ensures that each VolumeRepository's repository exists and opens with its key, and
// reports that in the condition Ready.
//
//   - A key is stored before its repository is created, is never replaced, and never created for an
//     existing repository. With recovery keys, the store has the encrypted key first. KeyBackedUp says
//     whether the key is outside of the cluster.
//   - A record is written only on changes. A Ready one stays Ready while its store is unavailable, and is
//     not opened again after restarts.
//   - A lost key or missing repository is reported after a failed maintenance, and tried until it opens.
//     No repository replaces a former one.
package repository

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
)

const (
	attemptTimeout = time.Minute
	// An unready repository is tried again after firstRetry, then less often up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	workers    = 4
)

// Config configures a Controller.
type Config struct {
	Namespace string
	Cluster   format.Cluster

	Repositories engineclient.VolumeRepositoriesGetter
	Secrets      location.Secrets
	Keys         corev1client.SecretInterface
	Events       events.EventRecorder
	Clock        clock.WithTicker

	RepositoryInformer engineinformers.VolumeRepositoryInformer
	LocationInformer   engineinformers.StorageLocationInformer
}

// Controller prepares repositories.
type Controller struct {
	Config
	lister    enginelisters.VolumeRepositoryNamespaceLister
	locations enginelisters.StorageLocationNamespaceLister
	queue     *loop.Loop[string]
	// keyQueue has keys to check, so that new repositories don't wait for that.
	keyQueue *loop.Loop[string]
}

// EnsureRecord creates the missing VolumeRepository of a namespace in a location.
func EnsureRecord(ctx context.Context, client engineclient.VolumeRepositoryInterface, volumeNamespace, location string) error {
	name := enginev1alpha1.RepositoryName(volumeNamespace, location)
	_, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, &enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: volumeNamespace, BackupStorageLocation: location},
		}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make VolumeRepository %s: %w", name, err)
	}
	return nil
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		lister:    config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		queue: loop.New[string](loop.Config{
			Controller: "repository", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
		}),
		keyQueue: loop.New[string](loop.Config{
			Controller: "repositorykey", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
		}),
	}
	registerMetrics(c)
	return c, errors.Join(
		c.keyQueue.Watch(config.RepositoryInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.VolumeRepository) {
			if after != nil && (before == nil || before.Annotations[enginev1alpha1.AnnotationKeyExported] != after.Annotations[enginev1alpha1.AnnotationKeyExported] ||
				readyReason(before) != readyReason(after)) {
				c.keyQueue.Soon(after.Name)
			}
		})),
		c.keyQueue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after != nil && (before == nil || before.Generation != after.Generation || before.Unavailable() && !after.Unavailable()) {
				loop.Wake(c.keyQueue, c.lister, func(record *enginev1alpha1.VolumeRepository) bool {
					return record.Spec.BackupStorageLocation == after.Name
				})
			}
		})),
		c.queue.Watch(config.RepositoryInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.VolumeRepository) {
			if after != nil && (before == nil && !wasFine(after) || before != nil && failedSince(before, after)) {
				c.queue.Add(after.Name)
			}
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after == nil {
				return
			}
			elsewhere := before != nil && before.Generation != after.Generation
			if elsewhere || before == nil || before.Unavailable() != after.Unavailable() {
				loop.Wake(c.queue, c.lister, func(record *enginev1alpha1.VolumeRepository) bool {
					return record.Spec.BackupStorageLocation == after.Name && (elsewhere || !wasFine(record))
				})
			}
		})))
}

// wasFine reports whether a repository has no known fault. It is not opened after restarts, so that new
// ones need not wait; its next backup or maintenance finds faults.
func wasFine(record *enginev1alpha1.VolumeRepository) bool {
	recent := record.Status.RecentMaintenance
	return isReady(record) && (len(recent) == 0 || recent[0].Result != enginev1alpha1.MaintenanceFailed)
}

func isReady(record *enginev1alpha1.VolumeRepository) bool {
	return meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionReady)
}

func readyReason(record *enginev1alpha1.VolumeRepository) string {
	if ready := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady); ready != nil {
		return ready.Reason
	}
	return ""
}

// failedSince reports a new failed maintenance, maybe for a missing key or repository.
func failedSince(before, after *enginev1alpha1.VolumeRepository) bool {
	recent := after.Status.RecentMaintenance
	return len(recent) > 0 && recent[0].Result == enginev1alpha1.MaintenanceFailed &&
		(len(before.Status.RecentMaintenance) == 0 || before.Status.RecentMaintenance[0] != recent[0])
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	var keys sync.WaitGroup
	keys.Go(func() { c.keyQueue.Run(ctx, c.backUpKey) })
	c.queue.Run(ctx, c.sync)
	keys.Wait()
}

func (c *Controller) sync(ctx context.Context, name string) error {
	record, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	condition, problem := c.prepare(ctx, record)
	var key *keyState
	if problem == nil && condition.Status == metav1.ConditionTrue {
		key, problem = c.lookAtKey(ctx, record)
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(problem, c.write(ctx, record, &condition, key))
}

// write sets the conditions Ready and KeyBackedUp on changes; nil leaves them.
func (c *Controller) write(ctx context.Context, record *enginev1alpha1.VolumeRepository, ready *metav1.Condition, key *keyState) error {
	changed := record.DeepCopy()
	var said []metav1.Condition
	set := func(condition metav1.Condition) {
		condition.ObservedGeneration = record.Generation
		condition.LastTransitionTime = metav1.NewTime(c.Clock.Now())
		if meta.SetStatusCondition(&changed.Status.Conditions, condition) {
			said = append(said, condition)
		}
	}
	before := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady)
	// Texts of the store's failures may vary.
	if ready != nil && (ready.Reason != enginev1alpha1.ReasonUnreachable || before == nil || before.Status != metav1.ConditionTrue && before.Reason != ready.Reason) {
		set(*ready)
	}
	if key != nil {
		set(key.condition)
		changed.Status.KeyFingerprint = key.fingerprint
	}
	if len(said) == 0 && changed.Status.KeyFingerprint == record.Status.KeyFingerprint {
		return nil
	}
	_, err := c.Repositories.VolumeRepositories(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the conditions of VolumeRepository %s: %w", record.Name, err)
	}
	for _, condition := range said {
		klog.FromContext(ctx).Info("Repository changed", "volumeRepository", record.Name, "condition", condition.Type, "status", condition.Status, "reason", condition.Reason, "message", condition.Message)
		// Each repository begins with an unexported key; a metric shows those.
		if condition.Status != metav1.ConditionTrue && condition.Reason != enginev1alpha1.ReasonUnreachable && condition.Reason != enginev1alpha1.ReasonKeyNotExported {
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, condition.Reason, "Open", "%s", condition.Message)
		}
	}
	return nil
}
