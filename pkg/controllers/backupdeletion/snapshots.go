// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"fmt"
	"time"

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
// namespace of their repository, and those that were made for it.
func (c *Controller) deleteAllSnapshots(ctx context.Context, record *enginev1alpha1.StorageLocation, run *enginev1alpha1.BackupRun, listed map[string][]string) error {
	return c.inRepositories(ctx, record, run, listed, func(ctx context.Context, opened *repository.Repository, namespace string) error {
		made, err := datapath.SnapshotsOf(ctx, opened, backupUID(run))
		if err != nil {
			return err
		}
		return datapath.DeleteSnapshots(ctx, opened, append(made, listed[namespace]...))
	})
}

// openAll makes sure that each repository with snapshots of a backup can be opened.
func (c *Controller) openAll(ctx context.Context, record *enginev1alpha1.StorageLocation, run *enginev1alpha1.BackupRun, listed map[string][]string) error {
	return c.inRepositories(ctx, record, run, listed, func(context.Context, *repository.Repository, string) error { return nil })
}

// inRepositories does something in each repository with snapshots of a backup: of those
// that it lists, and those that its record knows of.
func (c *Controller) inRepositories(ctx context.Context, record *enginev1alpha1.StorageLocation, run *enginev1alpha1.BackupRun, listed map[string][]string,
	do func(context.Context, *repository.Repository, string) error) error {
	for _, namespace := range sets.List(sets.KeySet(listed).Insert(run.Status.LeftoverSnapshots...)) {
		if err := c.inRepository(ctx, record, namespace, do); err != nil {
			return err
		}
	}
	return nil
}

// inRepository does something in the repository of a namespace. One that is not in the
// store any more has no snapshots.
func (c *Controller) inRepository(ctx context.Context, record *enginev1alpha1.StorageLocation, namespace string,
	do func(context.Context, *repository.Repository, string) error) error {
	stop := ctx
	ctx, cancel := context.WithTimeout(ctx, repositoryTimeout)
	defer cancel()
	opened, err := opener.OpenAt(ctx, c.Secrets, c.Keys, record, namespace)
	if err == nil {
		err = errors.Join(do(ctx, opened, namespace), opened.Close(ctx))
	}
	if errors.Is(err, opener.ErrNoRepository) {
		klog.FromContext(ctx).Info("The repository of a deleted backup's volumes is gone already", "namespace", namespace, "storageLocation", record.Name)
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
