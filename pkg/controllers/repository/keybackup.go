// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// keyInterval is how often the key of each repository is looked at, though nothing has changed
// here: nobody hears of a Secret that has, nor of a copy that is gone from the store.
const keyInterval = time.Hour

// backUpKey makes sure that the key of a repository is in the store, encrypted for the location's
// recovery keys, and says so. Without any it says whether the key was exported.
func (c *Controller) backUpKey(ctx context.Context, name string) error {
	record, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if readyReason(record) == "" {
		return nil // it is being made, and is woken then: two writers would be in each other's way
	}
	c.keyQueue.AddAfter(name, keyInterval)
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	if err != nil || stored.Unavailable() {
		return nil // its creation or return wakes the repository
	}
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	key, others, err := opener.Keys(attempt, c.Keys, name)
	if errors.Is(err, opener.ErrNoKey) {
		return nil // the condition Ready says so, and wakes the repository when there is one
	}
	if err != nil {
		return err
	}
	fingerprint, err := key.Fingerprint(record.Spec.VolumeNamespace)
	if err != nil {
		return err
	}
	condition := metav1.Condition{Type: engine.ConditionKeyBackedUp, Status: metav1.ConditionTrue}
	var problem error
	switch recoveryKeys := stored.Spec.RecoveryKeys; {
	case len(recoveryKeys) > 0:
		condition.Reason = engine.ReasonKeyWrapped
		condition.Message = "the key is in the store, encrypted for " + strings.Join(recoveryKeys, ", ")
		// While the key is changed, any of them may open the repository.
		problem = c.wrap(attempt, stored, record.Spec.VolumeNamespace, append(others, key)...)
		if problem == nil {
			break
		}
		before := meta.FindStatusCondition(record.Status.Conditions, engine.ConditionKeyBackedUp)
		if before != nil && before.Status == condition.Status && before.Message == condition.Message && record.Status.KeyFingerprint == fingerprint {
			return problem // it was written before
		}
		condition.Status, condition.Reason = metav1.ConditionFalse, engine.ReasonKeyNotWrapped
		condition.Message = "the key could not be written into the store for the location's recovery keys: " + problem.Error()
	case record.Annotations[engine.AnnotationKeyExported] == fingerprint:
		condition.Reason = engine.ReasonKeyExported
		condition.Message = "the key was exported; keep it where the loss of this cluster does not take it along"
	default:
		condition.Status, condition.Reason = metav1.ConditionFalse, engine.ReasonKeyNotExported
		condition.Message = fmt.Sprintf("the key is in this cluster only, and the data can't be read without: name recoveryKeys in the storage location, "+
			"or run holdfast repo-key export --repo-name=%s --backup-storage-location=%s", record.Spec.VolumeNamespace, stored.Name)
	}
	if ctx.Err() != nil {
		return nil // it was cut short and says nothing
	}
	return errors.Join(problem, c.writeKey(ctx, record, condition, fingerprint))
}

// writeKey sets the condition KeyBackedUp, and which key it is about, if that changes.
func (c *Controller) writeKey(ctx context.Context, record *engine.VolumeRepository, condition metav1.Condition, fingerprint string) error {
	changed := record.DeepCopy()
	condition.ObservedGeneration = record.Generation
	condition.LastTransitionTime = metav1.NewTime(c.Clock.Now())
	if !meta.SetStatusCondition(&changed.Status.Conditions, condition) && changed.Status.KeyFingerprint == fingerprint {
		return nil
	}
	changed.Status.KeyFingerprint = fingerprint
	_, err := c.Repositories.VolumeRepositories(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the condition of VolumeRepository %s: %w", record.Name, err)
	}
	klog.FromContext(ctx).Info("Repository changed", "volumeRepository", record.Name, "keyBackedUp", condition.Status, "reason", condition.Reason, "message", condition.Message)
	if condition.Reason == engine.ReasonKeyNotWrapped {
		c.Events.Eventf(record, nil, corev1.EventTypeWarning, "Key"+condition.Reason, "BackUpKey", "%s", condition.Message)
	}
	return nil
}

// wrap has keys of a repository in its store, encrypted for the location's recovery keys.
func (c *Controller) wrap(ctx context.Context, stored *engine.StorageLocation, volumeNamespace string, keys ...repository.Key) error {
	bucket, err := location.Open(ctx, c.Secrets, stored)
	if err != nil {
		return err
	}
	of := recovery.Repository{Cluster: c.Cluster, VolumeNamespace: volumeNamespace, Location: stored.Name}
	for _, key := range keys {
		if err := recovery.Keep(ctx, bucket, of, key, stored.Spec.RecoveryKeys); err != nil {
			return errors.Join(err, bucket.Close())
		}
	}
	return bucket.Close()
}

// wrapNew does so before the repository is made, so that no data depends on a key that is in this
// cluster only. One that exists is used all the same: its store may take nothing new.
func (c *Controller) wrapNew(ctx context.Context, record *engine.VolumeRepository, stored *engine.StorageLocation, where repository.Location, key repository.Key) error {
	if len(stored.Spec.RecoveryKeys) == 0 || isReady(record) {
		return nil
	}
	exists, err := repository.Exists(ctx, where, record.Spec.VolumeNamespace)
	if err != nil || exists {
		return err
	}
	return c.wrap(ctx, stored, record.Spec.VolumeNamespace, key)
}
