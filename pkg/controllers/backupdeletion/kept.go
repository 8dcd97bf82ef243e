// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"fmt"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupchange"
)

// kept fails for a complete backup that is held, or unexpired though expiry is the cause. It reads the
// cluster before the store: a recorded change stays until stored.
func (c *Controller) kept(ctx context.Context, deletion *folder.Deletion, run *enginev1alpha1.BackupRun) error {
	recorded, err := backupchange.Recorded(ctx, c.Changes, c.Namespace, run.Name)
	if err != nil {
		return err
	}
	backup := deletion.Stored
	if backup == nil {
		return nil // its removal has begun
	}
	newest, _, err := deletion.NewestExpiration(ctx, backup, c.ClusterUID, c.Keys)
	if err != nil {
		return err
	}
	var hold string
	expiration := backup.Status.Expiration
	if newest != nil {
		if expiration = newest.Expiration; newest.Hold != nil {
			hold = describe(newest.Hold.Requester, newest.Hold.Timestamp.Time, newest.Hold.Reason)
		}
	}
	for _, change := range recorded {
		if change.Spec.UID != deletion.UID || change.Done() {
			continue
		}
		if change.Spec.Expiration != nil {
			expiration = change.Spec.Expiration
		}
		if change.Spec.Hold != nil {
			if hold = ""; *change.Spec.Hold {
				hold = describe(change.Spec.Ask.Requester.Username, change.Spec.Ask.Timestamp.Time, change.Spec.Reason)
			}
		}
	}
	switch {
	case hold != "":
		return &obstacle{attempted: true, text: fmt.Sprintf("the backup is held: %s. Nothing was removed, and it goes on when the backup is released; give the deletion up by removing the BackupRun %s", hold, run.Name)}
	case run.Spec.Deletion.Expired && (expiration == nil || c.Clock.Now().Before(expiration.Time)):
		return &obstacle{attempted: true, text: fmt.Sprintf("the backup has not expired, since it is kept for longer now. Nothing was removed; give the deletion up by removing the BackupRun %s", run.Name)}
	}
	return nil
}

func describe(requester string, since time.Time, reason string) string {
	text := fmt.Sprintf("%s asked for that at %s", requester, since.UTC().Format(time.RFC3339))
	if reason != "" {
		text += ", saying: " + reason
	}
	return text
}
