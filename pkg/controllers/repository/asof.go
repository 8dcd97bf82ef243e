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
	"k8s.io/apimachinery/pkg/labels"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// prepareAsOf opens the repository of a location that shows an earlier time. It creates none.
func (c *Controller) prepareAsOf(ctx context.Context, record *enginev1alpha1.VolumeRepository, stored *enginev1alpha1.StorageLocation) (metav1.Condition, error) {
	err := c.copyKey(ctx, record, stored)
	if err == nil {
		var opened *repository.Repository
		if opened, err = opener.OpenAt(ctx, c.Secrets, c.Keys, stored, record.Spec.VolumeNamespace, repository.Options{}); err == nil {
			err = opened.Close(ctx)
		}
	}
	switch {
	case err == nil:
		return metav1.Condition{
			Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionTrue,
			Reason: enginev1alpha1.ReasonReady, Message: "the repository existed then, and its key opens it",
		}, nil
	case errors.Is(err, opener.ErrNoKey):
		return notReady(enginev1alpha1.ReasonKeyMissing, fmt.Sprintf("%v in %s: make it with the repository's key as its %s. The key is in the Secret of the location that is written",
			err, enginev1alpha1.KeysNamespace(c.Namespace), enginev1alpha1.KeySecretKey)), err
	case errors.Is(err, repository.ErrWrongKey):
		return notReady(enginev1alpha1.ReasonKeyMismatch, fmt.Sprintf("the key in the Secret %s in %s does not open the repository as it was then: put the key there that it had",
			enginev1alpha1.KeySecretName(record.Name), enginev1alpha1.KeysNamespace(c.Namespace))), err
	case errors.Is(err, repository.ErrDamaged), errors.Is(err, opener.ErrNoRepository):
		return notReady(enginev1alpha1.ReasonDamaged, err.Error()), err
	}
	return notReady(enginev1alpha1.ReasonUnreachable, err.Error()), err
}

// copyKey makes a record's missing Secret from another location with the same store.
func (c *Controller) copyKey(ctx context.Context, record *enginev1alpha1.VolumeRepository, stored *enginev1alpha1.StorageLocation) error {
	_, err := c.Keys.Get(ctx, enginev1alpha1.KeySecretName(record.Name), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	all, err := c.locations.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Name == stored.Name || stored.Status.StoreID == "" || other.Status.StoreID != stored.Status.StoreID {
			continue
		}
		found, err := c.Keys.Get(ctx, enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName(record.Spec.VolumeNamespace, other.Name)), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the key of the same repository in the storage location %s: %w", other.Name, err)
		}
		// No owner: the deletion of another object must not delete the key.
		_, err = c.Keys.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name:      enginev1alpha1.KeySecretName(record.Name),
				Namespace: enginev1alpha1.KeysNamespace(c.Namespace),
				Labels:    map[string]string{LabelKey: "true", format.LabelExclude: "true"},
			},
			Type: corev1.SecretTypeOpaque,
			Data: found.Data,
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("store the key of the repository: %w", err)
		}
		return nil
	}
	return nil
}
