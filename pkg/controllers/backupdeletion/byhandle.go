// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// adoptSnapshots records each stored snapshot that only the backup names, if the requester wants these
// deleted too. Then it is discarded like the cluster's own. That precedes any removal: nothing else
// names the snapshots.
func (c *Controller) adoptSnapshots(ctx context.Context, record *enginev1alpha1.StorageLocation, target bucket, deletion *folder.Deletion, run *enginev1alpha1.BackupRun) error {
	if !run.Spec.Deletion.SnapshotsByHandle || deletion.Stored == nil {
		return nil // a later attempt: the metadata is removed
	}
	const giveUp = "give the deletion up by removing the BackupRun %s, and delete the backup without them"
	if c.AdoptSnapshots == nil {
		return refused("snapshots are to be deleted by their handles, and this controller uses none: start it with --snapshots, or "+giveUp, run.Name)
	}
	var backup *source.Backup
	unknown := 0
	var unread error // as it is; Try takes each error for the store's
	err := deletion.Try(ctx, func(ctx context.Context) (err error) {
		defer func() { unread = err }()
		backup, err = source.OpenVolumes(ctx, target, format.Place{StoreName: run.Name, Location: record.Name, SystemNamespace: c.Namespace, Now: c.Clock.Now()}, deletion.UID)
		if err == nil {
			unknown, err = backup.UnknownHandles(ctx, run.Name)
		}
		return err
	})
	switch {
	case errors.Is(err, source.ErrNoBackup):
		return nil // it has failed, and keeps no snapshots
	case errors.Is(err, source.ErrRefused):
		return refused("%v: "+giveUp, err, run.Name)
	case err != nil && !errors.Is(unread, store.ErrUnavailable) && !errors.Is(unread, store.ErrDenied) && !errors.Is(unread, context.DeadlineExceeded) && ctx.Err() == nil:
		return refused("the backup's lists of volumes can't be read: %v: bring them back, or "+giveUp, unread, run.Name)
	case err != nil:
		return err
	case unknown > 0:
		return refused("snapshots are to be deleted by their handles, and the backup does not tell the handles of %d: delete those in the storage, and "+giveUp, unknown, run.Name)
	}
	var lost []snapshots.Lost
	for i := range backup.Volumes {
		if v := &backup.Volumes[i]; v.Snapshot != nil && v.Snapshot.Cut != nil {
			lost = append(lost, snapshots.Lost{
				Backup: backupUID(run), StoreName: run.Name, Location: record.Name, Claim: v.ClaimUID, Driver: v.Snapshot.Driver, Handle: v.Snapshot.Cut.Handle,
			})
		}
	}
	if len(lost) > 0 && !location.TrustsHandles(record, backup.Metadata.Status.Origin, c.ClusterUID, c.Keys, backup.ListsSealed) {
		return refused("snapshots are to be deleted by their handles, and who made the backup is not trusted with that: set spec.trustSnapshotHandles of its storage location, or trust its cluster there with all namespaces; or "+giveUp, run.Name)
	}
	err = c.AdoptSnapshots(ctx, lost)
	if err != nil && ctx.Err() == nil {
		return &obstacle{text: "the deletion waits until the snapshots that only the backup names are found in the storage", detail: err.Error(), attempted: true}
	}
	return err
}
