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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// LabelKey marks the Secrets that hold keys, for whoever keeps copies of them.
const LabelKey = "engine.holdfast.io/repository-key"

// prepare makes sure that a repository exists and opens, and returns what is to
// be said about it. With an error it is worth another attempt.
func (c *Controller) prepare(ctx context.Context, record *engine.VolumeRepository) (metav1.Condition, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	if err != nil {
		// Its creation wakes the repository.
		return notReady(engine.ReasonInvalid, fmt.Sprintf("the storage location %q does not exist", record.Spec.BackupStorageLocation)), nil
	}
	if stored.Unavailable() {
		// Its return wakes the repository.
		return notReady(engine.ReasonUnreachable, fmt.Sprintf("the storage location %q is not available", stored.Name)), nil
	}
	where, err := opener.Where(ctx, c.Secrets, stored)
	switch {
	case errors.Is(err, location.ErrNoCredentials):
		return notReady(engine.ReasonInvalid, err.Error()), err
	case err != nil: // the cluster did not answer, which says nothing about the repository
		return notReady(engine.ReasonUnreachable, err.Error()), err
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
			Type: engine.ConditionReady, Status: metav1.ConditionTrue,
			Reason: engine.ReasonReady, Message: "the repository exists and its key opens it",
		}, nil
	case errors.Is(err, opener.ErrNoKey):
		return notReady(engine.ReasonKeyMissing, err.Error()), err
	case errors.Is(err, repository.ErrWrongKey):
		return notReady(engine.ReasonKeyMismatch, fmt.Sprintf(
			"the key in the Secret %s in %s does not open the repository in the store: put the key there that the repository was made with. %s",
			engine.KeySecretName(record.Name), engine.KeysNamespace(c.Namespace), ofVelero)), err
	case errors.Is(err, repository.ErrDamaged) || errors.Is(err, errGone):
		return notReady(engine.ReasonDamaged, err.Error()), err
	default:
		return notReady(engine.ReasonUnreachable, err.Error()), err
	}
}

// Readable returns nil when a volume of a namespace can be restored from the repository in
// a storage location: it exists there, and there is a key that opens it. Its record is made
// if there is none, as for a backup of another cluster. No repository is made.
func (c *Controller) Readable(ctx context.Context, volumeNamespace, locationName string) error {
	name := engine.RepositoryName(volumeNamespace, locationName)
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
	// Its agents go by the record. Somebody else may have written it just now.
	if err := c.write(ctx, record, &condition, nil); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	if condition.Status != metav1.ConditionTrue {
		return fmt.Errorf("VolumeRepository %s: %s", name, condition.Message)
	}
	return nil
}

// exists fails unless the store has the repository of a namespace.
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

// errGone: a new repository in its place would hide that the data of all backups is gone.
var errGone = errors.New("the repository is gone from the store: bring it back, or delete the VolumeRepository to begin a new one")

// notGone fails with errGone if a repository that was there is in the store no more.
func notGone(ctx context.Context, record *engine.VolumeRepository, where repository.Location) error {
	ready := meta.FindStatusCondition(record.Status.Conditions, engine.ConditionReady)
	was := record.Status.LastMaintenanceTime != nil || ready != nil &&
		(ready.Status == metav1.ConditionTrue || ready.Reason == engine.ReasonKeyMismatch || ready.Reason == engine.ReasonDamaged)
	if !was {
		return nil
	}
	exists, err := repository.Exists(ctx, where, record.Spec.VolumeNamespace)
	if err == nil && !exists {
		err = errGone
	}
	return err
}

// create makes sure that the repository is there. While its key is changed another one may
// open it.
func (c *Controller) create(ctx context.Context, record *engine.VolumeRepository, where repository.Location, key repository.Key) error {
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

// ofVelero says which key a repository has that Velero has made.
const ofVelero = "If Velero has made the repository, the key is static-passw0rd, unless somebody has set another"

func notReady(reason, message string) metav1.Condition {
	return metav1.Condition{Type: engine.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// key returns the key of a repository. It makes one only if there is nothing in
// the store that another key may have locked.
func (c *Controller) key(ctx context.Context, record *engine.VolumeRepository, where repository.Location) (repository.Key, error) {
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
			err, engine.KeysNamespace(c.Namespace), engine.KeySecretKey, ofVelero)
	}

	// No owner: a Secret that goes with another object would take the data along.
	_, err = c.Keys.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      engine.KeySecretName(record.Name),
			Namespace: engine.KeysNamespace(c.Namespace),
			Labels:    map[string]string{LabelKey: "true", format.LabelExclude: "true"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{engine.KeySecretKey: []byte(repository.NewKey())},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("store the key of the repository: %w", err)
	}
	// What counts is what is stored: another process may have been faster.
	return opener.Key(ctx, c.Keys, record.Name)
}
