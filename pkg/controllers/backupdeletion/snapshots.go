// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// repositoryTimeout is how long the snapshots of one repository may take. Most of
// it is for reading the repository's indexes.
const repositoryTimeout = 5 * time.Minute

// deleteSnapshots removes snapshots from the repository of a namespace. A
// repository that is not in the store any more has none. The repository needs no
// record: a backup may be older than the cluster.
func (c *Controller) deleteSnapshots(ctx context.Context, record *enginev1alpha1.BackupStorageLocation, namespace string, ids []string) error {
	stop := ctx
	ctx, cancel := context.WithTimeout(ctx, repositoryTimeout)
	defer cancel()
	name := enginev1alpha1.RepositoryName(namespace, record.Name)
	credentials, err := location.Credentials(ctx, c.Secrets, &record.Spec)
	if err != nil {
		return storeFailure(record.Name, err)
	}
	where := repository.Location{Spec: record.Spec, Secret: credentials}

	err = c.deleteFrom(ctx, where, name, namespace, ids)
	if errors.Is(err, opener.ErrNoKey) || errors.Is(err, repository.ErrNotInitialized) {
		exists, existsErr := repository.Exists(ctx, where, namespace)
		switch {
		case existsErr != nil:
			err = existsErr
		case !exists:
			klog.FromContext(ctx).Info("The repository of a deleted backup's volumes is gone already", "backupRepository", name, "snapshots", len(ids))
			return nil
		}
	}
	if err == nil || stop.Err() != nil {
		return err
	}
	o := refused("the snapshots in the repository of the namespace %q can't be deleted now", namespace)
	o.cause = err
	secret := enginev1alpha1.KeySecretName(name)
	switch {
	case errors.Is(err, opener.ErrNoKey):
		o.text += fmt.Sprintf(": the repository exists, but its key is missing: bring the Secret %s back, with its %s", secret, enginev1alpha1.KeySecretKey)
	case errors.Is(err, repository.ErrWrongKey):
		o.text += fmt.Sprintf(": the key in the Secret %s does not open it: put the key there that the repository was made with", secret)
	case errors.Is(err, repository.ErrNotInitialized):
		o.text += ": " + repository.ErrDamaged.Error()
	default:
		o.detail = err.Error()
	}
	return o
}

func (c *Controller) deleteFrom(ctx context.Context, where repository.Location, name, namespace string, ids []string) error {
	key, err := opener.Key(ctx, c.Secrets, name)
	if err != nil {
		return err
	}
	opened, err := repository.Open(ctx, where, namespace, key, repository.Options{})
	if err != nil {
		return err
	}
	return errors.Join(datapath.DeleteSnapshots(ctx, opened, ids), opened.Close(ctx))
}
