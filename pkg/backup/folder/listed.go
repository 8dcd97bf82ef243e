// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Needs reports whether the backup's snapshots are needed, or may be: it is stored and can be restored,
// or has not ended. It lists nothing. An unreadable object is an error.
//
// A Failed, Cancelled or deleted backup never needs them again, and a running one owns its folder. The
// owner is read after the metadata, so the answer is right if the backup ends and is deleted in
// between.
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
		return false, nil
	}
	if err != nil {
		return true, err
	}
	return beneath != nil && beneath.UID == f.UID, nil
}

func restorable(backup *v1alpha1.Backup) bool {
	return backup.Status.Phase != v1alpha1.BackupPhaseFailed && backup.Status.Phase != v1alpha1.BackupPhaseCancelled
}
