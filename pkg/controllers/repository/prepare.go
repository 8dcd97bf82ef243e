// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	credentials, err := location.Credentials(ctx, c.Secrets, stored)
	switch {
	case errors.Is(err, location.ErrNoCredentials):
		return notReady(engine.ReasonInvalid, err.Error()), err
	case err != nil: // the cluster did not answer, which says nothing about the repository
		return notReady(engine.ReasonUnreachable, err.Error()), err
	}
	where := repository.Location{Spec: stored.Spec, Secret: credentials}

	key, err := c.key(ctx, record, where)
	if err == nil {
		err = repository.Create(ctx, where, record.Spec.VolumeNamespace, key)
	}
	switch {
	case err == nil:
		return metav1.Condition{
			Type: engine.ConditionReady, Status: metav1.ConditionTrue,
			Reason: engine.ReasonOpened, Message: "the repository exists and its key opens it",
		}, nil
	case errors.Is(err, opener.ErrNoKey):
		return notReady(engine.ReasonKeyMissing, err.Error()), err
	case errors.Is(err, repository.ErrWrongKey):
		return notReady(engine.ReasonKeyMismatch, fmt.Sprintf(
			"the key in the Secret %s in %s does not open the repository in the store: put the key there that the repository was made with",
			engine.KeySecretName(record.Name), engine.KeysNamespace(c.Namespace))), err
	case errors.Is(err, repository.ErrDamaged):
		return notReady(engine.ReasonDamaged, err.Error()), err
	default:
		return notReady(engine.ReasonUnreachable, err.Error()), err
	}
}

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
		return "", fmt.Errorf("%w in %s, but the repository exists in the store: bring the Secret back, its data can't be read without", err, engine.KeysNamespace(c.Namespace))
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
