// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// keyInterval is between checks of a key: Secrets and copies in the store are not watched.
const keyInterval = time.Hour

type keyState struct {
	condition   metav1.Condition
	fingerprint string
}

func (c *Controller) backUpKey(ctx context.Context, name string) error {
	record, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if readyReason(record) == "" {
		return nil // it is being prepared, and wakes this then: two writers would conflict
	}
	c.keyQueue.AddAfter(name, keyInterval)
	key, problem := c.lookAtKey(ctx, record)
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(problem, c.write(ctx, record, nil, key))
}

// lookAtKey ensures that the store has the key encrypted for the location's recovery keys; without any
// it checks whether the key was exported. Nil means nothing new.
func (c *Controller) lookAtKey(ctx context.Context, record *enginev1alpha1.VolumeRepository) (*keyState, error) {
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	if err != nil || stored.Unavailable() || stored.Spec.AsOf() != nil { // nothing new gets the key
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	key, others, err := opener.Keys(ctx, c.Keys, record.Name)
	if errors.Is(err, opener.ErrNoKey) {
		return nil, nil // the condition Ready reports that
	}
	if err != nil {
		return nil, err
	}
	fingerprint, err := key.Fingerprint(record.Spec.VolumeNamespace)
	if err != nil {
		return nil, err
	}
	say := func(status metav1.ConditionStatus, reason, message string) *keyState {
		return &keyState{metav1.Condition{Type: enginev1alpha1.ConditionKeyBackedUp, Status: status, Reason: reason, Message: message}, fingerprint}
	}
	switch recoveryKeys := stored.Spec.RecoveryKeys; {
	case len(recoveryKeys) > 0:
		wrapped := "the key is in the store, encrypted for " + strings.Join(recoveryKeys, ", ")
		// While the key is changed, any of them may open the repository.
		err := c.wrap(ctx, stored, record.Spec.VolumeNamespace, append(others, key)...)
		if err == nil {
			return say(metav1.ConditionTrue, enginev1alpha1.ReasonKeyWrapped, wrapped), nil
		}
		before := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionKeyBackedUp)
		if before != nil && before.Message == wrapped && record.Status.KeyFingerprint == fingerprint {
			return nil, err
		}
		return say(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotWrapped, "the key could not be written into the store for the location's recovery keys: "+err.Error()), err
	case record.Annotations[enginev1alpha1.AnnotationKeyExported] == fingerprint:
		return say(metav1.ConditionTrue, enginev1alpha1.ReasonKeyExported, "the key was exported; keep it where the loss of this cluster does not take it along"), nil
	default:
		return say(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported, fmt.Sprintf("the key is in this cluster only, and the data can't be read without: name recoveryKeys in the storage location, "+
			"or run holdfast repo-key export --repo-name=%s --backup-storage-location=%s", record.Spec.VolumeNamespace, stored.Name)), nil
	}
}

func (c *Controller) wrap(ctx context.Context, stored *enginev1alpha1.StorageLocation, volumeNamespace string, keys ...repository.Key) error {
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

// wrapNew stores the key before a repository is created, so that no data depends on this cluster's key
// alone. An existing repository is used anyway: its store may refuse writes.
func (c *Controller) wrapNew(ctx context.Context, record *enginev1alpha1.VolumeRepository, stored *enginev1alpha1.StorageLocation, where repository.Location, key repository.Key) error {
	if len(stored.Spec.RecoveryKeys) == 0 || isReady(record) {
		return nil
	}
	exists, err := repository.Exists(ctx, where, record.Spec.VolumeNamespace)
	if err != nil || exists {
		return err
	}
	return c.wrap(ctx, stored, record.Spec.VolumeNamespace, key)
}
