// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
)

// Getter gets the records of changes of expirations.
type Getter interface {
	engineclient.BackupChangesGetter
	engineclient.ExpirationChangesGetter
}

// Recorded returns recorded changes of a backup's expiration, in order.
func Recorded(ctx context.Context, from Getter, namespace, storeName string) ([]*enginev1alpha1.BackupChange, error) {
	change, err := recordsOf("BackupChange", from.BackupChanges(namespace)).get(ctx, storeName)
	if err != nil {
		return nil, err
	}
	former, err := recordsOf("ExpirationChange", from.ExpirationChanges(namespace)).get(ctx, storeName)
	if err != nil {
		return nil, err
	}
	return enginev1alpha1.InOrder(change, former), nil
}

// records are of one kind, as BackupChanges. The previous version's are carried out where they are,
// with their uids: the stores may have a part of them.
type records struct {
	get          func(ctx context.Context, name string) (*enginev1alpha1.BackupChange, error)
	updateStatus func(ctx context.Context, change *enginev1alpha1.BackupChange) (*enginev1alpha1.BackupChange, error)
	// delete deletes only this version: a later request may have changed the record.
	delete func(ctx context.Context, change *enginev1alpha1.BackupChange) error
}

func recordsOf[R *enginev1alpha1.BackupChange | *enginev1alpha1.ExpirationChange | *enginev1alpha1.VolumeDeletion](kind string, client interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (R, error)
	UpdateStatus(ctx context.Context, record R, options metav1.UpdateOptions) (R, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}) records {
	return records{
		get: func(ctx context.Context, name string) (*enginev1alpha1.BackupChange, error) {
			record, err := client.Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil, nil
			case err != nil:
				return nil, fmt.Errorf("reading %s %s: %w", kind, name, err)
			}
			return (*enginev1alpha1.BackupChange)(record), nil
		},
		updateStatus: func(ctx context.Context, change *enginev1alpha1.BackupChange) (*enginev1alpha1.BackupChange, error) {
			record, err := client.UpdateStatus(ctx, R(change), metav1.UpdateOptions{})
			if err != nil {
				return nil, fmt.Errorf("writing the status of %s %s: %w", kind, change.Name, err)
			}
			return (*enginev1alpha1.BackupChange)(record), nil
		},
		delete: func(ctx context.Context, change *enginev1alpha1.BackupChange) error {
			err := client.Delete(ctx, change.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &change.UID, ResourceVersion: &change.ResourceVersion},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %s %s, which is done: %w", kind, change.Name, err)
			}
			return nil
		},
	}
}
