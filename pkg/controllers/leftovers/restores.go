// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package leftovers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// restoredBackup is the backup of this cluster's restore, with the restore's record; empty for others'
// restores.
type restoredBackup struct {
	storeName string
	uid       types.UID

	record    string
	recordUID types.UID

	goneSince time.Time
}

// goneFor ensures that an earlier pass, not a retry, has found it missing.
const goneFor = interval / 2

type restoreFolder struct {
	name    string
	objects []store.Object
	young   bool
}

// tidyRestores removes reports of restores whose backup is missing. Reports never change, so each is
// read once. Two passes protect them while a store lacks its backups for a time.
func (c *Controller) tidyRestores(ctx context.Context, record *enginev1alpha1.StorageLocation, target bucket, finished sets.Set[string]) error {
	before, known := c.of[record.Name], map[string]restoredBackup{}
	var failures []error
	var removed int
	end := func(at restoreFolder) {
		of, read := before[at.name]
		if !read {
			if at.young || len(at.objects) == 0 {
				return
			}
			var err error
			of, err = c.restored(ctx, target, at.name)
			if errors.Is(err, store.ErrDenied) {
				return // it may be allowed next time
			}
			if err != nil {
				failures = append(failures, err)
				return
			}
		}
		defer func() { known[at.name] = of }()
		if of.storeName == "" || at.young || finished.Has(of.storeName) {
			of.goneSince = time.Time{}
			return
		}
		gone, err := c.isGone(ctx, record, target, of)
		switch {
		case err != nil:
		case !gone:
			of.goneSince = time.Time{}
		case of.goneSince.IsZero():
			of.goneSince = c.Clock.Now()
			c.would(format.RestoresPrefix+at.name+"/", "its backup is gone, and so is its record; it goes when that is found again a day later")
		case c.Clock.Since(of.goneSince) >= goneFor:
			if err = c.removeRestore(ctx, target, at); err == nil {
				removed++
			}
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("what is told of the restore %s: %w", at.name, err))
		}
	}
	var at restoreFolder
	for object, err := range target.List(ctx, format.RestoresPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
		name, _, isFolder := strings.Cut(strings.TrimPrefix(object.Key, format.RestoresPrefix), "/")
		if !isFolder {
			continue
		}
		if name != at.name {
			end(at)
			at = restoreFolder{name: name}
		}
		at.objects = append(at.objects, object)
		at.young = at.young || c.Clock.Since(object.ModTime) < MinAge
	}
	end(at)
	c.of[record.Name] = known
	if removed > 0 {
		c.tell(ctx, record, corev1.EventTypeNormal, "LeftoversRemoved", "What was told of %d restores was removed from the store: their backups are gone, and so are their records", removed)
	}
	return errors.Join(failures...)
}

func (c *Controller) restored(ctx context.Context, target bucket, name string) (of restoredBackup, err error) {
	var data []byte
	err = try(ctx, func(ctx context.Context) error {
		content, err := target.Get(ctx, format.RestoreMetadataKey(name))
		if err != nil {
			return err
		}
		defer content.Close()
		data, err = io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return of, nil
	}
	if err != nil {
		return of, err
	}
	restore, _, origin, err := format.DecodeRestore(data)
	if err != nil {
		klog.FromContext(ctx).Info("It is not certain of which backup a restore was, so what is told of it stays", "restore", name, "err", err)
		return of, nil
	}
	backup := restore.Status.Backup
	if backup == nil || backup.UID == "" || origin.ClusterUID != c.ClusterUID || name != format.RestoreStoreName(restore.Namespace, restore.Name, c.Namespace, restore.UID) {
		return of, nil
	}
	return restoredBackup{
		storeName: format.StoreName(backup.Namespace, backup.Name, c.Namespace), uid: backup.UID,
		record: format.StoreName(restore.Namespace, restore.Name, c.Namespace), recordUID: restore.UID,
	}, nil
}

func (c *Controller) isGone(ctx context.Context, record *enginev1alpha1.StorageLocation, target bucket, of restoredBackup) (bool, error) {
	if format.ValidateStoreName(of.storeName) != nil {
		return false, nil
	}
	run, err := c.Restores.Get(ctx, of.record, metav1.GetOptions{})
	switch {
	case err == nil && run.UID == of.recordUID:
		return false, nil
	case err != nil && !apierrors.IsNotFound(err):
		return false, err
	}
	backup := c.folder(record, target, of.storeName)
	backup.UID = of.uid
	needed, err := backup.Needs(ctx)
	if errors.Is(err, folder.ErrUnreadable) || errors.Is(err, store.ErrDenied) {
		return false, nil
	}
	return err == nil && !needed, err
}

func (c *Controller) removeRestore(ctx context.Context, target bucket, at restoreFolder) error {
	var last *store.Object
	remove := func(object store.Object) error {
		return try(ctx, func(ctx context.Context) error { return target.Delete(ctx, object) })
	}
	for _, object := range at.objects {
		if object.Key == format.RestoreMetadataKey(at.name) {
			last = &object
		} else if err := remove(object); err != nil {
			return err
		}
	}
	if last == nil {
		return nil
	}
	return remove(*last)
}
