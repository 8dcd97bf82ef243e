// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/longhorn/deletion"
)

type longhornStore interface {
	deletion.Store
	io.Closer
}

func (w *work) refuseLonghorn(target *enginev1alpha1.BackupChangeTarget) (why string, err error) {
	record, err := w.locations.Get(target.StorageLocation)
	switch {
	case apierrors.IsNotFound(err):
		return noLocation(target.StorageLocation).Error(), nil
	case err != nil:
		return "", err
	case !record.Spec.AllowsDeletion():
		return fmt.Sprintf("the storage location %q does not allow it: see spec.longhorn.allowDeletion", record.Name), nil
	}
	return "", nil
}

// deleteLonghorns deletes by Longhorn's rules. Missing backups count as deleted; protected ones are
// refused.
func (w *work) deleteLonghorns(ctx context.Context) error {
	type volume struct{ location, name string }
	backups := map[volume][]string{}
	deleted := w.deleted()
	for i, target := range w.change.Spec.Targets {
		if !deleted[i] || target.BackupName == "" {
			continue
		}
		why, err := w.refuseLonghorn(&target)
		if err != nil {
			return err
		}
		if why != "" {
			w.change.Status.Refused = append(w.change.Status.Refused, enginev1alpha1.BackupChangeRefusal{Target: int32(i), Message: why})
			continue
		}
		of := volume{target.StorageLocation, target.StoreName}
		backups[of] = append(backups[of], target.BackupName)
	}
	for of, names := range backups {
		record, err := w.locations.Get(of.location)
		if err != nil {
			return fmt.Errorf("deleting from Longhorn's store: %w", err)
		}
		result, err := func() (result deletion.Result, err error) {
			opened, err := w.openLonghorn(ctx, record)
			if err != nil {
				return result, err
			}
			defer opened.Close()
			deleter := deletion.Deleter{Store: opened, Clock: w.Clock}
			return deleter.Backups(ctx, of.name, names, w.change.Spec.History)
		}()
		if err != nil {
			return fmt.Errorf("deleting %d of Longhorn's backups of the volume %s in the storage location %s: %w", len(names), of.name, of.location, err)
		}
		if result.Kept != "" {
			w.event(corev1.EventTypeWarning, "DataKept", "The data of deleted backups stays in Longhorn's store for now: %.500s", result.Kept)
		}
	}
	return nil
}
