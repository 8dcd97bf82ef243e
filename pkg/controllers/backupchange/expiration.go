// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// appears is how long after the request an incomplete or missing backup may appear: the store may
// answer late.
const appears = 10 * time.Minute

// changeExpiration writes a changed expiration or hold into the store, or records why not. While the
// store does not answer, the request waits.
func (w *work) changeExpiration(ctx context.Context) error {
	written, err := w.writeExpiration(ctx)
	refused, isRefusal := errors.AsType[refusal](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isRefusal:
		w.change.Status = enginev1alpha1.BackupChangeStatus{Message: string(refused)}
	case err != nil:
		return w.waits(ctx, "the change counts, and waits to be written into the store", err)
	default:
		w.change.Status = enginev1alpha1.BackupChangeStatus{Number: written.Number}
	}
	spec := w.change.Spec
	if err := w.finish(ctx); err != nil {
		return err
	}
	by := spec.Ask.Requester.Username
	if isRefusal {
		w.event(corev1.EventTypeWarning, "ExpirationNotChanged", "The request of %s about the expiration was not carried out: %s", by, refused)
		return nil
	}
	if spec.Hold != nil && *spec.Hold {
		reason := ""
		if spec.Reason != "" {
			reason = " (" + spec.Reason + ")"
		}
		w.event(corev1.EventTypeNormal, "Held", "%s holds the backup: it neither expires nor can be deleted until it is released%s", by, reason)
	} else if spec.Hold != nil {
		w.event(corev1.EventTypeNormal, "Released", "%s has released the backup", by)
	}
	if spec.Expiration != nil {
		w.event(corev1.EventTypeNormal, "ExpirationChanged", "%s lets the backup expire at %s", by, written.Expiration.UTC().Format(time.RFC3339))
	}
	return nil
}

// writeExpiration returns the newest change in the store, or fails with a refusal.
func (w *work) writeExpiration(ctx context.Context) (*format.Expiration, error) {
	spec := &w.change.Spec
	if !w.change.Changes() {
		return nil, refusal("a later request has replaced it")
	}
	opened, err := w.bucket(ctx, spec.StorageLocation)
	if err != nil {
		return nil, err
	}
	of := w.folder(opened, &enginev1alpha1.BackupChangeTarget{StorageLocation: spec.StorageLocation, StoreName: w.change.Name, UID: spec.UID})
	request := fmt.Sprintf("%s/%d", w.change.UID, w.change.Generation)
	written, err := of.Change(ctx, opened, w.Cluster, w.Keys, func(_ *v1alpha1.Backup, stands *format.Expiration) (bool, error) {
		if stands.Request == request {
			return false, nil // written by a process that did not record it
		}
		stands.Requester, stands.Timestamp, stands.Request = spec.Ask.Requester.Username, spec.Ask.Timestamp, request
		if spec.Expiration != nil {
			stands.Expiration = spec.Expiration
		}
		if spec.Hold != nil {
			stands.Hold = nil
			if *spec.Hold {
				stands.Hold = &format.Hold{Requester: spec.Ask.Requester.Username, Timestamp: spec.Ask.Timestamp, Reason: spec.Reason}
			}
		}
		return true, nil
	})
	reason := ""
	switch {
	case errors.Is(err, folder.ErrTooMany):
		return nil, refusal(err.Error())
	case errors.Is(err, folder.ErrUnreadable):
		reason = "the backup's metadata can't be read"
	case errors.Is(err, folder.ErrGone):
		reason = err.Error()
	default:
		return written, err
	}
	if w.Clock.Since(spec.Ask.Timestamp.Time).Abs() < appears {
		return nil, errors.New(reason)
	}
	return nil, refusal(reason)
}
