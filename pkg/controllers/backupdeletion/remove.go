// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const requestTimeout = time.Minute

type bucket interface {
	store.Reader
	store.Remover
	io.Closer
	Put(ctx context.Context, key string, content []byte) error
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
}

func backupUID(run *enginev1alpha1.BackupRun) types.UID {
	if stored := run.Spec.Deletion.Stored; stored != nil {
		return stored.UID
	}
	return run.UID
}

func recordedAsStored(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Stored || run.Spec.Deletion.Stored != nil
}

func (c *Controller) remove(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	// A run that never began has written nothing: a folder of its name is another's.
	if recordedAsStored(run) || run.Status.StartTimestamp != nil {
		if err := c.unread(ctx, run); err != nil {
			return err
		}
		err := c.removeStored(ctx, run)
		if errors.Is(err, errRecordGone) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	// Another version must be checked again.
	err := c.runs.Delete(ctx, run.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &run.UID, ResourceVersion: &run.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("removing BackupRun %s, whose backup is deleted: %w", run.Name, err)
	}
	c.forget(backupUID(run))
	klog.FromContext(ctx).Info("Backup deleted", "backupRun", klog.KObj(run), "uid", backupUID(run), "requester", run.Spec.Deletion.Requester.Username, "schedule", run.Spec.Deletion.Schedule, "expired", run.Spec.Deletion.Expired)
	c.Events.Eventf(backupReference(run), nil, corev1.EventTypeNormal, "Deleted", "Delete", "%s; what is left of its volumes goes with the next maintenance of their repositories, and the space comes back with later ones%s", deletedBy(run.Spec.Deletion), c.keptVersions(run))
	return nil
}

func (c *Controller) keptVersions(run *enginev1alpha1.BackupRun) string {
	record, err := c.locations.Get(run.Spec.Backup.StorageLocation)
	if err != nil || record.Spec.Lock == nil {
		return ""
	}
	return "; " + record.KeptVersions()
}

func deletedBy(d *enginev1alpha1.Deletion) string {
	switch {
	case d.Expired:
		return fmt.Sprintf("The backup had expired, and %.200s has deleted it", d.Requester.Username)
	case d.Schedule != "":
		return fmt.Sprintf("The schedule %.200s has deleted the backup, which no rule of its spec.keep keeps, as %.200s", d.Schedule, d.Requester.Username)
	}
	return fmt.Sprintf("%.200s has deleted the backup", d.Requester.Username)
}

// removeStored removes a backup from the store. It fails with errRecordGone if the folder may be
// another's by now.
func (c *Controller) removeStored(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	name := run.Spec.Backup.StorageLocation
	record, err := c.locations.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return &obstacle{text: fmt.Sprintf("the deletion waits for the storage location %q, which does not exist: make it again, or give the deletion up by removing the BackupRun %s", name, run.Name)}
	case err != nil:
		return err
	case record.Closed():
		return awaited(name, record.WhyClosed())
	}
	err = c.removeFrom(ctx, record, run)
	if failure, ok := errors.AsType[*obstacle](err); ok && errors.Is(failure, store.ErrUnavailable) && ctx.Err() == nil {
		// Tells other deletions that wait for this store.
		if checkErr := c.CheckLocation(ctx, name); checkErr != nil {
			klog.FromContext(ctx).Error(checkErr, "Checking a storage location failed", "storageLocation", name)
		}
	}
	return err
}

func (c *Controller) removeFrom(ctx context.Context, record *enginev1alpha1.StorageLocation, run *enginev1alpha1.BackupRun) error {
	target, err := c.open(ctx, record)
	if err != nil {
		return storeFailure(record.Name, err)
	}
	defer target.Close()
	deletion := &folder.Deletion{
		Folder: folder.Folder{
			Place: format.Place{StoreName: run.Name, Location: record.Name},
			Clock: c.Clock,
			UID:   backupUID(run),
			Store: target,
			Try: func(ctx context.Context, request func(context.Context) error) error {
				ctx, cancel := context.WithTimeout(ctx, requestTimeout)
				defer cancel()
				if err := request(ctx); err != nil {
					return storeFailure(record.Name, err)
				}
				return nil
			},
		},
		Remover: target,
		Present: func() error { return c.present(ctx, run) },
	}
	err = deletion.Look(ctx)
	switch {
	case errors.Is(err, folder.ErrOther) && !recordedAsStored(run):
		// The name was taken, so only snapshots of this backup were stored.
		if err := c.discardSnapshots(ctx, run); err != nil {
			return err
		}
		return c.askForRemoval(ctx, target, deletion, run)
	case err != nil:
		return err
	}
	if err := c.kept(ctx, deletion, run); err != nil {
		return err
	}
	if err := c.adoptSnapshots(ctx, record, target, deletion, run); err != nil {
		return err
	}
	if err := c.askForRemoval(ctx, target, deletion, run); err != nil {
		return err
	}
	if err := deletion.RemoveMetadata(ctx); err != nil {
		return err
	}
	if err := c.discardSnapshots(ctx, run); err != nil {
		return err
	}
	return deletion.RemoveRest(ctx)
}

func (c *Controller) discardSnapshots(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	if c.DiscardSnapshots == nil {
		return nil
	}
	all, err := c.locations.List(labels.Everything())
	if err != nil {
		return err
	}
	err = c.DiscardSnapshots(ctx, backupUID(run), func(at snapshots.Place) bool {
		return at.DeletedFrom(run.Spec.Backup.StorageLocation, run.Name, all)
	})
	if err != nil && ctx.Err() == nil {
		return &obstacle{text: "the deletion waits until the snapshots of its volumes can be deleted", detail: err.Error(), attempted: true}
	}
	return err
}

var errRecordGone = errors.New("the record is gone")

// present fails if the deletion's record is missing: another process has completed it, and a new backup
// may have the name and the folder.
func (c *Controller) present(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	latest, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && latest.UID != run.UID:
		return errRecordGone
	case err != nil:
		return fmt.Errorf("reading BackupRun %s: %w", run.Name, err)
	}
	return nil
}
