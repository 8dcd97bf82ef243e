// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// prepareAsOf opens the repository of a location that shows an earlier time. It creates no
// repository. The key is the Secret of the record, made from the Secret of the location with the
// same store that is written.
func (c *Controller) prepareAsOf(ctx context.Context, record *enginev1alpha1.VolumeRepository, stored *enginev1alpha1.StorageLocation, where repository.Location) (metav1.Condition, error) {
	opened, err := opener.OpenAt(ctx, c.Secrets, c.Keys, stored, record.Spec.VolumeNamespace, repository.Options{})
	switch {
	case err == nil:
		if err := opened.Close(ctx); err != nil {
			return notReady(enginev1alpha1.ReasonUnreachable, err.Error()), err
		}
		return metav1.Condition{
			Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionTrue,
			Reason: enginev1alpha1.ReasonReady, Message: "the repository existed then, and its key opens it",
		}, nil
	}
	return notReady(enginev1alpha1.ReasonKeyMissing, err.Error()), err
}
