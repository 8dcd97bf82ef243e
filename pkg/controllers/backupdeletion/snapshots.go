// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// askForRemoval leaves in the store, for each repository with snapshots of a backup, that
// they are to go: of those that it lists, by the namespace of their repository, and those
// that its record knows of. The maintenance of the repository follows it.
func (c *Controller) askForRemoval(ctx context.Context, target bucket, deletion *folder.Deletion, run *enginev1alpha1.BackupRun) error {
	for _, namespace := range sets.List(sets.KeySet(deletion.Snapshots).Insert(run.Status.LeftoverSnapshots...)) {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return refused("the backup lists volumes of the namespace %q, which can't be one; remove %s by hand to delete the backup and keep the data", namespace, format.PodVolumeBackupsKey(deletion.StoreName))
		}
		there, err := c.ensureMaintained(ctx, target, deletion, namespace)
		if err != nil {
			return err
		}
		if !there {
			klog.FromContext(ctx).Info("The repository of a deleted backup's volumes is gone already", "namespace", namespace, "storageLocation", deletion.Location)
			continue
		}
		content, err := format.EncodeRemoval(format.Removal{
			UID: deletion.UID, StoreName: deletion.StoreName, Snapshots: deletion.Snapshots[namespace], RequestedAt: c.Clock.Now().UTC(),
		})
		if err != nil {
			return err
		}
		// Anew each time: an earlier one may be forgotten any moment.
		err = deletion.Try(ctx, func(ctx context.Context) error {
			return target.Put(ctx, format.RemovalKey(c.ClusterUID, namespace, deletion.UID), content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureMaintained makes sure that the repository of a namespace has a record, since those
// that have one are maintained: a backup may be older than the cluster. It is false if there
// is no repository.
func (c *Controller) ensureMaintained(ctx context.Context, target bucket, deletion *folder.Deletion, namespace string) (there bool, err error) {
	_, err = c.repositories.Get(enginev1alpha1.RepositoryName(namespace, deletion.Location))
	if !apierrors.IsNotFound(err) {
		return true, err
	}
	err = deletion.Try(ctx, func(ctx context.Context) error {
		there = false
		for _, err := range target.List(ctx, format.RepositoryPrefix(namespace), store.ListOptions{Recursive: true}) {
			there = err == nil
			return err
		}
		return nil
	})
	if err != nil || !there {
		return false, err
	}
	if err := c.EnsureRepository(ctx, namespace, deletion.Location); err != nil {
		return true, fmt.Errorf("having the repository of the namespace %s maintained: %w", namespace, err)
	}
	return true, nil
}
