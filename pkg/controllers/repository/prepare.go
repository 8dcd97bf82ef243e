// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// LabelKey marks the Secrets with keys, for tools that copy them.
const LabelKey = "engine.holdfast.io/repository-key"

func (c *Controller) prepare(ctx context.Context, record *enginev1alpha1.VolumeRepository) (metav1.Condition, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	if err != nil {
		return notReady(enginev1alpha1.ReasonInvalid, fmt.Sprintf("the storage location %q does not exist", record.Spec.BackupStorageLocation)), nil
	}
	if stored.Unavailable() {
		return notReady(enginev1alpha1.ReasonUnreachable, fmt.Sprintf("the storage location %q is not available", stored.Name)), nil
	}
	where, err := opener.Where(ctx, c.Secrets, stored)
	switch {
	case errors.Is(err, location.ErrNoCredentials):
		return notReady(enginev1alpha1.ReasonInvalid, err.Error()), err
	case err != nil: // no answer says nothing about the repository
		return notReady(enginev1alpha1.ReasonUnreachable, err.Error()), err
	}

	if stored.Spec.AsOf() != nil {
		return c.prepareAsOf(ctx, record, stored)
	}
	err = notGone(ctx, record, where)
	var key repository.Key
	if err == nil {
		key, err = c.key(ctx, record, where)
	}
	if err == nil {
		err = c.wrapNew(ctx, record, stored, where, key)
	}
	if err == nil {
		err = c.create(ctx, record, where, key)
	}
	switch {
	case err == nil:
		return metav1.Condition{
			Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionTrue,
			Reason: enginev1alpha1.ReasonReady, Message: "the repository exists and its key opens it",
		}, nil
	case errors.Is(err, opener.ErrNoKey):
		return notReady(enginev1alpha1.ReasonKeyMissing, err.Error()), err
	case errors.Is(err, repository.ErrWrongKey):
		return notReady(enginev1alpha1.ReasonKeyMismatch, fmt.Sprintf(
			"the key in the Secret %s in %s does not open the repository in the store: put the key there that the repository was made with. %s",
			enginev1alpha1.KeySecretName(record.Name), enginev1alpha1.KeysNamespace(c.Namespace), ofVelero)), err
	case errors.Is(err, repository.ErrDamaged) || errors.Is(err, errGone):
		return notReady(enginev1alpha1.ReasonDamaged, err.Error()), err
	default:
		return notReady(enginev1alpha1.ReasonUnreachable, err.Error()), err
	}
}

// Readable returns nil if a namespace's volumes can be restored from a location: the repository exists
// and its key opens it. It creates a missing record, as for another cluster's backup, but no
// repository.
func (c *Controller) Readable(ctx context.Context, volumeNamespace, locationName string) error {
	name := enginev1alpha1.RepositoryName(volumeNamespace, locationName)
	record, err := c.lister.Get(name)
	if err == nil && isReady(record) {
		return nil
	}
	if apierrors.IsNotFound(err) {
		if err := c.exists(ctx, volumeNamespace, locationName); err != nil {
			return err
		}
	}
	client := c.Repositories.VolumeRepositories(c.Namespace)
	if err := EnsureRecord(ctx, client, volumeNamespace, locationName); err != nil {
		return err
	}
	if record, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read VolumeRepository %s: %w", name, err)
	}
	condition, _ := c.prepare(ctx, record)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// Agents use the record. Another process may have written it.
	if err := c.write(ctx, record, &condition, nil); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	if condition.Status != metav1.ConditionTrue {
		return fmt.Errorf("VolumeRepository %s: %s", name, condition.Message)
	}
	return nil
}

func (c *Controller) exists(ctx context.Context, volumeNamespace, locationName string) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	stored, err := c.locations.Get(locationName)
	if err != nil {
		return fmt.Errorf("the storage location %q: %w", locationName, err)
	}
	where, err := opener.Where(ctx, c.Secrets, stored)
	if err != nil {
		return err
	}
	exists, err := repository.Exists(ctx, where, volumeNamespace)
	switch {
	case err != nil:
		return fmt.Errorf("looking for the repository of namespace %s in the storage location %q: %w", volumeNamespace, locationName, err)
	case !exists:
		return fmt.Errorf("the storage location %q has no repository of namespace %s: the data of its volumes is gone", locationName, volumeNamespace)
	}
	return nil
}

// errGone exists because a new repository would hide the loss of all data.
var errGone = errors.New("the repository is gone from the store: bring it back, or delete the VolumeRepository to begin a new one")

func notGone(ctx context.Context, record *enginev1alpha1.VolumeRepository, where repository.Location) error {
	ready := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady)
	was := record.Status.LastMaintenanceTime != nil || ready != nil &&
		(ready.Status == metav1.ConditionTrue || ready.Reason == enginev1alpha1.ReasonKeyMismatch || ready.Reason == enginev1alpha1.ReasonDamaged)
	if !was {
		return nil
	}
	exists, err := repository.Exists(ctx, where, record.Spec.VolumeNamespace)
	if err == nil && !exists {
		err = errGone
	}
	return err
}

// create ensures that the repository exists. While its key is changed, another key may open it.
func (c *Controller) create(ctx context.Context, record *enginev1alpha1.VolumeRepository, where repository.Location, key repository.Key) error {
	err := repository.Create(ctx, where, record.Spec.VolumeNamespace, key)
	if !errors.Is(err, repository.ErrWrongKey) {
		return err
	}
	_, others, readErr := opener.Keys(ctx, c.Keys, record.Name)
	if readErr != nil {
		return readErr
	}
	for _, other := range others {
		if err = repository.Create(ctx, where, record.Spec.VolumeNamespace, other); !errors.Is(err, repository.ErrWrongKey) {
			break
		}
	}
	return err
}

const ofVelero = "If Velero has made the repository, the key is static-passw0rd, unless somebody has set another"

func notReady(reason, message string) metav1.Condition {
	return metav1.Condition{Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// key returns a repository's key. It creates one only if the store has no data that another key may
// have locked.
func (c *Controller) key(ctx context.Context, record *enginev1alpha1.VolumeRepository, where repository.Location) (repository.Key, error) {
	key, err := opener.Key(ctx, c.Keys, record.Name)
	if !errors.Is(err, opener.ErrNoKey) {
		return key, err
	}
	exists, existsErr := repository.Exists(ctx, where, record.Spec.VolumeNamespace)
	if existsErr != nil {
		return "", existsErr
	}
	if exists {
		return "", fmt.Errorf("%w in %s, but the repository exists in the store: bring the Secret back with the key as its %s, since the data can't be read without. %s",
			err, enginev1alpha1.KeysNamespace(c.Namespace), enginev1alpha1.KeySecretKey, ofVelero)
	}

	// No owner: the deletion of another object must not delete the key.
	_, err = c.Keys.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      enginev1alpha1.KeySecretName(record.Name),
			Namespace: enginev1alpha1.KeysNamespace(c.Namespace),
			Labels:    map[string]string{LabelKey: "true", format.LabelExclude: "true"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{enginev1alpha1.KeySecretKey: []byte(repository.NewKey())},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("store the key of the repository: %w", err)
	}
	// Another process may have been first.
	return opener.Key(ctx, c.Keys, record.Name)
}
