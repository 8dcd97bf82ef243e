// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"errors"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Needs reports whether the snapshots of the backup are needed, or may be: it is stored
// and can be restored, or has not ended. Its folder is asked, and no listing.
//
// A backup that ended without them, as Failed or Cancelled, or that was deleted, never
// needs them again: both are decided once (package backup). One that runs is the owner of
// its folder, from before its first upload until it is deleted. So the owner is read
// after the metadata: a backup that ends, and is deleted, meanwhile is gone indeed. Of a
// backup whose owner was lost the metadata says that it is there; and the copy, if another
// writer has replaced that. What can't be read is an error, which says nothing.
func (f *Folder) Needs(ctx context.Context) (bool, error) {
	metadata, err := f.Metadata(ctx)
	if err != nil {
		return true, err
	}
	if metadata != nil && metadata.UID == f.UID {
		return restorable(metadata), nil
	}
	owner, err := f.Owner(ctx)
	if err != nil {
		return true, err
	}
	if owner != nil && owner.UID == f.UID {
		return true, nil
	}
	beneath, err := f.Copy(ctx)
	if owner != nil && errors.Is(err, ErrUnreadable) {
		return false, nil // it is the owner's, whatever it is
	}
	if err != nil {
		return true, err
	}
	return beneath != nil && beneath.UID == f.UID, nil
}

func restorable(backup *holdfast.Backup) bool {
	return backup.Status.Phase != holdfast.BackupPhaseFailed && backup.Status.Phase != holdfast.BackupPhaseCancelled
}
