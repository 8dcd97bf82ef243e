// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// askForRemoval writes a removal for each repository with snapshots in the backup's list or record. Its
// maintenance follows it.
func (c *Controller) askForRemoval(ctx context.Context, target bucket, deletion *folder.Deletion, run *enginev1alpha1.BackupRun) error {
	record, err := c.locations.Get(deletion.Location)
	if err != nil {
		return err
	}
	place := fmt.Sprintf("%s/%d", record.UID, record.Generation) // a change may mean another store
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
		asked := request{deletion.UID, namespace, place}
		if c.askedLately(asked, deletion.Snapshots[namespace]) {
			continue
		}
		content, err := format.EncodeRemoval(format.Removal{
			UID: deletion.UID, StoreName: deletion.StoreName, Snapshots: deletion.Snapshots[namespace], RequestedAt: c.Clock.Now().UTC(),
		})
		if err != nil {
			return err
		}
		// Each process writes it again, also after some time, since old removals are dropped.
		err = deletion.Try(ctx, func(ctx context.Context) error {
			return target.Put(ctx, format.RemovalKey(c.ClusterUID, namespace, deletion.UID), content)
		})
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.asked[asked] = answered{c.Clock.Now(), len(deletion.Snapshots[namespace])}
		c.mu.Unlock()
	}
	return nil
}

type (
	request struct {
		uid       types.UID
		namespace string
		location  string
	}
	answered struct {
		at     time.Time
		listed int
	}
)

// askedLately reports whether this process has recently written a removal with all listed snapshots, or
// a list missing by now.
func (c *Controller) askedLately(of request, listed []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.asked[of]
	elapsed := c.Clock.Since(last.at)
	if ok && (elapsed < 0 || elapsed >= askAgain) {
		delete(c.asked, of)
		ok = false
	}
	return ok && len(listed) <= last.listed
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.asked, func(of request, _ answered) bool { return of.uid == uid })
}

// ensureMaintained records a namespace's repository, as maintenance needs it, and a backup may be older
// than the cluster. It is false without a repository.
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
