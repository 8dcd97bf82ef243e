// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// unread fails while a restore reads the backup, or will. It reads the cluster, as an informer may lag.
// Later restores see the deletion.
func (c *Controller) unread(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	list, err := c.Restores.RestoreRuns(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("finding out whether the backup is being restored: %w", err)
	}
	for i := range list.Items {
		restore := &list.Items[i]
		from := &restore.Spec.Backup
		if restore.Status.Phase.Ended() || from.StoreName != run.Name || from.StorageLocation != run.Spec.Backup.StorageLocation {
			continue
		}
		if from.UID != "" && from.UID != backupUID(run) {
			continue
		}
		return &obstacle{
			text:      "the deletion waits for a restore of the backup to end",
			detail:    fmt.Sprintf("RestoreRun %s", restore.Name),
			attempted: true,
		}
	}
	return nil
}
