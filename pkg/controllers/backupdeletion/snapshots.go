// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// repositoryTimeout is how long the snapshots of one repository may take. Most of
// it is for reading the repository's indexes.
const repositoryTimeout = 5 * time.Minute

// deleteAllSnapshots removes the snapshots of a backup: those that it lists, by the
// namespace of their repository, and those that its record knows of.
func (c *Controller) deleteAllSnapshots(ctx context.Context, record *enginev1alpha1.BackupStorageLocation, run *enginev1alpha1.BackupRun, listed map[string][]string) error {
	for _, namespace := range sets.List(sets.KeySet(listed).Insert(run.Status.LeftoverSnapshots...)) {
		if err := c.deleteSnapshots(ctx, record, namespace, backupUID(run), listed[namespace]); err != nil {
			return err
		}
	}
	return nil
}

// deleteSnapshots removes from the repository of a namespace the snapshots that a
// backup lists, and those that were made for it. A repository that is not in the
// store any more has none.
func (c *Controller) deleteSnapshots(ctx context.Context, record *enginev1alpha1.BackupStorageLocation, namespace string, backup types.UID, ids []string) error {
	stop := ctx
	ctx, cancel := context.WithTimeout(ctx, repositoryTimeout)
	defer cancel()
	err := c.deleteFrom(ctx, record, namespace, backup, ids)
	if errors.Is(err, opener.ErrNoRepository) {
		klog.FromContext(ctx).Info("The repository of a deleted backup's volumes is gone already", "namespace", namespace, "backupStorageLocation", record.Name, "snapshots", len(ids))
		return nil
	}
	if err == nil || stop.Err() != nil {
		return err
	}
	o := refused("the snapshots in the repository of the namespace %q can't be deleted now", namespace)
	o.cause = err
	secret := enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName(namespace, record.Name)) + " in " + enginev1alpha1.KeysNamespace(c.Namespace)
	switch {
	case errors.Is(err, opener.ErrNoKey):
		o.text += fmt.Sprintf(": the repository exists, but its key is missing: bring back the Secret %s, with its %s", secret, enginev1alpha1.KeySecretKey)
	case errors.Is(err, repository.ErrWrongKey):
		o.text += fmt.Sprintf(": the key in the Secret %s does not open it: put the key there that the repository was made with", secret)
	case errors.Is(err, repository.ErrNotInitialized):
		o.text += ": " + repository.ErrDamaged.Error()
	default:
		o.detail = err.Error()
	}
	return o
}

func (c *Controller) deleteFrom(ctx context.Context, record *enginev1alpha1.BackupStorageLocation, namespace string, backup types.UID, ids []string) error {
	opened, err := opener.OpenAt(ctx, c.Secrets, c.Keys, record, namespace)
	if err != nil {
		return err
	}
	made, err := datapath.SnapshotsOf(ctx, opened, backup)
	if err == nil {
		err = datapath.DeleteSnapshots(ctx, opened, append(made, ids...))
	}
	return errors.Join(err, opened.Close(ctx))
}
